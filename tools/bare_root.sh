#!/usr/bin/env bash
# Runs the README's two commands, ./run and ./test quick, in a Debian 12 or Ubuntu 24.04 root in which nothing but the base
# system is installed: no compiler, no Qt, no CUDA toolkit. What is checked is the last commit of this checkout.
# Usage: tools/bare_root.sh debian|ubuntu [FOLDER]    FOLDER keeps the root afterwards; without it the root is temporary
# Exit status: 0 both commands passed, 2 the usage is wrong, 77 they did not run (the reason is said), anything else: a
# command failed.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
debian) name="Debian 12" ;;
ubuntu) name="Ubuntu 24.04" ;;
*)
    echo "usage: tools/bare_root.sh debian|ubuntu [FOLDER]" >&2
    exit 2
    ;;
esac
system=$1
shift

skip() {
    echo "bare $name: not run: $1"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "making a root needs root rights (try sudo)"
command -v debootstrap >/dev/null || skip "debootstrap is not installed (apt: debootstrap)"
unshare --mount true 2>/dev/null || skip "this system does not let root mount inside a namespace of its own"

if [ $# -gt 0 ]; then
    root=$1
else
    root=$(mktemp -d /var/tmp/kvscope-bare.XXXXXX)
    chmod 755 "$root" # mktemp lets its owner in alone, and tests become another user
    trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
fi
[ -e "$root/kvscope" ] && skip "$root is not bare: it has been used before (name a fresh folder)"

if [ "$system" = debian ]; then
    arguments=(--variant=minbase bookworm "$root")
    # The same source of packages as this machine's, where it is a Debian; else debootstrap's own choice.
    if [ -r /etc/apt/sources.list.d/debian.sources ]; then
        mapfile -t -n 1 -O ${#arguments[@]} arguments < <(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources)
    fi
else
    # Qt and most libraries are in the component universe. A debootstrap that is older than the release makes it by the
    # script of all releases of Ubuntu. A Debian without Ubuntu's keys cannot check the signatures of the packages.
    arguments=(--variant=minbase "--components=main,universe")
    [ -r /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || arguments+=(--no-check-gpg)
    arguments+=(noble "$root" http://archive.ubuntu.com/ubuntu)
    [ -e /usr/share/debootstrap/scripts/noble ] || arguments+=(/usr/share/debootstrap/scripts/gutsy)
fi
if ! debootstrap "${arguments[@]}" >"$root.log" 2>&1; then
    tail -n 5 "$root.log"
    skip "debootstrap could not make the root"
fi
for file in /etc/resolv.conf /etc/hosts /etc/apt/apt.conf.d/*proxy*; do
    if [ -r "$file" ]; then install -D -m 644 "$file" "$root$file"; fi
done
git clone -q --no-hardlinks . "$root/kvscope"

# The mounts are seen by this one command alone and end with it.
inRoot() {
    unshare --mount --propagation private bash -c '
        mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/tmp" || exit 1
        root=$1; shift
        exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"' - "$root" "$@"
}
status=0
for command in "./run" "./test quick"; do
    started=$SECONDS
    inRoot bash -c "cd /kvscope && $command" </dev/null || { echo "bare $name: $command failed"; status=1; }
    echo "bare $name: $command took $((SECONDS - started)) s"
done
exit $status

#!/usr/bin/env bash
# Makes the packages, installs the .deb into a Debian 12 root in which nothing else is installed, unpacks the archive into a second
# one, and starts both programs in each. For Ubuntu 24.04, which is not run, it looks at names and versions: no symbol may be newer
# than Debian 12's C and C++ libraries, and every library's package must be named among the dependencies.
# Usage: tools/check_packages.sh [FOLDER]    FOLDER has packages already (build/package); without it they are made
# Exit status: 0 all of that held, 77 it was not run (the reason is said), else something did not.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() {
    echo "packages: not run: $1"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "making a root needs root rights (try sudo)"
command -v debootstrap >/dev/null || skip "debootstrap is not installed (apt: debootstrap)"
[ "$(uname -m)" = x86_64 ] || skip "packages are made for x86_64"
grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || skip "packages are made on Debian 12"
folder=${1:-build/package}
[ $# -gt 0 ] || tools/make_packages.sh >/dev/null
deb=$(ls "$folder"/kvscope_*.deb) archive=$(ls "$folder"/kvscope-*-linux-x86_64.tar.xz)
work=$(mktemp -d /var/tmp/kvscope-packages.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
status=0
fault() {
    echo "packages: $1"
    status=1
}

mkdir "$work/deb"
dpkg-deb -x "$deb" "$work/deb"
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
debootstrap --variant=minbase bookworm "$work/bare" ${mirror:+"$mirror"} >"$work/log" 2>&1 || { tail -n 5 "$work/log"; skip "debootstrap could not make the root"; }
for file in /etc/resolv.conf /etc/hosts /etc/apt/sources.list.d/*.sources /etc/apt/apt.conf.d/*proxy*; do
    if [ -r "$file" ]; then install -D -m 644 "$file" "$work/bare$file"; fi
done
cp -a "$work/bare" "$work/root"

# Names and versions.
for program in "$work"/deb/usr/bin/*; do
    newest=$(objdump -T "$program" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    [ "$(printf '%s\nGLIBC_2.36\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.36 ] || fault "$program needs $newest"
    newest=$(objdump -T "$program" | grep -oE 'GLIBCXX_[0-9.]+' | sort -uV | tail -n 1)
    [ "$(printf '%s\nGLIBCXX_3.4.30\n' "$newest" | sort -V | tail -n 1)" = GLIBCXX_3.4.30 ] || fault "$program needs $newest"
done
depends=$(dpkg-deb -f "$deb" Depends)
mkdir -p "$work/shlibs/debian"
touch "$work/shlibs/debian/control"
needed=$(cd "$work/shlibs" && dpkg-shlibdeps -O "$work"/deb/usr/bin/* 2>/dev/null | sed 's/^shlibs:Depends=//')
for package in $(tr ',' '\n' <<<"$needed" | awk '{ print $1 }'); do
    tr ',|' '\n' <<<"$depends" | awk '{ print $1 }' | grep -qxF "$package" || fault "the .deb does not name $package, which its programs need"
done

# What a user sees first.
try() { # name of the root, folder, folder of the programs, environment...
    local name=$1 root=$2 programs=$3
    shift 3
    inRoot() { chroot "$root" /usr/bin/env -i HOME=/tmp PATH=/usr/bin:/bin LC_ALL=C.UTF-8 QT_QPA_PLATFORM=offscreen "$@"; }
    inRoot "$programs/kvscope-cli" --version || fault "$name: kvscope-cli does not start"
    inRoot "$programs/kvscope-cli" run --prompt-needle 600 --method nosa --max-new-tokens 8 --trace /tmp/first.kvtrace >/dev/null ||
        fault "$name: kvscope-cli run failed"
    inRoot "$programs/kvscope" render /tmp/first.kvtrace --view timeline --window -o /tmp/first.png || fault "$name: kvscope render failed"
    [ -s "$root/tmp/first.png" ] || fault "$name: kvscope drew no picture"
}
cp "$deb" "$work/root/tmp/kvscope.deb"
chroot "$work/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    bash -c 'apt-get update -q && apt-get install -y -q --no-install-recommends /tmp/kvscope.deb' >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log"; fault "the .deb cannot be installed"; }
try "Debian 12 with the .deb" "$work/root" /usr/bin
for file in share/applications/kvscope.desktop share/mime/packages/kvscope.xml share/icons/hicolor/scalable/apps/kvscope.svg \
    share/metainfo/kvscope.metainfo.xml share/man/man1/kvscope-cli-run.1.gz share/bash-completion/completions/kvscope-cli \
    share/doc/kvscope/third-party.md; do
    [ -s "$work/deb/usr/$file" ] || fault "the .deb has no $file"
done
mkdir "$work/bare/opt/kvscope"
tar -xJf "$archive" -C "$work/bare/opt/kvscope" --strip-components=1
try "a bare Debian 12 with the archive" "$work/bare" /opt/kvscope/bin
echo "packages: $(basename "$deb") $(stat -c %s "$deb") bytes, $(basename "$archive") $(stat -c %s "$archive") bytes; not run on Ubuntu 24.04"
exit $status

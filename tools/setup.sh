#!/usr/bin/env bash
# Installs with apt what building KVScope needs and is missing, on Debian 12 and Ubuntu 24.04. Says what it installs;
# does nothing, quickly, when all is there. Usage: tools/setup.sh [tests]
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config ccache git ca-certificates
          libsqlite3-dev nlohmann-json3-dev libcli11-dev libfmt-dev libhwy-dev libpcre2-dev libutf8proc-dev zlib1g-dev libasio-dev
          qt6-base-dev qt6-svg-dev libqt6svg6 libgl-dev libqcustomplot-dev libqcustomplot2.1-qt6 fonts-dejavu-core)
[ "${1:-}" = tests ] && packages+=(libgtest-dev libgmock-dev sqlite3 xvfb xauth python3 python3-venv)

# Checks of the sources: ./test says what it skips where a system does not have them in this version.
if [ "${1:-}" = tests ] && command -v apt-cache >/dev/null; then
    for package in clang-format-14 clang-tidy-14 shellcheck; do
        if apt-cache show "$package" >/dev/null 2>&1; then packages+=("$package"); fi
    done
fi

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: these packages are missing and this system has no apt: ${missing[*]}" >&2
    echo "setup: install their equivalents, then build with: cmake --preset release && cmake --build --preset release" >&2
    exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: run as root, or install: ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A fresh machine has no package lists; an old one may have stale lists, so update before giving up.
"${sudo[@]}" apt-get update -q >"$log" 2>&1 || true
if ! "${sudo[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "setup: apt could not install the packages above; mend that and run this again" >&2
    exit 1
fi

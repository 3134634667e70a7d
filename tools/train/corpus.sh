#!/bin/bash
# Builds the training text from Debian documentation packages (section main: free licences only).
#
#   corpus.sh WORK_DIR        writes WORK_DIR/corpus.txt and WORK_DIR/heldout.txt
#
# Needs apt-get with a Debian 12 source (section main), python3 with lxml, groff-base, bsdextrautils; about 4 GB of disk. Debian revises
# packages in place and drops some, so a later run gives a slightly different text: what could not be had is listed in
# WORK_DIR/missing.txt and left out. Packages already in WORK_DIR/debs are not asked for again.
set -euo pipefail
if [ $# -ne 1 ] || [ "$1" = --help ] || [ "$1" = -h ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0"
  exit $(( $# == 1 ? 0 : 2 ))
fi
work=$1
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
packages="
ada-reference-manual-2012 alpine-doc anarchism ant-doc apache2-doc apt-doc aptitude-doc-en bind9-doc
borgbackup-doc c++-annotations-html cinder-doc clang-16-doc cmake-doc crawl-common csound-doc
db5.3-doc debian-faq debian-handbook debian-history debian-kernel-handbook debian-policy
debian-reference-en designate-doc developers-reference dict-devil dict-elements dict-foldoc
dict-gcide dict-jargon dict-vera dict-wn doc-debian dpdk-doc endless-sky-data erlang-doc
exim4-doc-html fortune-anarchism fortunes fortunes-debian-hints fortunes-min freeciv-data frr-doc
ganeti-doc gap-doc git-doc glance-doc gnome-devel-docs gnome-user-docs golang-1.19-doc guile-3.0-doc
haproxy-doc harden-doc heat-doc icu-doc imagemagick-6-doc installation-guide-amd64 ironic-doc
jargon-text keystone-doc knot-resolver-doc krb5-doc libboost1.81-doc libgtk-4-doc
libreoffice-help-en-us libstdc++-12-doc libvirt-doc lilypond-doc-html linux-doc-6.1 live-manual-html
llvm-16-doc manila-doc manpages manpages-dev maxima-doc nethack-common neutron-doc ngspice-doc
nova-doc octave-doc openvswitch-doc pcp-doc perl-doc postfix-doc postgresql-doc-15
python-astropy-doc python-celery-doc python-dask-doc python-django-doc python-flask-doc
python-h5py-doc python-pandas-doc python-scipy-doc python-sklearn-doc python-sqlalchemy-doc
python-statsmodels-doc python-sympy-doc python3.11-doc qtbase5-doc-html qtdeclarative5-doc-html
r-doc-html racket-doc rdkit-doc rsyslog-doc rt5-doc-html rust-doc sahara-doc sbcl-doc sphinx-doc
sqlite3-doc swi-prolog-doc swift-doc trove-doc vim-runtime weka-doc wesnoth-1.16-did wesnoth-1.16-dm
wesnoth-1.16-dw wesnoth-1.16-ei wesnoth-1.16-httt wesnoth-1.16-l wesnoth-1.16-low wesnoth-1.16-nr
wesnoth-1.16-sof wesnoth-1.16-sotbe wesnoth-1.16-thot wesnoth-1.16-trow wesnoth-1.16-tsg
wesnoth-1.16-utbs xapian-doc xorg-docs zsh-doc
"
mkdir -p "$work/debs" "$work/text"
work=$(cd "$work" && pwd)
: > "$work/missing.txt"

fetch() {                                    # one package at a time: one that is gone must not stop the others
  compgen -G "$work/debs/$1_*.deb" > /dev/null && return
  ( cd "$work/debs" && apt-get -q download "$1" > /dev/null 2>&1 ) || echo "$1" >> "$work/missing.txt"
}

for package in $packages bible-kjv bible-kjv-text; do
  fetch "$package"
done
for package in $packages; do
  deb=$(compgen -G "$work/debs/${package}_*.deb" | head -1) || continue
  [ -e "$work/text/$package/.unpacked" ] && continue
  mkdir -p "$work/text/$package"
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/text/$package" --wildcards \
    --exclude='*.png' --exclude='*.jpg' --exclude='*.svg' --exclude='*.pdf' --exclude='*.ogg' --exclude='*.js' \
    --exclude='*.webp' --exclude='*.gif' --exclude='*.jpeg' --exclude='*.wav' --exclude='*.css' --exclude='*.woff*' \
    --exclude='*.ipynb' --exclude='*.zip'
  touch "$work/text/$package/.unpacked"
done

# The King James Bible: its reader is unpacked, not installed, and prints one paragraph for each chapter.
reader=$(compgen -G "$work/debs/bible-kjv_*.deb" | head -1) || true
if [ -n "$reader" ]; then
  mkdir -p "$work/bible" "$work/text/bible-kjv"
  for deb in "$work"/debs/bible-kjv*.deb; do dpkg-deb -x "$deb" "$work/bible"; done
  "$work/bible/usr/bin/bible" -p "$work/bible/usr/lib" 'gen1:1-rev22:21' | sed 's/^ *[0-9]* //' | "$python" -c '
import re, sys
chapters = re.split(r"\n\s*\n[ ]*[1-3]?[A-Za-z ]+ \d+\s*\n\s*\n?", sys.stdin.read())
print("\n\n".join(re.sub(r"\s+", " ", c).strip() for c in chapters))' > "$work/text/bible-kjv/kjv.txt" \
    || { echo "bible-kjv (its reader does not run here)" >> "$work/missing.txt"; rm -rf "$work/text/bible-kjv"; }
fi
"$python" "$here/clean_text.py" "$work/text" "$work/corpus.txt" "$work/heldout.txt"
[ -s "$work/missing.txt" ] && { echo "left out:"; sed 's/^/  /' "$work/missing.txt"; } || true

#!/usr/bin/env bash
# Writes man pages of the programs and of every subcommand, of what they print with --help. Usage: make_man_pages.sh PROGRAMS FOLDER
# PROGRAMS is the folder in which kvscope-cli and, where it was built, kvscope lie.
set -euo pipefail
programs=$1 folder=$2
rm -rf "$folder"
mkdir -p "$folder"
export LC_ALL=C.UTF-8 QT_QPA_PLATFORM=offscreen PATH=$programs:$PATH

# Arguments: name of the page, what it is in one line, command.
page() {
    help2man --no-info --no-discard-stderr --name "$2" --version-string "$(kvscope-cli --version | awk '{ print $2 }')" \
        --section 1 --source KVScope "$3" | sed "s/^\.TH .* \"1\"/.TH ${1^^} \"1\"/" | gzip -n9 >"$folder/$1.1.gz"
}

for program in kvscope-cli kvscope; do
    [ -x "$programs/$program" ] || continue
    page "$program" "profiler for sparse-attention decoding with KV-cache offloading" "$program"
    while read -r command summary; do
        page "$program-$command" "${summary,}" "$program $command"
    done < <("$program" --help | awk '/^Subcommands:/ { on = 1; next } on && /^  [a-z]/')
done

#!/usr/bin/env bash
# Makes a checkout of this repository for machines to which little can be copied. A plain clone has everything; `git
# sparse-checkout disable` in the folder brings it back.
# Usage: tools/small_checkout.sh [--without MODEL] FOLDER [REPOSITORY]
#   --without losa-tiny  (the default) leaves out the weights of the model for block diffusion, the fixtures computed from
#                        them, nosa-tiny's two longest fixtures, those of the variants, of tokenizers, chat templates, GGUF files of families and small
#                        diffusion models, and the documents' pictures: what a build, most tests and most benchmarks do not need. Tests that need
#                        them are skipped.
#   --without nosa-tiny  leaves out the weights of the model for everything else, with what was learned beside it, those
#                        fixtures and the pictures, for tests of block diffusion by their names
#   REPOSITORY           a path or an address; without it the one of this checkout
set -euo pipefail

usage() {
    echo "usage: tools/small_checkout.sh [--without losa-tiny|nosa-tiny] FOLDER [REPOSITORY]" >&2
    exit 2
}
without=losa-tiny
if [ "${1:-}" = --without ]; then
    [ $# -ge 2 ] || usage
    without=$2
    shift 2
fi
left_out=('!/tests/golden/golden_variants.safetensors' '!/tests/golden/golden_mid.safetensors' '!/tests/golden/golden_long.safetensors' '!/tests/golden/tokenizer_fixture.jsonl' '!/tests/golden/tokenizers/cases.jsonl' '!/tests/golden/hf_llama/tokenizer_cases.jsonl' '!/tests/golden/chat_cases.jsonl' '!/tests/golden/denoise/runs.jsonl' '!/tests/golden/gguf/families' '!/tests/golden/pictures' '!/docs/images')
case $without in
losa-tiny) left_out+=('!/resources/models/losa-tiny/model.safetensors' '!/tests/golden/losa/*.json' '!/tests/golden/losa/tensors.safetensors') ;;
nosa-tiny) left_out+=('!/resources/models/nosa-tiny/*.safetensors') ;;
*) usage ;;
esac
[ $# -ge 1 ] && [ $# -le 2 ] || usage
folder=$1
repository=${2:-$(git -C "$(dirname "$0")" rev-parse --show-toplevel)}
if [ -e "$folder" ]; then
    echo "small_checkout.sh: $folder is there already; name a new folder" >&2
    exit 1
fi

git clone --quiet --no-checkout "$repository" "$folder"
cd "$folder"
git sparse-checkout set --no-cone '/*' "${left_out[@]}"
git checkout --quiet
git ls-files -t | grep '^S ' | sed 's/^S /left out: /'
git ls-files -t -z | grep -zv '^S ' | sed -z 's/^. //' | xargs -0 du -cb | tail -1 |
    awk '{printf "%.1f MiB of files are here\n", $1 / 1048576}'

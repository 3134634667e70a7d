#!/usr/bin/env bash
# Makes a checkout of this repository that leaves out what a build, most tests and most benchmarks do not need: the weights
# of the model for block diffusion and the fixtures computed from them. What needs them says so and is skipped. A plain clone
# has everything; `git sparse-checkout disable` in the folder brings it back.
# Usage: tools/small_checkout.sh FOLDER [REPOSITORY]    REPOSITORY: a path or an address; without it the one of this checkout
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: tools/small_checkout.sh FOLDER [REPOSITORY]" >&2
    exit 2
fi
folder=$1
repository=${2:-$(git -C "$(dirname "$0")" rev-parse --show-toplevel)}
if [ -e "$folder" ]; then
    echo "small_checkout.sh: $folder is there already; name a new folder" >&2
    exit 1
fi

git clone --quiet --no-checkout "$repository" "$folder"
cd "$folder"
git sparse-checkout set --no-cone '/*' '!/resources/models/losa-tiny/model.safetensors' \
    '!/tests/golden/losa/*.json' '!/tests/golden/losa/tensors.safetensors'
git checkout --quiet
git ls-files -t | grep '^S ' | sed 's/^S /left out: /'
git ls-files -t -z | grep -zv '^S ' | sed -z 's/^. //' | xargs -0 du -cb | tail -1 |
    awk '{printf "%.1f MiB of files are here\n", $1 / 1048576}'

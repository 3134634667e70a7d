#!/bin/bash
# The embedded model, end to end: Debian text packages -> weights, evaluation, golden fixtures.
#
#   train_embedded_model.sh WORK_DIR [STAGE...]
#
# Stages, in order (all of them when none is named; each starts from what the earlier ones left in WORK_DIR):
#
#   corpus     download and clean the text                        CPU, 15 to 60 minutes, 4 GB
#   tokens     encode it with the shipped tokenizer               CPU, minutes
#   smoke      check kernels, losses and stages                   GPU (or CPU, when there is no GPU)
#   train      stage 1, stage 2, Forecast heads                   one GPU, 15 minutes on an H200
#   refit      instead of train: stage 2 and heads from the shipped weights, 5 minutes
#   evaluate   the tables of the model's README                   one GPU, 3 minutes
#   fixtures   golden fixtures with the float32 reference         CPU, minutes
#   install    copy weights and fixtures into this source tree
#
# `refit` and `install` run only when named. PYTHON names the interpreter (PyTorch, NumPy, tokenizers, lxml; regex for
# bpe.py); SECONDS_STAGE1, SECONDS_NOSA and SECONDS_FORECAST change the length of the training stages.
set -euo pipefail
usage() { sed -n '2,19s/^# \{0,1\}//p' "$0"; }
case ${1:-} in ''|-h|--help) usage; exit $(( $# == 0 ? 2 : 0 ));; esac
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
shipped=$root/resources/models/nosa-tiny
python=${PYTHON:-python3}
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- corpus tokens smoke train evaluate fixtures
weights=$work/out/nosa-forecast.safetensors

corpus() { PYTHON=$python "$here/corpus.sh" "$work"; }
tokens() { "$python" "$here/tokenize_corpus.py" "$work/corpus.txt" "$work/heldout.txt" "$work/data" --tokenizer "$shipped/tokenizer.json"; }
smoke() {
  local device=cpu
  "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && device=cuda
  "$python" "$here/smoke.py" --device $device
}
train() {
  "$python" "$here/train.py" --data "$work/data" --out "$work/out" \
    --stages "stage1:${SECONDS_STAGE1:-330},nosa:${SECONDS_NOSA:-510},forecast:${SECONDS_FORECAST:-70}"
}
refit() {
  "$python" "$here/train.py" --data "$work/data" --out "$work/out" --start "$shipped/model.safetensors" \
    --stages "nosa:${SECONDS_NOSA:-250},forecast:${SECONDS_FORECAST:-45}"
}
evaluate() { "$python" "$here/evaluate.py" --data "$work/data" --out "$work/out/eval.json" "nosa=$weights"; }
fixtures() {
  mkdir -p "$work/models/nosa-tiny"
  cp "$shipped"/*.json "$work/models/nosa-tiny/"
  cp "$weights" "$work/models/nosa-tiny/model.safetensors"
  "$python" "$here/make_golden.py" "$work/models" "$work/golden" --prompts-from "$root/tests/golden" --check
  "$python" "$here/measure_rounding.py" "$work/models/nosa-tiny" "$work/golden"
}
install() {
  cp "$work/models/nosa-tiny/model.safetensors" "$shipped/model.safetensors"
  cp "$work"/golden/golden_{short,mid,long}.safetensors "$work"/golden/{prompts,rounding}.json "$root/tests/golden/"
}

for stage in "$@"; do
  case $stage in
    corpus|tokens|smoke|train|refit|evaluate|fixtures|install) echo "== $stage"; $stage;;
    *) echo "train_embedded_model.sh: there is no stage '$stage'; see --help" >&2; exit 2;;
  esac
done

#!/bin/bash
# Makes the pictures of the documentation again, from runs of the embedded model and from the sample traces:
#   tools/make_pictures.sh [BUILD]        BUILD: build tree, build/ci unless given; about five minutes on two cores
# With pngquant, or a PYTHON that has Pillow, they are reduced to a palette, half the size.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/ci}
export QT_QPA_PLATFORM=offscreen
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for method in nosa infllmv2; do
    "$build/app/kvscope-cli" run --prompt-needle 9000 --method $method --max-new-tokens 64 --oracle --trace "$work/$method.kvtrace" >"$work/log"
done

# picture NAME TRACE VIEW [option...]
picture() {
    local name=$1 trace=$2 view=$3
    shift 3
    "$build/app/kvscope" render "$trace" --view "$view" --size "${size:-1440x900}" "$@" -o "$work/$name.png"
    if command -v pngquant >/dev/null; then # flat colours: a palette loses nothing that is seen
        pngquant --force --quality 70-100 --output "docs/images/$name.png" "$work/$name.png"
    elif "${PYTHON:-python3}" -c 'import PIL' 2>/dev/null; then
        "${PYTHON:-python3}" -c 'import sys; from PIL import Image; Image.open(sys.argv[1]).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(sys.argv[2], optimize=True)' \
            "$work/$name.png" "docs/images/$name.png"
    else
        cp "$work/$name.png" "docs/images/$name.png"
    fi
    stat --format '%n %s bytes' "docs/images/$name.png"
}

sample=resources/samples/h200-nosa-8b.kvtrace
picture needle "$work/nosa.kvtrace" selection --step 3 --layer 7 --block 70 --window
picture main-light "$work/nosa.kvtrace" locality --step 20 --layer 7 --window
picture main-dark "$sample" transfers --theme dark --step 12 --window
picture compare "$work/nosa.kvtrace" compare --compare "$work/infllmv2.kvtrace" --step 20 --window
size=1440x540 picture timeline "$sample" timeline --theme dark --step 12
picture sql "$sample" sql --step 12 --window

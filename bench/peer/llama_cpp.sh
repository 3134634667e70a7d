#!/usr/bin/env bash
# SmolLM2-135M-Instruct (Q4_1) in KVScope and in llama.cpp, alternating, the same threads: ids, tokens/s of reading a prompt and
# of decoding, ratios. Installs llama-cpp-python into build/peer, built for this machine (some minutes, once).
#   bench/peer/llama_cpp.sh [--rounds 7] [--threads 2] [--speed-only]
set -euo pipefail
cd "$(dirname "$0")/../.."
cli=build/ci/app/kvscope-cli
[ -x "$cli" ] || { echo "build first: cmake --preset ci && cmake --build --preset ci --target kvscope-cli" >&2; exit 1; }
python=build/peer/bin/python
if ! "$python" -c "import llama_cpp, numpy" 2>/dev/null; then
    python3 -m venv build/peer
    build/peer/bin/pip install --quiet numpy llama-cpp-python
fi
exec "$python" bench/peer/beside_llama_cpp.py "$cli" "$(tools/fetch_smollm2.py)" "$@"

#!/usr/bin/env bash
# Builds a .deb and an archive that needs nothing installed, in build/package. Both hold the GPU code of all generations where a
# CUDA toolkit is found. Needs what ./run needs, and for the man pages help2man. Usage: tools/make_packages.sh [CMAKE OPTIONS...]
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
cmake --preset release -B build/package -DKVSCOPE_PACKAGE=ON -DKVSCOPE_TESTS=OFF -DKVSCOPE_CUDA_WITHOUT_GPU=ON \
    -DKVSCOPE_CUDA_ARCHITECTURES="80-real;90a-real;100-real;100-virtual" "$@"
cmake --build build/package --target kvscope kvscope-cli
cd build/package
rm -f ./*.deb ./*.tar.xz
cpack
ls -l ./*.deb ./*.tar.xz

#!/usr/bin/env bash
# Builds the command line and the tests for this machine's GPU and checks the CUDA backend. For a machine with a GPU and
# without a display; DEPS may point at a folder with the libraries' headers and binaries (usr/include, usr/lib/...).
#   tools/gpu_check.sh build|test|rows|sanitize|bench...      in that order, as many as wanted
# rows: what serves requests that come and go. BUILD may name another build folder, TARGETS what of it is built.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build/gpu}
mkdir -p build
export PATH=$PATH:/usr/local/cuda/bin
if [ -n "${DEPS:-}" ]; then
    export PKG_CONFIG=$DEPS/usr/bin/pkgconf PKG_CONFIG_SYSROOT_DIR=$DEPS
    export PKG_CONFIG_PATH=$DEPS/usr/lib/x86_64-linux-gnu/pkgconfig
    export LD_LIBRARY_PATH=$DEPS/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    chmod +x "$PKG_CONFIG"
    prefix=(-DCMAKE_PREFIX_PATH="$DEPS/usr;$DEPS/usr/lib/x86_64-linux-gnu")
fi
export KVSCOPE_TEST_BACKEND=cuda
for what in "$@"; do
    case $what in
    build)
        cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVSCOPE_UI=OFF -DKVSCOPE_TESTS=ON -DKVSCOPE_CUDA=ON \
            -DKVSCOPE_CUDA_ARCHITECTURES=native "${prefix[@]}" >$build.log 2>&1 || { mkdir -p build; tail -n 40 $build.log; exit 1; }
        cmake --build $build ${TARGETS:+--target $TARGETS} >$build.log 2>&1 || { grep -E 'error|FAILED' -A6 $build.log | head -n 60; exit 1; }
        ;;
    test) $build/tests/kernels_tests --gtest_brief=1 --gtest_filter='*Cuda*' && $build/tests/core_tests --gtest_brief=1 --gtest_filter='*Golden*:*Session*:*EveryMethod*:Oracle*:*OnTheGpu*' && $build/tests/profiler_tests --gtest_brief=1 --gtest_filter='GpuRecording*' ;;
    rows)
        $build/tests/core_tests --gtest_brief=1 --gtest_filter='*ServedOnCuda*:RowsOnCuda*:*DeclaredRow*'
        KVSCOPE_NO_CUBLAS=1 compute-sanitizer --tool memcheck --error-exitcode 9 $build/tests/core_tests --gtest_brief=1 \
            --gtest_filter='RowsOnCuda.Refuse*:RowsOnCuda.ServeASmall*' | grep -E 'ERROR SUMMARY|FAILED|=========' | tail -n 15
        $build/app/kvscope-bench served-steps
        ;;
    sanitize)
        # Own kernels only: the checks do not understand the asynchronous copies inside cuBLASLt's.
        for tool in memcheck racecheck initcheck synccheck; do
            KVSCOPE_NO_CUBLAS=1 compute-sanitizer --tool $tool --error-exitcode 9 $build/tests/kernels_tests --gtest_brief=1 --gtest_filter='*Cuda*' |
                grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|FAILED|=========' | tail -n 15
        done
        # Sessions whose arrays are allocations of their own, so that an access behind an array's end is found.
        KVSCOPE_SEPARATE_ARRAYS=1 KVSCOPE_NO_CUBLAS=1 compute-sanitizer --tool memcheck --error-exitcode 9 $build/tests/core_tests \
            --gtest_brief=1 --gtest_filter='*EveryMethod*:*Golden*' | grep -E 'ERROR SUMMARY|FAILED|=========' | tail -n 15
        ;;
    *) $build/app/kvscope-cli bench "$what" ;;
    esac
done

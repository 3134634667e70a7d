#include "kernels/cuda/testing/coded_numbers.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/transfer/quantised_numbers.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;

/// Grid: (blocks, 2). The keys of a block, or its values.
template <KvType kType>
__global__ void __launch_bounds__(kThreads) readKernel(KvFormat format, const char* codes, Bf16* numbers) {
    const CodeMatrix m = codeMatrix(format, blockIdx.y != 0);
    const char* block = codes + std::int64_t(blockIdx.x) * format.blockBytes();
    Bf16* to = numbers + std::int64_t(blockIdx.x) * format.numbers() + m.numbersAt;
    letNextKernelStart();
    waitForEarlierKernels();
    for (int at = int(threadIdx.x) * kTogether; at < m.rows * m.cols; at += kThreads * kTogether) {
        EightScales<kType> scales;
        scales.read(block + m.scalesAt, at % m.cols, at / m.cols / m.groupRows, m.groups);
        const auto eight = reinterpret_cast<const EightCodes<kType>*>(block + m.codesAt)[at / kTogether];
        *reinterpret_cast<uint4*>(to + at) = numbersOf<kType>(eight, scales);
    }
}

} // namespace

void readCodedBlocks(const Launch& how, const KvFormat& format, const char* codes, int blocks, Bf16* numbers) {
    if (blocks == 0) return;
    withType(format, [&](auto type) {
        launch(how, {dim3(unsigned(blocks), 2), dim3(kThreads)}, readKernel<decltype(type)::value>,
               "reading coded blocks", format, codes, numbers);
    });
}

} // namespace kvscope::cuda

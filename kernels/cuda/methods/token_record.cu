#include "kernels/cuda/methods/token_record.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;

/// Whether an ascending list contains a number.
__device__ bool contains(const std::int32_t* list, int count, std::int32_t number) {
    int low = 0, high = count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (list[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && list[low] == number;
}

__global__ void __launch_bounds__(kThreads) recordKernel(RecordChoiceArgs a) {
    const int item = blockIdx.x, row = item / a.kvHeads;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const std::size_t first = std::size_t(item) * a.capacity;
    const std::int32_t *tokens = a.tokens + first, *before = a.previous + first;
    const int count = a.count[item], beforeCount = a.previousCount[item];
    int kept = 0;
    for (int base = 0; base < count; base += kThreads) {
        const int i = base + int(threadIdx.x);
        kept += __syncthreads_count(i < count && contains(before, beforeCount, tokens[i]));
    }
    __syncthreads(); // all threads have read the list of the step before
    for (int i = threadIdx.x; i < count; i += kThreads) {
        a.previous[first + i] = tokens[i];
        if (a.record.tokens != nullptr) a.record.tokens[first + i] = tokens[i];
        if (a.record.scores != nullptr)
            a.record.scores[first + i] = a.tokenScores != nullptr ? a.tokenScores[first + i] : nanf("");
    }
    if (threadIdx.x != 0) return;
    a.previousCount[item] = count;
    const int newest = count > 0 && tokens[count - 1] == a.position[row] ? 1 : 0, hits = a.loads ? newest : count;
    a.record.heads[item] = {count, beforeCount > 0 ? kept : -1, hits, count - hits};
}

} // namespace

void recordChoice(const Launch& how, const RecordChoiceArgs& args) {
    if (args.rows == 0 || args.record.heads == nullptr) return;
    launch(how, {dim3(unsigned(args.rows * args.kvHeads)), dim3(kThreads)}, recordKernel, "reporting a choice", args);
}

} // namespace kvscope::cuda

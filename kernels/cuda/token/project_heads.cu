#include "kernels/cuda/token/project_heads.h"

#include "kernels/cuda/linear/few_rows.cuh"
#include "kernels/cuda/linear/one_input.cuh"
#include "kernels/cuda/token/rotation.cuh"
#include "kernels/cuda/token/token_index.cuh"

#include <bit>

namespace kvscope::cuda {
namespace {

/// The Finish of projectAndAppend. An output is a pair of channels that are rotated together, or of a value head two
/// channels at the same distance; outputs go head after head. Behind them every KV head has an output for its eviction
/// score, whose two rows are those of foldEvictionHead.
struct AppendHeads {
    static constexpr bool kPairs = true, kOnce = true;
    struct Ready {
        float cos, sin, lowBias, highBias;
        Bf16* to; // where a key or value goes
        int position;
        bool active;
    };
    AppendArgs a;
    const float* bias;
    float* plain;
    int heads, halfBits; // query, key and value heads together; log2 of the pairs of a head

    __device__ int headOf(int output) const { return output >> halfBits; }
    __device__ Pair pairOf(int output) const {
        const int half = 1 << halfBits;
        return {a.interleaved, output & (half - 1), half};
    }
    __device__ bool isScore(int head) const { return head >= heads; }
    __device__ bool isValue(int head) const { return head >= a.shape.queryHeads + a.shape.kvHeads; }
    __device__ int kvHead(int head) const { return head - a.shape.queryHeads - (isValue(head) ? a.shape.kvHeads : 0); }

    __device__ int row(int output) const {
        const int beforeHead = output & ~((1 << halfBits) - 1); // pairs of the heads before
        return apart(output) == 1 ? 2 * output : output + beforeHead;
    }
    __device__ int apart(int output) const { return a.interleaved || isScore(headOf(output)) ? 1 : 1 << halfBits; }
    __device__ Bf16* placeOf(int head, int position, int sequence) const {
        const TokenPlace place(a, sequence * a.shape.kvHeads + kvHead(head), position);
        return isValue(head) ? place.value : place.key;
    }
    /// May read positions before the wait: they change only at a step's end.
    __device__ void prepare(Ready& ready, int output, int sequence) const {
        const int head = headOf(output), half = 1 << halfBits;
        const Pair pair = pairOf(output);
        ready.position = a.position[sequence];
        ready.active = a.active == nullptr || a.active[sequence] != 0;
        if (isScore(head)) return;
        ready.lowBias = bias != nullptr ? bias[head * a.shape.dim + pair.low] : 0.f;
        ready.highBias = bias != nullptr ? bias[head * a.shape.dim + pair.high] : 0.f;
        if (head >= a.shape.queryHeads && a.listSlot == nullptr) ready.to = placeOf(head, ready.position, sequence);
        if (isValue(head)) return;
        const Angles angles(a, sequence, ready.position, half);
        ready.cos = angles.cos[output & (half - 1)];
        ready.sin = angles.sin[output & (half - 1)];
    }
    /// Finds the place of a key or value whose slot an earlier kernel of the step has listed. A row that is not active
    /// has no list.
    __device__ void await(Ready& ready, int output, int sequence) const {
        const int head = headOf(output);
        if (ready.active && a.listSlot != nullptr && head >= a.shape.queryHeads && !isScore(head))
            ready.to = placeOf(head, ready.position, sequence);
    }
    __device__ void finish(const Ready& ready, int output, int sequence, float x, float y) const {
        const bool reports = output == 0 && sequence == 0;
        if (reports) stamp(a.marks[0]);
        if (!ready.active) return;
        const int head = headOf(output), firstKv = sequence * a.shape.kvHeads;
        if (isScore(head)) {
            const int g = output - (heads << halfBits);
            return keepScore(ready.position, g, firstKv + g, x + y);
        }
        const Pair pair = pairOf(output);
        x += ready.lowBias;
        y += ready.highBias;
        if (plain != nullptr) {
            float* const to = plain + (std::size_t(sequence) * heads + head) * a.shape.dim;
            to[pair.low] = x;
            to[pair.high] = y;
        }
        if (isValue(head)) return keepValue(ready, firstKv + kvHead(head), pair, x, y);
        const Bf16 low = __float2bfloat16(x * ready.cos - y * ready.sin),
                   high = __float2bfloat16(y * ready.cos + x * ready.sin);
        const bool query = head < a.shape.queryHeads;
        Bf16* to = query ? a.q + (std::size_t(sequence) * a.shape.queryHeads + head) * a.shape.dim : ready.to;
        to[pair.low] = low;
        to[pair.high] = high;
        if (reports) stamp(a.marks[1]);
        if (!query) keepKey(ready.position, firstKv + kvHead(head), pair, low, high);
    }
    __device__ void keepValue(const Ready& ready, int head, const Pair& pair, float x, float y) const {
        const int stride = a.blocks != nullptr && !a.valuesByToken ? a.shape.blockSize : 1;
        const Bf16 low = __float2bfloat16(x), high = __float2bfloat16(y);
        ready.to[pair.low * stride] = low;
        ready.to[pair.high * stride] = high;
        if (a.blocks != nullptr && a.newValue != nullptr) {
            a.newValue[head * a.shape.dim + pair.low] = low;
            a.newValue[head * a.shape.dim + pair.high] = high;
        }
    }
    /// After a key is in its place: copies it to newKey if that is wanted, and appends it to the block index.
    __device__ void keepKey(int position, int head, const Pair& pair, Bf16 low, Bf16 high) const {
        const int dim = a.shape.dim, bs = a.shape.blockSize;
        if (a.blocks != nullptr && a.newKey != nullptr) {
            a.newKey[head * dim + pair.low] = low;
            a.newKey[head * dim + pair.high] = high;
        }
        appendChannel(a.index, head, position, bs, dim, pair.low, __bfloat162float(low));
        appendChannel(a.index, head, position, bs, dim, pair.high, __bfloat162float(high));
    }
    __device__ void keepScore(int position, int g, int head, float product) const {
        const float score = a.eviction.gain[g] * softplus(product);
        a.index.tokenScores[a.index.tokenFirst[head] + position] = score;
        appendScore<1>(a.index, head, position, score, 0);
    }
};

/// Grid (columns / kFoldThreads, kvHeads).
constexpr int kFoldThreads = 128;
__global__ void __launch_bounds__(kFoldThreads)
    foldKernel(const float* delta, const Bf16* values, int width, int cols, Bf16* rows) {
    const int c = blockIdx.x * kFoldThreads + threadIdx.x, g = blockIdx.y;
    letNextKernelStart();
    waitForEarlierKernels();
    if (c >= cols) return;
    double sum = 0;
    for (int i = 0; i < width; ++i)
        sum += double(delta[g * width + i]) * double(__bfloat162float(values[std::size_t(i) * cols + c]));
    const Bf16 high = __float2bfloat16(float(sum));
    rows[std::size_t(2 * g) * cols + c] = high;
    rows[std::size_t(2 * g + 1) * cols + c] = __float2bfloat16(float(sum - double(__bfloat162float(high))));
}

} // namespace

bool canProjectAndAppend(const DeviceMatrix& w, const AppendArgs& append) {
    const bool fits = append.rows == 1 ? w.cols <= kWidestOneInput : rowsTakeFloats(append.rows, w.cols);
    return fits && w.data != nullptr && append.norms.query == nullptr &&
           (append.eviction.gain == nullptr || append.eviction.folded);
}

void projectAndAppend(const Launch& how, const ProjectArgs& args, const AppendArgs& append) {
    const AttentionShape& shape = append.shape;
    AppendHeads finish{append, args.bias, args.plain, shape.queryHeads + 2 * shape.kvHeads,
                       std::countr_zero(unsigned(shape.dim / 2))};
    const int scores = append.eviction.gain != nullptr ? shape.kvHeads : 0;
    const int outputs = args.w.rows / 2 + scores;
    if (append.rows > 1)
        return launchRows<FloatRowInputs>(how,
                                          {args.w.data, outputs, args.w.cols, args.x, args.w.cols, nullptr,
                                           args.norm.weight, args.norm.eps, append.rows, args.mark},
                                          finish);
    launchOne<false>(
        how, {args.w.data, outputs, args.w.cols, args.x, nullptr, args.norm.weight, args.norm.eps, args.mark}, finish);
}

void foldEvictionHead(const Launch& how, const DeviceMatrix& w, const float* delta, int kvHeads, int width) {
    Bf16* end = const_cast<Bf16*>(w.data) + std::size_t(w.rows) * std::size_t(w.cols);
    launch(how, {dim3(unsigned((w.cols + kFoldThreads - 1) / kFoldThreads), unsigned(kvHeads)), dim3(kFoldThreads)},
           foldKernel, "folding the eviction head", delta, end - std::size_t(width) * std::size_t(w.cols), width,
           w.cols, end);
}

} // namespace kvscope::cuda

#include "kernels/cuda/methods/labels.h"

#include "kernels/cuda/choice/token_choice.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/methods/labels.cuh"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;

/// Writes the label of one token. keyAt(i): channel i of the label.
template <class KeyAt> __device__ void writeLabel(const LabelStore& labels, int head, int token, KeyAt&& keyAt) {
    const int words = labels.words();
    std::uint32_t* codes = labels.codes + std::size_t(head) * words * labels.stride + token;
    if (labels.bits != 4) {
        for (int w = 0; w < words; ++w)
            codes[std::size_t(w) * labels.stride] =
                packBf16(keyAt(2 * w), 2 * w + 1 < labels.channels ? keyAt(2 * w + 1) : 0.f);
        return;
    }
    float least = INFINITY, most = -INFINITY;
    for (int i = 0; i < labels.channels; ++i) least = fminf(least, keyAt(i)), most = fmaxf(most, keyAt(i));
    const Rounding rounding(least, most);
    for (int w = 0; w < words; ++w) {
        std::uint32_t word = 0;
        for (int i = 0; i < min(8, labels.channels - 8 * w); ++i) word |= rounding.code(keyAt(8 * w + i)) << (4 * i);
        codes[std::size_t(w) * labels.stride] = word;
    }
    labels.steps[std::size_t(head) * labels.stride + token] = rounding.step();
    labels.lowest[std::size_t(head) * labels.stride + token] = least;
}

/// Grid: (observers, kvHeads), a thread per channel.
__global__ void observeKernel(ObserveArgs a) {
    const int g = blockIdx.y, c = threadIdx.x, dim = a.shape.dim, bs = a.shape.blockSize,
              group = a.shape.queryHeads / a.shape.kvHeads;
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* blocks = a.blocks + std::size_t(g) * a.headStride;
    float sum = 0;
    for (int i = blockIdx.x; i < a.n; i += kObservers) {
        const int token = a.first + i;
        const float key = __bfloat162float(
            blocks[std::size_t(token / bs) * blockElements(bs, dim) + std::size_t(token % bs) * dim + c]);
        const Bf16* q = a.q + (std::size_t(i) * a.shape.queryHeads + std::size_t(g) * group) * dim + c;
        for (int h = 0; h < group; ++h) sum += fabsf(__bfloat162float(q[h * dim]) * key);
    }
    a.sums[(std::size_t(g) * kObservers + blockIdx.x) * dim + c] += double(sum);
}

/// Grid: (observers, queryHeads + kvHeads), a thread per channel.
__global__ void maximaKernel(ObserveArgs a, float* maxima) {
    const int vector = blockIdx.y, c = threadIdx.x, dim = a.shape.dim, bs = a.shape.blockSize;
    letNextKernelStart();
    waitForEarlierKernels();
    const bool isQuery = vector < a.shape.queryHeads;
    const Bf16* blocks = a.blocks + std::size_t(isQuery ? 0 : vector - a.shape.queryHeads) * a.headStride;
    float largest = 0;
    for (int i = blockIdx.x; i < a.n; i += kObservers) {
        const int token = a.first + i;
        const Bf16* from =
            isQuery ? a.q + (std::size_t(i) * a.shape.queryHeads + vector) * dim
                    : blocks + std::size_t(token / bs) * blockElements(bs, dim) + std::size_t(token % bs) * dim;
        largest = fmaxf(largest, fabsf(__bfloat162float(from[c])));
    }
    // The bits of numbers that are not negative, read as integers, are in the same order.
    atomicMax(reinterpret_cast<int*>(maxima + std::size_t(vector) * dim + c), __float_as_int(largest));
}

/// Writes the channels of the largest importance to `labels`. A thread block takes a KV head and calls this with a
/// thread for each channel, whose importance is `mine`.
__device__ void keepBest(float mine, int dim, int head, const LabelStore& labels) {
    __shared__ float importance[kMostChannels];
    const int c = threadIdx.x;
    importance[c] = mine;
    __syncthreads();
    int rank = 0;
    for (int other = 0; other < dim; ++other)
        rank += importance[other] > mine || (importance[other] == mine && other < c) ? 1 : 0;
    if (rank < labels.channels) labels.channel[std::size_t(head) * labels.channels + rank] = c;
}

__global__ void pickKernel(const double* sums, int tokens, AttentionShape shape, int sequence, LabelStore labels) {
    const int g = blockIdx.x, c = threadIdx.x, dim = shape.dim;
    letNextKernelStart();
    waitForEarlierKernels();
    double sum = 0;
    for (int i = 0; i < kObservers; ++i) sum += sums[(std::size_t(g) * kObservers + i) * dim + c];
    const float mean = float(sum / (double(max(1, tokens)) * (shape.queryHeads / shape.kvHeads)));
    keepBest(mean, dim, sequence * shape.kvHeads + g, labels);
}

__global__ void pickByMaximaKernel(const float* maxima, AttentionShape shape, int sequence, LabelStore labels) {
    const int g = blockIdx.x, c = threadIdx.x, dim = shape.dim, group = shape.queryHeads / shape.kvHeads;
    letNextKernelStart();
    waitForEarlierKernels();
    float mean = 0;
    for (int h = g * group; h < (g + 1) * group; ++h) mean += maxima[std::size_t(h) * dim + c] / float(group);
    keepBest(mean * maxima[std::size_t(shape.queryHeads + g) * dim + c], dim, sequence * shape.kvHeads + g, labels);
}

/// Grid: (pieces of the prompt, kvHeads), a thread per token.
__global__ void __launch_bounds__(kThreads) labelPromptKernel(LabelPromptArgs a) {
    __shared__ std::int32_t channel[kMostChannels];
    const int g = blockIdx.y, head = a.sequence * a.shape.kvHeads + g, dim = a.shape.dim, bs = a.shape.blockSize;
    letNextKernelStart();
    waitForEarlierKernels();
    for (int i = threadIdx.x; i < a.labels.channels; i += kThreads)
        channel[i] = a.labels.channel[std::size_t(head) * a.labels.channels + i];
    __syncthreads();
    const int token = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (token >= a.tokens) return;
    const Bf16* key = a.blocks + std::size_t(g) * a.headStride + std::size_t(token / bs) * blockElements(bs, dim) +
                      std::size_t(token % bs) * dim;
    writeLabel(a.labels, head, token, [&](int i) { return __bfloat162float(key[channel[i]]); });
}

/// Grid: heads, one warp.
__global__ void __launch_bounds__(kWarp) labelTokenKernel(LabelTokenArgs a) {
    const int head = blockIdx.x, row = head / a.shape.kvHeads, dim = a.shape.dim;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const int position = a.position[row];
    const Bf16 *key = a.newKey + std::size_t(head) * dim, *value = a.newValue + std::size_t(head) * dim;
    if (a.store != nullptr) {
        Bf16* to = a.store + std::size_t(a.first[head] + position) * tokenElements(dim);
        for (int i = threadIdx.x; i < dim / 4; i += kWarp) // pieces of 16 bytes: those of the key, then of the value
            reinterpret_cast<uint4*>(to)[i] = i < dim / 8 ? loadOnce(key + i * 8) : loadOnce(value + (i - dim / 8) * 8);
    }
    writeLabelByWarp(a.labels, head, position, key, a.labels.channel + std::size_t(head) * a.labels.channels);
}

// ---- The choice -----------------------------------------------------------------------------------------------------

constexpr int kTogether = 2; // neighbouring tokens that a thread takes, from an even one on

/// Labels and queries are both codes of four bits, or both are numbers as they are.
enum class Form { Codes, Plain };

/// Factors that make logits of integer sums of codes, see prepareQueries and logitsOf.
struct HeadQuery {
    float bySum, byStep, byLowest;
};

struct LabelShared {
    ChoiceShared choice;
    union {
        uint2 codes[kMostGroup][kMostChannels / 8]; // for each word of a label: even channels as bytes, then odd ones
        float2 plain[kMostGroup][kMostChannels / 2];
    } query;
    HeadQuery head[kMostGroup];
    float warpMaximum[kChoiceWarps][8], warpSum[kChoiceWarps][8];
    float maximum[kMostGroup], sum[kMostGroup];         // of this thread block's part
    float allMaximum[kMostGroup], allShare[kMostGroup]; // of the whole list; allShare turns exponentials into shares
};

/// Brings the queries of the group into shared memory; a warp takes a query head. Logits come out in units of log2, so
/// that exp2 makes their exponentials.
template <Form kForm> __device__ void prepareQueries(LabelShared& s, const LabelChoiceArgs& a, int item, int group) {
    const int row = item / a.shape.kvHeads, g = item % a.shape.kvHeads, lane = threadIdx.x % kWarp,
              warp = threadIdx.x / kWarp, channels = a.labels.channels;
    const float scale = a.scale * kLog2e;
    const std::int32_t* channel = a.labels.channel + std::size_t(item) * channels;
    for (int h = warp; h < group; h += kChoiceWarps) {
        const Bf16* q = a.q + (std::size_t(row) * a.shape.queryHeads + std::size_t(g) * group + h) * a.shape.dim;
        if constexpr (kForm == Form::Plain) {
            for (int w = lane; w < a.labels.words(); w += kWarp)
                s.query.plain[h][w] =
                    make_float2(scale * __bfloat162float(q[channel[2 * w]]),
                                2 * w + 1 < channels ? scale * __bfloat162float(q[channel[2 * w + 1]]) : 0.f);
        } else {
            float least = INFINITY, most = -INFINITY;
            for (int i = lane; i < channels; i += kWarp) {
                const float x = __bfloat162float(q[channel[i]]);
                least = fminf(least, x), most = fmaxf(most, x);
            }
            least = -warpMax(-least), most = warpMax(most);
            const Rounding rounding(least, most);
            float codes = 0;
            for (int w = lane; w < a.labels.words(); w += kWarp) {
                std::uint32_t even = 0, odd = 0;
                for (int i = 0; i < min(8, channels - 8 * w); ++i) {
                    const std::uint32_t code = rounding.code(__bfloat162float(q[channel[8 * w + i]]));
                    codes += float(code);
                    (i % 2 == 0 ? even : odd) |= code << (i / 2 * 8);
                }
                s.query.codes[h][w] = make_uint2(even, odd);
            }
            codes = warpSum(codes);
            // With c a code, s its step and l the lowest number, of the query q and the key k:
            // sum (cq sq + lq)(ck sk + lk) = sk (sq sum(cq ck) + lq sum(ck)) + lk (sq sum(cq) + n lq)
            if (lane == 0)
                s.head[h] = {scale * rounding.step(), scale * least,
                             scale * (rounding.step() * codes + float(channels) * least)};
        }
    }
}

/// A whole number below 2^23 as a float, by bit operations.
__device__ inline float small(std::uint32_t n) { return __uint_as_float(0x4b000000u | n) - 8388608.f; }

/// The logits of two tokens with the kHeads query heads from number `first` on. Heads beyond the group repeat its last
/// head.
template <int kHeads, Form kForm>
__device__ inline void logitsOf(const LabelShared& s, const LabelStore& labels, std::size_t listAt,
                                const std::uint32_t* codes, int at, int first, int group,
                                float (&logits)[kHeads][kTogether]) {
    const int words = labels.words();
    if constexpr (kForm == Form::Codes) {
        std::uint32_t products[kHeads][kTogether] = {}, sums[kTogether] = {};
        for (int w = 0; w < words; ++w) {
            const uint2 two = *reinterpret_cast<const uint2*>(codes + std::size_t(w) * labels.stride + at);
            const std::uint32_t word[kTogether] = {two.x, two.y};
            std::uint32_t even[kTogether], odd[kTogether];
#pragma unroll
            for (int t = 0; t < kTogether; ++t) {
                even[t] = word[t] & 0x0f0f0f0fu, odd[t] = word[t] >> 4 & 0x0f0f0f0fu;
                sums[t] = __dp4a(even[t] + odd[t], 0x01010101u, sums[t]);
            }
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                const uint2 q = s.query.codes[min(first + h, group - 1)][w];
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
                    products[h][t] = __dp4a(odd[t], q.y, __dp4a(even[t], q.x, products[h][t]));
            }
        }
        const float2 step = *reinterpret_cast<const float2*>(labels.steps + listAt + at),
                     lowest = *reinterpret_cast<const float2*>(labels.lowest + listAt + at);
        const float steps[kTogether] = {step.x, step.y}, lows[kTogether] = {lowest.x, lowest.y};
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
            const float sum = small(sums[t]);
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                const HeadQuery& head = s.head[min(first + h, group - 1)];
                logits[h][t] =
                    steps[t] * (head.bySum * small(products[h][t]) + head.byStep * sum) + lows[t] * head.byLowest;
            }
        }
    } else {
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
#pragma unroll
            for (int t = 0; t < kTogether; ++t) logits[h][t] = 0;
        for (int w = 0; w < words; ++w) {
            const uint2 two = *reinterpret_cast<const uint2*>(codes + std::size_t(w) * labels.stride + at);
            const std::uint32_t word[kTogether] = {two.x, two.y};
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                const float2 q = s.query.plain[min(first + h, group - 1)][w];
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
                    logits[h][t] = fmaf(q.x, lowHalf(word[t]), fmaf(q.y, highHalf(word[t]), logits[h][t]));
            }
        }
    }
}

/// Grid: lists times thread blocks of a cluster. The labels are read twice: first for the maxima and sums of the
/// softmax, then for the scores, which stay in shared memory.
template <int kHeads, Form kForm>
__global__ void __launch_bounds__(kChoiceThreads, 2) labelChoiceKernel(LabelChoiceArgs a) {
    extern __shared__ float scores[];
    __shared__ LabelShared s;
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), item = int(blockIdx.x) / ranks, row = item / a.shape.kvHeads;
    const int group = a.shape.queryHeads / a.shape.kvHeads, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.marks[0]);
    if (a.active != nullptr && a.active[row] == 0) return; // the whole cluster leaves
    const int all = a.position[row] + 1;
    const ListPart part(all, ranks, int(cluster.block_rank()));
    prepareQueries<kForm>(s, a, item, group);
    __syncthreads();
    const std::size_t listAt = std::size_t(item) * a.labels.stride;
    const std::uint32_t* codes = a.labels.codes + listAt * a.labels.words();

    for (int first = 0; first < group; first += kHeads) {
        float maximum[kHeads], sum[kHeads];
#pragma unroll
        for (int h = 0; h < kHeads; ++h) maximum[h] = -INFINITY, sum[h] = 0;
        for (int at = part.begin + int(threadIdx.x) * kTogether; at < part.end; at += kChoiceThreads * kTogether) {
            float logits[kHeads][kTogether];
            logitsOf<kHeads, kForm>(s, a.labels, listAt, codes, at, first, group, logits);
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
                float largest = -INFINITY;
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
                    if (at + t < part.end) largest = fmaxf(largest, logits[h][t]);
                if (largest > maximum[h]) {
                    sum[h] *= exp2f(maximum[h] - largest);
                    maximum[h] = largest;
                }
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
                    if (at + t < part.end) sum[h] += exp2f(logits[h][t] - maximum[h]);
            }
        }
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
            const float most = warpMax(maximum[h]);
            const float total = warpSum(maximum[h] == -INFINITY ? 0.f : sum[h] * exp2f(maximum[h] - most));
            if (lane == 0) s.warpMaximum[warp][h] = most, s.warpSum[warp][h] = total;
        }
        __syncthreads();
        if (threadIdx.x < kHeads && first + int(threadIdx.x) < group) {
            const int h = threadIdx.x;
            float most = -INFINITY, total = 0;
            for (int w = 0; w < kChoiceWarps; ++w) most = fmaxf(most, s.warpMaximum[w][h]);
            for (int w = 0; w < kChoiceWarps; ++w)
                if (s.warpMaximum[w][h] != -INFINITY) total += s.warpSum[w][h] * exp2f(s.warpMaximum[w][h] - most);
            s.maximum[first + h] = most, s.sum[first + h] = total;
        }
        __syncthreads();
    }
    cluster.sync();
    if (int(threadIdx.x) < group) {
        const int h = threadIdx.x;
        float most = -INFINITY, total = 0;
        for (int r = 0; r < ranks; ++r) most = fmaxf(most, cluster.map_shared_rank(&s, r)->maximum[h]);
        for (int r = 0; r < ranks; ++r) {
            const LabelShared* other = cluster.map_shared_rank(&s, r);
            if (other->maximum[h] != -INFINITY) total += other->sum[h] * exp2f(other->maximum[h] - most);
        }
        s.allMaximum[h] = most;
        s.allShare[h] = 1.f / (total * float(group));
    }
    __syncthreads();
    for (int first = 0; first < group; first += kHeads)
        for (int at = part.begin + int(threadIdx.x) * kTogether; at < part.end; at += kChoiceThreads * kTogether) {
            float logits[kHeads][kTogether];
            logitsOf<kHeads, kForm>(s, a.labels, listAt, codes, at, first, group, logits);
#pragma unroll
            for (int t = 0; t < kTogether; ++t) {
                if (at + t >= part.end) break;
                float score = first == 0 ? 0.f : scores[at + t - part.begin];
#pragma unroll
                for (int h = 0; h < kHeads; ++h)
                    if (first + h < group)
                        score += exp2f(logits[h][t] - s.allMaximum[first + h]) * s.allShare[first + h];
                scores[at + t - part.begin] = score;
            }
        }
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.marks[1]);
    const auto rankAt = [&](int i) { return rankOf(scores[i]); };
    const Threshold threshold = findThreshold(s.choice, part.size(), all, a.wanted, rankAt);
    const std::size_t to = std::size_t(item) * a.capacity;
    takeChosen(s.choice, part.size(), threshold, rankAt, [&](int place, int i) {
        a.tokens[to + place] = part.begin + i;
        if (a.tokenScores != nullptr) a.tokenScores[to + place] = scores[i];
    });
    if (cluster.block_rank() == 0 && threadIdx.x == 0) a.count[item] = min(a.wanted, all);
}

unsigned pieces(int count) { return unsigned((count + kThreads - 1) / kThreads); }

} // namespace

void observeChannels(const Launch& how, const ObserveArgs& args) {
    if (args.n == 0) return;
    launch(how, {dim3(kObservers, unsigned(args.shape.kvHeads)), dim3(unsigned(args.shape.dim))}, observeKernel,
           "observing channels", args);
}

void pickChannels(const Launch& how, const double* sums, int tokens, const AttentionShape& shape, int sequence,
                  const LabelStore& labels) {
    launch(how, {dim3(unsigned(shape.kvHeads)), dim3(unsigned(shape.dim))}, pickKernel, "picking channels", sums,
           tokens, shape, sequence, labels);
}

void observeMaxima(const Launch& how, const ObserveArgs& args, float* maxima) {
    if (args.n == 0) return;
    launch(how,
           {dim3(kObservers, unsigned(args.shape.queryHeads + args.shape.kvHeads)), dim3(unsigned(args.shape.dim))},
           maximaKernel, "observing channels", args, maxima);
}

void pickChannelsByMaxima(const Launch& how, const float* maxima, const AttentionShape& shape, int sequence,
                          const LabelStore& labels) {
    launch(how, {dim3(unsigned(shape.kvHeads)), dim3(unsigned(shape.dim))}, pickByMaximaKernel, "picking channels",
           maxima, shape, sequence, labels);
}

void labelPrompt(const Launch& how, const LabelPromptArgs& args) {
    if (args.tokens == 0) return;
    launch(how, {dim3(pieces(args.tokens), unsigned(args.shape.kvHeads)), dim3(kThreads)}, labelPromptKernel,
           "labelling the prompt", args);
}

void labelToken(const Launch& how, const LabelTokenArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads)), dim3(kWarp)}, labelTokenKernel, "labelling a token",
           args);
}

int mostLabelledTokens(const Launch& how) { return int(kChoicePart) * (how.clusters ? kChoiceCluster : 1) - kWarp * 8; }

void chooseByLabels(const Launch& how, const LabelChoiceArgs& args) {
    checkAttentionShape(args.shape);
    const int lists = args.rows * args.shape.kvHeads;
    if (lists == 0) return;
    unsigned ranks = choiceRanks(how, lists, args.maxTokens);
    const auto partOf = [&](unsigned among) { return (std::size_t(args.maxTokens) + among - 1) / among + kWarp; };
    while (how.clusters && ranks < kChoiceCluster && partOf(ranks) > kChoicePart) ranks *= 2;
    const Grid grid{dim3(unsigned(lists) * ranks), dim3(kChoiceThreads), partOf(ranks) * sizeof(float), ranks};
    const bool few = args.shape.group() <= 4;
    const auto kernel = args.labels.bits != 4
                            ? few ? labelChoiceKernel<4, Form::Plain> : labelChoiceKernel<8, Form::Plain>
                        : few ? labelChoiceKernel<4, Form::Codes>
                              : labelChoiceKernel<8, Form::Codes>;
    raiseShared(kernel, grid.sharedBytes, "preparing the choice of tokens");
    launch(how, grid, kernel, "choosing tokens by their labels", args);
}

} // namespace kvscope::cuda

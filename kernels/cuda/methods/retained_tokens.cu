#include "kernels/cuda/methods/retained_tokens.h"

#include "kernels/cuda/choice/token_choice.cuh"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadThreads = 1024, kHeadWarps = kHeadThreads / kWarp; // a head may have tens of thousands of tokens

/// Grid: (pieces of the list, kvHeads).
__global__ void __launch_bounds__(kThreads) retainPromptKernel(RetainPromptArgs a) {
    const int g = blockIdx.y, head = a.sequence * a.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    const RetainedTokens& retained = a.retained;
    const int chosen = a.chosen.tokens != nullptr ? a.chosen.count[g] : 0;
    const int count = min(retained.capacity, chosen + a.tailEnd - a.tailFirst);
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (i == 0) {
        retained.count[head] = count;
        retained.freePlace[head] = -1;
        retained.attended[head] = 0;
    }
    if (i >= count) return;
    const int token = i < chosen ? a.chosen.tokens[std::size_t(g) * a.chosen.capacity + i] : a.tailFirst + i - chosen;
    const std::size_t at = std::size_t(head) * retained.capacity + i;
    retained.tokens[at] = token;
    retained.scores[at] = i < chosen && a.scores != nullptr ? a.scores[std::size_t(g) * a.scoreStride + token]
                                                            : __uint_as_float(0x7fc00000u);
    if (retained.mass != nullptr) retained.mass[at] = a.mass[std::size_t(g) * a.massStride + token];
}

/// A token that may be given up, and its worth. The token of the least worth goes.
struct Candidate {
    std::uint64_t worth; // a number that ascends with a score or a mass
    int token, place;    // place -1: no token
    __device__ void consider(std::uint64_t otherWorth, int otherToken, int otherPlace) {
        if (otherPlace < 0) return;
        if (place < 0 || otherWorth < worth || (otherWorth == worth && otherToken > token))
            worth = otherWorth, token = otherToken, place = otherPlace;
    }
};

/// @return to every thread the candidate of least worth of all threads
__device__ Candidate worstOf(Candidate mine) {
    __shared__ Candidate warps[kHeadWarps];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const std::uint64_t worth = __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(mine.worth), offset);
        const int token = __shfl_xor_sync(0xffffffffu, mine.token, offset),
                  place = __shfl_xor_sync(0xffffffffu, mine.place, offset);
        mine.consider(worth, token, place);
    }
    if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
    __syncthreads();
    for (int w = 0; w < kHeadWarps; ++w) mine.consider(warps[w].worth, warps[w].token, warps[w].place);
    return mine;
}

/// to[i] = at(i). Several loads are under way before the first store.
template <class T, class At> __device__ void writeList(T* to, int count, At&& at) {
    constexpr int kTogether = 4;
    for (int base = threadIdx.x; base < count; base += kHeadThreads * kTogether) {
        T values[kTogether];
#pragma unroll
        for (int t = 0; t < kTogether; ++t) values[t] = at(min(base + t * kHeadThreads, count - 1));
#pragma unroll
        for (int t = 0; t < kTogether; ++t)
            if (base + t * kHeadThreads < count) to[base + t * kHeadThreads] = values[t];
    }
}

__global__ void __launch_bounds__(kHeadThreads) retainTokenKernel(RetainTokenArgs a) {
    const int head = blockIdx.x, row = head / a.shape.kvHeads, dim = a.shape.dim, bs = a.shape.blockSize;
    const RetainedTokens& retained = a.retained;
    letNextKernelStart();
    waitForEarlierKernels();
    if (head == 0 && threadIdx.x == 0)
        for (std::uint64_t* mark : a.record.marks) stamp(mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const int position = a.position[row], count = retained.count[head], freed = retained.freePlace[head];
    const std::size_t first = std::size_t(head) * retained.capacity;
    float score = __uint_as_float(0x7fc00000u), bias = 0;
    if (a.tokenScores != nullptr) bias = a.tokenScores[a.tokenFirst[head] + position];
    if (a.newScores != nullptr)
        score = a.newScores[head];
    else if (a.scored)
        score = a.exponentiates ? expf(bias) : bias;
    int place = freed >= 0 ? freed : count < retained.capacity ? count : -1;
    if (place < 0 && (a.scored || a.newScores != nullptr)) {
        Candidate worst{0, 0, -1};
#pragma unroll 4
        for (int i = threadIdx.x; i < count; i += kHeadThreads)
            if (a.stays == 0 || retained.tokens[first + i] <= position - a.stays)
                worst.consider(rankOf(retained.scores[first + i]), retained.tokens[first + i], i);
        worst = worstOf(worst);
        if (a.stays > 0 || rankOf(score) > worst.worth) place = worst.place;
    }
    __syncthreads(); // all threads have read the scores, tokens and counts that are written from here on
    const int now = place >= count ? count + 1 : count;
    if (place >= 0) {
        Bf16* block =
            retained.packed + (std::size_t(head) * retained.blocks + std::size_t(place / bs)) * blockElements(bs, dim);
        for (int c = threadIdx.x; c < dim; c += kHeadThreads) {
            block[place % bs * dim + c] = a.newKey[std::size_t(head) * dim + c];
            block[std::size_t(bs) * dim + std::size_t(c) * bs + place % bs] = a.newValue[std::size_t(head) * dim + c];
        }
        if (threadIdx.x == 0) {
            retained.tokens[first + place] = position;
            retained.scores[first + place] = score;
            if (retained.mass != nullptr) retained.mass[first + place] = 0;
            if (retained.bias != nullptr) retained.bias[std::size_t(head) * retained.blocks * bs + place] = bias;
            retained.count[head] = now;
            retained.freePlace[head] = -1;
        }
        __syncthreads();
    }
    if (a.record.tokens != nullptr)
        writeList(a.record.tokens + first, now, [&](int i) { return retained.tokens[first + i]; });
    if (a.record.scores != nullptr)
        writeList(a.record.scores + first, now, [&](int i) {
            return retained.mass != nullptr ? float(retained.mass[first + i]) : retained.scores[first + i];
        });
    if (threadIdx.x == 0) {
        if (a.record.heads != nullptr)
            a.record.heads[head] = {now, retained.attended[head] != 0 ? now - (place >= 0 ? 1 : 0) : -1, now, 0};
        retained.attended[head] = 1;
    }
}

__global__ void __launch_bounds__(kHeadThreads) evictKernel(EvictArgs a) {
    const int head = blockIdx.x, row = head / a.kvHeads;
    const RetainedTokens& retained = a.retained;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const int count = retained.count[head],
              oldest = a.position[row] + 1 - a.recent[row]; // `oldest` and later ones stay
    if (count <= a.heavy[row] + a.recent[row]) return;
    const std::size_t first = std::size_t(head) * retained.capacity;
    Candidate worst{0, 0, -1};
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += kHeadThreads) { // masses are at least 0, so that their bits ascend too
        const int token = retained.tokens[first + i];
        if (token < oldest) worst.consider(std::uint64_t(__double_as_longlong(retained.mass[first + i])), token, i);
    }
    worst = worstOf(worst);
    if (threadIdx.x == 0) retained.freePlace[head] = worst.place;
}

__global__ void __launch_bounds__(kThreads) copyScoresKernel(const float* from, std::int64_t fromStride, float* to,
                                                             std::int64_t toStride, int length, bool exponentiate) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (i >= length) return;
    const float score = from[std::size_t(blockIdx.y) * fromStride + i];
    to[std::size_t(blockIdx.y) * toStride + i] = exponentiate ? expf(score) : score;
}

unsigned pieces(int count) { return unsigned((count + kThreads - 1) / kThreads); }

} // namespace

void retainPrompt(const Launch& how, const RetainPromptArgs& args) {
    launch(how, {dim3(pieces(args.retained.capacity), unsigned(args.kvHeads)), dim3(kThreads)}, retainPromptKernel,
           "keeping tokens of the prompt", args);
}

void retainToken(const Launch& how, const RetainTokenArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads)), dim3(kHeadThreads)}, retainTokenKernel,
           "keeping a token", args);
}

void evictLeastMass(const Launch& how, const EvictArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.kvHeads)), dim3(kHeadThreads)}, evictKernel, "evicting a token", args);
}

void copyScores(const Launch& how, const float* from, std::int64_t fromStride, float* to, std::int64_t toStride,
                int lists, int length, bool exponentiate) {
    if (lists == 0 || length == 0) return;
    launch(how, {dim3(pieces(length), unsigned(lists)), dim3(kThreads)}, copyScoresKernel, "copying scores", from,
           fromStride, to, toStride, length, exponentiate);
}

} // namespace kvscope::cuda

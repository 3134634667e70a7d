#include "kernels/cuda/token/sample.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

using U64 = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kBins = 2048; // bins of a digit: a key's 32 bits are digits of 11, 11 and 10 bits
constexpr int kFirstShift = 21, kSecondShift = 10;
constexpr int kUnitBits = 44; // a weight of 1 in units of mass: sums of 2^18 weights stay below 2^63

__global__ void __launch_bounds__(kThreads) greedyKernel(NextTokenArgs a) {
    __shared__ float bestValue[kWarps];
    __shared__ int bestId[kWarps];
    const int row = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    // The next kernel may read positions before it waits for this one, which writes them: it starts behind this one.
    waitForEarlierKernels();
    if (row == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.each != nullptr && a.each[row].temperature > 0) return; // sampleKernel chooses
    const float* logits = a.logits + std::size_t(row) * a.vocab;
    float best = -INFINITY;
    int id = 0x7fffffff;
    bool wrong = false; // infinite or NaN
    const auto consider = [&](float value, int other) {
        if (value > best || (value == best && other < id)) best = value, id = other;
    };
#pragma unroll 8
    for (int i = threadIdx.x; i < a.vocab; i += kThreads) {
        consider(logits[i], i);
        wrong |= !isfinite(logits[i]);
    }
    const auto reduce = [&] {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float value = __shfl_xor_sync(0xffffffffu, best, offset);
            const int other = __shfl_xor_sync(0xffffffffu, id, offset);
            consider(value, other);
        }
    };
    reduce();
    if (lane == 0) bestValue[warp] = best, bestId[warp] = id;
    wrong = __syncthreads_or(wrong); // of the row
    if (warp != 0) return;
    best = bestValue[lane], id = bestId[lane];
    reduce();
    if (lane != 0) return;
    if (a.active == nullptr || a.active[row] != 0) {
        a.next[row] = wrong ? 0 : id;
        a.position[row] += 1;
        if (a.record != nullptr) a.record[row] = wrong ? kNoToken : id;
    }
    if (row == 0) stamp(a.endMark);
}

/// A number that ascends with the logit. Zeros of both signs are equal.
__device__ inline std::uint32_t keyOf(float logit) {
    const std::uint32_t bits = logit == 0.f ? 0u : __float_as_uint(logit);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float logitOf(std::uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/// exp((logit - top) / temperature) in units of mass.
__device__ inline U64 weightOf(float logit, float top, double perLog2) {
    const double exponent = (double(logit) - double(top)) * perLog2;
    if (!(exponent > -kUnitBits - 1)) return 0;
    const double whole = rint(exponent);
    return U64(double(exp2f(float(exponent - whole))) *
               __longlong_as_double((std::int64_t(whole) + kUnitBits + 1023) << 52));
}

/// How many tokens and how much mass have each value of one digit of their keys. A mass is kept in two words, because
/// additions in shared memory have 32 bits.
struct Histogram {
    std::uint32_t count[kBins], low[kBins], high[kBins];

    __device__ void clear() {
        for (int i = threadIdx.x; i < kBins; i += kThreads) count[i] = low[i] = high[i] = 0;
    }
    __device__ void add(std::uint32_t bin, U64 weight) {
        atomicAdd(&count[bin], 1u);
        if (weight == 0) return;
        const auto part = std::uint32_t(weight);
        const std::uint32_t before = atomicAdd(&low[bin], part);
        const std::uint32_t rest = std::uint32_t(weight >> 32) + (before + part < before ? 1u : 0u);
        if (rest != 0) atomicAdd(&high[bin], rest);
    }
    __device__ U64 mass(int bin) const { return U64(high[bin]) << 32 | low[bin]; }
};

/// A place in the ranking by descending logit: a key, and how many tokens and how much mass lie above it.
struct Place {
    std::uint32_t key; // while the place is being found: the leading digits of the key
    std::uint32_t countAbove;
    U64 massAbove;
};

struct Shared {
    Histogram first, next; // of all tokens by the first digit; of the tokens in one bin by the next digit
    U64 warpMass[kWarps];
    std::uint32_t warpCount[kWarps];
    float warpTop[kWarps];
    Place found;
    int seen[kWarps], chosen;
};

/// Goes through the bins from the highest down, and adds their tokens, or with byMass their mass, to those in `above`.
/// Finds the bin in which the sum reaches `target`, which is at least 1 and at most all there is. All threads call
/// this, after a barrier behind which the histogram is complete.
__device__ Place findBin(Shared& s, const Histogram& histogram, bool byMass, U64 target, Place above) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    // Thread t takes the bins 2t and 2t + 1, counted from the highest.
    const int high = kBins - 1 - 2 * int(threadIdx.x), low = high - 1;
    const std::uint32_t counts[2] = {histogram.count[high], histogram.count[low]};
    const U64 masses[2] = {histogram.mass(high), histogram.mass(low)};
    std::uint32_t count = counts[0] + counts[1];
    U64 mass = masses[0] + masses[1];
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::uint32_t otherCount = __shfl_up_sync(0xffffffffu, count, offset);
        const U64 otherMass = __shfl_up_sync(0xffffffffu, mass, offset);
        if (lane >= offset) count += otherCount, mass += otherMass;
    }
    if (lane == kWarp - 1) s.warpCount[warp] = count, s.warpMass[warp] = mass;
    __syncthreads();
    for (int w = 0; w < warp; ++w) count += s.warpCount[w], mass += s.warpMass[w];
    // `count` and `mass` are the sums up to the end of this thread's second bin now.
    std::uint32_t countBefore = above.countAbove + count - counts[0] - counts[1];
    U64 massBefore = above.massAbove + mass - masses[0] - masses[1];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const U64 before = byMass ? massBefore : countBefore, after = before + (byMass ? masses[i] : U64(counts[i]));
        if (before < target && after >= target) s.found = {std::uint32_t(i == 0 ? high : low), countBefore, massBefore};
        countBefore += counts[i], massBefore += masses[i];
    }
    __syncthreads();
    return s.found;
}

/// Finds, digit by digit, the key at which the ranking reaches `target` tokens or mass.
__device__ Place descend(Shared& s, const float* logits, int vocab, float top, double perLog2, bool byMass,
                         U64 target) {
    Place place = findBin(s, s.first, byMass, target, {0, 0, 0});
    for (const int shift : {kSecondShift, 0}) {
        const int bits = shift == 0 ? kSecondShift : kFirstShift - kSecondShift;
        s.next.clear();
        __syncthreads();
        for (int i = threadIdx.x; i < vocab; i += kThreads) {
            const float logit = logits[i];
            const std::uint32_t key = keyOf(logit);
            if (key >> shift >> bits == place.key)
                s.next.add(key >> shift & ((1u << bits) - 1), weightOf(logit, top, perLog2));
        }
        __syncthreads();
        const std::uint32_t prefix = place.key << bits;
        place = findBin(s, s.next, byMass, target, place);
        place.key |= prefix;
    }
    return place;
}

/// Grid (rows). A thread block chooses the token of one row: it finds the largest logit, makes the histogram of the
/// first digit, finds how much mass top-k and then top-p keep, multiplies that mass by the draw, and finds the token at
/// which the ranking reaches the product. Every pass reads the row's logits again; after the first pass they come from
/// the cache.
__global__ void __launch_bounds__(kThreads) sampleKernel(NextTokenArgs a) {
    extern __shared__ __align__(16) unsigned char raw[];
    Shared& s = *reinterpret_cast<Shared*>(raw);
    const int row = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    waitForEarlierKernels(); // the next kernel starts behind this one, as behind greedyKernel
    if (row == 0 && threadIdx.x == 0 && a.each == nullptr) stamp(a.mark);
    if (a.each != nullptr && a.each[row].temperature <= 0) return; // greedyKernel has chosen
    if (a.active == nullptr || a.active[row] != 0) {
        const float* logits = a.logits + std::size_t(row) * a.vocab;
        const SampleArgs how = a.each != nullptr ? a.each[row] : a.sampling;
        const int drawsOf = a.each != nullptr ? 0 : row; // index of the row in `draws` and `firstPosition`
        const double perLog2 = 1.4426950408889634074 / how.temperature;
        float top = -INFINITY;
        bool wrong = false; // infinite or NaN
        for (int i = threadIdx.x; i < a.vocab; i += kThreads) {
            top = fmaxf(top, logits[i]);
            wrong |= !isfinite(logits[i]);
        }
        top = warpMax(top);
        if (lane == 0) s.warpTop[warp] = top;
        s.first.clear();
        if (threadIdx.x == 0) s.chosen = 0;
        if (__syncthreads_or(wrong)) { // the same for all threads
            if (threadIdx.x == 0) {
                a.next[row] = 0;
                a.position[row] += 1;
                if (a.record != nullptr) a.record[row] = kNoToken;
                if (row == 0) stamp(a.endMark);
            }
            return;
        }
        top = warpMax(s.warpTop[lane]);
        for (int i = threadIdx.x; i < a.vocab; i += kThreads) {
            const float logit = logits[i];
            s.first.add(keyOf(logit) >> kFirstShift, weightOf(logit, top, perLog2));
        }
        __syncthreads();

        const auto place = [&](bool byMass, U64 target) {
            return descend(s, logits, a.vocab, top, perLog2, byMass, target);
        };
        // How many of the tokens with the logit at `at` are needed to reach `target` of mass.
        const auto ties = [&](const Place& at, U64 target) {
            const U64 weight = weightOf(logitOf(at.key), top, perLog2);
            return (target - at.massAbove + weight - 1) / weight; // not 0: these tokens' mass reaches the target
        };
        const auto massAt = [&](const Place& at, U64 count) {
            return at.massAbove + count * weightOf(logitOf(at.key), top, perLog2);
        };
        U64 kept; // mass of the tokens that may be drawn
        if (how.topK > 0 && how.topK < a.vocab) {
            const Place last = place(false, U64(how.topK));
            kept = massAt(last, U64(how.topK) - last.countAbove);
        } else {
            kept = 0;
            U64 mine = s.first.mass(2 * int(threadIdx.x)) + s.first.mass(2 * int(threadIdx.x) + 1);
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
            if (lane == 0) s.warpMass[warp] = mine;
            __syncthreads();
            for (int w = 0; w < kWarps; ++w) kept += s.warpMass[w];
            __syncthreads();
        }
        if (how.topP < 1) {
            const U64 target = min(max(U64(ceil(how.topP * double(kept))), U64(1)), kept);
            const Place last = place(true, target);
            kept = massAt(last, ties(last, target));
        }
        const int draw = min(max(a.position[row] - how.firstPosition[drawsOf], 0), how.drawsPerRow - 1);
        const double uniform = how.draws[std::size_t(drawsOf) * how.drawsPerRow + draw];
        const U64 target = min(U64(uniform * double(kept)) + 1, kept);
        const Place at = place(true, target);
        const int wanted = int(ties(at, target)) - 1; // which of the tokens with this logit it is, in order of ids

        int before = 0; // tokens with this logit and lower ids
        for (int first = 0; first < a.vocab; first += kThreads) {
            const int i = first + int(threadIdx.x);
            const bool equal = i < a.vocab && keyOf(logits[i]) == at.key;
            const int found = __syncthreads_count(equal);
            if (found == 0) continue;
            if (before <= wanted && wanted < before + found) { // true or false for all threads alike
                const unsigned votes = __ballot_sync(0xffffffffu, equal);
                if (lane == 0) s.seen[warp] = __popc(votes);
                __syncthreads();
                int mine = before + __popc(votes & ((1u << lane) - 1));
                for (int w = 0; w < warp; ++w) mine += s.seen[w];
                if (equal && mine == wanted) s.chosen = i;
                __syncthreads();
                break;
            }
            before += found;
        }
        if (threadIdx.x == 0) {
            a.next[row] = s.chosen;
            a.position[row] += 1;
            if (a.record != nullptr) a.record[row] = s.chosen;
        }
    }
    if (row == 0 && threadIdx.x == 0) stamp(a.endMark);
}

} // namespace

void nextTokens(const Launch& how, const NextTokenArgs& args) {
    if (args.rows == 0) return;
    const Grid grid{dim3(unsigned(args.rows)), dim3(kThreads)};
    if (args.sampling.temperature <= 0 || args.each != nullptr)
        launch(how, grid, greedyKernel, "choosing the next token", args);
    if (args.sampling.temperature <= 0) return;
    allowShared(sampleKernel, sizeof(Shared), "preparing to choose a token");
    launch(how, {grid.blocks, grid.threads, sizeof(Shared)}, sampleKernel, "choosing the next token", args);
}

} // namespace kvscope::cuda

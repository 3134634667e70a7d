// The product of a bf16 matrix with up to eight inputs. A warp reads long runs of a few weight rows at a time. The
// kernel is the same whatever is done with the outputs.
//
// A warp reads kSide rows side by side, half as many as there are inputs, and hundreds of bytes of each. A row's run is
// cut into chunks of 32 weights. The tensor cores multiply all chunks that the warp has read with the same chunks of
// all inputs: the eight columns of one fragment are the chunks of the rows, the sixteen rows of the other fragment are
// the chunks of the inputs. Only products of a chunk of weights with the same chunk of an input are used. Inputs stay
// in registers. Only sums go through shared memory, so that kernels on the same multiprocessor keep their cache.
//
// A `Finish` says what is done with the outputs, see one_input.cuh. Its functions are called for every input of every
// output.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/copy_async.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {

struct FewRows {
    const Bf16* w;
    int outputs, cols;
    const float* x; // [n, cols], rows xStride apart, or null
    int xStride;
    const Bf16* xHalf;       // [n, cols]
    const float* normWeight; // null: x as it is
    float normEps;
    int n;
    std::uint64_t* mark;
};

/// How a product is divided.
struct RowsDivision {
    int inputs; // 4 or 8
    int warps;  // of a thread block
    int pieces; // 16-byte pieces of a row that a lane takes at once
    int groups; // groups of four rows whose loads are in flight together
};

template <RowsDivision kDivision> struct RowsForm {
    static constexpr int kInputs = kDivision.inputs, kPieces = kDivision.pieces, kGroups = kDivision.groups;
    static constexpr int kWarps = kDivision.warps, kThreads = kWarps * kWarp;
    static constexpr int kBlocks = kWarps <= 10 ? 2 : 1;              // thread blocks of a multiprocessor
    static constexpr int kSide = kInputs / 2, kLanes = kWarp / kSide; // rows side by side, lanes that read one
    static constexpr int kChunks = kLanes / 4;                        // chunks of a row that a warp reads at once
    static constexpr int kRows = 4, kSets = kRows / kSide, kSums = kRows * kInputs; // of a group
    /// Groups that are summed over the warps between two barriers: at most one result for each thread.
    static constexpr int kTogether = std::min(36, kThreads / kInputs) / (kRows * kGroups) * kGroups;
    static constexpr int kColumns = kWarps * kLanes * kPieces * 8; // columns that a thread block takes in one phase
    static_assert(kInputs == 4 || kInputs == 8);
};

/// Where a lane's pieces of a row are. The warps take neighbouring slices of a row; a row that is wider than all slices
/// together is taken in several phases.
template <class F> struct RowColumns {
    int pieces, phases, slice;
    __device__ explicit RowColumns(int cols) {
        pieces = cols / 8;
        phases = (cols + F::kColumns - 1) / F::kColumns;
        const int parts = phases * F::kWarps;
        slice = ((pieces + parts - 1) / parts + 3) / 4 * 4; // a chunk is four pieces
    }
    __device__ int first(int phase) const { return (phase * F::kWarps + int(threadIdx.x) / kWarp) * slice; }
    __device__ int piece(int phase) const { return first(phase) + int(threadIdx.x) % F::kLanes; }
    __device__ bool has(int phase, int p) const {
        return int(threadIdx.x) % F::kLanes + p * F::kLanes < min(slice, pieces - first(phase));
    }
};

/// Goes through the groups of rows in the order in which they are used: the outputs that are summed together first, and
/// of these all groups in the first phase of columns, then all groups in the second.
template <class Finish, class F> struct RowCursor {
    static constexpr int kRowsEach = Finish::kPairs ? 2 : 1, kOutputs = F::kRows / kRowsEach; // of an output, a group
    static constexpr int kTogether = F::kTogether * kOutputs;
    int begin, end, phases, phase = 0, group = 0;
    __device__ RowCursor(int first, int last, int phaseCount) : begin(first), end(last), phases(phaseCount) {}
    __device__ int outputs() const { return min(kTogether, end - begin); }
    __device__ int groups() const { return (outputs() + kOutputs - 1) / kOutputs; }
    /// Moves on by the groups whose loads are in flight together.
    __device__ void advance() {
        group += F::kGroups;
        if (group < groups()) return;
        group = 0;
        if (++phase < phases) return;
        phase = 0;
        begin += kTogether;
    }
    __device__ int output(int ahead, int r) const { return begin + (group + ahead) * kOutputs + r / kRowsEach; }
    __device__ bool has(int output) const { return output < begin + outputs(); }
};

/// The weights of the groups that are used next, in registers.
template <class Finish, class F> class RowWeights {
public:
    __device__ RowWeights(const FewRows& a, const Finish& finish, const RowColumns<F>& columns, int begin, int end)
        : a_(a), finish_(finish), columns_(columns), at_(begin, end, columns.phases) {
#pragma unroll
        for (int g = 0; g < F::kGroups; ++g) fetch(g);
    }
    /// After this call fetch() asks for the groups that follow the ones in flight.
    __device__ void next() { at_.advance(); }
    __device__ void fetch(int g) {
        const uint4* from = reinterpret_cast<const uint4*>(a_.w) + columns_.piece(at_.phase);
#pragma unroll
        for (int set = 0; set < F::kSets; ++set) {
            const int r = set * F::kSide + int(threadIdx.x) % kWarp / F::kLanes, output = at_.output(g, r);
            const bool wanted = at_.has(output);
            const int row = finish_.row(output) + (r % at_.kRowsEach != 0 ? finish_.apart(output) : 0);
#pragma unroll
            for (int p = 0; p < F::kPieces; ++p)
                piece[g][p][set] = wanted && columns_.has(at_.phase, p)
                                       ? loadStreaming(from + std::size_t(row) * (a_.cols / 8) + p * F::kLanes)
                                       : make_uint4(0, 0, 0, 0);
        }
    }
    uint4 piece[F::kGroups][F::kPieces][F::kSets];

private:
    const FewRows& a_;
    const Finish& finish_;
    const RowColumns<F>& columns_;
    RowCursor<Finish, F> at_;
};

/// A lane holds pieces of two inputs, one for each `half`.
template <class F> __device__ inline int laneInput(int half) {
    return half * F::kSide + int(threadIdx.x) % kWarp / F::kLanes;
}

/// The bf16 inputs of one phase of columns. While the inputs of the next phase are read, loads of weights are in
/// flight.
template <class F> class HalfRowInputs {
public:
    static constexpr bool kFloats = false;
    struct Room {};
    __device__ HalfRowInputs(const FewRows& a, const RowColumns<F>& columns, Room&) : a_(a), columns_(columns) {}
    /// Reads the inputs of the first phase. Called after the wait for earlier kernels.
    __device__ void start() { take(0); }
    __device__ void take(int phase) {
        const uint4* from = reinterpret_cast<const uint4*>(a_.xHalf) + columns_.piece(phase);
#pragma unroll
        for (int p = 0; p < F::kPieces; ++p)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int input = laneInput<F>(half);
                piece[p][half] = input < a_.n && columns_.has(phase, p)
                                     ? from[std::size_t(input) * (a_.cols / 8) + p * F::kLanes]
                                     : make_uint4(0, 0, 0, 0);
            }
    }
    __device__ float scale(int) const { return 1; }
    uint4 piece[F::kPieces][2];

private:
    const FewRows& a_;
    const RowColumns<F>& columns_;
};

/// Float inputs, all columns in one phase. An input is multiplied by the norm's weights here; its norm's scale
/// multiplies the results at the end.
template <class F> class FloatRowInputs {
public:
    static constexpr bool kFloats = true;
    struct Room {
        float4 norm[F::kWarps][F::kPieces][F::kLanes][2]; // the norm's weights, read before the wait
        float squares[F::kWarps][F::kInputs];
    };
    __device__ FloatRowInputs(const FewRows& a, const RowColumns<F>& columns, Room& room)
        : a_(a), columns_(columns), room_(room) {
        if (a_.normWeight == nullptr || threadIdx.x % kWarp >= F::kLanes) return;
#pragma unroll
        for (int p = 0; p < F::kPieces; ++p)
            if (columns_.has(0, p))
#pragma unroll
                for (int q = 0; q < 2; ++q) copyToShared(norm(p) + q, a_.normWeight + (columnOf(p) + q * 4));
        closeCopies();
    }
    __device__ void start() {
        float4 x[F::kPieces][2][2];
#pragma unroll
        for (int p = 0; p < F::kPieces; ++p)
#pragma unroll
            for (int half = 0; half < 2; ++half) read(p, half, x[p][half]);
        waitForCopies<0>();
        __syncwarp();
        float square[2] = {};
#pragma unroll
        for (int p = 0; p < F::kPieces; ++p)
#pragma unroll
            for (int half = 0; half < 2; ++half) square[half] += round(p, half, x[p][half]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int offset = F::kLanes / 2; offset > 0; offset /= 2)
                square[half] += __shfl_xor_sync(0xffffffffu, square[half], offset);
            if (threadIdx.x % F::kLanes == 0) room_.squares[threadIdx.x / kWarp][laneInput<F>(half)] = square[half];
        }
    }
    __device__ void take(int) {}
    /// The norm's scale of an input. Called after a barrier, when all warps have written their sums of squares.
    __device__ float scale(int input) const {
        if (a_.normWeight == nullptr) return 1;
        float total = 0;
#pragma unroll
        for (int u = 0; u < F::kWarps; ++u) total += room_.squares[u][input];
        return rsqrtf(total / float(a_.cols) + a_.normEps);
    }
    uint4 piece[F::kPieces][2];

private:
    __device__ int columnOf(int p) const { return (columns_.piece(0) + p * F::kLanes) * 8; }
    __device__ float4* norm(int p) const { return room_.norm[threadIdx.x / kWarp][p][threadIdx.x % F::kLanes]; }
    __device__ void read(int p, int half, float4 (&x)[2]) const {
        const int input = laneInput<F>(half);
        x[0] = x[1] = make_float4(0, 0, 0, 0);
        if (!columns_.has(0, p) || input >= a_.n) return;
        const float* from = a_.x + std::size_t(input) * a_.xStride + columnOf(p);
        x[0] = *reinterpret_cast<const float4*>(from), x[1] = *reinterpret_cast<const float4*>(from + 4);
    }
    /// Multiplies a piece by the norm's weights and keeps it as bf16. @return the sum of the piece's squares
    __device__ float round(int p, int half, const float4 (&x)[2]) {
        const float4 &f = x[0], &g = x[1];
        float4 u = make_float4(1, 1, 1, 1), v = u;
        if (a_.normWeight != nullptr && columns_.has(0, p)) u = norm(p)[0], v = norm(p)[1];
        piece[p][half] = make_uint4(packBf16(f.x * u.x, f.y * u.y), packBf16(f.z * u.z, f.w * u.w),
                                    packBf16(g.x * v.x, g.y * v.y), packBf16(g.z * v.z, g.w * v.w));
        return f.x * f.x + f.y * f.y + f.z * f.z + f.w * f.w + g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
    }
    const FewRows& a_;
    const RowColumns<F>& columns_;
    Room& room_;
};

/// Two lanes whose numbers differ in the bits of `mask` exchange halves of their kCount values. The lane with `upper`
/// set keeps the upper half, the other lane the lower half, and each adds the values that it receives to those it
/// keeps.
template <int kCount> __device__ inline void shareSums(float* value, bool upper, int mask) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
        const float low = value[i], high = value[i + kCount / 2];
        value[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, mask);
    }
}

/// Multiplies one group of rows with the inputs. Of the products that a lane receives it keeps those of equal chunks:
/// for every set of rows two values, one for each of two inputs. Its two columns of a result are neighbouring chunks of
/// weights, and the number of its chunk of inputs, odd or even, says which column that is.
template <class F>
__device__ inline void multiplyGroup(const uint4 (&w)[F::kPieces][F::kSets], const uint4 (&x)[F::kPieces][2],
                                     float (&value)[F::kSets * 2]) {
    float c[F::kSets][4] = {};
#pragma unroll
    for (int p = 0; p < F::kPieces; ++p)
#pragma unroll
        for (int set = 0; set < F::kSets; ++set) {
            const uint4 &a = x[p][0], &b = x[p][1];
            mma16816(c[set], a.x, b.x, a.y, b.y, w[p][set].x, w[p][set].y);
            mma16816(c[set], a.z, b.z, a.w, b.w, w[p][set].z, w[p][set].w);
        }
    const bool odd = threadIdx.x / 4 % 2 != 0;
#pragma unroll
    for (int set = 0; set < F::kSets; ++set) {
        value[set * 2] = odd ? c[set][1] : c[set][0];
        value[set * 2 + 1] = odd ? c[set][3] : c[set][2];
    }
}

/// Adds a group's products up over the chunks of its rows. to: [row][input]; the sums are written there, or with `adds`
/// added to what earlier phases have written.
template <class F> __device__ inline void keepGroup(float (&value)[F::kSets * 2], float* to, bool adds) {
    static_assert(F::kSets * 2 == F::kChunks, "a lane for every sum");
    const int lane = threadIdx.x % kWarp, chunk = lane / 4 % F::kChunks, quad = lane % 4;
    // The lane with the chunk two further on is 8 lanes further on, and its columns lie with the next lane of a quad.
    if constexpr (F::kChunks == 4) shareSums<4>(value, (chunk & 2) != 0, 9);
    shareSums<2>(value, (chunk & 1) != 0, 4);
    constexpr int kQuads = F::kChunks / 2; // neighbouring lanes of a quad that hold chunks of the same row
    if (quad % kQuads != chunk / 2) return;
    float& sum = to[(chunk / 2 * F::kSide + quad / kQuads) * F::kInputs + laneInput<F>(chunk % 2)];
    sum = adds ? sum + value[0] : value[0];
}

/// Which of the outputs that are summed together a thread finishes, and for which input.
struct OwnResult {
    int output, input;
    bool wanted;
};

/// Adds up what the warps have of a thread's result and hands the result to `finish`.
template <class Finish, class F>
__device__ inline void finishResult(const Finish& finish, const OwnResult& result, float scale,
                                    const float (*sums)[F::kTogether * F::kSums], const typename Finish::Ready& ready) {
    float value = 0, second = 0;
    const int first = int(threadIdx.x) / F::kInputs * RowCursor<Finish, F>::kRowsEach * F::kInputs + result.input;
#pragma unroll
    for (int u = 0; u < F::kWarps; ++u) {
        value += sums[u][first];
        if constexpr (Finish::kPairs) second += sums[u][first + F::kInputs];
    }
    finish.finish(ready, result.output, result.input, value * scale, second * scale);
}

template <class Finish, class F, template <class> class Inputs>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) fewRows(FewRows a, const __grid_constant__ Finish finish) {
    using Cursor = RowCursor<Finish, F>;
    __shared__ float sums[F::kWarps][F::kTogether * F::kSums];
    __shared__ typename Inputs<F>::Room room;
    // Each is used by one thread only. In registers it would cost every thread as many, also those without a result.
    __shared__ typename Finish::Ready ready[Cursor::kTogether * F::kInputs];
    const RowColumns<F> columns(a.cols);
    const int first = int(std::int64_t(a.outputs) * blockIdx.x / gridDim.x),
              end = int(std::int64_t(a.outputs) * (blockIdx.x + 1) / gridDim.x);
    const auto resultOf = [&](int begin) {
        const int mine = int(threadIdx.x) / F::kInputs, input = int(threadIdx.x) % F::kInputs;
        return OwnResult{begin + mine, input, mine < min(Cursor::kTogether, end - begin) && input < a.n};
    };
    letNextKernelStart();
    RowWeights<Finish, F> weights(a, finish, columns, first, end); // before the wait: no kernel writes weights
    Inputs<F> inputs(a, columns, room);
    if (const OwnResult result = resultOf(first); result.wanted)
        finish.prepare(ready[threadIdx.x], result.output, result.input);
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    inputs.start();
    if (const OwnResult result = resultOf(first); result.wanted)
        finish.await(ready[threadIdx.x], result.output, result.input);

    for (int begin = first; begin < end; begin += Cursor::kTogether) {
        const int groups = Cursor(begin, end, columns.phases).groups();
        if (begin != first) __syncthreads(); // all threads have read the sums of the outputs before
        for (int phase = 0; phase < columns.phases; ++phase) {
            if (columns.phases > 1 && (begin != first || phase > 0)) inputs.take(phase);
            for (int group = 0; group < groups; group += F::kGroups) {
                weights.next();
#pragma unroll
                for (int g = 0; g < F::kGroups; ++g) {
                    float value[F::kSets * 2];
                    multiplyGroup<F>(weights.piece[g], inputs.piece, value);
                    weights.fetch(g);
                    if (group + g < groups)
                        keepGroup<F>(value, &sums[threadIdx.x / kWarp][(group + g) * F::kSums], phase > 0);
                }
            }
        }
        __syncthreads();
        const OwnResult result = resultOf(begin);
        if (!result.wanted) continue;
        if (begin != first) {
            finish.prepare(ready[threadIdx.x], result.output, result.input);
            finish.await(ready[threadIdx.x], result.output, result.input);
        }
        finishResult<Finish, F>(finish, result, inputs.scale(result.input), sums, ready[threadIdx.x]);
    }
}

template <class F, template <class> class Inputs, class Finish>
void startRows(const Launch& how, const FewRows& a, const Finish& finish) {
    const int blocks = std::min(a.outputs, how.multiprocessors * F::kBlocks);
    launch(how, {dim3(unsigned(blocks)), dim3(F::kThreads)}, fewRows<Finish, F, Inputs>, "multiplying a few inputs", a,
           finish);
}

constexpr int kRowInputs = 8;         // most inputs
constexpr int kWidestRowInput = 4096; // most columns of float inputs, which are taken in one phase

/// Whether launchRows takes n float inputs of so many columns.
inline bool rowsTakeFloats(int n, int cols) { return n >= 2 && n <= kRowInputs && cols <= kWidestRowInput; }

/// Multiplies 1 to kRowInputs inputs.
template <template <class> class Inputs, class Finish>
void launchRows(const Launch& how, const FewRows& a, const Finish& finish) {
    const auto start = [&]<RowsDivision kDivision>() { startRows<RowsForm<kDivision>, Inputs>(how, a, finish); };
    // The form with the fewest columns at once that holds the model's width, because a lane without a piece loads
    // nothing. Every thread block reads all inputs: of wide float inputs there is only one thread block for each
    // multiprocessor.
    if (a.n > 4) {
        if (a.cols <= 2048) return start.template operator()<RowsDivision{8, 8, 4, 2}>();
        return start.template operator()<RowsDivision{8, 16, 4, 3}>();
    }
    if (a.cols <= 2048) return start.template operator()<RowsDivision{4, 8, 2, 3}>();
    if (a.cols <= 2560) return start.template operator()<RowsDivision{4, 10, 2, 2}>();
    if constexpr (Inputs<RowsForm<RowsDivision{4, 16, 2, 3}>>::kFloats)
        start.template operator()<RowsDivision{4, 16, 2, 3}>();
    else
        start.template operator()<RowsDivision{4, 8, 4, 1}>();
}

} // namespace kvscope::cuda

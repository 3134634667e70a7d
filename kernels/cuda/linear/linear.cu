#include "kernels/cuda/linear/linear.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/linear_few.h"
#include "kernels/cuda/linear/linear_finish.cuh"
#include "kernels/cuda/linear/linear_tiles.h"
#include "kernels/cuda/linear/matrix_library.h"
#include "kernels/cuda/linear/one_input.cuh"
#include "kernels/cuda/linear/packed.h"

#include <algorithm>
#include <string>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// ---- One input ------------------------------------------------------------------------------------------------------

template <bool kHalfInput> void multiplyOne(const Launch& how, OneInput a, const LinearOutput& out) {
    if (out.hidden == nullptr)
        return launchOne<kHalfInput>(how, a, StoreFloats{out.y, out.stride, out.accumulate, out.bias});
    a.outputs /= 2;
    launchOne<kHalfInput>(how, a, StoreGated{out.hidden, a.outputs, out.gate});
}

// ---- Many inputs, where the library is absent ----------------------------------------------------------------------

struct ManyInputs {
    const Bf16* w;
    int rows, cols;
    const Bf16* x;
    int n;
    float* y;
    int stride;
    bool accumulate;
    const float* bias;
    Bf16* half; // bf16 output instead of y, rows halfStride apart
    int halfStride;
};

constexpr int kTileRows = 128, kTileInputs = 128, kTileDepth = 32, kStages = 3;

__device__ inline void copyAsync(void* shared, const void* global, bool valid) {
    const unsigned to = unsigned(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid ? 16 : 0));
}

/// 128 x 128 outputs per block of 8 warps (2 x 4), 32 columns per stage. Pieces of 16 bytes are swizzled so that
/// neither the copies nor the fragment reads conflict.
__global__ void __launch_bounds__(kThreads) manyInputs(ManyInputs a) {
    extern __shared__ uint4 tiles[]; // [stage][w: 128 rows x 4 pieces][x: 128 x 4]
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int rowBase = blockIdx.x * kTileRows, inputBase = blockIdx.y * kTileInputs;
    constexpr int kStagePieces = (kTileRows + kTileInputs) * 4;
    letNextKernelStart();
    waitForEarlierKernels();
    const auto place = [](int row, int piece) { return row * 4 + (piece ^ (row >> 1 & 3)); };
    const int steps = a.cols / kTileDepth;
    const auto fetch = [&](int step) {
        uint4* stage = tiles + step % kStages * kStagePieces;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = threadIdx.x + i * kThreads, row = at / 4, piece = at % 4;
            const bool okW = rowBase + row < a.rows, okX = inputBase + row < a.n;
            copyAsync(stage + place(row, piece),
                      a.w + std::size_t(okW ? rowBase + row : 0) * a.cols + step * kTileDepth + piece * 8, okW);
            copyAsync(stage + kTileRows * 4 + place(row, piece),
                      a.x + std::size_t(okX ? inputBase + row : 0) * a.cols + step * kTileDepth + piece * 8, okX);
        }
    };
    for (int s = 0; s < kStages - 1; ++s) {
        if (s < steps) fetch(s);
        asm volatile("cp.async.commit_group;");
    }
    const int warpRow = warp / 4 * 64, warpInput = warp % 4 * 32;
    float c[4][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
        __syncthreads();
        if (step + kStages - 1 < steps) fetch(step + kStages - 1);
        asm volatile("cp.async.commit_group;");
        const uint4* stage = tiles + step % kStages * kStagePieces;
        // One 16-byte piece per (row, quad) is the fragments of both instructions; see linear_tiles.cu.
        uint4 x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = stage[kTileRows * 4 + place(warpInput + j * 8 + lane / 4, lane % 4)];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const uint4 p = stage[place(warpRow + t * 16 + lane / 4, lane % 4)];
            const uint4 q = stage[place(warpRow + t * 16 + 8 + lane / 4, lane % 4)];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                mma16816(c[t][j], p.x, q.x, p.y, q.y, x[j].x, x[j].y);
                mma16816(c[t][j], p.z, q.z, p.w, q.w, x[j].z, x[j].w);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = rowBase + warpRow + t * 16 + lane / 4 + e / 2 * 8;
                const int input = inputBase + warpInput + j * 8 + lane % 4 * 2 + e % 2;
                if (row >= a.rows || input >= a.n) continue;
                const float value = c[t][j][e] + (a.bias != nullptr ? a.bias[row] : 0.f);
                if (a.half != nullptr) {
                    a.half[std::size_t(input) * a.halfStride + row] = __float2bfloat16(value);
                } else {
                    float* y = a.y + std::size_t(input) * a.stride + row;
                    *y = a.accumulate ? *y + value : value;
                }
            }
}

// ---- Elementwise ----------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) normaliseKernel(const float* x, int xStride, int cols, const float* weight,
                                                            float eps, Bf16* out, std::uint64_t* mark) {
    __shared__ float partial[kWarps];
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(mark);
    const float4* row = reinterpret_cast<const float4*>(x + std::size_t(blockIdx.x) * xStride);
    float squares = 0;
    for (int i = threadIdx.x; i < cols / 4; i += kThreads) {
        const float4 p = row[i];
        squares += p.x * p.x + p.y * p.y + p.z * p.z + p.w * p.w;
    }
    squares = warpSum(squares);
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = squares;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) total += partial[i];
    const float scale = weight != nullptr ? rsqrtf(total / float(cols) + eps) : 1.f;
    uint2* to = reinterpret_cast<uint2*>(out + std::size_t(blockIdx.x) * cols);
    for (int i = threadIdx.x; i < cols / 4; i += kThreads) {
        const float4 p = row[i];
        const float4 u = weight != nullptr ? reinterpret_cast<const float4*>(weight)[i] : make_float4(1, 1, 1, 1);
        to[i] =
            make_uint2(packBf16(p.x * u.x * scale, p.y * u.y * scale), packBf16(p.z * u.z * scale, p.w * u.w * scale));
    }
}

/// products [n, 2f] interleaved -> hidden [n, f]; a thread makes 8 outputs of a 16-row tile.
__global__ void __launch_bounds__(kThreads)
    gateMultiply(const Bf16* products, std::size_t tiles, Bf16* hidden, GateRule rule) {
    letNextKernelStart();
    waitForEarlierKernels();
    for (std::size_t tile = std::size_t(blockIdx.x) * kThreads + threadIdx.x; tile < tiles;
         tile += std::size_t(gridDim.x) * kThreads) {
        const uint4 g = reinterpret_cast<const uint4*>(products)[tile * 2],
                    u = reinterpret_cast<const uint4*>(products)[tile * 2 + 1];
        uint4 out;
        const auto both = [&](std::uint32_t gate, std::uint32_t up) {
            return packBf16(gated(lowHalf(gate), lowHalf(up), rule), gated(highHalf(gate), highHalf(up), rule));
        };
        out.x = both(g.x, u.x), out.y = both(g.y, u.y), out.z = both(g.z, u.z), out.w = both(g.w, u.w);
        reinterpret_cast<uint4*>(hidden)[tile] = out;
    }
}

/// Packed weights: more inputs than this are multiplied with weights unpacked to bf16, a slab of so many at a time.
constexpr int kPackedTogether = 64;
constexpr std::size_t kSlabWeights = std::size_t(32) << 20;

PackedProduct productOf(const DeviceMatrix& w, const LinearOutput& out) {
    PackedProduct p;
    p.w = w.packed;
    p.type = w.type;
    p.rows = w.rows;
    p.cols = w.cols;
    p.y = out.y;
    p.stride = out.stride;
    p.accumulate = out.accumulate;
    p.bias = out.bias;
    p.hidden = out.hidden;
    p.gate = out.gate;
    return p;
}

__global__ void stampOnly(std::uint64_t* mark) {
    letNextKernelStart();
    waitForEarlierKernels();
    stamp(mark);
}

} // namespace

void stampNow(const Launch& how, std::uint64_t* mark) {
    launch(how, {dim3(1), dim3(1)}, stampOnly, "reading the clock", mark);
}

void normalise(const Launch& how, const float* x, int xStride, int n, int cols, const Norm& norm, Bf16* out,
               std::uint64_t* mark) {
    if (n == 0) return;
    launch(how, {dim3(unsigned(n)), dim3(kThreads)}, normaliseKernel, "normalising", x, xStride, cols, norm.weight,
           norm.eps, out, mark);
}

void LinearNeeds::addNormalised(const DeviceMatrix& w, int n) {
    normed = std::max(normed, std::size_t(n) * std::size_t(w.cols));
    add(w, n);
}

void LinearNeeds::add(const DeviceMatrix& w, int n, bool gates) {
    const bool packed = isQuantised(w.type);
    if (w.rows == 0 || (packed && n <= kPackedTogether)) return;
    if (packed) slab = kSlabWeights;
    if (gates) gated = std::max(gated, std::size_t(n) * std::size_t(w.rows)); // the library may multiply any number
}

Linear::Linear(const Launch& how, int maxInputs, int maxCols, bool useLibrary) : launch_(how), owns_(true) {
    grow(normed_, space_.normed, holds_.normed, std::size_t(maxInputs) * std::size_t(maxCols),
         "allocating the inputs of the linear layers");
    if (useLibrary) library_ = MatrixLibrary::load();
    if (library_) {
        libraryRoom_ = DeviceMemory(MatrixLibrary::kWorkspaceBytes, "allocating cuBLASLt's work space");
        if (!library_->open(libraryRoom_.data())) library_.reset();
    }
    chooseBy(nullptr);
}

Linear::Linear(const Launch& how, const LinearNeeds& needs, const LinearSpace& space,
               std::unique_ptr<MatrixLibrary> library, std::shared_ptr<const ProductTable> products)
    : launch_(how), holds_(needs), space_(space), owns_(false), library_(std::move(library)) {
    if (library_ && !library_->open(space.library)) library_.reset();
    chooseBy(std::move(products));
}

Linear::~Linear() = default; // MatrixLibrary is known here

std::size_t DeviceMatrix::bytes() const {
    return packed != nullptr ? packedBytes(type, rows, cols) : std::size_t(rows) * std::size_t(cols) * sizeof(Bf16);
}

void Linear::chooseBy(std::shared_ptr<const ProductTable> products) {
    if (!products)
        products =
            std::make_shared<const ProductTable>(ProductTable::builtIn({{}, 0, library_ ? library_->version() : 0}));
    products_ = std::move(products);
}

int Linear::proposals(const DeviceMatrix& w, int n, const LinearOutput& out) {
    if (!library_ || w.packed != nullptr) return 0;
    prepare(w, n, out);
    return library_->proposals(w, n, out, out.hidden != nullptr ? space_.gated : nullptr, w.rows);
}

const char* Linear::description() const { return library_ ? library_->description() : "own kernels"; }

void Linear::prepare(const DeviceMatrix& w, int n, const LinearOutput& out) {
    LinearNeeds needs;
    needs.add(w, n, out.hidden != nullptr);
    grow(slab_, space_.slab, holds_.slab, needs.slab, "allocating room for unpacked weights");
    grow(gated_, space_.gated, holds_.gated, needs.gated, "allocating the feed-forward's hidden values");
}

void Linear::grow(DeviceMemory& own, Bf16*& room, std::size_t& held, std::size_t wanted, const char* what) {
    if (wanted <= held) return;
    if (!owns_)
        throw Error(ErrorKind::Device,
                    "a product needs " + std::to_string(wanted * sizeof(Bf16) >> 10) + " KiB of work space, and " +
                        std::to_string(held * sizeof(Bf16) >> 10) + " KiB were planned",
                    "this is a bug in KVScope; use --backend cpu and report it");
    held = 0;
    own = {}; // there may be no room for both
    own = DeviceMemory(wanted * sizeof(Bf16), what);
    room = own.as<Bf16>();
    held = wanted;
}

void Linear::run(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm, const LinearOutput& out,
                 std::uint64_t* mark) {
    normalised_ = {};
    run(w, x, xStride, n, norm, out, mark, false);
}

void Linear::runAgain(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm,
                      const LinearOutput& out, std::uint64_t* mark) {
    run(w, x, xStride, n, norm, out, mark, true);
}

void Linear::run(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm, const LinearOutput& out,
                 std::uint64_t* mark, bool again) {
    if (n == 0 || w.rows == 0) return;
    if (w.packed != nullptr && n == 1 && w.cols <= packedFloatCols(launch_)) {
        PackedProduct p = productOf(w, out);
        p.x = x;
        p.n = 1;
        p.normWeight = norm.weight;
        p.normEps = norm.eps;
        p.mark = mark;
        return multiplyPacked(launch_, p);
    }
    if (w.packed == nullptr) {
        const ProductChoice choice = choose(w, true, n, out);
        if (choice.kernel == ProductKernel::OneInput)
            return multiplyOne<false>(launch_, {w.data, w.rows, w.cols, x, nullptr, norm.weight, norm.eps, mark}, out);
        if (choice.kernel == ProductKernel::FewRows && fewTakeFloats(n, w.cols))
            return multiplyFew(launch_, {w, nullptr, x, xStride, norm, n, out, mark});
    }
    grow(normed_, space_.normed, holds_.normed, std::size_t(n) * std::size_t(w.cols),
         "allocating the inputs of the linear layers");
    const Normalised wanted{x, norm.weight, xStride, n, w.cols, norm.eps};
    if (!again || normalised_ != wanted) {
        normalise(launch_, x, xStride, n, w.cols, norm, space_.normed, mark);
        normalised_ = wanted, mark = nullptr;
    }
    if (w.packed != nullptr) return packed(w, space_.normed, n, out, mark);
    chosen(choose(w, true, n, out), w, space_.normed, n, out, mark);
}

void Linear::run(const DeviceMatrix& w, const Bf16* x, int n, const LinearOutput& out, std::uint64_t* mark) {
    normalised_ = {};
    if (n == 0 || w.rows == 0) return;
    if (w.packed != nullptr) return packed(w, x, n, out, mark);
    chosen(choose(w, false, n, out), w, x, n, out, mark);
}

/// What the table chooses, or what is next to it where this product cannot be multiplied that way.
ProductChoice Linear::choose(const DeviceMatrix& w, bool normed, int n, const LinearOutput& out) const {
    const ProductFinish finish = out.hidden != nullptr ? ProductFinish::Gated
                                 : normed              ? ProductFinish::Normed
                                                       : ProductFinish::Plain;
    const auto fits = [&](ProductChoice choice) {
        switch (choice.kernel) {
        case ProductKernel::OneInput:
            return n == 1 && w.cols <= kWidestOneInput;
        case ProductKernel::FewRows:
            return n <= kFewRowInputs;
        case ProductKernel::Tiles:
            return n <= kFewInputs;
        case ProductKernel::Library:
            return library_ != nullptr && out.bias == nullptr;
        case ProductKernel::ManyInputs:
            return true;
        }
        return false;
    };
    if (forced_ && fits(*forced_)) return *forced_;
    for (const ProductChoice choice : {products_->choice({w.rows, w.cols, finish}, n),
                                       products_->rule(n),
                                       ProductChoice{ProductKernel::FewRows, 0},
                                       {ProductKernel::Tiles, 0}})
        if (fits(choice)) return choice;
    return {ProductKernel::ManyInputs, 0};
}

void Linear::chosen(ProductChoice choice, const DeviceMatrix& w, const Bf16* x, int n, const LinearOutput& out,
                    std::uint64_t* mark) {
    FewInputs few;
    few.w = w;
    few.xHalf = x;
    few.n = n;
    few.out = out;
    few.mark = mark;
    switch (choice.kernel) {
    case ProductKernel::OneInput:
        return multiplyOne<true>(launch_, {w.data, w.rows, w.cols, nullptr, x, nullptr, 0.f, mark}, out);
    case ProductKernel::FewRows:
        return multiplyFew(launch_, few);
    case ProductKernel::Tiles:
        return multiplyTiles(launch_, few);
    case ProductKernel::Library:
    case ProductKernel::ManyInputs:
        return many(choice, w, x, n, out, mark);
    }
}

void Linear::many(ProductChoice choice, const DeviceMatrix& w, const Bf16* x, int n, const LinearOutput& out,
                  std::uint64_t* mark) {
    const int candidate = choice.kernel == ProductKernel::Library ? choice.candidate : -1;
    if (mark != nullptr) stampNow(launch_, mark);
    prepare(w, n, out);
    Bf16* half = out.hidden != nullptr ? space_.gated : nullptr;
    if (w.packed == nullptr) {
        multiply(candidate, w, x, n, out, half, w.rows);
    } else {
        const int slabRows =
            std::max(16, int(kSlabWeights / std::size_t(w.cols)) / 128 * 128); // 128: the library wants outputs aligned
        for (int first = 0; first < w.rows; first += slabRows) {
            const int rows = std::min(slabRows, w.rows - first);
            unpackRows(launch_, w.type, w.packed, w.cols, first, rows, space_.slab);
            LinearOutput part = out;
            if (part.y != nullptr) part.y += first;
            if (part.bias != nullptr) part.bias += first;
            multiply(candidate, {space_.slab, rows, w.cols}, x, n, part, half != nullptr ? half + first : nullptr,
                     w.rows);
        }
    }
    if (half != nullptr) {
        const std::size_t tiles = std::size_t(n) * std::size_t(w.rows) / 16;
        const auto blocks = unsigned(
            std::min<std::size_t>((tiles + kThreads - 1) / kThreads, std::size_t(launch_.multiprocessors) * 16));
        launch(launch_, {dim3(blocks), dim3(kThreads)}, gateMultiply, "gating", half, tiles, out.hidden, out.gate);
    }
}

void Linear::packed(const DeviceMatrix& w, const Bf16* x, int n, const LinearOutput& out, std::uint64_t* mark) {
    if (n > kPackedTogether)
        return many({library_ ? ProductKernel::Library : ProductKernel::ManyInputs, 0}, w, x, n, out, mark);
    for (int first = 0; first < n; first += kPackedInputs) {
        PackedProduct p = productOf(w, out);
        p.xHalf = x + std::size_t(first) * std::size_t(w.cols);
        p.n = std::min(kPackedInputs, n - first);
        if (p.y != nullptr) p.y += std::size_t(first) * std::size_t(out.stride);
        if (p.hidden != nullptr) p.hidden += std::size_t(first) * std::size_t(w.rows / 2);
        if (first == 0) p.mark = mark;
        multiplyPacked(launch_, p);
    }
}

void Linear::multiply(int candidate, const DeviceMatrix& w, const Bf16* x, int n, const LinearOutput& out, Bf16* half,
                      int halfStride) {
    if (candidate >= 0 && library_ && out.bias == nullptr) {
        library_->multiply(launch_.stream, w, x, n, out, half, halfStride, {candidate, false});
    } else {
        const ManyInputs a{w.data, w.rows, w.cols, x, n, out.y, out.stride, out.accumulate, out.bias, half, halfStride};
        const std::size_t shared = std::size_t(kStages) * (kTileRows + kTileInputs) * 4 * sizeof(uint4);
        launch(launch_,
               {dim3(unsigned((w.rows + kTileRows - 1) / kTileRows), unsigned((n + kTileInputs - 1) / kTileInputs)),
                dim3(kThreads), shared},
               manyInputs, "multiplying many inputs", a);
    }
}

} // namespace kvscope::cuda

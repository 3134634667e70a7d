// Stages qkv_linear, o_linear, ffn and lm_head: linear layers with bf16 weights or packed weights (packed.h) and float
// accumulation. With bf16 weights a table (kernels/product_table.h) chooses by shape and number of inputs: plain
// multiply-adds for one input, tensor cores for a few, cuBLASLt, or tiles of our own where cuBLASLt is not installed.
// Packed weights are multiplied with up to 64 inputs as they are; for more inputs they are unpacked to bf16, a slab of
// rows at a time.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/kernels.h"
#include "kernels/product_table.h"

#include <cstdint>
#include <cuda_bf16.h>
#include <memory>
#include <optional>

namespace kvscope::cuda {

/// Device memory, [rows = outputs, cols = inputs]; cols a multiple of 32; gated: rows of 16. Either `data`, row-major,
/// or `packed`.
struct DeviceMatrix {
    const __nv_bfloat16* data = nullptr;
    int rows = 0, cols = 0;
    DType type = DType::BF16;          // format of packed weights
    const std::byte* packed = nullptr; // see packed.h
    std::size_t bytes() const;
};

/// What a feed-forward makes of its two products: silu(gate) * up or, where the limit is not 0, the rule of BoundedGate
/// (core/model/model_config.h).
struct GateRule {
    float slope = 1, limit = 0;
};

/// Where W x goes: exactly one of `y` and `hidden` is set.
struct LinearOutput {
    float* y = nullptr; // [n, rows], rows `stride` floats apart
    int stride = 0;
    bool accumulate = false;         // y += instead of y =
    const float* bias = nullptr;     // [rows]
    __nv_bfloat16* hidden = nullptr; // [n, rows/2]: gate and up together; weights interleaved by interleavedRow
    GateRule gate = {};              // with `hidden`
};

/// Writes the time of the GPU's timer to `mark` when everything launched before has finished.
void stampNow(const Launch& launch, std::uint64_t* mark);

/// Where output `row` of the gate (or of up, when `up`) lies in the interleaved gate-and-up matrix: tiles of 16 rows, 8
/// of the gate and the same 8 of up, so that one thread of a tensor-core tile holds both.
constexpr int interleavedRow(int row, bool up) { return row / 8 * 16 + row % 8 + (up ? 8 : 0); }

/// RMSNorm's weight [cols], or null for a plain input.
struct Norm {
    const float* weight = nullptr;
    float eps = 0;
};

/// out[i, :] = norm(x_i) as bf16; x float [n, cols], rows `xStride` apart.
void normalise(const Launch& launch, const float* x, int xStride, int n, int cols, const Norm& norm, __nv_bfloat16* out,
               std::uint64_t* mark = nullptr);

/// cuBLASLt, loaded at run time where it is installed (matrix_library.h).
class MatrixLibrary;

/// Sizes of the work space that products need, in elements of bf16; the most that any product needs.
struct LinearNeeds {
    std::size_t normed = 0; // normalised inputs
    std::size_t gated = 0;  // the feed-forward's values before silu
    std::size_t slab = 0;   // a copy of a slab of packed weights, for many inputs

    /// Products of w with up to n float inputs, which are normalised first.
    void addNormalised(const DeviceMatrix& w, int n);
    /// Products of w with up to n inputs. gated: into LinearOutput::hidden
    void add(const DeviceMatrix& w, int n, bool gated = false);
    bool operator==(const LinearNeeds&) const = default;
};

/// Device memory for the work space, which the caller owns. A pointer is null where nothing is needed.
struct LinearSpace {
    __nv_bfloat16 *normed = nullptr, *gated = nullptr, *slab = nullptr;
    std::byte* library = nullptr; // MatrixLibrary::kWorkspaceBytes, where there is a library
};

/// Products of one stream, with their work space.
class Linear {
public:
    /// For benchmarks and tests: takes memory for its work space itself, and more when prepare() announces a larger
    /// product. maxInputs, maxCols: the largest n and cols of the products to come. Chooses the kernels by the table's
    /// rule. @throws Error(OutOfMemory)
    Linear(const Launch& launch, int maxInputs, int maxCols, bool useLibrary = true);
    /// Takes no memory: `space` has room for `needs`, and a product that needs more is refused. library: null: only our
    /// own kernels multiply; products: the table that chooses the kernels; null: its rule chooses
    Linear(const Launch& launch, const LinearNeeds& needs, const LinearSpace& space,
           std::unique_ptr<MatrixLibrary> library, std::shared_ptr<const ProductTable> products = nullptr);
    ~Linear();
    Linear(const Linear&) = delete;
    Linear& operator=(const Linear&) = delete;

    /// W norm(x): x float [n, cols], rows `xStride` apart. mark: gets the time at which the first kernel begins its
    /// work; or null.
    void run(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm, const LinearOutput& out,
             std::uint64_t* mark = nullptr);
    /// The same for an x that nobody has written to since the last call of run or runAgain: where that call left the
    /// normalised x in the work space, it is not normalised again.
    void runAgain(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm, const LinearOutput& out,
                  std::uint64_t* mark = nullptr);
    /// W x: x bf16 [n, cols], contiguous.
    void run(const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out,
             std::uint64_t* mark = nullptr);

    /// From now on this table chooses the kernels; null: the compiled-in one.
    void chooseBy(std::shared_ptr<const ProductTable> products);
    /// From now on every product whose shape allows it is multiplied in this way; nothing: the table chooses again.
    /// Benchmarks and measureProducts compare the ways with it.
    void force(std::optional<ProductChoice> choice) { forced_ = choice; }
    /// How many algorithms the library proposes for such a product; 0 without the library.
    int proposals(const DeviceMatrix& w, int n, const LinearOutput& out);

    /// "cuBLASLt 13.1" or "own kernels".
    const char* description() const;
    /// Makes the work space large enough for a product. It must not grow while a graph is captured. @throws
    /// Error(OutOfMemory | Device)
    void prepare(const DeviceMatrix& w, int n, const LinearOutput& out);

private:
    ProductChoice choose(const DeviceMatrix& w, bool normed, int n, const LinearOutput& out) const;
    void chosen(ProductChoice choice, const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out,
                std::uint64_t* mark);
    void many(ProductChoice choice, const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out,
              std::uint64_t* mark);
    void packed(const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out, std::uint64_t* mark);
    /// Writes to out.y or, where `half` is not null, to `half`, [n, halfStride]. candidate: the number of the library's
    /// proposal; -1: our own tiles
    void multiply(int candidate, const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out,
                  __nv_bfloat16* half, int halfStride);
    /// Makes a part of the work space large enough: `own` takes the memory, `room` and `held` become its beginning and
    /// its size. @throws Error(Device) where the caller owns the work space
    void grow(DeviceMemory& own, __nv_bfloat16*& room, std::size_t& held, std::size_t wanted, const char* what);

    /// Which normalised inputs the last run has left in space_.normed.
    struct Normalised {
        const float *x = nullptr, *weight = nullptr;
        int xStride = 0, n = 0, cols = 0;
        float eps = 0;
        bool operator==(const Normalised&) const = default;
    };
    void run(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm, const LinearOutput& out,
             std::uint64_t* mark, bool again);

    Launch launch_;
    Normalised normalised_;
    LinearNeeds holds_; // what the work space has room for
    LinearSpace space_;
    const bool owns_; // the work space is this object's own
    DeviceMemory normed_, gated_, slab_, libraryRoom_;
    std::unique_ptr<MatrixLibrary> library_;
    std::shared_ptr<const ProductTable> products_;
    std::optional<ProductChoice> forced_;
};

} // namespace kvscope::cuda

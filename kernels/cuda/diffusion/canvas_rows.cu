#include "kernels/cuda/diffusion/canvas_rows.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;
enum class Move { Gather, Scatter, Add };

/// Moves row i of one array and row places[i] of the other. Gather: from the places; zeros for a place below 0.
/// Scatter: to the places. Add: adds the numbers at the places. Grid (rows).
template <Move kMove> __global__ void __launch_bounds__(kThreads) rowsKernel(CanvasRowsArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const std::size_t row = blockIdx.x, pieces = std::size_t(a.width) / 4;
    const std::int32_t place = a.places[row];
    if (place < 0 && kMove != Move::Gather) return;
    const float4* const from = reinterpret_cast<const float4*>(a.from);
    float4* const to = reinterpret_cast<float4*>(a.to);
    for (std::size_t i = threadIdx.x; i < pieces; i += kThreads) {
        const std::size_t here = row * pieces + i;
        if (kMove == Move::Gather) {
            to[here] = place < 0 ? make_float4(0, 0, 0, 0) : from[std::size_t(place) * pieces + i];
            continue;
        }
        const std::size_t there = std::size_t(place) * pieces + i;
        if (kMove == Move::Scatter) {
            to[there] = from[here];
            continue;
        }
        const float4 add = from[there];
        float4 sum = to[here];
        sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
        to[here] = sum;
    }
}

template <Move kMove> void move(const Launch& how, const CanvasRowsArgs& args, const char* name) {
    if (args.rows == 0) return;
    if (args.width % 4 != 0)
        throw Error(ErrorKind::Unsupported, "rows of a canvas are moved by four numbers at a time",
                    "use --backend cpu for a model whose hidden size is not a multiple of 4");
    launch(how, {dim3(unsigned(args.rows)), dim3(kThreads)}, rowsKernel<kMove>, name, args);
}

} // namespace

void gatherRows(const Launch& how, const CanvasRowsArgs& args) { move<Move::Gather>(how, args, "gathering rows"); }
void scatterRows(const Launch& how, const CanvasRowsArgs& args) { move<Move::Scatter>(how, args, "scattering rows"); }
void addRows(const Launch& how, const CanvasRowsArgs& args) { move<Move::Add>(how, args, "adding rows"); }

} // namespace kvscope::cuda

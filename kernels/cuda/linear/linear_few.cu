#include "kernels/cuda/linear/linear_few.h"

#include "kernels/cuda/linear/few_rows.cuh"
#include "kernels/cuda/linear/linear_finish.cuh"
#include "kernels/cuda/linear/linear_tiles.h"

namespace kvscope::cuda {
namespace {

template <class Finish> void startRowsOf(const Launch& how, const FewInputs& a, int outputs, const Finish& finish) {
    const FewRows rows{a.w.data, outputs, a.w.cols, a.x, a.xStride, a.xHalf, a.norm.weight, a.norm.eps, a.n, a.mark};
    a.x != nullptr ? launchRows<FloatRowInputs>(how, rows, finish) : launchRows<HalfRowInputs>(how, rows, finish);
}

} // namespace

static_assert(kFewRowInputs == kRowInputs);

bool fewTakeFloats(int n, int cols) { return rowsTakeFloats(n, cols); }

void multiplyFew(const Launch& how, const FewInputs& a) {
    if (a.n > kRowInputs) return multiplyTiles(how, a);
    if (a.out.hidden != nullptr)
        startRowsOf(how, a, a.w.rows / 2, StoreGated{a.out.hidden, a.w.rows / 2, a.out.gate});
    else
        startRowsOf(how, a, a.w.rows, StoreFloats{a.out.y, a.out.stride, a.out.accumulate, a.out.bias});
}

} // namespace kvscope::cuda

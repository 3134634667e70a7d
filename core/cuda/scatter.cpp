#include "core/cuda/scatter.h"

#include "base/elements.h"
#include "kernels/cuda/device/check.h"

#include <cstring>
#include <memory>

namespace kvscope {
namespace {

struct Order {
    Scatter* scatter = nullptr;
    Scattered what;
};

} // namespace

void Scatter::now(const Scattered& what) {
    const std::lock_guard lock(mutex_);
    team_.each(what.heads * what.blocks, [&](int i, int) {
        const int head = i / what.blocks, block = i % what.blocks;
        char* const to = RowsOf(what.to, what.toStride)[head];
        const char* const from = RowsOf(what.from, what.fromStride)[head];
        std::memcpy(RowsOf(to, what.blockBytes)[block], RowsOf(from, what.blockBytes)[block], what.blockBytes);
    });
}

void Scatter::after(cudaStream_t stream, const Scattered& what) {
    auto order = std::make_unique<Order>(Order{this, what});
    cuda::check(cudaLaunchHostFunc(
                    stream,
                    [](void* given) {
                        const std::unique_ptr<Order> taken(static_cast<Order*>(given));
                        taken->scatter->now(taken->what);
                    },
                    order.get()),
                "scattering KV blocks in the host store");
    order.release(); // the call above has it
}

} // namespace kvscope

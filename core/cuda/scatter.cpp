#include "core/cuda/scatter.h"

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
        const auto head = std::size_t(i / what.blocks), block = std::size_t(i % what.blocks);
        std::memcpy(what.to + head * what.toStride + block * what.blockBytes,
                    what.from + head * what.fromStride + block * what.blockBytes, what.blockBytes);
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

#include "core/cuda/diffusion/diffusion_parts.h"

#include <utility>
#include <vector>

namespace kvscope {

DiffusionParts::DiffusionParts(std::shared_ptr<const Model> loaded, std::shared_ptr<const DeviceModel> uploaded,
                               CudaEngineOptions options, const std::function<BatchLayout(BatchLayout)>& productsOf,
                               std::span<const std::uint8_t> mayBeWritten, const cuda::Launch& how)
    : owner(std::move(loaded)), model(std::move(uploaded)), config(model->config), engine(std::move(options)),
      layout(config, engine), products(productsOf(layout)), launch(how), ranges(engine.trace), trace(engine.trace),
      passes(*model, products, buffers, launch, ranges), table(config, engine, layout), allowedIds_(mayBeWritten) {
    cuda::checkAttentionShape(layout.shape);
}

void DiffusionParts::plan() {
    passes.plan(arena, engine.useLibrary);
    table.plan(arena);
    arena.plan(allowed, config.vocab, "session state");
}

void DiffusionParts::open(const cuda::Stream& stream) {
    launch.stream = stream.get();
    arena.take();
    passes.open();
    table.upload();
    Numbered<std::uint8_t> all;
    all.assign(allowedIds_.begin(), allowedIds_.end());
    all.resize(config.vocab, 1);
    cuda::check(cudaMemcpy(allowed, all.data(), all.size(), cudaMemcpyHostToDevice), "preparing the session");
}

void DiffusionParts::startClock(std::uint64_t* mark) {
    clock.calibrate(launch, mark);
    if (trace != nullptr) trace->timesBeginAt(clock.originNs());
}

} // namespace kvscope

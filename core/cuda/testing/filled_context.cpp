#include "core/cuda/testing/filled_context.h"

#include "kernels/cuda/token/token.h"

#include <vector>

namespace kvscope {

void fillContext(CudaEngine& engine, int tokens, std::uint64_t seed) {
    const int layers = engine.model_->config.layers;
    const EngineChanges* changes = engine.options_.changes;
    const int sharing = changes != nullptr ? changes->storedSequences()
                                           : 0, // only the first `stored` sequences have blocks in the host store
        stored = sharing > 0 ? sharing : engine.layout_.rows;
    for (int s = 0; s < engine.layout_.rows; ++s)
        for (int i = 0; i < layers; ++i) {
            const DeviceLayerState& layer = engine.sequences_.layers[std::size_t(i)];
            const PromptReader::Blocks filled = engine.sequences_.prompts.blocksOf(i, s, tokens);
            const auto kvHeads = std::size_t(engine.layout_.kvHeads);
            cuda::fillNormal(filled.blocks, kvHeads * std::size_t(filled.headStride), 1.f,
                             seed + std::uint64_t(s * layers + i));
            if (layer.index.tokenScores != nullptr)
                cuda::fillScores(layer.index.tokenScores + engine.layout_.tokenFirst[engine.layout_.headOf(s)],
                                 kvHeads * std::size_t(engine.layout_.blocks[std::size_t(s)]) *
                                     std::size_t(engine.options_.spec.blockSize),
                                 seed ^ std::uint64_t(s * layers + i));
            cuda::PromptArgs prompt;
            prompt.shape = engine.layout_.shape;
            prompt.index = layer.index;
            prompt.n = tokens;
            prompt.sequence = s;
            prompt.blocks = filled.blocks;
            prompt.headStride = filled.headStride;
            if (layer.indexed) cuda::indexPrompt(engine.launch_, prompt);
            engine.sequences_.prompts.finish(filled);
            if (layer.offloaded && s < stored) engine.sequences_.prompts.store(filled, engine.stream());
            cuda::check(cudaStreamSynchronize(engine.stream()), "filling the cache");
        }
    std::vector<std::int32_t> positions(std::size_t(engine.layout_.rows), tokens);
    cuda::check(cudaMemcpy(engine.sequences_.rows.position, positions.data(), positions.size() * sizeof(std::int32_t),
                           cudaMemcpyHostToDevice),
                "filling the cache");
    engine.launched_ = engine.waited_ = 0;
}

} // namespace kvscope

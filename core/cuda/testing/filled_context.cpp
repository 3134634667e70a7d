#include "core/cuda/testing/filled_context.h"

#include "kernels/cuda/token/token.h"

#include <vector>

namespace kvscope {
namespace {

void fill(const CudaSequences& sequences, const CudaEngineOptions& options, const BatchLayout& layout,
          const cuda::Launch& launch, int tokens, std::uint64_t seed) {
    const int layers = int(sequences.layers.size());
    const int sharing = options.changes != nullptr ? options.changes->storedSequences()
                                                   : 0, // only the first `stored` sequences have blocks on the host
        stored = sharing > 0 ? sharing : layout.rows;
    for (const RowId s : idsUpTo<RowId>(layout.rows))
        for (const LayerId i : sequences.layers.ids()) {
            const int number = int(s) * layers + int(i);
            const DeviceLayerState& layer = sequences.layers[i];
            const PromptReader::Blocks filled = sequences.prompts.blocksOf(i, s, tokens);
            cuda::fillNormal(filled.blocks, Elements(layout.kvHeads, filled.headStride), 1.f,
                             seed + std::uint64_t(number));
            if (layer.index.tokenScores != nullptr)
                cuda::fillScores(layer.index.tokenScores + layout.tokenFirst[layout.headOf(s)],
                                 Elements(layout.kvHeads, layout.blocks[s], options.spec.blockSize),
                                 seed ^ std::uint64_t(number));
            cuda::PromptArgs prompt;
            prompt.shape = layout.shape;
            prompt.index = layer.index;
            prompt.n = tokens;
            prompt.sequence = int(s);
            prompt.blocks = filled.blocks;
            prompt.headStride = filled.headStride;
            if (layer.indexed) cuda::indexPrompt(launch, prompt);
            sequences.prompts.finish(filled);
            if (layer.offloaded && int(s) < stored) sequences.prompts.store(filled, launch.stream);
            cuda::check(cudaStreamSynchronize(launch.stream), "filling the cache");
        }
    Numbered<std::int32_t> positions(layout.rows, tokens);
    cuda::check(cudaMemcpy(sequences.rows.position, positions.data(), positions.size() * sizeof(std::int32_t),
                           cudaMemcpyHostToDevice),
                "filling the cache");
}

} // namespace

void fillContext(CudaEngine& engine, int tokens, std::uint64_t seed) {
    fill(engine.sequences_, engine.options_, engine.layout_, engine.launch_, tokens, seed);
    engine.launched_ = engine.waited_ = 0;
}

void fillContext(CudaRow& row, int tokens, std::uint64_t seed) {
    fill(row.sequences, row.options_, row.layout_, row.launch, tokens, seed);
    row.position_ = tokens;
    row.promptArena_.reset();
}

} // namespace kvscope

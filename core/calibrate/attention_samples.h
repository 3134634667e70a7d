// What a calibration learns from: inputs, queries and keys of real text, layer by layer, from one prefill at a time.
#pragma once

#include "core/model/model.h"
#include "core/model/progress.h"
#include "core/select/selector.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

namespace kvscope {

/// One layer of one text. Queries and keys are rotated.
struct LayerSamples {
    std::vector<float> inputs;            // [positions, hidden] normalised inputs of the sampled tokens
    std::vector<float> queries;           // [positions, queryHeads*dim]
    std::vector<std::vector<float>> keys; // [kvHead]: [tokens, dim]
};

struct TextSamples {
    int tokens = 0;
    std::vector<std::int32_t> positions; // sampled query positions, ascending
    std::vector<LayerSamples> layers;
};

/// Runs the model over `ids` with full attention on the CPU and keeps what the positions need. `chunks`, if given, sees
/// every chunk of every layer.
/// @throws Error(Cancelled | OutOfMemory)
TextSamples sampleAttention(const std::shared_ptr<const Model>& model, std::vector<std::int32_t> ids,
                            std::vector<std::int32_t> positions, int threads, const Progress& progress = {},
                            const std::stop_token& stop = {},
                            const std::function<void(const PromptChunk&)>& chunks = {});

} // namespace kvscope

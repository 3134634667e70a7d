// Samples from which a calibration learns: the inputs, queries and keys of every layer while the model reads a text.
#pragma once

#include "base/indexed.h"
#include "base/progress.h"
#include "core/model/model.h"
#include "core/select/selector.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

namespace kvscope {

/// The samples of one layer and one text. Queries and keys are rotated.
struct LayerSamples {
    std::vector<float> inputs;         // [positions, hidden] normalised inputs of the sampled tokens
    std::vector<float> queries;        // [positions, queryHeads*dim]
    Numbered<std::vector<float>> keys; // [kvHead]: [tokens, dim]
};

struct TextSamples {
    int tokens = 0;
    std::vector<std::int32_t> positions; // sampled query positions, ascending
    Numbered<LayerSamples> layers;
};

/// Lets the model read `ids` with full attention on the CPU and keeps the samples of the given positions. `pieces`, if
/// given, is called for every piece of the text in every layer.
/// @throws Error(Cancelled | OutOfMemory)
TextSamples sampleAttention(const std::shared_ptr<const Model>& model, std::vector<std::int32_t> ids,
                            std::vector<std::int32_t> positions, int threads, const Progress& progress = {},
                            const std::stop_token& stop = {},
                            const std::function<void(const PromptPiece&)>& pieces = {});

} // namespace kvscope

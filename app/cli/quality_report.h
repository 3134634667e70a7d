// The table of `kvscope-cli quality`: batches of a file summed to cells.
#pragma once

#include "app/cli/finished_points.h"
#include "core/eval/block_quality.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {

using Json = nlohmann::ordered_json;

/// How much of a cell is wanted, and in batches of how many.
struct QualitySize {
    int prompts = 0, boundBlocks = 0, batch = 1;
};

/// What a batch is called in the file: "keys4 4096 slow losa budget=64 #0+16".
std::string keyOf(const QualityCell& cell, bool bound, int first, int count);
Json jsonOf(const QualityBatch& batch);
/// `rows`, a cell each, with as many prompts as are finished; `bounds` likewise; and the settings.
Json qualityDocument(const Json& settings, const std::vector<QualityCell>& cells,
                     const std::vector<QualityCell>& bounds, const QualitySize& size, const FinishedPoints& finished);
void printQuality(const Json& document);

} // namespace kvscope::cli

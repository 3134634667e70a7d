// Sets of decode jobs that answer one question together.
#pragma once

#include "bench/cuda/decode_job.h"

#include <span>
#include <string_view>
#include <vector>

namespace kvscope::bench {

struct DecodeGrid {
    std::string_view name, question;
    std::vector<DecodeJob> (*jobs)();
    /// Ratios between the rows; keys say what is divided by what.
    nlohmann::ordered_json (*conclusions)(const nlohmann::ordered_json& rows);
};

std::span<const DecodeGrid> decodeGrids();
/// @throws Error(BadInput) listing the known names
const DecodeGrid& findDecodeGrid(std::string_view name);

} // namespace kvscope::bench

// Numbers of the JSON documents that subcommands print.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

namespace kvscope::cli {

/// The number; null where it is NaN or infinite, for which JSON has no word.
inline nlohmann::ordered_json numberOrNull(double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

} // namespace kvscope::cli

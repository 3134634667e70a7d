// Quality against speed, one point per row of an evaluation.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace kvscope::cli {

/// A self-contained SVG with three panels over decode speed (link time included): needles found, perplexity against
/// full attention, attention mass captured. Rows without a panel's number are left out of it.
std::string evalChart(const nlohmann::ordered_json& document);

} // namespace kvscope::cli

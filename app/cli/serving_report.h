// The numbers of a serving run of `simulate` or `load`, for people and as JSON.
#pragma once

#include "core/serve/tally.h"

#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::cli {

/// broken: the bound that the run breaks, in words; empty: none
nlohmann::ordered_json jsonOf(const serve::ServingResult& result, const std::string& broken);
void printResult(const serve::ServingResult& result, const std::string& broken);

} // namespace kvscope::cli

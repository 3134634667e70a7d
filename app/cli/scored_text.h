// The text that eval and quality score: of a file, or the built-in document.
#pragma once

#include "core/model/model.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::cli {

/// Token ids of the file; without a name at least `tokens` of the built-in document. shorter: what a person can do
/// about a text that is too short.
/// @throws Error(BadInput) a file that cannot be read, or has fewer tokens
std::vector<std::int32_t> scoredText(const Model& model, const std::string& file, int tokens,
                                     const std::string& shorter);

} // namespace kvscope::cli

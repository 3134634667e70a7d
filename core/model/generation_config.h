// generation_config.json: what a published model adds to its config.json about generating.
#pragma once

#include "core/model/model_config.h"

#include <string>
#include <string_view>

namespace kvscope {

/// Adds the end-of-text tokens that only generation_config.json names (Qwen's chat models end at one of two), and a
/// note about keys with which the library's generate() chooses other tokens (a repetition penalty).
/// @throws Error(BadInput) naming `origin`
void addGenerationConfig(std::string_view json, const std::string& origin, ModelConfig& config);

} // namespace kvscope

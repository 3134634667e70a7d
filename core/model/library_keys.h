// The keys of a config.json that this program does not read: which of them change what the transformers library
// computes.
#pragma once

#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <string>
#include <vector>

namespace kvscope {

/// Judges the keys that the file states and for which no function of `reader` was called. Refuses a key that the
/// library reads, for all classes or for this family's class, unless its value is neutral (null, false, 0, 1) or asks
/// for what this program does anyway. Ignores a key that has no effect on logits.
/// @return the keys that neither program reads @throws Error(Unsupported) naming the key
std::vector<std::string> judgeUnreadKeys(const ConfigReader& reader, const nlohmann::json& stated,
                                         const Architecture& architecture, const ModelConfig& config);

} // namespace kvscope

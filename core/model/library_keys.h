// The keys of a configuration that nothing here reads: which of them change what the transformers library computes.
#pragma once

#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <string>
#include <vector>

namespace kvscope {

/// Judges the keys of a config.json that the file states and `reader` was not asked for. A key that the family's class
/// of the library reads, or that the library reads for all classes, is refused, unless its value is neutral (null,
/// false, 0, 1) or asks for what is done here anyway. A key without effect on logits is passed over.
/// @return the keys that neither reads @throws Error(Unsupported) naming the key
std::vector<std::string> judgeUnreadKeys(const ConfigReader& reader, const nlohmann::json& stated,
                                         const Architecture& architecture, const ModelConfig& config);

} // namespace kvscope

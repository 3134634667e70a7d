// The keys of a configuration that nothing here reads: which of them change what the transformers library computes.
#pragma once

#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <string>
#include <vector>

namespace kvscope {

/// Judges the keys of a config.json that `reader` was not asked for, of those that the file states. One that the
/// family's class of the library, or what the library has for all classes, reads is refused, unless its value is
/// neutral (null, false, 0, 1) or means what is done here anyway; those that have no effect on logits are passed over.
/// @return the others, which neither reads
/// @throws Error(Unsupported) naming the key
std::vector<std::string> judgeUnreadKeys(const ConfigReader& reader, const nlohmann::json& stated,
                                         const Architecture& architecture, const ModelConfig& config);

} // namespace kvscope

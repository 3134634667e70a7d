// What a recorded run says of its model, as far as a method's choice depends on it (specOf in method.h).
#pragma once

#include "core/model/model_config.h"

namespace kvscope {

/// A configuration with these heads and nothing else. Where a trace does not state them (0), or states what no model
/// has, each KV head has one query head.
ModelConfig configOfHeads(int queryHeads, int kvHeads, int headDim);

} // namespace kvscope

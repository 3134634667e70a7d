// What a recorded run says of its model, as far as a method's choice depends on it (specOf in method.h).
#pragma once

#include "core/model/model_config.h"

namespace kvscope {

/// A configuration that has no more than these. Where a trace does not say them (0), or says what no model has, each KV
/// head stands for one query head.
ModelConfig configOfHeads(int queryHeads, int kvHeads, int headDim);

} // namespace kvscope

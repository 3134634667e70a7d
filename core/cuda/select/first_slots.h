// Fills the slots of an offloaded layer after a prompt, for methods that choose blocks when the prompt has been read.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

/// Copies the chosen full blocks of a sequence's prompt to slots. chosen, count: [kvHeads, capacity] and [kvHeads].
void fillFirstSlots(const DeviceSelectorContext& context, LayerId layer, RowId sequence, int tokens,
                    const __nv_bfloat16* blocks, std::int64_t headStride, const PackedBlock* chosen,
                    const std::int32_t* count);

} // namespace kvscope

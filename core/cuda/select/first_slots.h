// The slots that an offloaded layer's device tier begins with, where a method chooses blocks when a prompt is read.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

/// Fills them with the chosen full blocks of a sequence's prompt. chosen, count: [kvHeads, capacity] and [kvHeads].
void fillFirstSlots(const DeviceSelectorContext& context, int layer, int sequence, int tokens,
                    const __nv_bfloat16* blocks, std::int64_t headStride, const std::uint32_t* chosen,
                    const std::int32_t* count);

} // namespace kvscope

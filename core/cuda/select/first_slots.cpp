#include "core/cuda/select/first_slots.h"

#include "kernels/cuda/methods/pages.h"

namespace kvscope {

void fillFirstSlots(const DeviceSelectorContext& context, LayerId layer, RowId sequence, int tokens,
                    const __nv_bfloat16* blocks, std::int64_t headStride, const PackedBlock* chosen,
                    const std::int32_t* count) {
    const DeviceLayerState& state = context.layers[layer];
    cuda::PageSeedArgs seeds;
    seeds.shape = context.shape;
    seeds.sequence = int(sequence);
    seeds.tokens = tokens;
    seeds.slots = context.slots;
    seeds.capacity = context.capacity;
    seeds.blocks = blocks;
    seeds.headStride = headStride;
    seeds.chosen = chosen;
    seeds.chosenCount = count;
    seeds.pool = state.blocks;
    seeds.map = state.map;
    seeds.lastUse = state.lastUse;
    cuda::seedSlots(context.launch, seeds);
}

} // namespace kvscope

// How much each channel of the keys matters, as a file beside the model holds it.
#pragma once

#include "base/extents.h"
#include "base/ids.h"

#include <span>
#include <vector>

namespace kvscope::select {

/// double_sparsity.safetensors holds two float32 tensors per layer, both [kvHeads, headDim], of rotated queries and
/// keys:
///   model.layers.N.self_attn.qk_mean   mean over group and tokens of |q * k| of the same token     (Double Sparsity)
///   model.layers.N.self_attn.qk_max    mean over the group of (max over tokens of |q|) * (max over tokens of |k|)
///                                                                                                          (AsyncTLS)
struct ChannelImportance {
    int layers = 0, kvHeads = 0, dim = 0;
    std::vector<float> mean, max; // [layers, kvHeads, dim]
    std::span<const float> of(const std::vector<float>& values, LayerId layer, KvHeadId kvHead) const {
        return Extents<LayerId, KvHeadId, int>(layers, kvHeads, dim).part(std::span(values), layer, kvHead);
    }
};

} // namespace kvscope::select

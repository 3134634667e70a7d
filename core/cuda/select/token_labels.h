// The labels of all tokens on the device, and the channels of a key that make a label, for the selectors of Double
// Sparsity and AsyncTLS. The device form of core/select/label_index.h.
#pragma once

#include "core/cuda/device_selector.h"
#include "core/select/channel_importance.h"
#include "core/select/label_index.h"
#include "kernels/cuda/methods/labels.h"

#include <optional>

namespace kvscope {

/// Without a calibration file beside the model the channels of a sequence come from its own prompt.
class TokenLabels {
public:
    /// The context must outlive this object.
    TokenLabels(const DeviceSelectorContext& context, int channels, int bits, select::ChannelRule rule);

    void plan(DeviceArena& arena);
    void begin();
    void prompt(const DevicePromptPiece& piece) const;
    /// Picks the channels of the sequence and makes the labels of the prompt's keys.
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) const;

    int channels() const { return channels_; }
    const cuda::LabelStore& of(LayerId layer) const { return layers_[layer]; }

private:
    bool byMean() const { return rule_ == select::ChannelRule::MeanProduct; }
    std::size_t observedBytes() const;

    const DeviceSelectorContext& context_;
    const int channels_, bits_;
    const select::ChannelRule rule_;
    std::optional<select::ChannelImportance> calibrated_;
    PerLayer<cuda::LabelStore> layers_;
    // Belongs to the prompt that is being read; rule_ says which of the two is used.
    double* sums_ = nullptr;
    float* maxima_ = nullptr;
};

} // namespace kvscope

// Labels of every key of a session, and the channels of which the labels are made (Double Sparsity, AsyncTLS).
#pragma once

#include "core/select/channel_importance.h"
#include "core/select/label_cache.h"
#include "core/select/prompt_states.h"

#include <optional>

namespace kvscope::select {

/// Which importance ranks the channels: the mean of |q * k| (Double Sparsity) or the product of the largest |q| and |k|
/// (AsyncTLS); see ChannelImportance.
enum class ChannelRule : std::uint8_t { MeanProduct, ProductOfMaxima };

/// Without a calibration file beside the model, each sequence's channels come from its own prompt.
class LabelIndex {
public:
    LabelIndex(const SelectorContext& context, int channels, int bits, ChannelRule rule);

    void prompt(const PromptPiece& piece);
    /// Picks the channels and labels the prompt's keys.
    void promptDone(LayerId layer, RowId sequence, int tokens);
    void append(std::span<HeadStep> heads);

    const LabelCache& labels(LayerId layer, RowId sequence, KvHeadId kvHead) const {
        return heads_[headAt_.offset(sequence, layer, kvHead)].labels;
    }
    std::span<const std::int32_t> channels(LayerId layer, RowId sequence, KvHeadId kvHead) const {
        return heads_[headAt_.offset(sequence, layer, kvHead)].channels;
    }

private:
    struct Head {
        LabelCache labels;
        std::vector<std::int32_t> channels;
    };

    const SelectorContext context_;
    const int count_;
    const ChannelRule rule_;
    std::optional<ChannelImportance> calibrated_;
    PromptStates<ChannelObserver> observers_; // of the prompts that are being read, in each layer
    const HeadExtents headAt_;
    std::vector<Head> heads_;
};

} // namespace kvscope::select

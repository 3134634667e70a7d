// Labels of every key of a session, and the channels they are cut from.
#pragma once

#include "core/select/channel_importance.h"
#include "core/select/label_cache.h"
#include "core/select/prompt_states.h"

#include <optional>

namespace kvscope::select {

/// Which of the two importances ranks the channels.
enum class ChannelRule : std::uint8_t { MeanProduct, ProductOfMaxima };

/// Without a calibration file beside the model, each sequence's channels come from its own prompt.
class LabelIndex {
public:
    LabelIndex(const SelectorContext& context, int channels, int bits, ChannelRule rule);

    void prompt(const PromptChunk& chunk);
    /// Picks the channels and labels the prompt's keys.
    void promptDone(int layer, int sequence, int tokens);
    void append(std::span<HeadStep> heads);

    const LabelCache& labels(int layer, int sequence, int kvHead) const {
        return heads_[at(layer, sequence, kvHead)].labels;
    }
    std::span<const std::int32_t> channels(int layer, int sequence, int kvHead) const {
        return heads_[at(layer, sequence, kvHead)].channels;
    }

private:
    struct Head {
        LabelCache labels;
        std::vector<std::int32_t> channels;
    };
    std::size_t at(int layer, int sequence, int kvHead) const {
        return (std::size_t(sequence) * std::size_t(context_.shape.layers) + std::size_t(layer)) *
                   std::size_t(context_.shape.kvHeads) +
               std::size_t(kvHead);
    }

    const SelectorContext context_;
    const int count_;
    const ChannelRule rule_;
    std::optional<ChannelImportance> calibrated_;
    PromptStates<ChannelObserver> observers_; // of each prompt's layer that is being read
    std::vector<Head> heads_;
};

} // namespace kvscope::select

#include "core/select/label_index.h"

#include <algorithm>

namespace kvscope::select {

LabelIndex::LabelIndex(const SelectorContext& context, int channels, int bits, ChannelRule rule)
    : context_(context), count_(std::clamp(channels, 1, context.shape.dim)), rule_(rule),
      calibrated_(findChannelImportance(context.model)), observers_(context) {
    for (const int tokens : context.maxTokens)
        for (int i = 0; i < context.shape.layers * context.shape.kvHeads; ++i)
            heads_.push_back({LabelCache(std::size_t(count_), bits, tokens), {}});
}

void LabelIndex::prompt(const PromptChunk& chunk) {
    if (calibrated_) return;
    ChannelObserver& observer = observers_.of(chunk);
    if (chunk.first == 0) observer = ChannelObserver(context_.shape, context_.group());
    observer.observe(chunk.rows, chunk.n);
}

void LabelIndex::promptDone(int layer, int sequence, int tokens) {
    const BlockLayout& layout = context_.cache.layout();
    const ChannelObserver observer = observers_.take(layer, sequence);
    context_.kernels.forEach(context_.shape.kvHeads, [&](int g) {
        Head& head = heads_[at(layer, sequence, g)];
        const bool mean = rule_ == ChannelRule::MeanProduct;
        if (calibrated_)
            head.channels =
                bestChannels(calibrated_->of(mean ? calibrated_->mean : calibrated_->max, layer, g), count_);
        else
            head.channels = bestChannels(mean ? observer.mean(g) : observer.max(g), count_);
        KvHead& cached = context_.cache.head(sequence, layer, g);
        for (int token = 0; token < tokens; ++token)
            head.labels.append(context_.cache.storeBlock(cached, token / layout.blockSize) + token % layout.blockSize,
                               head.channels, std::size_t(layout.blockSize));
    });
}

void LabelIndex::append(std::span<HeadStep> heads) {
    for (const HeadStep& item : heads) {
        Head& head = heads_[at(item.layer, item.sequence, item.kvHead)];
        head.labels.append(item.key, head.channels);
    }
}

} // namespace kvscope::select

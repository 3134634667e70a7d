#include "core/select/label_index.h"

#include <algorithm>

namespace kvscope::select {

LabelIndex::LabelIndex(const SelectorContext& context, int channels, int bits, ChannelRule rule)
    : context_(context), count_(std::clamp(channels, 1, context.shape.dim)), rule_(rule),
      calibrated_(findChannelImportance(context.model)), observers_(context), headAt_(context.heads()),
      heads_(headAt_.size()) {
    for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
        for (Head& head : headAt_.part(std::span(heads_), sequence))
            head.labels = LabelCache(std::size_t(count_), bits, context.maxTokensOf(sequence));
}

void LabelIndex::prompt(const PromptPiece& piece) {
    if (calibrated_) return;
    ChannelObserver& observer = observers_.of(piece);
    if (piece.first == 0) observer = ChannelObserver(context_.shape, context_.group());
    observer.observe(piece.rows, piece.n);
}

void LabelIndex::promptDone(LayerId layer, RowId sequence, int tokens) {
    const BlockLayout& layout = context_.cache.layout();
    const ChannelObserver observer = observers_.take(layer, sequence);
    context_.forEachKvHead([&](KvHeadId g) {
        Head& head = heads_[headAt_.offset(sequence, layer, g)];
        const bool mean = rule_ == ChannelRule::MeanProduct;
        if (calibrated_)
            head.channels =
                bestChannels(calibrated_->of(mean ? calibrated_->mean : calibrated_->max, layer, g), count_);
        else
            head.channels = bestChannels(mean ? observer.mean(g) : observer.max(g), count_);
        const KvHead& cached = context_.cache.head(sequence, layer, g);
        for (int token = 0; token < tokens; ++token)
            head.labels.append(context_.cache.storedKey(cached, token), head.channels, std::size_t(layout.blockSize));
    });
}

void LabelIndex::append(std::span<HeadStep> heads) {
    for (const HeadStep& item : heads) {
        Head& head = heads_[headAt_.offset(item.sequence, item.layer, item.kvHead)];
        head.labels.append(item.rows.key, head.channels);
    }
}

} // namespace kvscope::select

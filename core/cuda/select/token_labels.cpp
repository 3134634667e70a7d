#include "core/cuda/select/token_labels.h"

#include <algorithm>

namespace kvscope {

TokenLabels::TokenLabels(const DeviceSelectorContext& context, int channels, int bits, select::ChannelRule rule)
    : context_(context), channels_(std::clamp(channels, 1, context.shape.dim)), bits_(bits), rule_(rule),
      layers_(context.config.layers) {
    if (context.model != nullptr) calibrated_ = select::findChannelImportance(*context.model);
}

void TokenLabels::plan(DeviceArena& arena) {
    constexpr MemoryKind kWhat("labels", "label cache", Holds::Index);
    const cuda::AttentionShape& shape = context_.shape;
    const int heads = context_.heads();
    const int mostTokens = *std::max_element(context_.maxTokens.begin(), context_.maxTokens.end());
    const std::int64_t stride = (std::int64_t(mostTokens) + 31) / 32 * 32;
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].sparse) continue;
        cuda::LabelStore& labels = layers_[i];
        labels.channels = channels_;
        labels.bits = bits_;
        labels.stride = stride;
        arena.plan(labels.codes, {heads, labels.words(), stride}, kWhat);
        if (bits_ == 4) {
            arena.plan(labels.steps, {heads, stride}, kWhat);
            arena.plan(labels.lowest, {heads, stride}, kWhat);
        }
        arena.plan(labels.channel, {heads, channels_}, kWhat);
    }
    if (byMean())
        arena.plan(sums_, {shape.kvHeads, cuda::kObservers, shape.dim}, "prompt scores");
    else
        arena.plan(maxima_, {shape.queryHeads + shape.kvHeads, shape.dim}, "prompt scores");
}

void TokenLabels::begin() {
    if (!calibrated_) return;
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].sparse) continue;
        std::vector<std::int32_t> channels;
        for (int head = 0; head < context_.heads(); ++head) {
            const auto best = select::bestChannels(calibrated_->of(byMean() ? calibrated_->mean : calibrated_->max, i,
                                                                   KvHeadId{head % context_.shape.kvHeads}),
                                                   channels_);
            for (const std::int32_t channel : best) channels.push_back(deviceChannel(context_.config, channel));
        }
        cuda::check(
            cudaMemcpy(of(i).channel, channels.data(), channels.size() * sizeof(channels[0]), cudaMemcpyHostToDevice),
            "preparing the session");
    }
}

std::size_t TokenLabels::observedBytes() const {
    const cuda::AttentionShape& shape = context_.shape;
    return byMean() ? Elements(shape.kvHeads, cuda::kObservers, shape.dim) * sizeof(double)
                    : Elements(shape.queryHeads + shape.kvHeads, shape.dim) * sizeof(float);
}

void TokenLabels::prompt(const DevicePromptPiece& piece) const {
    if (calibrated_ || !context_.layers[piece.layer].sparse) return;
    if (piece.first == 0)
        cuda::check(
            cudaMemsetAsync(byMean() ? static_cast<void*>(sums_) : maxima_, 0, observedBytes(), context_.launch.stream),
            "observing channels");
    cuda::ObserveArgs args;
    args.shape = context_.shape;
    args.n = piece.n;
    args.first = piece.first;
    args.q = piece.q;
    args.blocks = piece.blocks;
    args.headStride = piece.headStride;
    args.sums = sums_;
    byMean() ? cuda::observeChannels(context_.launch, args) : cuda::observeMaxima(context_.launch, args, maxima_);
}

void TokenLabels::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                             std::int64_t headStride) const {
    if (!calibrated_ && byMean())
        cuda::pickChannels(context_.launch, sums_, tokens, context_.shape, int(sequence), of(layer));
    else if (!calibrated_)
        cuda::pickChannelsByMaxima(context_.launch, maxima_, context_.shape, int(sequence), of(layer));
    cuda::labelPrompt(context_.launch, {context_.shape, int(sequence), tokens, blocks, headStride, of(layer)});
}

} // namespace kvscope

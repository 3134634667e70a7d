#include "core/cuda/select/scored_pages.h"

namespace kvscope {

void ScoredPages::plan(DeviceArena& arena) {
    constexpr MemoryKind kDigests("digests", "page digests", Holds::Index);
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].sparse) continue;
        arena.plan(layers_[i].digests, {context_.allBlocks(), 2, context_.shape.dim}, kDigests);
        arena.plan(layers_[i].openPage, {context_.heads(), context_.shape.blockSize, context_.shape.dim}, kDigests);
    }
    const int lists = score_ == cuda::PageScore::Each ? context_.shape.queryHeads : sets();
    arena.plan(scores_, {context_.rows(), lists, context_.maxBlocks}, "selections");
}

void ScoredPages::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                             std::int64_t headStride) const {
    cuda::digestPrompt(context_.launch, digestsOf(layer), int(sequence), tokens, blocks, headStride);
}

void ScoredPages::append(const DeviceStep& step) const {
    const DeviceLayerState& state = context_.layers[step.layer];
    cuda::PageAppendArgs args;
    args.pages = digestsOf(step.layer);
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.newKey = state.offloaded ? step.newKey : nullptr;
    args.blocks = state.blocks;
    cuda::appendToPages(context_.launch, args);
}

cuda::PageScoreArgs ScoredPages::scoreArgs(LayerId layer) const {
    cuda::PageScoreArgs args;
    args.pages = digestsOf(layer);
    args.shared = shared_;
    args.score = score_;
    args.maxPages = context_.maxBlocks;
    args.scores = scores_;
    return args;
}

cuda::PageScoreArgs ScoredPages::stepArgs(const DeviceStep& step, LayerId layer, const __nv_bfloat16* q) const {
    cuda::PageScoreArgs args = scoreArgs(layer);
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.q = q;
    return args;
}

void ScoredPages::score(const DeviceStep& step) const {
    cuda::PageScoreArgs args = stepArgs(step, step.layer, step.q);
    args.mark = step.stage1Mark;
    cuda::scorePages(context_.launch, args);
}

void ScoredPages::scoreAhead(const DeviceStep& step, LayerId target, const __nv_bfloat16* q) const {
    cuda::PageScoreArgs args = stepArgs(step, target, q);
    args.unseen = 1;
    cuda::scorePages(context_.launch, args);
}

void ScoredPages::scoreAt(LayerId layer, RowId sequence, int position, const __nv_bfloat16* q) const {
    cuda::PageScoreArgs args = scoreArgs(layer);
    args.rows = 1;
    args.firstSequence = int(sequence);
    args.at = position;
    args.q = q;
    cuda::scorePages(context_.launch, args);
}

} // namespace kvscope

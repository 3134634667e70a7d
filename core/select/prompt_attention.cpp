#include "core/select/prompt_attention.h"

#include "core/select/token_choice.h"

namespace kvscope::select {

PrefillAttentionArgs PromptAttention::of(const PromptPiece& piece) {
    const KvShape& shape = context_.shape;
    views_.resize(shape.kvHeads);
    lists_.clear();
    for (const KvHeadId g : context_.kvHeads()) {
        auto& views = views_[index(g)];
        storeViews(context_, piece.layer, piece.sequence, g, {0, piece.first + piece.n}, views);
        lists_.push_back(views.data());
    }
    PrefillAttentionArgs args;
    args.q = piece.rows.q;
    args.n = piece.n;
    args.qStride = context_.rules.queryHeads * shape.dim;
    args.outStride = context_.rules.queryHeads * shape.valueDim;
    args.firstPosition = piece.first;
    args.kvHeads = shape.kvHeads;
    args.group = context_.group();
    args.dim = shape.dim;
    args.valueDim = shape.valueDim;
    args.window = context_.rules.windowOf(piece.layer);
    args.blockSize = context_.cache.layout().blockSize;
    args.blocks = lists_.data();
    args.scale = context_.rules.scale;
    args.biasScale = context_.spec.bias.scale;
    args.out = piece.rows.out;
    return args;
}

} // namespace kvscope::select

#include "core/select/lookahead.h"

#include "core/select/next_query.h"

#include <algorithm>
#include <numeric>

namespace kvscope {

LookaheadSelector::LookaheadSelector(const SelectorContext& context)
    : context_(context), next_(context.sequences() * context.shape.kvHeads), prompt_(context.sequences()) {}

void LookaheadSelector::rotate(float* x, int n, int heads, std::span<const std::int32_t> ropeRows) {
    select::rotateRows(context_, x, n, heads, ropeRows);
}

/// With sparse prefill: predicts the next layer's queries of all tokens of the piece, and keeps them until that layer
/// attends.
void LookaheadSelector::prompt(const PromptPiece& piece) {
    const LayerId target = next(piece.layer);
    if (!context_.plans.sparse(target)) return;
    const Extents<int, int> keptAt(piece.promptTokens, queryWidth());
    auto& kept = prompt_[index(piece.sequence)];
    kept.resize(keptAt.size());
    ropeRows_.resize(piece.n);
    std::iota(ropeRows_.begin(), ropeRows_.end(), context_.rope.first(int(piece.sequence)) + piece.first);
    predict(target, false, piece.rows.input, piece.n, ropeRows_, kept.data() + keptAt.first(piece.first));
}

void LookaheadSelector::promptDone(LayerId layer, RowId sequence, int, std::vector<PrefetchRequest>&) {
    if (int(next(layer)) == context_.shape.layers) prompt_[index(sequence)] = {}; // no layer is left to attend
}

void LookaheadSelector::append(std::span<HeadStep> heads) {
    forEachItem(context_.kernels, heads,
                [&](HeadStep& item) { item.head->index.append(item.rows.key, item.rows.score); });
}

/// The inputs of the items' tokens are consecutive rows: one projection for all.
void LookaheadSelector::predictRows(LayerId target, bool ownInput, std::span<const HeadStep> heads) {
    select::ropeRowsOf(context_, heads, ropeRows_);
    const std::size_t rows = ropeRows_.size();
    queries_.resize(Elements(rows, queryWidth()));
    predict(target, ownInput, heads[0].rows.input, int(rows), ropeRows_, queries_.data());
}

void LookaheadSelector::scoreBlocks(std::span<HeadStep> items, std::span<const float> queries) {
    const RowsOf queryOf(queries.data(), queryWidth());
    const NumberedSpan<HeadStep> all(items);
    const PoolingGrid fine = grid();
    const bool agnostic = context_.spec.agnosticScore != AgnosticScore::None;
    context_.kernels.forEach(all.count(), [&](int i) {
        HeadStep& item = all[i];
        if (item.dense) return;
        const int blocks = item.position / context_.spec.blockSize + 1;
        scoreWindows(item, queryOf[i / context_.shape.kvHeads]);
        item.queryAware.resize(blocks);
        poolToBlocks(fine, item.windowScores, item.queryAware);
        if (!agnostic) return;
        const auto scores = item.head->index.pooledScores();
        const int visible = context_.spec.grid.windows(item.position + 1);
        item.queryAgnostic.resize(blocks);
        poolToBlocks(context_.spec.grid, scores.first(std::min(scores.count(), visible)), item.queryAgnostic);
    });
}

void LookaheadSelector::score(std::span<HeadStep> heads) {
    const LayerId layer = heads[0].layer;
    if (ownQuery(layer)) {
        predictRows(layer, true, heads);
        scoreBlocks(heads, queries_);
    } else if (heads[0].ofPrompt) {
        const auto& kept = prompt_[index(heads[0].sequence)];
        scoreBlocks(heads, std::span(kept).subspan(Elements(heads[0].position, queryWidth())));
    }
}

void LookaheadSelector::choose(std::span<HeadStep> heads) {
    const bool prepared = !heads[0].ofPrompt && heads[0].layer == nextLayer_;
    for (std::size_t i = 0; i < heads.size(); ++i) {
        HeadStep& item = heads[i];
        if (item.dense) continue;
        if (prepared) {
            item.selected.swap(next_[i].selected);
            item.wanted.swap(next_[i].wanted);
        } else {
            chooseBlocks(context_.spec, item);
        }
    }
    nextLayer_.reset();
}

void LookaheadSelector::lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) {
    const LayerId target = next(heads[0].layer);
    if (!context_.plans.sparse(target)) return;
    predictRows(target, false, heads);
    const std::span<HeadStep> items(next_.data(), heads.size());
    for (std::size_t i = 0; i < heads.size(); ++i) select::placeAhead(context_, target, heads[i], items[i]);
    scoreBlocks(items, queries_);
    for (HeadStep& item : items) {
        if (item.dense) continue;
        chooseBlocks(context_.spec, item);
        if (context_.cache.offloaded(target)) requests.push_back({target, item.sequence, item.kvHead, item.wanted});
    }
    nextLayer_ = target;
}

} // namespace kvscope

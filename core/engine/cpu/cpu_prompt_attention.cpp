#include "core/engine/cpu/cpu_prompt_attention.h"

#include "core/engine/cpu/block_views.h"

#include <algorithm>

namespace kvscope {
namespace {

constexpr int kSparsePrefillTokens = 64; // query tokens selected and attended together

using ScoreExtents = Extents<int, KvHeadId>;

float scoreOf(const PromptPiece& piece, const ScoreExtents& at, int token, KvHeadId kvHead) {
    return piece.rows.score ? piece.rows.score[at.offset(token, kvHead)] : 0.f;
}

} // namespace

CpuPromptAttention::CpuPromptAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers,
                                       StageClock& clock)
    : context_(context), selector_(selector), needs_(context.abilities), transfers_(transfers), clock_(clock),
      full_(context), attention_(context) {}

void CpuPromptAttention::read(const PromptPiece& piece, LayerRecord& layer) {
    if (piece.first == 0) context_.cache.beginPrompt(piece.sequence, piece.layer, piece.promptTokens);
    if (context_.cache.indexed(piece.layer)) clock_.run(layer, Stage::Compression, [&] { appendToIndex(piece); });
    clock_.run(layer, Stage::Offloading, [&] { store(piece); });
    const bool sparse = context_.plans[piece.layer].sparse;
    if (sparse && needs_.promptAttention)
        clock_.run(layer, Stage::Attention, [&] { selector_.attendPrompt(piece); });
    else if (sparse && context_.spec.sparsePrefill)
        attendSparsely(piece, layer);
    else
        clock_.run(layer, Stage::Attention, [&] { context_.kernels.prefillAttention(full_.of(piece)); });
    if (needs_.prompt) clock_.run(layer, Stage::Compression, [&] { selector_.prompt(piece); });
}

void CpuPromptAttention::finish(LayerId layerId, RowId sequence, int tokens, LayerRecord& layer) {
    clock_.run(layer, Stage::Compression, [&] {
        seeds_.clear();
        if (needs_.prompt) selector_.promptDone(layerId, sequence, tokens, seeds_);
        if (context_.cache.quantised()) {
            context_.forEachKvHead(
                [&](KvHeadId g) { context_.cache.storePrompt(context_.cache.head(sequence, layerId, g), tokens); });
            context_.cache.endPrompt(sequence, layerId);
        }
        transfers_.keepOnDevice(layerId, sequence, tokens, seeds_);
    });
    transfers_.recordStored(layerId, tokens, layer);
}

void CpuPromptAttention::appendToIndex(const PromptPiece& piece) {
    const KeyExtents keyAt = context_.keys(piece.n);
    const ScoreExtents scoreAt(piece.n, context_.shape.kvHeads);
    context_.forEachKvHead([&](KvHeadId g) {
        KvHead& head = context_.cache.head(piece.sequence, piece.layer, g);
        for (int token = 0; token < piece.n; ++token)
            head.index.append(piece.rows.k + keyAt.first(token, g), scoreOf(piece, scoreAt, token, g));
    });
}

void CpuPromptAttention::store(const PromptPiece& piece) {
    const BlockLayout& layout = context_.cache.layout();
    const KeyExtents keyAt = context_.keys(piece.n);
    const ScoreExtents scoreAt(piece.n, context_.shape.kvHeads);
    context_.forEachKvHead([&](KvHeadId g) {
        const KvHead& head = context_.cache.head(piece.sequence, piece.layer, g);
        for (int token = 0; token < piece.n; ++token) {
            const int position = piece.first + token;
            const std::size_t at = keyAt.first(token, g);
            layout.write(context_.cache.promptBlock(head, layout.blockOf(position)), layout.rowOf(position),
                         piece.rows.k + at, piece.rows.v ? piece.rows.v + at : nullptr,
                         scoreOf(piece, scoreAt, token, g));
        }
    });
}

/// Sets the first items up for `rows` tokens of the piece, from the piece's row `firstRow` on.
void CpuPromptAttention::placeRows(const PromptPiece& piece, int firstRow, int rows) {
    const Extents<int, KvHeadId> itemAt(rows, context_.shape.kvHeads);
    for (int row = 0; row < rows; ++row)
        for (const KvHeadId g : context_.kvHeads()) {
            HeadStep& item = items_[itemAt.offset(row, g)];
            item.head = &context_.cache.head(piece.sequence, piece.layer, g);
            item.sequence = piece.sequence;
            item.kvHead = g;
            placeAt(context_, item, piece.layer, piece.first + firstRow + row);
            item.dense = item.position + 1 < context_.spec.denseBelowTokens;
            item.byToken = false;
            item.ofPrompt = true;
            pointAt(context_, item, piece.rows, firstRow + row);
            if (item.dense) wantAll(context_, item);
        }
}

/// Every token of the piece chooses for itself. The pooling windows and key ranges of later tokens of the piece exist
/// already. A query uses only the pooling windows that are complete at its own position. The only block whose key range
/// can include later tokens is the query's own block, and the local window forces that block anyway.
void CpuPromptAttention::attendSparsely(const PromptPiece& piece, LayerRecord& layer) {
    for (int first = 0; first < piece.n; first += kSparsePrefillTokens) {
        const int count = std::min(kSparsePrefillTokens, piece.n - first);
        const auto items = std::size_t(count * context_.shape.kvHeads);
        if (items_.size() < items) items_.resize(items);
        const std::span<HeadStep> work(items_.data(), items);
        placeRows(piece, first, count);
        if (needs_.scores) clock_.run(layer, Stage::Stage1, [&] { selector_.score(work); });
        clock_.run(layer, Stage::Pooling, [&] { selector_.choose(work); });
        clock_.run(layer, Stage::Stage2, [&] {
            for (HeadStep& item : work) {
                item.views.clear();
                for (const std::int32_t wanted : item.wanted) {
                    const BlockId id{wanted};
                    item.views.push_back(viewOf(context_, item, context_.cache.storeBlock(*item.head, id), id));
                }
            }
            attention_.run(work);
        });
    }
}

} // namespace kvscope

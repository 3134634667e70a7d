#include "core/engine/cpu/cpu_prompt_attention.h"

#include "core/engine/cpu/block_views.h"

#include <algorithm>

namespace kvscope {
namespace {

constexpr int kSparsePrefillTokens = 64; // query tokens selected and attended together

using ScoreExtents = Extents<int, KvHeadId>;

float scoreOf(const PromptChunk& chunk, const ScoreExtents& at, int token, KvHeadId kvHead) {
    return chunk.rows.score ? chunk.rows.score[at.offset(token, kvHead)] : 0.f;
}

} // namespace

CpuPromptAttention::CpuPromptAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers,
                                       StageClock& clock)
    : context_(context), selector_(selector), needs_(context.abilities), transfers_(transfers), clock_(clock),
      full_(context), attention_(context) {}

void CpuPromptAttention::read(const PromptChunk& chunk, LayerRecord& layer) {
    if (chunk.first == 0) context_.cache.beginPrompt(chunk.sequence, chunk.layer, chunk.promptTokens);
    if (context_.cache.indexed(chunk.layer)) clock_.run(layer, Stage::Compression, [&] { appendToIndex(chunk); });
    clock_.run(layer, Stage::Offloading, [&] { store(chunk); });
    const bool sparse = context_.plans[chunk.layer].sparse;
    if (sparse && needs_.promptAttention)
        clock_.run(layer, Stage::Attention, [&] { selector_.attendPrompt(chunk); });
    else if (sparse && context_.spec.sparsePrefill)
        attendSparsely(chunk, layer);
    else
        clock_.run(layer, Stage::Attention, [&] { context_.kernels.prefillAttention(full_.of(chunk)); });
    if (needs_.prompt) clock_.run(layer, Stage::Compression, [&] { selector_.prompt(chunk); });
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

void CpuPromptAttention::appendToIndex(const PromptChunk& chunk) {
    const KeyExtents keyAt = context_.keys(chunk.n);
    const ScoreExtents scoreAt(chunk.n, context_.shape.kvHeads);
    context_.forEachKvHead([&](KvHeadId g) {
        KvHead& head = context_.cache.head(chunk.sequence, chunk.layer, g);
        for (int token = 0; token < chunk.n; ++token)
            head.index.append(chunk.rows.k + keyAt.first(token, g), scoreOf(chunk, scoreAt, token, g));
    });
}

void CpuPromptAttention::store(const PromptChunk& chunk) {
    const BlockLayout& layout = context_.cache.layout();
    const KeyExtents keyAt = context_.keys(chunk.n);
    const ScoreExtents scoreAt(chunk.n, context_.shape.kvHeads);
    context_.forEachKvHead([&](KvHeadId g) {
        const KvHead& head = context_.cache.head(chunk.sequence, chunk.layer, g);
        for (int token = 0; token < chunk.n; ++token) {
            const int position = chunk.first + token;
            const std::size_t at = keyAt.first(token, g);
            layout.write(context_.cache.promptBlock(head, layout.blockOf(position)), layout.rowOf(position),
                         chunk.rows.k + at, chunk.rows.v ? chunk.rows.v + at : nullptr,
                         scoreOf(chunk, scoreAt, token, g));
        }
    });
}

/// Sets the first items up for `rows` tokens of the chunk, from the chunk's row `firstRow` on.
void CpuPromptAttention::placeRows(const PromptChunk& chunk, int firstRow, int rows) {
    const Extents<int, KvHeadId> itemAt(rows, context_.shape.kvHeads);
    for (int row = 0; row < rows; ++row)
        for (const KvHeadId g : context_.kvHeads()) {
            HeadStep& item = items_[itemAt.offset(row, g)];
            item.head = &context_.cache.head(chunk.sequence, chunk.layer, g);
            item.sequence = chunk.sequence;
            item.kvHead = g;
            placeAt(context_, item, chunk.layer, chunk.first + firstRow + row);
            item.dense = item.position + 1 < context_.spec.denseBelowTokens;
            item.byToken = false;
            item.ofPrompt = true;
            pointAt(context_, item, chunk.rows, firstRow + row);
            if (item.dense) wantAll(context_, item);
        }
}

/// Every token of the piece chooses for itself. The pooling windows and key ranges of later tokens of the piece exist
/// already. A query uses only the pooling windows that are complete at its own position. The only block whose key range
/// can include later tokens is the query's own block, and the local window forces that block anyway.
void CpuPromptAttention::attendSparsely(const PromptChunk& chunk, LayerRecord& layer) {
    for (int first = 0; first < chunk.n; first += kSparsePrefillTokens) {
        const int count = std::min(kSparsePrefillTokens, chunk.n - first);
        const auto items = std::size_t(count * context_.shape.kvHeads);
        if (items_.size() < items) items_.resize(items);
        const std::span<HeadStep> work(items_.data(), items);
        placeRows(chunk, first, count);
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

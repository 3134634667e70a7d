#include "core/engine/cpu/cpu_prompt_attention.h"

#include "core/engine/cpu/block_views.h"

#include <algorithm>

namespace kvscope {
namespace {

constexpr std::size_t kSparsePrefillTokens = 64; // query tokens selected and attended together

float scoreOf(const PromptChunk& chunk, std::size_t token, std::size_t kvHead, std::size_t kvHeads) {
    return chunk.rows.score ? chunk.rows.score[token * kvHeads + kvHead] : 0.f;
}

} // namespace

CpuPromptAttention::CpuPromptAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers,
                                       StageClock& clock)
    : context_(context), selector_(selector), needs_(context.abilities), transfers_(transfers), clock_(clock),
      attention_(context), views_(std::size_t(context.shape.kvHeads)) {}

void CpuPromptAttention::read(const PromptChunk& chunk, LayerRecord& layer) {
    if (context_.cache.indexed(chunk.layer)) clock_.run(layer, Stage::Compression, [&] { appendToIndex(chunk); });
    clock_.run(layer, Stage::Offloading, [&] { store(chunk); });
    const bool sparse = context_.plans[chunk.layer].sparse;
    if (sparse && context_.spec.sparsePrefill)
        attendSparsely(chunk, layer);
    else if (sparse && needs_.promptAttention)
        clock_.run(layer, Stage::Attention, [&] { selector_.attendPrompt(chunk); });
    else
        clock_.run(layer, Stage::Attention, [&] { attendFully(chunk); });
    if (needs_.prompt) clock_.run(layer, Stage::Compression, [&] { selector_.prompt(chunk); });
}

void CpuPromptAttention::finish(int layerIndex, int sequence, int tokens, LayerRecord& layer) {
    clock_.run(layer, Stage::Compression, [&] {
        seeds_.clear();
        if (needs_.prompt) selector_.promptDone(layerIndex, sequence, tokens, seeds_);
        transfers_.keepOnDevice(layerIndex, sequence, tokens, seeds_);
    });
    transfers_.recordStored(layerIndex, tokens, layer);
}

void CpuPromptAttention::appendToIndex(const PromptChunk& chunk) {
    const std::size_t heads = std::size_t(context_.shape.kvHeads), dim = std::size_t(context_.shape.dim);
    context_.kernels.forEach(context_.shape.kvHeads, [&](int g) {
        KvHead& head = context_.cache.head(chunk.sequence, chunk.layer, g);
        for (std::size_t token = 0; token < std::size_t(chunk.n); ++token)
            head.index.append(chunk.rows.k + (token * heads + std::size_t(g)) * dim,
                              scoreOf(chunk, token, std::size_t(g), heads));
    });
}

void CpuPromptAttention::store(const PromptChunk& chunk) {
    const BlockLayout& layout = context_.cache.layout();
    const std::size_t heads = std::size_t(context_.shape.kvHeads), dim = std::size_t(context_.shape.dim);
    context_.kernels.forEach(context_.shape.kvHeads, [&](int g) {
        KvHead& head = context_.cache.head(chunk.sequence, chunk.layer, g);
        for (std::size_t token = 0; token < std::size_t(chunk.n); ++token) {
            const int position = chunk.first + int(token);
            const std::size_t at = (token * heads + std::size_t(g)) * dim;
            layout.write(context_.cache.storeBlock(head, position / layout.blockSize), position % layout.blockSize,
                         chunk.rows.k + at, chunk.rows.v ? chunk.rows.v + at : nullptr,
                         scoreOf(chunk, token, std::size_t(g), heads));
        }
    });
}

void CpuPromptAttention::attendFully(const PromptChunk& chunk) {
    const BlockLayout& layout = context_.cache.layout();
    const KvShape& shape = context_.shape;
    const int end = chunk.first + chunk.n, blocks = (end + layout.blockSize - 1) / layout.blockSize;
    std::vector<const KvBlockView*> lists;
    for (int g = 0; g < shape.kvHeads; ++g) {
        auto& views = views_[std::size_t(g)];
        views.clear();
        KvHead& head = context_.cache.head(chunk.sequence, chunk.layer, g);
        for (int b = 0; b < blocks; ++b)
            views.push_back(layout.view(context_.cache.storeBlock(head, b),
                                        std::min(layout.blockSize, end - b * layout.blockSize)));
        lists.push_back(views.data());
    }
    PrefillAttentionArgs args;
    args.q = chunk.rows.q;
    args.n = chunk.n;
    args.qStride = context_.rules.queryHeads * shape.dim;
    args.outStride = context_.rules.queryHeads * shape.valueDim;
    args.firstPosition = chunk.first;
    args.kvHeads = shape.kvHeads;
    args.group = context_.group();
    args.dim = shape.dim;
    args.valueDim = shape.valueDim;
    args.window = context_.rules.windowOf(chunk.layer);
    args.blockSize = layout.blockSize;
    args.blocks = lists.data();
    args.scale = context_.rules.scale;
    args.biasScale = context_.spec.bias.scale;
    args.out = chunk.rows.out;
    context_.kernels.prefillAttention(args);
}

/// Sets the first items up for `rows` tokens of the chunk, from the chunk's row `firstRow` on.
void CpuPromptAttention::placeRows(const PromptChunk& chunk, std::size_t firstRow, std::size_t rows) {
    const std::size_t heads = std::size_t(context_.shape.kvHeads);
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t g = 0; g < heads; ++g) {
            HeadStep& item = items_[row * heads + g];
            item.head = &context_.cache.head(chunk.sequence, chunk.layer, int(g));
            item.sequence = chunk.sequence;
            item.kvHead = int(g);
            placeAt(context_, item, chunk.layer, chunk.first + int(firstRow + row));
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
    const std::size_t heads = std::size_t(context_.shape.kvHeads), tokens = std::size_t(chunk.n);
    for (std::size_t first = 0; first < tokens; first += kSparsePrefillTokens) {
        const std::size_t count = std::min(kSparsePrefillTokens, tokens - first);
        if (items_.size() < count * heads) items_.resize(count * heads);
        const std::span<HeadStep> work(items_.data(), count * heads);
        placeRows(chunk, first, count);
        if (needs_.scores) clock_.run(layer, Stage::Stage1, [&] { selector_.score(work); });
        clock_.run(layer, Stage::Pooling, [&] { selector_.choose(work); });
        clock_.run(layer, Stage::Stage2, [&] {
            for (HeadStep& item : work) {
                item.views.clear();
                for (const std::int32_t id : item.wanted)
                    item.views.push_back(viewOf(context_, item, context_.cache.storeBlock(*item.head, id), id));
            }
            attention_.run(work);
        });
    }
}

} // namespace kvscope

#include "core/engine/cpu/block_views.h"

#include <algorithm>

namespace kvscope {

void placeAt(const SelectorContext& context, HeadStep& item, LayerId layer, int position) {
    item.layer = layer;
    item.position = position;
    item.firstToken = context.rules.firstTokenOf(layer, position);
    item.firstBlock = item.firstToken / context.spec.blockSize;
}

void pointAt(const SelectorContext& context, HeadStep& item, const TokenRows& rows, int row) {
    const std::size_t query = context.queries(row + 1).first(row, item.kvHead);
    const std::size_t key = context.keys(row + 1).first(row, item.kvHead);
    item.rows.q = rows.q + query;
    item.rows.key = rows.k + key;
    item.rows.value = rows.v ? rows.v + key : nullptr;
    item.rows.plainQ = rows.plainQ ? rows.plainQ + query : nullptr;
    item.rows.plainKey = rows.plainK ? rows.plainK + key : nullptr;
    item.rows.input =
        rows.input ? rows.input + Extents<int, int>(row + 1, context.model.config().hidden).first(row) : nullptr;
    item.rows.queryLatent =
        rows.queryLatent
            ? rows.queryLatent + Extents<int, int>(row + 1, context.model.config().latent->queryRank).first(row)
            : nullptr;
    item.rows.out = rows.out + context.outputs(row + 1).first(row, item.kvHead);
}

void wantAll(const SelectorContext& context, HeadStep& item) {
    item.selected.clear();
    item.wanted.clear();
    for (int b = item.firstBlock; b <= item.position / context.spec.blockSize; ++b) item.wanted.push_back(b);
}

KvBlockView viewOf(const SelectorContext& context, const HeadStep& item, const float* block, BlockId id) {
    const int size = context.spec.blockSize;
    const int begin = id == BlockId{item.firstBlock} ? item.firstToken % size : 0;
    const bool current = id == BlockId{item.position / size};
    const int tokens = current ? item.position % size + 1 : size;
    const KvCache& cache = context.cache;
    if (!cache.quantised()) return cache.layout().view(block, tokens, begin);
    if (item.head->prompt != nullptr) return cache.layout().view(cache.promptBlock(*item.head, id), tokens, begin);
    const bool isWritten = current && tokens < size;
    return isWritten ? cache.layout().view(item.head->tail, tokens, begin) : cache.view(block, tokens, begin);
}

const float* attendedBlock(const SelectorContext& context, const HeadStep& item, BlockId id) {
    return context.cache.offloaded(item.layer) ? item.head->device.block(id) : context.cache.storeBlock(*item.head, id);
}

void listViews(const SelectorContext& context, HeadStep& item) {
    item.views.clear();
    if (item.byToken) return;
    const auto list = [&](BlockId id) {
        item.views.push_back(viewOf(context, item, attendedBlock(context, item, id), id));
    };
    if (item.dense)
        for (const std::int32_t id : item.wanted) list(BlockId{id});
    else
        for (const SelectedBlock& block : item.selected) list(BlockId{block.block});
}

void packTokens(const SelectorContext& context, HeadStep& item) {
    const BlockLayout& layout = context.cache.layout();
    const int size = layout.blockSize, count = int(item.tokens.size()), blocks = (count + size - 1) / size;
    const std::size_t blockFloats = layout.floats(), floats = blockFloats * std::size_t(blocks);
    if (item.gathered.size() < floats) item.gathered = AlignedBuffer<float>(floats);
    item.views.clear();
    const auto packed = [&](int token) { return item.gathered.data() + index(layout.blockOf(token)) * blockFloats; };
    for (int i = 0; i < count; ++i) {
        const std::int32_t token = item.tokens[std::size_t(i)];
        layout.copyToken(attendedBlock(context, item, layout.blockOf(token)), layout.rowOf(token), packed(i),
                         layout.rowOf(i));
    }
    for (int first = 0; first < count; first += size)
        item.views.push_back(layout.view(packed(first), std::min(size, count - first)));
}

} // namespace kvscope

#include "core/engine/cpu/block_views.h"

#include <algorithm>

namespace kvscope {

void placeAt(const SelectorContext& context, HeadStep& item, int layer, int position) {
    const int window = context.rules.windowOf(layer);
    item.layer = layer;
    item.position = position;
    item.firstToken = window > 0 ? std::max(0, position + 1 - window) : 0;
    item.firstBlock = item.firstToken / context.spec.blockSize;
}

void pointAt(const SelectorContext& context, HeadStep& item, const TokenRows& rows, std::size_t row) {
    const std::size_t dim = std::size_t(context.shape.dim);
    const std::size_t firstHead =
        row * std::size_t(context.rules.queryHeads) + std::size_t(item.kvHead * context.group());
    const std::size_t kvHead = row * std::size_t(context.shape.kvHeads) + std::size_t(item.kvHead);
    item.q = rows.q + firstHead * dim;
    item.key = rows.k + kvHead * dim;
    item.value = rows.v ? rows.v + kvHead * dim : nullptr;
    item.plainQ = rows.plainQ ? rows.plainQ + firstHead * dim : nullptr;
    item.plainKey = rows.plainK ? rows.plainK + kvHead * dim : nullptr;
    item.input = rows.input ? rows.input + row * std::size_t(context.model.config().hidden) : nullptr;
    item.out = rows.out + firstHead * std::size_t(context.shape.valueDim);
}

void wantAll(const SelectorContext& context, HeadStep& item) {
    item.selected.clear();
    item.wanted.clear();
    for (int b = item.firstBlock; b <= item.position / context.spec.blockSize; ++b) item.wanted.push_back(b);
}

KvBlockView viewOf(const SelectorContext& context, const HeadStep& item, const float* block, std::int32_t id) {
    const int size = context.spec.blockSize;
    const int begin = id == item.firstBlock ? item.firstToken % size : 0;
    const bool current = id == item.position / size;
    return context.cache.layout().view(block, current ? item.position % size + 1 : size, begin);
}

const float* attendedBlock(const SelectorContext& context, const HeadStep& item, std::int32_t id) {
    return context.cache.offloaded(item.layer) ? item.head->device.block(id) : context.cache.storeBlock(*item.head, id);
}

void listViews(const SelectorContext& context, HeadStep& item) {
    item.views.clear();
    if (item.byToken) return;
    const auto list = [&](std::int32_t id) {
        item.views.push_back(viewOf(context, item, attendedBlock(context, item, id), id));
    };
    if (item.dense)
        for (const std::int32_t id : item.wanted) list(id);
    else
        for (const SelectedBlock& block : item.selected) list(block.block);
}

void packTokens(const SelectorContext& context, HeadStep& item) {
    const BlockLayout& layout = context.cache.layout();
    const int size = layout.blockSize, count = int(item.tokens.size()), blocks = (count + size - 1) / size;
    const std::size_t floats = layout.floats() * std::size_t(blocks);
    if (item.gathered.size() < floats) item.gathered = AlignedBuffer<float>(floats);
    item.views.clear();
    for (int i = 0; i < count; ++i) {
        const std::int32_t token = item.tokens[std::size_t(i)];
        layout.copyToken(attendedBlock(context, item, token / size), token % size,
                         item.gathered.data() + std::size_t(i / size) * layout.floats(), i % size);
    }
    for (int b = 0; b < blocks; ++b)
        item.views.push_back(
            layout.view(item.gathered.data() + std::size_t(b) * layout.floats(), std::min(size, count - b * size)));
}

} // namespace kvscope

#include "core/cuda/block_choice.h"

#include <algorithm>

namespace kvscope {

void BlockChoice::plan(DeviceArena& arena) {
    constexpr const char* kWhat = "selections";
    const bool ahead = order_.looksAhead();
    const Elements count(layout_.selectRows, layout_.kvHeads, ahead ? 2 : 1),
        entries(count, std::max(layout_.capacity, 1));
    arena.plan(lists.block, entries, kWhat);
    arena.plan(lists.slot, entries, kWhat);
    arena.plan(lists.count, count, kWhat);
    arena.plan(lists.loads, entries, kWhat);
    arena.plan(lists.writeBacks, {layout_.heads(), writeBackLists()}, kWhat);
}

/// With lookahead, layers of even and of odd number have separate lists: the choice for the next layer writes its lists
/// while the attention of this layer reads the others.
ChoiceLists BlockChoice::listsOf(LayerId layer) const {
    const std::size_t heads = Elements(layout_.selectRows, layout_.kvHeads);
    const std::size_t first = order_.looksAhead() && int(layer) % 2 == 1 ? heads : 0;
    const std::size_t entry = Elements(first, std::max(layout_.capacity, 1));
    // Beside the step a layer's write-backs may start when the layer has written its new token. While they run, the
    // choice for a later layer may write its list already, so every layer has its own list of write-backs.
    const int writeBacks = order_.movesBeside() ? int(layer) : 0;
    return {lists.block + entry, lists.slot + entry, lists.count + first, lists.loads + entry,
            RowsOf(lists.writeBacks, layout_.heads())[writeBacks]};
}

cuda::MoveList BlockChoice::movesOf(LayerId index) const {
    const DeviceLayerState& layer = layers_[index];
    const ChoiceLists own = listsOf(index);
    cuda::MoveList moves{own.loads, own.writeBacks, layer.counts};
    if (layer.places.store != nullptr) moves.storeUnits = int(cuda::blockBytes(layout_.shape)) / cuda::kStoreUnit;
    return moves;
}

/// Rows of different lengths share steps, so that all have room for the longest.
int BlockChoice::previousBytes() const {
    return options_.sharesSteps ? cuda::kMostBitmapBytes : cuda::selectionBitmapBytes(layout_.maxBlocks);
}

cuda::SelectArgs BlockChoice::layerArgs(LayerId index) const {
    const DeviceLayerState& layer = layers_[index];
    cuda::SelectArgs args;
    args.shape = layout_.shape;
    args.q = buffers_.q;
    args.index = layer.index;
    args.maxBlocks = layout_.maxBlocks;
    args.score = spec_.queryScore == QueryScore::PooledSoftmax ? cuda::SelectArgs::Score::PooledSoftmax
                 : spec_.queryScore == QueryScore::RangeBound  ? cuda::SelectArgs::Score::RangeBound
                                                               : cuda::SelectArgs::Score::None;
    args.agnostic = spec_.agnosticScore != AgnosticScore::None;
    args.rangeReduce = spec_.rangeReduce;
    args.budget = spec_.budget;
    args.denseBelowTokens = spec_.denseBelowTokens;
    args.slidingWindow = layer.window;
    args.scale = config_.attentionScale();
    args.capacity = layout_.capacity;
    const ChoiceLists own = listsOf(index);
    args.list = {own.block, nullptr, own.count};
    if (options_.changes != nullptr) options_.changes->change(args);
    return args;
}

cuda::SelectSlots BlockChoice::slotsOf(LayerId index) const {
    const DeviceLayerState& layer = layers_[index];
    cuda::SelectSlots slots;
    slots.count = options_.slots;
    slots.countOf = rows_.slotsOf;
    slots.mapFirst = layer.places.map;
    slots.useFirst = layer.places.lastUse;
    slots.poolFirst = layer.places.blocks;
    slots.map = layer.map;
    slots.lastUse = layer.lastUse;
    slots.pool = layer.blocks;
    slots.newest = layer.newest;
    slots.newKey = buffers_.newKey;
    slots.newValue = buffers_.newValue;
    slots.valuesByToken = valuesByToken(index);
    slots.storeFirst = layer.places.store != nullptr ? layer.places.store : rows_.blockFirst;
    slots.moves = movesOf(index);
    return slots;
}

cuda::SelectArgs BlockChoice::stepArgs(LayerId index, const StepReport& report) const {
    const DeviceLayerState& layer = layers_[index];
    cuda::SelectArgs select = layerArgs(index);
    select.rows = layout_.rows;
    select.position = rows_.position;
    select.active = rows_.active;
    select.planted.streams = layer.planted;
    select.planted.firstHead = layout_.firstRow * layout_.kvHeads;
    if (layer.offloaded && !options_.pooled) { // a pool is asked when all rows have chosen
        select.slots = slotsOf(index);
        select.list.slot = listsOf(index).slot;
    }
    if (options_.record)
        select.record = {report.headsOf(index), report.blocksOf(index),  report.scoresOf(index),
                         layer.previous,        layer.hasPrevious,       previousBytes(),
                         layer.places.previous, layer.places.hasPrevious};
    return select;
}

} // namespace kvscope

#include "core/cuda/half_rows.h"

#include <algorithm>
#include <utility>

namespace kvscope {
namespace {

/// The layout of one half. Lists and reports have room for the longest row of all.
BatchLayout halfOf(const BatchLayout& all, int number) {
    BatchLayout half = all;
    const int first = firstHalf(all.rows);
    half.firstRow = number == 0 ? 0 : first;
    half.rows = number == 0 ? first : all.rows - first;
    return half;
}

} // namespace

HalfRows::HalfRows(const CudaSequencesParts& parts, CudaSequences& all, int number)
    : p_(parts), all_(all), number_(number), layout_(halfOf(p_.layout, number)), order_(layers_),
      rows_(p_.model.config, p_.options, p_.layout),
      choice_(p_.model.config, p_.options, layout_, layers_, order_, rows_, buffers_, selector_),
      transfers_(p_.options, layout_, layers_, order_, choice_, p_.launch, p_.ranges),
      stages_({p_.model, p_.options, layout_, layers_, selector_, order_, rows_, buffers_, choice_, p_.launch,
               p_.passes, transfers_, p_.ranges}) {
    order_.inHalves();
}

void HalfRows::open() {
    const int row = layout_.firstRow, head = layout_.headOf(RowId{row});
    const ModelConfig& config = p_.model.config;
    // What lives from the choice of a half to its attention, while the other half works, is the half's own. All other
    // buffers are used by one half after the other.
    buffers_ = p_.buffers;
    buffers_.x = RowsOf(buffers_.x, config.hidden)[row];
    buffers_.q = RowsOf(buffers_.q, {config.queryHeads, layout_.dim})[row];
    const RowTable& all = all_.rows;
    rows_.position = all.position + row;
    rows_.next = all.next + row;
    rows_.active = all.active + row;
    rows_.ropeFirst = all.ropeFirst + row;
    rows_.blockFirst = all.blockFirst + head;
    rows_.windowFirst = all.windowFirst + head;
    rows_.tokenFirst = all.tokenFirst + head;
    rows_.poolFirst = all.poolFirst; // slots are counted from the half's first
    rows_.ropeCos = all.ropeCos, rows_.ropeSin = all.ropeSin;
    const Elements entries(std::max(layout_.capacity, 1));
    const ChoiceLists& lists = all_.choice.lists;
    choice_.lists = {RowsOf(lists.block, entries)[head], RowsOf(lists.slot, entries)[head], lists.count + head,
                     RowsOf(lists.loads, entries)[head], RowsOf(lists.writeBacks, head)[choice_.writeBackLists()]};
    layers_ = all_.layers;
    transfers_.openHalf(all_.transfers, number_);
    for (const LayerId i : layers_.ids()) {
        placeLayer(layers_[i]);
        layers_[i].counts = transfers_.countsOf(i);
    }
}

/// Points a layer that all rows have to what this half has of it. Blocks outside of slots, windows and tokens are found
/// by the tables of the rows.
void HalfRows::placeLayer(DeviceLayerState& layer) const {
    const int head = layout_.headOf(RowId{layout_.firstRow});
    const auto skip = [&](auto*& pointer, Elements ofHead) {
        if (pointer != nullptr) pointer = RowsOf(pointer, ofHead)[head];
    };
    cuda::DeviceIndex& index = layer.index;
    skip(index.recentKeys, {index.kernel, layout_.dim});
    skip(index.recentScores, index.kernel);
    index.windowFirst = rows_.windowFirst;
    index.blockFirst = rows_.blockFirst;
    index.tokenFirst = rows_.tokenFirst;
    skip(layer.previous, choice_.previousBytes());
    skip(layer.hasPrevious, 1);
    if (!layer.offloaded) return;
    const Elements slots(p_.options.slots);
    skip(layer.blocks, {slots, p_.options.fullBlockBytes(layout_.blockElements) / std::int64_t(sizeof(__nv_bfloat16))});
    skip(layer.newest, layout_.blockElements);
    skip(layer.map, slots);
    skip(layer.lastUse, slots);
}

void HalfRows::begin() {
    if (hasLoop()) transfers_.leaveToLoop();
}

StepReport HalfRows::partOf(const StepReport& report) const {
    return report.half(number_, layout_.headOf(RowId{layout_.firstRow}));
}

cuda::GatherArgs HalfRows::loopArgs(LayerId layer, const StepReport& report) const {
    return layers_[layer].offloaded ? transfers_.loopArgs(layer, partOf(report)) : cuda::GatherArgs();
}

void HalfRows::begin(const StepReport& report) {
    report_ = partOf(report);
    stages_.begin(report_, nullptr);
    isAwaited_ = false;
}

void HalfRows::choose(LayerId layer, HalfRows* awaiting, LayerId awaited) {
    workOnThese();
    stages_.project(layer);
    stages_.append(layer);
    const int wanted = awaiting == nullptr ? -1 : awaiting->loopLayer(awaited), listed = loopLayer(layer);
    const bool tells = hasLoop() ? listed >= 0 || wanted >= 0 : layers_[layer].sparse;
    std::uint64_t* const ready = wanted < 0 ? nullptr : awaiting->report_.mark(awaited, StepReport::kReady);
    if (wanted >= 0 && tells) awaiting->isAwaited_ = true;
    if (!hasLoop() && tells) stages_.endChoiceAt(ready);
    stages_.choose(layer);
    if (hasLoop() && tells) all_.transfers.handOverHalf(listed, wanted, ready);
}

void HalfRows::attend(LayerId layer) {
    workOnThese();
    const bool awaited = std::exchange(isAwaited_, false);
    if (layers_[layer].offloaded && !awaited) {
        // The second half of the last layer: behind it comes no choice, and the loop writes its blocks back.
        if (hasLoop())
            all_.transfers.handOverHalf(2 * layers_.count(), loopLayer(layer), report_.mark(layer, StepReport::kReady));
        else
            stages_.stampWhenReady();
    }
    stages_.load(layer);
    stages_.attend(layer);
    stages_.after(layer);
    stages_.measure(layer);
    stages_.finish(layer);
}

} // namespace kvscope

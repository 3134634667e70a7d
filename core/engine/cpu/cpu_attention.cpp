#include "core/engine/cpu/cpu_attention.h"

#include "core/engine/cpu/block_views.h"
#include "core/engine/cpu/selection_records.h"

#include <limits>

namespace kvscope {

CpuAttention::CpuAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers,
                           StageClock& clock, std::optional<Oracle> oracle)
    : context_(context), selector_(selector), needs_(context.abilities), transfers_(transfers), clock_(clock),
      attention_(context), items_(context.sequences() * context.shape.kvHeads) {
    if (oracle) oracle_.emplace(context, needs_.ownKeys, oracle->observer);
}

void CpuAttention::beginStep(std::span<const ActiveSequence> active, StepRecord& record) {
    active_ = active;
    record_ = &record;
    work_ = std::span(items_).first(active.size() * std::size_t(context_.shape.kvHeads));
}

void CpuAttention::beginLayer(LayerId layer, const TokenRows& rows, int first) {
    const int count = int(active_.size());
    const Extents<int, KvHeadId> itemAt(count, context_.shape.kvHeads), scoreAt(first + count, context_.shape.kvHeads);
    const bool denseLayer = !context_.plans[layer].sparse;
    allDense_ = true;
    for (int row = 0; row < count; ++row) {
        const ActiveSequence& fed = active_[std::size_t(row)];
        for (const KvHeadId g : context_.kvHeads()) {
            HeadStep& item = work_[itemAt.offset(row, g)];
            item.head = &context_.cache.head(fed.sequence, layer, g);
            item.sequence = fed.sequence;
            item.kvHead = g;
            placeAt(context_, item, layer, fed.position);
            item.dense = denseLayer || item.position + 1 < context_.spec.denseBelowTokens;
            pointAt(context_, item, rows, first + row);
            item.rows.score = rows.score ? rows.score[scoreAt.offset(first + row, g)] : 0.f;
            item.byToken = item.ofPrompt = false;
            item.ahead = {};
            item.stale = -1;
            allDense_ &= item.dense;
        }
    }
}

void CpuAttention::append(LayerId layer) {
    if (!context_.cache.indexed(layer)) return;
    clock_.run(recordOf(layer), Stage::Compression, [&] { selector_.append(work_); });
}

void CpuAttention::choose(LayerId layer) {
    if (needs_.scores && !allDense_) clock_.run(recordOf(layer), Stage::Stage1, [&] { selector_.score(work_); });
    timed(layer, Stage::Pooling, [&] {
        auto listDense = [&](HeadStep& item) {
            if (item.dense) wantAll(context_, item);
        };
        if (allDense_) return forEachItem(context_.kernels, work_, listDense); // long lists, so all threads work
        for (HeadStep& item : work_) listDense(item);
        selector_.choose(work_);
    });
}

void CpuAttention::lookAhead(LayerId layer) {
    if (!needs_.looksAhead()) return;
    timed(layer, Stage::Pooling, [&] {
        requests_.clear();
        selector_.lookAhead(work_, requests_);
    });
}

/// Queues on the link first the blocks that were asked for ahead, and then the blocks that this layer lacks.
void CpuAttention::load(LayerId layer) {
    timed(layer, Stage::Offloading, [&] {
        if (needs_.looksAhead()) transfers_.fetchAhead(work_, requests_, record_->step);
        transfers_.load(layer, work_, record_->step, recordOf(layer));
    });
}

void CpuAttention::attend(LayerId layer) {
    timed(layer, Stage::Stage2, [&] {
        forEachItem(context_.kernels, work_, [&](HeadStep& item) {
            if (item.byToken && !item.dense) packTokens(context_, item);
        });
        if (oracle_)
            for (HeadStep& item : work_) item.lse.assign(context_.group(), std::numeric_limits<float>::quiet_NaN());
        if (!work_[0].dense && selector_.attend(work_)) return;
        if (oracle_)
            attention_.run(work_, &HeadStep::lse);
        else
            attention_.run(work_);
    });
}

void CpuAttention::after(LayerId layer) {
    if (allDense_) return;
    LayerRecord& out = recordOf(layer);
    firstSelection_ = record_->selections.size();
    recordSelections(layer, work_, out, *record_);
    if (needs_.looksAhead()) {
        clock_.run(out, Stage::Pooling, [&] {
            requests_.clear();
            selector_.after(work_, requests_);
        });
        clock_.run(out, Stage::Offloading, [&] { transfers_.fetchAhead(work_, requests_, record_->step); });
    } else if (needs_.after) {
        clock_.run(out, Stage::Compression, [&] { selector_.after(work_, requests_); });
    }
}

void CpuAttention::measure(LayerId layer) {
    if (!oracle_ || allDense_) return;
    oracle_->measure(layer, work_, *record_, firstSelection_);
    clock_.skip(); // the oracle's time counts for no stage
}

} // namespace kvscope

#include "core/engine/cpu/cpu_attention.h"

#include "core/engine/cpu/block_views.h"
#include "core/engine/cpu/selection_records.h"

#include <limits>

namespace kvscope {

CpuAttention::CpuAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers,
                           StageClock& clock, std::optional<Oracle> oracle)
    : context_(context), selector_(selector), needs_(context.abilities), transfers_(transfers), clock_(clock),
      attention_(context), items_(std::size_t(context.sequences() * context.shape.kvHeads)) {
    if (oracle) oracle_.emplace(context, needs_.ownKeys, oracle->observer);
}

void CpuAttention::beginStep(std::span<const ActiveSequence> active, StepRecord& record) {
    active_ = active;
    record_ = &record;
    work_ = std::span(items_).first(active.size() * std::size_t(context_.shape.kvHeads));
}

void CpuAttention::beginLayer(int layer, const TokenRows& rows, std::size_t first) {
    const std::size_t heads = std::size_t(context_.shape.kvHeads);
    const bool denseLayer = !context_.plans[layer].sparse;
    allDense_ = true;
    for (std::size_t row = 0; row < active_.size(); ++row)
        for (std::size_t g = 0; g < heads; ++g) {
            HeadStep& item = work_[row * heads + g];
            item.head = &context_.cache.head(active_[row].sequence, layer, int(g));
            item.sequence = active_[row].sequence;
            item.kvHead = int(g);
            placeAt(context_, item, layer, active_[row].position);
            item.dense = denseLayer || item.position + 1 < context_.spec.denseBelowTokens;
            pointAt(context_, item, rows, first + row);
            item.score = rows.score ? rows.score[(first + row) * heads + g] : 0.f;
            item.byToken = item.ofPrompt = false;
            item.predicted = -1;
            item.used = item.wasted = item.late = 0;
            item.stale = -1;
            allDense_ &= item.dense;
        }
}

void CpuAttention::append(int layer) {
    if (!context_.cache.indexed(layer)) return;
    clock_.run(recordOf(layer), Stage::Compression, [&] { selector_.append(work_); });
}

void CpuAttention::choose(int layer) {
    if (needs_.scores && !allDense_) clock_.run(recordOf(layer), Stage::Stage1, [&] { selector_.score(work_); });
    timed(layer, Stage::Pooling, [&] {
        auto listDense = [&](int i) {
            if (work_[std::size_t(i)].dense) wantAll(context_, work_[std::size_t(i)]);
        };
        if (allDense_) return context_.kernels.forEach(int(work_.size()), listDense); // long lists, so all threads work
        for (int i = 0; i < int(work_.size()); ++i) listDense(i);
        selector_.choose(work_);
    });
}

void CpuAttention::lookAhead(int layer) {
    if (!needs_.looksAhead()) return;
    timed(layer, Stage::Pooling, [&] {
        requests_.clear();
        selector_.lookAhead(work_, requests_);
    });
}

/// Queues on the link first the blocks that were asked for ahead, and then the blocks that this layer lacks.
void CpuAttention::load(int layer) {
    timed(layer, Stage::Offloading, [&] {
        if (needs_.looksAhead()) transfers_.fetchAhead(work_, requests_, record_->step);
        transfers_.load(layer, work_, record_->step, recordOf(layer));
    });
}

void CpuAttention::attend(int layer) {
    timed(layer, Stage::Stage2, [&] {
        context_.kernels.forEach(int(work_.size()), [&](int i) {
            HeadStep& item = work_[std::size_t(i)];
            if (item.byToken && !item.dense) packTokens(context_, item);
        });
        if (oracle_)
            for (HeadStep& item : work_)
                item.lse.assign(std::size_t(context_.group()), std::numeric_limits<float>::quiet_NaN());
        if (!work_[0].dense && selector_.attend(work_)) return;
        if (oracle_)
            attention_.run(work_, &HeadStep::lse);
        else
            attention_.run(work_);
    });
}

void CpuAttention::after(int layer) {
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

void CpuAttention::measure(int layer) {
    if (!oracle_ || allDense_) return;
    oracle_->measure(layer, work_, *record_, firstSelection_);
    clock_.skip(); // the oracle's time counts for no stage
}

} // namespace kvscope

#include "core/engine/cpu/cpu_oracle.h"

#include "core/engine/cpu/block_views.h"
#include "core/session/oracle_best.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

CpuOracle::CpuOracle(const SelectorContext& context, bool ownKeys, OracleObserver* observer)
    : context_(context), ownKeys_(ownKeys), observer_(observer), attention_(context) {}

void CpuOracle::measure(LayerId layerId, std::span<HeadStep> work, StepRecord& record, std::size_t firstSelection) {
    attendEverything(layerId, work);
    const auto group = std::size_t(context_.group());
    std::size_t next = firstSelection;
    for (HeadStep& item : work) {
        if (item.dense) continue;
        double mass = 0;
        for (std::size_t h = 0; h < group; ++h) mass += std::exp(double(item.lse[h]) - double(item.fullLse[h]));
        SelectionRecord& selection = record.selections[next++];
        selection.mass = float(std::min(1.0, mass / double(group)));
        compareWithBest(layerId, item, record.step, selection);
    }
}

/// Fills fullLse of every item. The item's views are then those of all blocks that the item sees, in order.
void CpuOracle::attendEverything(LayerId layerId, std::span<HeadStep> work) {
    const bool offloaded = context_.cache.offloaded(layerId);
    const std::size_t outFloats = std::size_t(context_.group()) * std::size_t(context_.shape.valueDim);
    out_.resize(work.size() * outFloats);
    for (std::size_t i = 0; i < work.size(); ++i) {
        HeadStep& item = work[i];
        const int current = item.position / context_.spec.blockSize;
        item.views.clear();
        for (int b = item.firstBlock; b <= current; ++b) {
            const bool onDevice =
                offloaded && b == current; // the host store gets the newest block only when it is full
            const BlockId id{b};
            const float* block = onDevice ? item.head->device.block(id) : context_.cache.storeBlock(*item.head, id);
            item.views.push_back(viewOf(context_, item, block, id));
        }
        item.rows.out = out_.data() + i * outFloats; // the method's own output stays as it is
    }
    attention_.run(work, &HeadStep::fullLse);
}

/// Splits the views of whole blocks into views of the method's units, where a unit is less than a block.
void CpuOracle::splitIntoUnits(HeadStep& item) const {
    const int unit = context_.spec.unitTokens();
    if (unit == context_.spec.blockSize) return;
    std::vector<KvBlockView> units;
    for (const KvBlockView& view : item.views)
        for (int begin = view.begin / unit * unit; begin < view.tokens; begin += unit) {
            units.push_back(view);
            units.back().begin = std::max(begin, view.begin);
            units.back().tokens = std::min(begin + unit, view.tokens);
        }
    item.views.swap(units);
}

/// Computes the share of the whole attention that each of the item's views gets, by attending to one view at a time.
void CpuOracle::measureBlocks(HeadStep& item) {
    const std::size_t blocks = item.views.size(), group = std::size_t(context_.group());
    blockLse_.resize(blocks * group);
    out_.resize(std::max(out_.size(), blocks * group * std::size_t(context_.shape.valueDim)));
    attention_.runApart(item.rows.q, item.views, out_.data(), blockLse_.data());
    blockMass_.assign(blocks, 0.f);
    for (std::size_t b = 0; b < blocks; ++b)
        for (std::size_t h = 0; h < group; ++h)
            blockMass_[b] += std::exp(blockLse_[b * group + h] - item.fullLse[h]) / float(group);
}

/// Call this after attendEverything, whose results it reads.
void CpuOracle::compareWithBest(LayerId layerId, HeadStep& item, int step, SelectionRecord& selection) {
    splitIntoUnits(item);
    measureBlocks(item);
    const int firstUnit = item.firstToken / context_.spec.unitTokens();
    chosen_.clear();
    origins_.clear();
    for (const SelectedBlock& block : item.selected) {
        chosen_.push_back(block.block - firstUnit);
        origins_.push_back(block.origin);
    }
    OracleRecord out{step, int(layerId), int(item.sequence), int(item.kvHead)};
    describeSelection(blockMass_, chosen_, origins_, out);
    if (ownKeys_) selection.mass = std::min(1.f, out.mass);
    keepOracle(out, selection);
    if (observer_ != nullptr) observer_->observe(out);
}

} // namespace kvscope

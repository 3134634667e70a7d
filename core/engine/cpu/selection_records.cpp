#include "core/engine/cpu/selection_records.h"

#include <algorithm>
#include <vector>

namespace kvscope {
namespace {

/// How many entries two ascending lists have in common.
int intersection(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    int common = 0;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        if (a[i] == b[j])
            ++common, ++i, ++j;
        else if (a[i] < b[j])
            ++i;
        else
            ++j;
    }
    return common;
}

/// Appends the item's blocks and their scores to `record`.
SelectionRecord recordOne(LayerId layerId, const HeadStep& item, StepRecord& record, std::vector<std::int32_t>& ids) {
    SelectionRecord selection;
    selection.layer = int(layerId);
    selection.sequence = int(item.sequence);
    selection.kvHead = int(item.kvHead);
    selection.selected = std::int32_t(item.selected.size());
    selection.predicted = item.ahead.predicted;
    selection.used = item.ahead.used;
    selection.wasted = item.ahead.wasted;
    selection.late = item.ahead.late;
    selection.stale = item.stale;
    selection.first = std::uint32_t(record.blocks.size());
    ids.clear();
    std::size_t at = 0; // index into `wanted`, which has every selected block
    for (const SelectedBlock& block : item.selected) {
        while (item.wanted[at] != block.block) ++at;
        ids.push_back(block.block);
        record.blocks.emplace_back(block.block, block.origin, item.loads.hit[at] != 0);
        record.scores.push_back(block.score);
        selection.hits += item.loads.hit[at];
    }
    selection.misses = selection.selected - selection.hits;
    return selection;
}

} // namespace

void recordSelections(LayerId layerId, std::span<HeadStep> work, LayerRecord& layer, StepRecord& record) {
    bool keptDefined = true;
    int kept = 0;
    std::vector<std::int32_t> ids;
    for (HeadStep& item : work) {
        KvHead& head = *item.head;
        if (item.dense) {
            head.hasPrevious = false;
            continue;
        }
        SelectionRecord selection = recordOne(layerId, item, record, ids);
        if (head.hasPrevious) selection.kept = intersection(ids, head.previous);
        head.previous.assign(ids.begin(), ids.end());
        head.hasPrevious = true;
        layer.selected += selection.selected;
        layer.hits += selection.hits;
        layer.misses += selection.misses;
        keptDefined &= selection.kept >= 0;
        kept += std::max(selection.kept, 0);
        record.selections.push_back(selection);
    }
    layer.kept = keptDefined ? kept : -1;
}

} // namespace kvscope

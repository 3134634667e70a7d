#include "core/session/canvas_record.h"

namespace kvscope {

void recordChosen(DenoiseLayer row, const CanvasChosen& chosen, StepRecord& record) {
    row.sparse = true;
    row.active = chosen.active;
    row.pages = std::int32_t(chosen.ids.size());
    row.density = chosen.density;
    record.denoise.layers.push_back(row);
    SelectionRecord selection;
    selection.layer = row.layer, selection.sequence = row.sequence, selection.kvHead = row.kvHead;
    selection.selected = selection.hits = row.pages;
    selection.first = std::uint32_t(record.blocks.size());
    selection.kept = row.pages > 0 ? chosen.kept : 0; // a choice of nothing keeps nothing of the one before
    for (const std::int32_t id : chosen.ids) record.blocks.emplace_back(id, Origin::QueryAware, true);
    record.selections.push_back(selection);
    LayerRecord& sums = record.layers[row.layer];
    const bool firstOfLayer = sums.selected == 0;
    sums.selected += selection.selected;
    sums.hits += selection.hits;
    if (row.pages == 0) return;
    sums.kept =
        (firstOfLayer || sums.kept >= 0) && selection.kept >= 0 ? (firstOfLayer ? 0 : sums.kept) + selection.kept : -1;
}

void recordChanges(std::span<const float> changes, DenoiseLayer& row, StepRecord& record) {
    row.firstChange = std::int64_t(record.denoise.changes.size());
    record.denoise.changes.insert(record.denoise.changes.end(), changes.begin(), changes.end());
}

} // namespace kvscope

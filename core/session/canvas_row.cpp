#include "core/session/canvas_row.h"

#include <algorithm>

namespace kvscope {

CanvasRow canvasRow(const CanvasOptions& options, RowId sequence, const CanvasRun& run) {
    const auto all = run.ids();
    CanvasRow row{sequence, 0, all, run.masks(), run.first()};
    if (!options.computesAll(run.step())) {
        row.first = run.first();
        const std::size_t first = std::size_t(row.first);
        row.ids =
            options.cache == CanvasCache::Prefix ? all.subspan(first) : all.subspan(first, std::size_t(options.block));
        if (options.cache == CanvasCache::Evicted) row.keys = CanvasRow::Keys::Kept;
    } else if (options.cache == CanvasCache::Evicted && run.step() == 1) {
        row.keys = CanvasRow::Keys::AllAndChoose;
    } else if (options.cache == CanvasCache::Features) {
        row.keys = CanvasRow::Keys::Computed;
        row.wholePrompt = run.forwards() % options.promptInterval == 0;
        row.wholeCanvas = run.forwards() % options.canvasInterval == 0;
    } else if (options.tiles() && run.forwards() >= options.maskStep()) {
        row.keys = run.forwards() == options.maskStep() ? CanvasRow::Keys::AllAndChoose : CanvasRow::Keys::Masked;
        row.maskUsed = run.forwards() > options.maskStep() + 1;
    }
    if (options.shifted)
        for (std::int32_t& position : row.wanted) position = std::max(0, position - 1);
    return row;
}

} // namespace kvscope

// The numbers of whole steps of one run, loaded as heatmaps are: a preview first, then what is in view, then the rest.
#pragma once

#include "profiler/tiles/step_pyramid.h"
#include "profiler/tiles/tile_reader.h"
#include "ui/views/tile_feed.h"

#include <functional>

namespace kvscope::ui {

class StepSeries {
public:
    /// `slot` names its requests within the context.
    StepSeries(Workspace& workspace, QObject* context, const char* slot)
        : feed_(workspace, context, slot), cache_(TileCache::userPlace()) {}

    /// Forgets what is there and reads `key`. `changed`: something came, or reading failed.
    void start(const RunKey& key, StepRequest request, std::function<void()> changed) {
        request.runId = key.runId;
        columns_.reset(rowsOf(request.numbers));
        feed_.start(
            key,
            [request, cache = cache_](TraceReader& reader, int first, int last) {
                return readTile(reader, request, first, last, cache);
            },
            [request](TraceReader& reader, int steps, int stride) {
                return readPreview(reader, request, steps, stride);
            },
            [this, changed = std::move(changed)](TileFeed<HeatTile>::Arrival arrival) {
                if (arrival.tile) {
                    columns_.tiles().announce(arrival.total);
                    if (arrival.previewStride > 0)
                        columns_.tiles().setPreview(std::move(arrival.tile), arrival.previewStride);
                    else
                        columns_.tiles().place(arrival.first, std::move(arrival.tile), arrival.times);
                }
                changed();
            });
    }
    void clear() {
        feed_.stop();
        columns_.reset(0);
    }
    /// To be called when the run may have more steps.
    void advance() { feed_.advance(); }
    /// Reads these steps before the others.
    void prefer(double first, double last) { feed_.prefer(first, last); }
    const StepPyramid& columns() const { return columns_; }
    const TileFeed<HeatTile>& feed() const { return feed_; }

private:
    TileFeed<HeatTile> feed_;
    TileCache::Place cache_;
    StepPyramid columns_;
};

} // namespace kvscope::ui

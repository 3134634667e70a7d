// Tiles of a recorded run: from the cache where they were built before, else from the trace.
#pragma once

#include "profiler/read/trace_reader.h"
#include "profiler/tiles/heat_tile.h"
#include "profiler/tiles/mask_tile.h"
#include "profiler/tiles/step_numbers.h"
#include "profiler/tiles/tile_cache.h"

#include <memory>

namespace kvscope {

/// One matrix of a run.
struct HeatRequest {
    int runId = 0;
    Metric metric = Metric::Locality;
    enum class Rows { Layers, Heads } rows = Rows::Layers; // Heads: (sequence, KV head) of `layer`
    int layer = 0;
    HeadFilter filter{}; // Layers: whose; Heads: only the sequence counts
    double factor = 1;   // multiplies every value, e.g. to show microseconds as nanoseconds
};
/// Number of rows of the matrix, from the run's shape.
int rowsOf(const HeatRequest& request, const RunRow& run);

/// The mask of one KV head.
struct MaskRequest {
    int runId = 0, layer = 0, sequence = 0, kvHead = 0;
};

/// Steps [first, last], both included, at most kTileSteps, within one tile. A tile of a run that has ended is kept in
/// the cache if it is large enough for that to pay. @throws Error as TraceReader does
std::shared_ptr<HeatTile> readTile(const TraceReader& reader, const HeatRequest& request, int first, int last,
                                   const TileCache::Place& cache);
std::shared_ptr<MaskTile> readTile(const TraceReader& reader, const MaskRequest& request, int first, int last,
                                   const TileCache::Place& cache);
/// Only what is plain() is kept.
std::shared_ptr<HeatTile> readTile(const TraceReader& reader, const StepRequest& request, int first, int last,
                                   const TileCache::Place& cache);

/// Only the steps 0, stride, 2 * stride, ... of a run of `steps`: a first picture while its tiles are being built.
std::shared_ptr<HeatTile> readPreview(const TraceReader& reader, const HeatRequest& request, int steps, int stride);
std::shared_ptr<MaskTile> readPreview(const TraceReader& reader, const MaskRequest& request, int steps, int stride);
std::shared_ptr<HeatTile> readPreview(const TraceReader& reader, const StepRequest& request, int steps, int stride);

} // namespace kvscope

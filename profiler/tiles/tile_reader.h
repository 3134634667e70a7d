// Reads the tiles of a recorded run from the cache, or builds them from the trace if they are not there.
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
    HeadFilter filter{}; // Layers: the sequence and KV heads that count; Heads: only its sequence is used
    double factor = 1;   // multiplies every value, e.g. to show microseconds as nanoseconds
};
/// Number of rows of the matrix, from the run's shape.
int rowsOf(const HeatRequest& request, const RunRow& run);

/// The mask of one KV head.
struct MaskRequest {
    int runId = 0, layer = 0, sequence = 0, kvHead = 0;
};

/// A run of tiles, [first, end) by number. The numbers of a trace's steps may have gaps of any length.
struct TileStretch {
    int first = 0, end = 0;
    int count() const { return end - first; }
};
/// The empty tiles around tile number `tile`; none where that tile has a step. Cheap.
TileStretch emptyTiles(const TraceReader& reader, int runId, int tile);

/// Reads the steps [first, last], both included, which are at most kTileSteps and lie within one tile. A tile of a run
/// that has ended is kept in the cache, unless it is so small that the trace is read as fast. @throws Error as
/// TraceReader does
std::shared_ptr<HeatTile> readTile(const TraceReader& reader, const HeatRequest& request, int first, int last,
                                   const TileCache::Place& cache);
std::shared_ptr<MaskTile> readTile(const TraceReader& reader, const MaskRequest& request, int first, int last,
                                   const TileCache::Place& cache);
/// As above. A tile is kept in the cache only if the request is plain().
std::shared_ptr<HeatTile> readTile(const TraceReader& reader, const StepRequest& request, int first, int last,
                                   const TileCache::Place& cache);

/// Reads only the steps 0, stride, 2 * stride, ... of a run of `steps`, for a first picture while its tiles are built.
std::shared_ptr<HeatTile> readPreview(const TraceReader& reader, const HeatRequest& request, int steps, int stride);
std::shared_ptr<MaskTile> readPreview(const TraceReader& reader, const MaskRequest& request, int steps, int stride);
std::shared_ptr<HeatTile> readPreview(const TraceReader& reader, const StepRequest& request, int steps, int stride);

} // namespace kvscope

// Tiles under the views' shared filter. In a heatmap what it leaves out is undefined, so that no colour, mean or
// extreme counts it; in a mask it is not selected.
#pragma once

#include "profiler/read/filtered.h"
#include "profiler/tiles/tile_reader.h"

namespace kvscope {

/// As readTile. Rows of layers hold sums over the filter's KV heads; rows of KV heads are left out one by one.
/// @throws Error as TraceReader does
std::shared_ptr<HeatTile> readFilteredTile(const TraceReader& reader, const HeatRequest& request,
                                           const ReadFilter& filter, int first, int last,
                                           const TileCache::Place& cache);
/// The filter's text keeps blocks that hold it (not steps, whose own text is one token).
std::shared_ptr<MaskTile> readFilteredTile(const TraceReader& reader, const MaskRequest& request,
                                           const ReadFilter& filter, int first, int last,
                                           const TileCache::Place& cache);
/// As readPreview.
std::shared_ptr<MaskTile> readFilteredPreview(const TraceReader& reader, const MaskRequest& request,
                                              const ReadFilter& filter, int steps, int stride);
std::shared_ptr<HeatTile> readFilteredPreview(const TraceReader& reader, const HeatRequest& request,
                                              const ReadFilter& filter, int steps, int stride);

} // namespace kvscope

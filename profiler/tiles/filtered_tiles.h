// Tiles under the views' shared filter. A cell of a heatmap that the filter leaves out is undefined, so that no colour,
// mean or extreme counts it. A block of a mask that the filter leaves out is not selected.
#pragma once

#include "profiler/read/filtered.h"
#include "profiler/tiles/tile_reader.h"

namespace kvscope {

/// As readTile. With a row for each layer, a row holds sums over the filter's KV heads. With a row for each KV head,
/// the rows of heads that the filter leaves out are undefined.
/// @throws Error as TraceReader does
std::shared_ptr<HeatTile> readFilteredTile(const TraceReader& reader, const HeatRequest& request,
                                           const ReadFilter& filter, int first, int last,
                                           const TileCache::Place& cache);
/// As readTile. Of a filter with a text, blocks that contain the text stay. (Steps do not count here: a step's own text
/// is one token.)
std::shared_ptr<MaskTile> readFilteredTile(const TraceReader& reader, const MaskRequest& request,
                                           const ReadFilter& filter, int first, int last,
                                           const TileCache::Place& cache);
/// As readPreview.
std::shared_ptr<MaskTile> readFilteredPreview(const TraceReader& reader, const MaskRequest& request,
                                              const ReadFilter& filter, int steps, int stride);
std::shared_ptr<HeatTile> readFilteredPreview(const TraceReader& reader, const HeatRequest& request,
                                              const ReadFilter& filter, int steps, int stride);

} // namespace kvscope

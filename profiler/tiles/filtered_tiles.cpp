#include "profiler/tiles/filtered_tiles.h"

#include "base/extents.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

constexpr float kNoValue = std::numeric_limits<float>::quiet_NaN();

/// Whether the request's numbers must be summed up anew: the recorded matrix has no sums over some of the heads, and no
/// single stages of a layer's time.
bool needsOwnSums(const HeatRequest& r, const ReadFilter& filter) {
    if (r.rows != HeatRequest::Rows::Layers || r.filter.kvHead >= 0) return false;
    return !filter.kvHeads.empty() || (r.metric == Metric::LayerTime && !filter.component.empty());
}

void appendSums(const TraceReader& reader, const HeatRequest& r, const ReadFilter& filter, int first, int last,
                int rows, std::vector<float>& values) {
    const StepMatrix matrix = filteredLayers(reader, r.runId, r.metric, r.filter.sequence, filter, first, last);
    const Extents<int, int> columns(last - first + 1, rows);
    const std::size_t at = values.size();
    values.resize(at + columns.size(), kNoValue);
    const std::span<float> added = std::span(values).subspan(at);
    for (int i = 0; i < matrix.steps; ++i) {
        const int step = matrix.firstStep + i - first;
        if (step < 0 || step > last - first) continue;
        for (int row = 0; row < std::min(rows, matrix.rows); ++row)
            added[columns.offset(step, row)] = float(double(matrix.at(i, row)) * r.factor);
    }
}

/// Makes a tile whose column i is the step first + i * stride, with what the filter leaves out undefined.
std::shared_ptr<HeatTile> withoutFiltered(const TraceReader& reader, const HeatRequest& r, const ReadFilter& filter,
                                          std::shared_ptr<HeatTile> tile, int first, int stride) {
    if (!tile || filter.empty() || tile->steps() == 0) return tile;
    const auto run = reader.run(r.runId);
    const int rows = tile->rows(), heads = run ? std::max(run->kvHeads, 1) : 1;
    const bool layers = r.rows == HeatRequest::Rows::Layers;
    const bool nothing =
        layers ? r.filter.kvHead >= 0 && !filter.hasKvHead(r.filter.kvHead) : !filter.hasLayer(r.layer);
    const auto passes = stepsThatPass(reader, r.runId, filter, first, first + (tile->steps() - 1) * stride);
    std::vector<float> columns;
    columns.reserve(Extents<int, int>(tile->steps(), rows).size());
    for (int i = 0; i < tile->steps(); ++i)
        for (int row = 0; row < rows; ++row) {
            const bool counts =
                !nothing && passes[i * stride] && (layers ? filter.hasLayer(row) : filter.hasKvHead(row % heads));
            columns.push_back(counts ? tile->at(i, row) : kNoValue);
        }
    auto result = std::make_shared<HeatTile>(rows);
    result->append(columns);
    return result;
}

std::shared_ptr<MaskTile> withoutFiltered(const TraceReader& reader, const MaskRequest& r, const ReadFilter& filter,
                                          std::shared_ptr<MaskTile> tile, int first, int stride) {
    if (!tile || filter.empty()) return tile;
    const bool nothing = !filter.hasLayer(r.layer) || !filter.hasKvHead(r.kvHead);
    Numbered<bool> found;
    if (!filter.text.empty() && !nothing) found = blocksWithText(reader, r.runId, r.sequence, filter.text);
    MaskChunk chunk;
    for (int i = 0; i < tile->steps(); ++i) {
        if (!nothing && filter.hasStep(first + i * stride))
            for (const MaskCell cell : tile->cells(i))
                if (const int block = cell.block(); filter.text.empty() || (block < found.count() && found[block]))
                    chunk.cells.push_back(cell);
        chunk.endStep();
    }
    auto result = std::make_shared<MaskTile>(chunk);
    if (tile->steps() == kTileSteps) result->seal();
    return result;
}

} // namespace

std::shared_ptr<MaskTile> readFilteredTile(const TraceReader& reader, const MaskRequest& request,
                                           const ReadFilter& filter, int first, int last,
                                           const TileCache::Place& cache) {
    return withoutFiltered(reader, request, filter, readTile(reader, request, first, last, cache), first, 1);
}

std::shared_ptr<MaskTile> readFilteredPreview(const TraceReader& reader, const MaskRequest& request,
                                              const ReadFilter& filter, int steps, int stride) {
    return withoutFiltered(reader, request, filter, readPreview(reader, request, steps, stride), 0, stride);
}

std::shared_ptr<HeatTile> readFilteredTile(const TraceReader& reader, const HeatRequest& request,
                                           const ReadFilter& filter, int first, int last,
                                           const TileCache::Place& cache) {
    if (!needsOwnSums(request, filter))
        return withoutFiltered(reader, request, filter, readTile(reader, request, first, last, cache), first, 1);
    const auto run = reader.run(request.runId);
    auto tile = std::make_shared<HeatTile>(run ? std::max(rowsOf(request, *run), 1) : 1);
    std::vector<float> values;
    appendSums(reader, request, filter, first, last, tile->rows(), values);
    tile->append(values);
    return tile;
}

std::shared_ptr<HeatTile> readFilteredPreview(const TraceReader& reader, const HeatRequest& request,
                                              const ReadFilter& filter, int steps, int stride) {
    if (!needsOwnSums(request, filter))
        return withoutFiltered(reader, request, filter, readPreview(reader, request, steps, stride), 0, stride);
    const auto run = reader.run(request.runId);
    auto tile = std::make_shared<HeatTile>(run ? std::max(rowsOf(request, *run), 1) : 1);
    std::vector<float> values;
    for (int step = 0; step < steps; step += stride)
        appendSums(reader, request, filter, step, step, tile->rows(), values);
    tile->append(values);
    return tile;
}

} // namespace kvscope

#include "profiler/tiles/tile_reader.h"

#include "base/error.h"
#include "base/extents.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr std::size_t kWorthKeeping = 256 << 10; // bytes; smaller tiles are read from the trace just as fast

std::string nameOf(const HeatRequest& r) {
    return fmt::format("heat 2: run {}, metric {}, {} {}, sequence {}, head {}, times {}", r.runId, int(r.metric),
                       r.rows == HeatRequest::Rows::Layers ? "layers" : "heads of layer", r.layer, r.filter.sequence,
                       r.filter.kvHead, r.factor);
}

std::string nameOf(const MaskRequest& r) {
    return fmt::format("mask 2: run {}, layer {}, sequence {}, head {}", r.runId, r.layer, r.sequence, r.kvHead);
}

std::string nameOf(const StepRequest& r) {
    return fmt::format("steps 1: run {}, {}", r.runId, r.numbers == StepNumbers::Stages ? "stages" : "transfers");
}

/// Appends whole columns for the steps [first, last], NaN for steps that the trace does not have.
void appendColumns(const TraceReader& reader, const HeatRequest& r, const RunRow& run, int first, int last,
                   std::vector<float>& values) {
    const bool layers = r.rows == HeatRequest::Rows::Layers;
    const StepMatrix matrix = layers ? reader.layerMatrix(r.runId, r.metric, r.filter, first, last)
                                     : reader.headMatrix(r.runId, r.metric, r.layer, first, last);
    const int rows = rowsOf(r, run);
    const int rowFirst = !layers && r.filter.sequence >= 0 ? r.filter.sequence * run.kvHeads : 0;
    const Extents<int, int> columns(last - first + 1, rows);
    const std::size_t at = values.size();
    values.resize(at + columns.size(), std::numeric_limits<float>::quiet_NaN());
    const std::span<float> added = std::span(values).subspan(at);
    const Extents<int, int> cells = matrix.extents();
    for (int i = 0; i < matrix.steps; ++i) {
        const int step = matrix.firstStep + i;
        if (step < first || step > last) continue;
        for (int row = 0; row < rows && rowFirst + row < matrix.rows; ++row)
            added[columns.offset(step - first, row)] =
                float(double(matrix.values[cells.offset(i, rowFirst + row)]) * r.factor);
    }
}

void appendSteps(const TraceReader& reader, const MaskRequest& r, int first, int last, MaskChunk& chunk) {
    int next = first; // the step that begins where the chunk ends
    const auto endStepsBefore = [&](int step) {
        for (; next < step; ++next) chunk.endStep();
    };
    ReaderAccess::of(reader).eachSelection(
        r.runId, r.layer, r.sequence, r.kvHead, first, last, [&](const SelectionRow& row) {
            endStepsBefore(row.step);
            if (!row.blocks.empty() && row.blocks.back().id() > kMaxMaskBlock) // the decoder has seen that they ascend
                throw Error(
                    ErrorKind::Unsupported,
                    fmt::format("step {} of {} selects block {}", row.step, reader.path(), row.blocks.back().id()),
                    fmt::format("this view shows blocks up to {}", kMaxMaskBlock));
            for (const PackedBlock block : row.blocks) chunk.cells.emplace_back(block, row.knowsHits);
        });
    endStepsBefore(last + 1);
}

std::shared_ptr<HeatTile> build(const TraceReader& reader, const HeatRequest& r, const RunRow& run, int first,
                                int last) {
    std::vector<float> values;
    appendColumns(reader, r, run, first, last, values);
    auto tile = std::make_shared<HeatTile>(std::max(rowsOf(r, run), 1));
    tile->append(values);
    return tile;
}

std::shared_ptr<MaskTile> build(const TraceReader& reader, const MaskRequest& r, const RunRow&, int first, int last) {
    MaskChunk chunk;
    appendSteps(reader, r, first, last, chunk);
    auto tile = std::make_shared<MaskTile>(chunk);
    if (tile->steps() == kTileSteps) tile->seal();
    return tile;
}

std::shared_ptr<HeatTile> build(const TraceReader& reader, const StepRequest& r, const RunRow&, int first, int last) {
    auto tile = std::make_shared<HeatTile>(rowsOf(r.numbers));
    tile->append(stepColumns(reader, r, first, last));
    return tile;
}

bool fits(const HeatTile& tile, const HeatRequest& r, const RunRow& run) { return tile.rows() == rowsOf(r, run); }
bool fits(const HeatTile& tile, const StepRequest& r, const RunRow&) { return tile.rows() == rowsOf(r.numbers); }
bool fits(const MaskTile&, const MaskRequest&, const RunRow&) { return true; }

template <class Tile, class Request>
std::shared_ptr<Tile> read(const TraceReader& reader, const Request& request, int first, int last,
                           const TileCache::Place& place) {
    const auto run = reader.run(request.runId);
    if (!run)
        throw Error(ErrorKind::BadInput, fmt::format("{} holds no run {}", reader.path(), request.runId),
                    "list its runs with kvscope-cli info");
    const int index = first / kTileSteps;
    const bool whole = first % kTileSteps == 0 && (last - first + 1 == kTileSteps || last + 1 == run->steps);
    if (!whole || run->status == RunStatus::Running || place.folder.empty())
        return build(reader, request, *run, first, last);
    const std::string stamp = traceStamp(reader.path());
    const TileCache cache(place, stamp, nameOf(request));
    if (const auto bytes = cache.load(index))
        if (auto tile = Tile::load(*bytes); tile && tile->steps() == last - first + 1 && fits(*tile, request, *run))
            return tile;
    auto tile = build(reader, request, *run, first, last);
    // A write to the trace while the tile was read makes the two stamps differ. Such a tile is shown, but not cached.
    if (tile->bytes() >= kWorthKeeping && traceStamp(reader.path()) == stamp) cache.store(index, tile->save());
    return tile;
}

} // namespace

int rowsOf(const HeatRequest& request, const RunRow& run) {
    if (request.rows == HeatRequest::Rows::Layers) return run.layers;
    const int heads = std::max(run.kvHeads, 1);
    return request.filter.sequence >= 0 ? heads : heads * std::max(run.sequences, 1);
}

TileStretch emptyTiles(const TraceReader& reader, int runId, int tile) {
    const auto& trace = ReaderAccess::of(reader);
    const int begin = tile * kTileSteps, next = trace.nextStep(runId, begin);
    if (next < begin + kTileSteps) return {tile, tile};
    const int before = trace.previousStep(runId, begin);
    return {before < 0 ? 0 : before / kTileSteps + 1, next / kTileSteps};
}

std::shared_ptr<HeatTile> readTile(const TraceReader& reader, const HeatRequest& request, int first, int last,
                                   const TileCache::Place& cache) {
    return read<HeatTile>(reader, request, first, last, cache);
}

std::shared_ptr<MaskTile> readTile(const TraceReader& reader, const MaskRequest& request, int first, int last,
                                   const TileCache::Place& cache) {
    return read<MaskTile>(reader, request, first, last, cache);
}

std::shared_ptr<HeatTile> readTile(const TraceReader& reader, const StepRequest& request, int first, int last,
                                   const TileCache::Place& cache) {
    return read<HeatTile>(reader, request, first, last, request.plain() ? cache : TileCache::Place{});
}

std::shared_ptr<HeatTile> readPreview(const TraceReader& reader, const HeatRequest& request, int steps, int stride) {
    const auto run = reader.run(request.runId);
    if (!run) return nullptr;
    std::vector<float> values;
    for (int step = 0; step < steps; step += stride) appendColumns(reader, request, *run, step, step, values);
    auto tile = std::make_shared<HeatTile>(std::max(rowsOf(request, *run), 1));
    tile->append(values);
    return tile;
}

std::shared_ptr<MaskTile> readPreview(const TraceReader& reader, const MaskRequest& request, int steps, int stride) {
    MaskChunk chunk;
    for (int step = 0; step < steps; step += stride) appendSteps(reader, request, step, step, chunk);
    return std::make_shared<MaskTile>(chunk);
}

std::shared_ptr<HeatTile> readPreview(const TraceReader& reader, const StepRequest& request, int steps, int stride) {
    auto tile = std::make_shared<HeatTile>(rowsOf(request.numbers));
    for (int step = 0; step < steps; step += stride) tile->append(stepColumns(reader, request, step, step));
    return tile;
}

} // namespace kvscope

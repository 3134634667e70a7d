#include "profiler/tiles/tile_reader.h"

#include "base/error.h"
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
    const std::size_t at = values.size();
    values.resize(at + std::size_t(last - first + 1) * std::size_t(rows), std::numeric_limits<float>::quiet_NaN());
    for (int i = 0; i < matrix.steps; ++i) {
        const int step = matrix.firstStep + i;
        if (step < first || step > last) continue;
        float* column = values.data() + at + std::size_t(step - first) * std::size_t(rows);
        for (int row = 0; row < rows && rowFirst + row < matrix.rows; ++row)
            column[row] = float(double(matrix.at(i, rowFirst + row)) * r.factor);
    }
}

void appendSteps(const TraceReader& reader, const MaskRequest& r, int first, int last, MaskChunk& chunk) {
    const auto rows = reader.selections(r.runId, r.layer, r.sequence, r.kvHead, first, last);
    std::size_t at = 0;
    for (int step = first; step <= last; ++step) {
        while (at < rows.size() && rows[at].step < step) ++at;
        if (at < rows.size() && rows[at].step == step) { // the decoder refuses blocks that are not in ascending order
            const SelectionRow& row = rows[at];
            const std::size_t count = std::min(row.blocks.size(), row.origins.size());
            for (std::size_t i = 0; i < count; ++i) {
                if (row.blocks[i] > kMaxMaskBlock)
                    throw Error(ErrorKind::Unsupported,
                                fmt::format("step {} of {} selects block {}", step, reader.path(), row.blocks[i]),
                                fmt::format("this view shows blocks up to {}", kMaxMaskBlock));
                const int origin = std::min(int(row.origins[i]), kMaskOrigins - 1);
                const int resident = i >= row.hit.size() ? 0 : row.hit[i] != 0 ? kMaskHit : kMaskMiss; // 0: not known
                chunk.cells.push_back({row.blocks[i], MaskBits((1 << origin) | resident)});
            }
        }
        chunk.endStep();
    }
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

#include "profiler/read/look_back.h"

#include "base/error.h"
#include "base/indexed.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/next_step.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <map>

namespace kvscope {
namespace {

/// What one layer of a step chose for one sequence.
struct ChosenBlock {
    int layer = 0, sequence = 0;
    std::vector<std::int32_t> ids;
};

using Counts = std::map<std::int32_t, std::int64_t>; // [distance in blocks]

/// Counts of distances by layer.
class Distances {
public:
    /// A step is complete: its newest blocks are known.
    void add(const std::vector<ChosenBlock>& step, const std::map<int, std::int32_t>& newest) {
        for (const ChosenBlock& chosen : step)
            for (const std::int32_t id : chosen.ids) ++counts_[chosen.layer][newest.at(chosen.sequence) - id];
    }

    std::vector<LayerLookBack> layers(int blockSize) const {
        std::vector<LayerLookBack> all;
        for (const auto& [layer, counts] : counts_) {
            LayerLookBack row;
            row.layer = layer;
            double sum = 0;
            for (const auto& [distance, count] : counts) row.blocks += count, sum += double(count) * double(distance);
            row.mean = sum / double(row.blocks) * blockSize;
            row.median = quantile(counts, row.blocks, 0.5) * blockSize;
            row.ninety = quantile(counts, row.blocks, 0.9) * blockSize;
            all.push_back(row);
        }
        return all;
    }

private:
    /// The smallest distance that this share of the blocks does not exceed.
    static double quantile(const Counts& counts, std::int64_t all, double share) {
        std::int64_t seen = 0;
        for (const auto& [distance, count] : counts) {
            seen += count;
            if (double(seen) >= share * double(all)) return distance;
        }
        return 0;
    }

    std::map<int, Counts> counts_; // [layer]
};

/// Mean of a metric over the decode steps, by layer; absent where it was not recorded.
std::vector<std::optional<double>> meansOf(const TraceReader& reader, const RunRow& run, Metric metric) {
    constexpr int kCellsAtOnce = 1 << 22; // steps times layers
    struct Sum {
        double sum = 0;
        std::int64_t count = 0;
    };
    Numbered<Sum> sums(std::max(run.layers, 0));
    const int atOnce = std::max(kCellsAtOnce / std::max(run.layers, 1), 1);
    for (int first = 1; first < run.steps;) {
        first = nextRecordedStep(reader, run.runId, first); // numbers of steps may have gaps of any length
        const int last = int(std::min<std::int64_t>(std::int64_t(first) + atOnce, run.steps)) - 1;
        const StepMatrix matrix = reader.layerMatrix(run.runId, metric, {}, first, last);
        for (int row = 0; row < std::min(matrix.rows, run.layers); ++row)
            for (int step = 0; step < matrix.steps; ++step)
                if (const float value = matrix.values[matrix.extents().offset(step, row)]; value == value)
                    sums[row].sum += double(value), ++sums[row].count;
        first = last + 1;
    }
    Numbered<std::optional<double>> means(std::max(run.layers, 0));
    for (int row = 0; row < means.count(); ++row)
        if (sums[row].count > 0) means[row] = sums[row].sum / double(sums[row].count);
    return means;
}

} // namespace

std::vector<LayerLookBack> readLookBack(const TraceReader& reader, const RunRow& run) {
    const auto& impl = ReaderAccess::of(reader);
    Statement rows(*impl.connection, "SELECT id, blocks FROM selection WHERE id BETWEEN ? AND ? AND blocks NOT NULL"
                                     " ORDER BY id");
    const auto [low, high] = trace::keysOfSteps(run.runId, 0, trace::kMaxStep, trace::kSelectionShift);
    rows.bindAll(low, high);
    Distances distances;
    std::map<int, std::int32_t> newest; // [sequence]
    std::vector<ChosenBlock> step;
    int at = -1;
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    while (rows.step()) {
        const std::int64_t id = rows.int64(0);
        const int number = trace::stepOf(id, trace::kSelectionShift);
        if (number != at) distances.add(step, newest), step.clear();
        at = number;
        if (!decodeSelection(rows.blob(1), blocks, scores)) impl.damaged("a selection cannot be decoded");
        if (blocks.empty()) continue;
        ChosenBlock chosen{int(id >> 20 & 1023), int(id >> 10 & 1023), {}};
        std::int32_t& last = newest[chosen.sequence];
        last = std::max(last, blocks.back().id());
        for (const PackedBlock block : blocks)
            if (block.origin() != Origin::Sink && block.origin() != Origin::Window) chosen.ids.push_back(block.id());
        if (!chosen.ids.empty()) step.push_back(std::move(chosen));
    }
    distances.add(step, newest);
    std::vector<LayerLookBack> layers = distances.layers(std::max(run.blockSize, 1));
    if (layers.empty()) return layers;
    const auto mass = meansOf(reader, run, Metric::Mass), recall = meansOf(reader, run, Metric::Recall);
    for (LayerLookBack& layer : layers)
        if (std::size_t(layer.layer) < mass.size()) {
            layer.mass = mass[std::size_t(layer.layer)];
            layer.recall = recall[std::size_t(layer.layer)];
        }
    return layers;
}

} // namespace kvscope

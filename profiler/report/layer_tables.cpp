// Tables of a report about layers and transfers.
#include "profiler/report/ratio.h"
#include "profiler/report/report.h"

#include <fmt/format.h>
#include <limits>

namespace kvscope::reports {
namespace {} // namespace

Table layers(const std::vector<RunData>& runs) {
    Table table{"layers",
                "Layer by layer",
                fmt::format("Sums over all decode steps; time per step and hit rate {}, as the key numbers. "
                            "Locality is the mean over steps, sequences and KV heads, without steps "
                            "that open a block. Dense layers select nothing.",
                            coldSteps() == ColdSteps::Counted ? "of all steps, cold ones too"
                            : haveMixed(runs)                 ? "without cold and mixed steps"
                                                              : "without cold steps"),
                {{"run", "Run", "", false},
                 {"layer", "Layer", "", false},
                 {"steps", "Steps", "", false},
                 {"duration_ns", "Wall time", "", false},
                 {"mean_ns", "Per step", "", false},
                 {"locality", "Locality γ", "", false},
                 {"locality_min", "Smallest γ", "", false},
                 {"hit_rate", "Hit rate", "", false},
                 {"selected", "Selected", "blocks", false},
                 {"hits", "Hits", "blocks", false},
                 {"misses", "Misses", "blocks", false},
                 {"h2d_bytes", "To device", "", false},
                 {"exposed_ns", "Exposed", "transfer time on the critical path", false},
                 {"timing", "Link time is", "", true}},
                {}};
    for (const RunData& run : runs)
        for (const LayerTotals& layer : run.layers)
            table.rows.push_back(
                {text(run.row.name), count(layer.layer), count(layer.steps),
                 whole(layer.durationNs, Quantity::Nanoseconds, Basis::Measured),
                 nanoseconds(ratio(double(layer.warmDurationNs), double(layer.warmSteps))),
                 real(layer.localityMean, Quantity::Ratio), real(layer.localityMin, Quantity::Ratio),
                 run.ifKnown(Known::Hits, real(ratio(double(layer.warmHits), double(layer.warmHits + layer.warmMisses)),
                                               Quantity::Share)),
                 run.ifKnown(Known::Selections, count(layer.selected)), run.ifKnown(Known::Hits, count(layer.hits)),
                 run.ifKnown(Known::Hits, count(layer.misses)),
                 run.ifKnown(Known::Bytes, whole(layer.h2dBytes, Quantity::Bytes)),
                 run.ifKnown(Known::ExposedTimes,
                             whole(layer.exposedNs, Quantity::Nanoseconds, basisOf(run.row.timing))),
                 text(run.row.timing.text())});
    return table;
}

Table layerStages(const std::vector<RunData>& runs) {
    Table table{"layer_stages",
                "Every stage of every layer",
                "Measured wall time of the decode steps, summed.",
                {{"run", "Run", "", false}, {"layer", "Layer", "", false}},
                {}};
    for (const std::string_view stage : kStageNames)
        table.columns.push_back({std::string(stage) + "_ns", std::string(stage), "", false});
    for (const RunData& run : runs)
        for (const LayerTotals& layer : run.layers) {
            std::vector<Cell> row{text(run.row.name), count(layer.layer)};
            for (const std::int64_t ns : layer.stageNs)
                row.push_back(whole(ns, Quantity::Nanoseconds, Basis::Measured));
            table.rows.push_back(std::move(row));
        }
    return table;
}

Table transfers(const std::vector<RunData>& runs) {
    Table table{"transfers",
                "Transfers between host and device",
                "KV blocks that crossed the link. One transfer is what one layer moves in one step, all sequences and "
                "KV heads together. Bandwidth is bytes over the time the link was busy.",
                {{"run", "Run", "", false},
                 {"phase", "Phase", "", false},
                 {"direction", "Direction", "", false},
                 {"transfers", "Transfers", "", false},
                 {"blocks", "Blocks", "", false},
                 {"bytes", "Bytes", "", false},
                 {"block_bytes", "Block", "one block of one KV head", false},
                 {"blocks_per_transfer", "Blocks per transfer", "", false},
                 {"link_ns", "Link busy", "", false},
                 {"bandwidth_gbps", "Bandwidth", "10⁹ bytes per second", false},
                 {"timing", "Link time is", "", true}},
                {}};
    for (const RunData& run : runs)
        for (const TransferTotals& t : run.transfers) {
            const Basis basis = basisOf(run.row.timing);
            if (!run.row.knows.has(Known::Bytes)) continue;
            table.rows.push_back(
                {text(run.row.name), text(nameOf(t.phase)), text(t.toDevice ? "to device" : "to host"),
                 count(t.transfers), count(t.blocks), whole(t.bytes, Quantity::Bytes),
                 whole(run.row.blockBytes, Quantity::Bytes),
                 real(ratio(double(t.blocks), double(t.transfers)), Quantity::Count),
                 whole(t.durationNs, Quantity::Nanoseconds, basis),
                 real(ratio(double(t.bytes), double(t.durationNs)), Quantity::GigabytesPerSecond, basis),
                 text(run.row.timing.text())});
        }
    return table;
}

} // namespace kvscope::reports

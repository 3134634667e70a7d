// How much of what a layer selects the layer below it had selected in the same step: whether layers may share a choice.
#pragma once

#include "profiler/export/export.h"
#include "profiler/export/line_writer.h"
#include "profiler/read/trace_reader.h"
#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// Sums over the decode steps, sequences and KV heads in which both layers selected.
struct LayerPair {
    int run = 0, layer = 0, next = 0; // next: the layer above it that selects
    std::int64_t selections = 0;
    std::int64_t selected = 0, shared = 0; // blocks of the layer above, and those of them that the one below has too
    std::int64_t chosen = 0, sharedChosen = 0; // without those that are always attended (sink and window)
    std::optional<double> mass, nextMass;      // mean attention mass that each captured with its own choice, 0..1
    std::optional<double> overlap() const;
    std::optional<double> chosenOverlap() const;
    /// nextMass on the shared blocks, if these hold as much as the others do: an estimate of what the layer above would
    /// capture with the choice of the one below.
    std::optional<double> sharedMass() const;
};

/// From this overlap of the chosen blocks on, a layer may reuse the choice of the layer below it.
inline constexpr double kReusable = 0.9;
/// "3 of 7 layers (4, 5, 6) may reuse the choice below: ...", half a sentence; the pairs are of one run.
std::string reuseVerdict(std::span<const LayerPair> pairs);

/// By run, layer and the layer above. runId: absent, all runs. @throws Error(Storage | BadInput | Cancelled)
std::vector<LayerPair> readLayerOverlap(Connection& connection, std::optional<int> runId);
std::vector<LayerPair> readLayerOverlap(const TraceReader& reader, int runId);

/// One row per pair, with the columns run_id, layer, next_layer, selections, selected, shared, overlap, chosen,
/// shared_chosen, chosen_overlap, mass, next_mass.
ExportResult exportLayerOverlap(Connection& connection, ExportFormat format, LineWriter& writer,
                                const ExportOptions& options);

} // namespace kvscope

// How much of what a layer selects the layer below it had selected in the same step: whether layers may share a choice.
#pragma once

#include "profiler/export/export.h"
#include "profiler/export/line_writer.h"
#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <optional>
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
};

/// By run, layer and the layer above. runId: absent, all runs. @throws Error(Storage | BadInput | Cancelled)
std::vector<LayerPair> readLayerOverlap(Connection& connection, std::optional<int> runId);

/// One row per pair, with the columns run_id, layer, next_layer, selections, selected, shared, overlap, chosen,
/// shared_chosen, chosen_overlap, mass, next_mass.
ExportResult exportLayerOverlap(Connection& connection, ExportFormat format, LineWriter& writer,
                                const ExportOptions& options);

} // namespace kvscope

// Tables of a trace as CSV or JSON lines, and the whole timeline for Chrome's and Perfetto's viewers. Everything is
// written as it is read: memory does not grow with the trace.
#pragma once

#include "base/progress.h"

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

enum class ExportTable {
    Selections,
    Steps,
    Breakdown,
    Transfers,
    Tokens,
    Kernels,
    Layers,
    Locality,
    Spans,
    Counters,
    Gauges,
    Flows,
    Prompt,
    Runs,
    Denoising,     // JSON lines hold whole forwards, see denoising.h; CSV the rows of v_denoise
    LayerOverlap,  // see layer_overlap.h
    WindowOverlap, // see figure_numbers.h, like the next two
    TokenChanges,
    ActiveSets,
    Requests, // of serving runs, like all that follow
    RequestSpans,
    Iterations,
    Members,
    RowEvents,
    ServedSelections
};
enum class ExportFormat { Csv, Jsonl };

/// Nanoseconds of the run's clock.
struct ExportRange {
    std::int64_t fromNs = 0, toNs = 0; // what touches [from, to)
};

/// "selections", "steps", ... in the order of ExportTable.
const std::vector<std::string>& exportTableNames();
/// @throws Error(BadInput) listing the names
ExportTable parseExportTable(std::string_view name);
/// "csv" or "jsonl". @throws Error(BadInput)
ExportFormat parseExportFormat(std::string_view name);

struct ExportOptions {
    std::optional<int> runId; // absent: all runs of the file
    const std::atomic<bool>* interrupt = nullptr;
    Progress progress{}; // how far it is, as far as that can be known
    /// Steps, layers, spans, kernels, transfers and counters that touch it, as a whole; absent: everything.
    std::optional<ExportRange> range{};
    bool guardFormulas = false; // CSV: an apostrophe before text that a spreadsheet would take for a formula
};

struct ExportResult {
    std::int64_t rows = 0; // without the header
    std::string note;      // for stderr when something a person may expect is not in the trace; else empty
};

/// Columns: those of the views in docs/trace-format.md; selections have run_id, step, layer, seq, kv_head, block,
/// origin, hit with one row per block. CSV has a header line, quotes by RFC 4180 and leaves undefined values empty;
/// JSON lines write null. @throws Error(Storage | BadInput | Cancelled), Storage also when `out` fails, BadInput also
/// for a range of a table that has no times
ExportResult exportTable(const std::string& path, ExportTable table, ExportFormat format, std::ostream& out,
                         const ExportOptions& options = {});

/// Chrome trace events (JSON object format), made for Perfetto's viewer. Per run the processes engine (step, layers,
/// stages, ranges), GPU (a thread per stream), host-device link (transfers and copies) and KV cache; counters for
/// tokens/s, hit rate, resident blocks, link traffic and exposed time; arrows from a launch to its kernel and from a
/// transfer to the attention that used it. Times in microseconds with all digits. Slices of one thread nest or lie
/// apart; what overlaps otherwise goes to another thread of that name. Spans of other tools keep their categories and
/// arguments. With a range: the steps and spans that touch it, and the arrows between them. Memory: 32 bytes per
/// recorded flow. @throws as exportTable
ExportResult exportChromeTrace(const std::string& path, std::ostream& out, const ExportOptions& options = {});

} // namespace kvscope

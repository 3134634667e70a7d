// Tables of a trace as CSV or JSON lines, and the whole timeline for Chrome's and Perfetto's viewers.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

enum class ExportTable { Selections, Steps, Breakdown, Transfers, Tokens, Kernels, Counters };
enum class ExportFormat { Csv, Jsonl };

/// "selections", "steps", ... in the order of ExportTable.
const std::vector<std::string>& exportTableNames();
/// @throws Error(BadInput) listing the names
ExportTable parseExportTable(std::string_view name);
/// "csv" or "jsonl". @throws Error(BadInput)
ExportFormat parseExportFormat(std::string_view name);

struct ExportOptions {
    std::optional<int> runId; // absent: all runs of the file
    const std::atomic<bool>* interrupt = nullptr;
};

struct ExportResult {
    std::int64_t rows = 0; // without the header
    std::string note;      // for stderr when something a person may expect is not in the trace; else empty
};

/// Columns: those of the views in docs/trace-format.md; selections have run_id, step, layer, seq, kv_head, block,
/// origin, hit with one row per block. CSV has a header line, quotes by RFC 4180 and leaves undefined values empty;
/// JSON lines write null. @throws Error(Storage | BadInput | Cancelled), Storage also when `out` fails
ExportResult exportTable(const std::string& path, ExportTable table, ExportFormat format, std::ostream& out,
                         const ExportOptions& options = {});

/// Chrome trace events (JSON object format): a process per run, complete events for steps, layers, stages and recorded
/// spans in microseconds, counters for hit rate and bytes loaded. @throws as exportTable
ExportResult exportChromeTrace(const std::string& path, std::ostream& out, const ExportOptions& options = {});

} // namespace kvscope

// The report of one or several recorded runs, side by side, as data: what ran, where the time went, how sure that is,
// and how to repeat it. HTML (html.h), PDF (ui/output/report_pdf.cpp) and CSV write it.
#pragma once

#include "profiler/insights/insight.h"
#include "profiler/report/run_data.h"
#include "profiler/report/table.h"

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::reports {

struct Report {
    std::string createdUtc;
    std::vector<RunData> runs;
    std::vector<InsightReport> insights; // [run]
    std::vector<Table> tables;           // in reading order
    std::string title() const;           // of the run, or "3 runs compared"
    /// Null if the report has no such table: a comparison needs two runs.
    const Table* table(std::string_view id) const;
};

/// Reads every run of the traces. @throws Error naming the file
Report makeReport(const std::vector<std::string>& traces, const Progress& progress = {});

/// One file ID.csv per table, and prompt-N.json with the token ids of run N where the trace holds them (for
/// `kvscope-cli run --prompt-ids`). Makes the folder. @return the files written. @throws Error(Storage)
std::vector<std::string> writeCsvFolder(const Report& report, const std::string& folder);

/// The recorder's losses in a sentence; empty: it lost nothing.
std::string lossText(const RunData& run);

// The tables, one function each. A table with one line per run and thing has the run's name in its first column; the
// wide ones have a column per run.
Table keyNumbers(const std::vector<RunData>& runs);
Table intervals(const std::vector<RunData>& runs);
Table breakdown(const std::vector<RunData>& runs);
Table slowestSteps(const std::vector<RunData>& runs);
Table layers(const std::vector<RunData>& runs);
Table layerStages(const std::vector<RunData>& runs);
Table transfers(const std::vector<RunData>& runs);
Table pcieCounters(const std::vector<RunData>& runs); // the GPU's own count beside the engine's
Table comparison(const std::vector<RunData>& runs);   // of the first run with each other one
/// "verdict" and "component_changes" of the same pairs; the traces are read again. @throws Error
std::vector<Table> verdicts(const std::vector<RunData>& runs, const Progress& progress = {});
/// "serving", "serving_classes" and "serving_plans" of the runs that served requests, whose traces are read again. None
/// where no run did. @throws Error
std::vector<Table> servingTables(const std::vector<RunData>& runs);
Table findings(const std::vector<RunData>& runs, const std::vector<InsightReport>& insights);
Table exposure(const std::vector<RunData>& runs, const std::vector<InsightReport>& insights);
Table exposedLayers(const std::vector<RunData>& runs, const std::vector<InsightReport>& insights);
Table configuration(const std::vector<RunData>& runs);
Table environment(const std::vector<RunData>& runs);
Table health(const std::vector<RunData>& runs);
Table reproduction(const std::vector<RunData>& runs);

} // namespace kvscope::reports

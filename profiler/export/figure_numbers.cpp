#include "profiler/export/figure_numbers.h"

#include "profiler/read/active_sets.h"
#include "profiler/read/token_changes.h"
#include "profiler/read/window_overlap.h"

#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

namespace kvscope {
namespace {

/// Writes rows of numbers, of which those that are not finite are undefined.
class NumberRows {
public:
    NumberRows(LineWriter& writer, ExportFormat format, std::vector<const char*> columns)
        : writer_(writer), csv_(format == ExportFormat::Csv), columns_(std::move(columns)) {
        if (!csv_) return;
        for (std::size_t i = 0; i < columns_.size(); ++i) writer_.add("{}{}", i == 0 ? "" : ",", columns_[i]);
        writer_.addText("\n");
    }
    /// values: one for each column.
    void add(std::initializer_list<double> values) {
        std::size_t column = 0;
        for (const double value : values) {
            if (csv_)
                writer_.addText(column == 0 ? "" : ",");
            else
                writer_.add("{}\"{}\":", column == 0 ? "{" : ",", columns_[column]);
            ++column;
            if (std::isfinite(value))
                writer_.add("{}", value);
            else if (!csv_)
                writer_.addText("null");
        }
        writer_.addText(csv_ ? "\n" : "}\n");
        writer_.endRow();
        ++rows_;
    }
    std::int64_t rows() const { return rows_; }

private:
    LineWriter& writer_;
    const bool csv_;
    const std::vector<const char*> columns_;
    std::int64_t rows_ = 0;
};

std::vector<int> runsOf(const TraceReader& reader, const ExportOptions& options) {
    std::vector<int> runs;
    for (const RunRow& run : reader.runs())
        if (!options.runId || *options.runId == run.runId) runs.push_back(run.runId);
    return runs;
}

ExportResult finished(const NumberRows& rows, const char* why) { return {rows.rows(), rows.rows() == 0 ? why : ""}; }

/// What a layer's keys or values have at a rank; undefined where the trace has none.
std::pair<double, double> at(const std::vector<ChangeRanks>& layers, int layer, int rank) {
    for (const ChangeRanks& one : layers)
        if (one.layer == layer && rank <= int(one.share.size()))
            return {one.share[std::size_t(rank) - 1], one.cumulated(rank)};
    return {std::nan(""), std::nan("")};
}

void addChanges(NumberRows& rows, const TraceReader& reader, int run) {
    const std::vector<ChangeRanks> keys = readChangeRanks(reader, run, ChangeOf::Keys),
                                   values = readChangeRanks(reader, run, ChangeOf::Values);
    for (const ChangeRanks& layer : readChangeRanks(reader, run))
        for (int rank = 1; rank <= int(layer.share.size()); ++rank) {
            const auto [keyShare, keysTogether] = at(keys, layer.layer, rank);
            const auto [valueShare, valuesTogether] = at(values, layer.layer, rank);
            rows.add({double(run), double(layer.layer), double(rank), layer.share[std::size_t(rank) - 1],
                      layer.cumulated(rank), keyShare, keysTogether, valueShare, valuesTogether});
        }
}

} // namespace

ExportResult exportFigureNumbers(const std::string& path, ExportTable table, ExportFormat format, LineWriter& writer,
                                 const ExportOptions& options) {
    TraceReader reader(path);
    reader.setInterrupt(options.interrupt);
    const std::vector<int> runs = runsOf(reader, options);
    if (table == ExportTable::WindowOverlap) {
        NumberRows rows(writer, format, {"run_id", "window", "overlap", "working_set", "held_by_pool"});
        for (const int run : runs) {
            const WindowOverlap sums = readWindowOverlap(reader, run);
            for (int w = 1; w <= int(sums.windows.size()); ++w)
                rows.add({double(run), double(w), sums.overlap(w), sums.workingSet(w), sums.heldByPool(w)});
        }
        return finished(rows, "the trace has no selected blocks: record a method that selects some, at level "
                              "selections or full");
    }
    if (table == ExportTable::TokenChanges) {
        NumberRows rows(writer, format,
                        {"run_id", "layer", "rank", "share", "cumulated", "key_share", "key_cumulated", "value_share",
                         "value_cumulated"});
        for (const int run : runs) addChanges(rows, reader, run);
        return finished(rows, "the trace has no changes of queries: record a block-diffusion model with losa or "
                              "quest, at level selections or full");
    }
    NumberRows rows(writer, format, {"run_id", "active", "rows", "pages", "density"});
    for (const int run : runs)
        for (const ActiveSets& set : readActiveSets(reader, run))
            rows.add({double(run), double(set.active), double(set.rows), set.pages, set.density});
    return finished(rows, "no tokens of a block chose pages: record a block-diffusion model with losa, quest or "
                          "sparsed");
}

} // namespace kvscope

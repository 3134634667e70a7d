// What servers made of their load: a column for each run, a line for each class of requests, and what bound the plans.
#include "profiler/read/served_classes.h"
#include "profiler/report/ratio.h"
#include "profiler/report/report.h"
#include "profiler/report/wide_table.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace kvscope::reports {
namespace {

Table loads(const std::vector<RunData>& runs) {
    WideTable table(
        runs, "serving", "Serving",
        "What each server made of the requests that it was offered. Times to the first token begin at the "
        "intended arrival, and every gap between two tokens counts. The window begins after the first fifth "
        "of the time between the first and the last arrival.");
    const auto add = [&](const char* name, const char* note, auto&& value) {
        table.add(name, note, [value](const RunData& run) { return run.served ? value(*run.served) : Cell{}; });
    };
    const auto addTime = [&](const char* name, const char* note, double ServedLoad::*ms) {
        add(name, note, [ms](const ServedLoad& load) { return nanoseconds(load.*ms * 1e6); });
    };
    table.add("Server", "what is not as usual of it",
              [](const RunData& run) { return run.served ? text(serverWords(run.row)) : Cell{}; });
    add("Requests", "that arrived in the window", [](const ServedLoad& load) { return count(load.requests); });
    add("Without a first token", "of these; refused ones too",
        [](const ServedLoad& load) { return count(load.unanswered); });
    add("Requests per second", "arrivals in the window",
        [](const ServedLoad& load) { return real(load.rate, Quantity::PerSecond); });
    addTime("Time to first token, mean", "requests of the window", &ServedLoad::ttftMs);
    addTime("Time to first token, P99", "interpolated, even of few requests", &ServedLoad::ttftP99Ms);
    addTime("Time between tokens, mean", "tokens of the window", &ServedLoad::tbtMs);
    addTime("Time between tokens, P99", "pooled over the tokens of all requests", &ServedLoad::tbtP99Ms);
    add("Tokens per second", "made in the window",
        [](const ServedLoad& load) { return real(load.tokensPerSecond, Quantity::PerSecond, Basis::Measured); });
    add("Rows that decode", "mean over the iterations that decode",
        [](const ServedLoad& load) { return real(load.decodeRows, Quantity::Ratio); });
    add("Loaded per iteration", "mean over the iterations that decode",
        [](const ServedLoad& load) { return real(load.bytesLoaded, Quantity::Bytes); });
    add("Prompt time per token", "iterations that read prompts, whole run",
        [](const ServedLoad& load) { return nanoseconds(load.prefillNsPerToken); });
    return table.take();
}

Table classes(const std::vector<RunData>& runs, const std::vector<ServingRows>& rows,
              const std::vector<std::vector<TokenGap>>& gaps) {
    Table table{"serving_classes",
                "Requests by class",
                "Every request of the trace, those of a warm-up too. A request is good if it finished, its first token "
                "came in time, and so did its gaps between tokens, by their 99th percentile.",
                {{"run", "Run", ""},
                 {"class", "Class", ""},
                 {"requests", "Requests", ""},
                 {"good", "Good", "share of all requests of the class, those refused or without an end too"},
                 {"first_in_time", "First token in time", ""},
                 {"gaps_in_time", "Gaps in time", ""},
                 {"ttft_ns", "Time to first token, mean", ""},
                 {"ttft_p99_ns", "P99", "interpolated"},
                 {"tbt_ns", "Between tokens, mean", ""},
                 {"tbt_p99_ns", "P99", "interpolated, all tokens of the class"},
                 {"refused", "Refused", ""},
                 {"pauses", "Pauses", ""}},
                {}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
        for (const ServedClass& each : servedClasses(rows[i].requests, gaps[i])) {
            std::vector<double> firsts = nanosecondsOf(each.ttft), between = nanosecondsOf(each.gaps);
            const auto share = [&each](std::int64_t part) {
                return real(ratio(double(part), double(each.requests)), Quantity::Share);
            };
            const auto [ttft, ttftHigh] = meanAndP99(firsts);
            const auto [tbt, tbtHigh] = meanAndP99(between);
            table.rows.push_back({text(runs[i].row.name), text(each.kind.empty() ? "none" : each.kind),
                                  count(each.requests), share(each.good), share(each.keptFirst), share(each.keptGaps),
                                  nanoseconds(ttft), nanoseconds(ttftHigh), nanoseconds(tbt), nanoseconds(tbtHigh),
                                  count(each.refused), count(each.pauses)});
        }
    }
    return table;
}

Table bounds(const std::vector<RunData>& runs, const std::vector<ServingRows>& rows) {
    Table table{"serving_plans",
                "What bound the plans",
                "Iterations by what kept a request waiting in their plans; none: no request waited.",
                {{"run", "Run", ""},
                 {"limited_by", "Bound by", "v_iteration.limited_by"},
                 {"iterations", "Iterations", ""},
                 {"time_ns", "Time", "of these iterations"},
                 {"share", "Share of the time", "of all iterations"}},
                {}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
        std::map<std::string, std::pair<std::int64_t, double>> sums;
        double all = 0;
        for (const IterationRow& row : rows[i].iterations) {
            auto& [iterations, ns] = sums[row.limitedBy];
            ++iterations, ns += double(row.durationNs), all += double(row.durationNs);
        }
        for (const auto& [limit, sum] : sums)
            table.rows.push_back({text(runs[i].row.name), text(limit), count(sum.first), nanoseconds(sum.second),
                                  real(ratio(sum.second, all), Quantity::Share)});
    }
    return table;
}

} // namespace

std::vector<Table> servingTables(const std::vector<RunData>& runs) {
    std::vector<RunData> serving;
    for (const RunData& run : runs)
        if (run.row.serves() || run.served) serving.push_back(run); // the latter of another engine, too
    if (serving.empty()) return {};
    std::vector<ServingRows> rows;
    std::vector<std::vector<TokenGap>> gaps(serving.size());
    for (std::size_t i = 0; i < serving.size(); ++i)
        rows.push_back(readServing(TraceReader(serving[i].path), serving[i].row.runId, &gaps[i]));
    std::vector<Table> tables;
    if (std::any_of(serving.begin(), serving.end(), [](const RunData& run) { return run.served.has_value(); }))
        tables.push_back(loads(serving));
    tables.push_back(classes(serving, rows, gaps));
    if (std::any_of(rows.begin(), rows.end(), [](const ServingRows& of) { return !of.iterations.empty(); }))
        tables.push_back(bounds(serving, rows));
    return tables;
}

} // namespace kvscope::reports

// Tables of a report about findings and exposed transfer time.
#include "profiler/report/report.h"

namespace kvscope::reports {
namespace {

void addReasonColumns(Table& table) {
    for (std::size_t i = 0; i < kExposureNames.size(); ++i)
        table.columns.push_back({std::string(kExposureNames[i]) + "_ns", std::string(kExposureTitles[i]),
                                 "exposed for this reason; every exposed nanosecond has one", false});
    table.columns.push_back({"timing", "Link time is", "", true});
}

void addReasons(std::vector<Cell>& row, const TransferTime& time, const RunData& run) {
    for (const std::int64_t ns : time.becauseNs)
        row.push_back(whole(ns, Quantity::Nanoseconds, basisOf(run.row.timing)));
    row.push_back(text(run.row.timing.text()));
}

} // namespace

Table findings(const std::vector<RunData>& runs, const std::vector<InsightReport>& insights) {
    Table table{"insights",
                "Insights",
                "What a first look at the trace finds, alarms first, then by how much of the decode time is concerned.",
                {{"run", "Run", "", false},
                 {"severity", "Severity", "", false},
                 {"impact", "Concerns", "share of the decode time", false},
                 {"finding", "Finding", "", false},
                 {"detail", "Numbers", "", false},
                 {"advice", "What to try", "", false},
                 {"rule", "Rule", "", true}},
                {}};
    for (std::size_t run = 0; run < runs.size(); ++run)
        for (const Insight& insight : insights[run].insights)
            table.rows.push_back({text(runs[run].row.name), text(nameOf(insight.severity)),
                                  real(insight.impact, Quantity::Share), text(insight.title), text(insight.detail),
                                  text(insight.advice), text(insight.id)});
    return table;
}

Table exposure(const std::vector<RunData>& runs, const std::vector<InsightReport>& insights) {
    Table table{"exposure",
                "Exposed transfer time, and why",
                "Time the link was busy, what of it the step had to wait for (exposed), and why it could not be hidden "
                "behind computing. The first selections of a sequence find an empty cache and are counted as cold.",
                {{"run", "Run", "", false},
                 {"steps_kind", "Decode steps", "", false},
                 {"steps", "Steps", "", false},
                 {"wall_ns", "Wall time", "", false},
                 {"transfer_ns", "Link busy", "", false},
                 {"hidden_ns", "Hidden", "", false},
                 {"exposed_ns", "Exposed", "", false}},
                {}};
    addReasonColumns(table);
    for (std::size_t run = 0; run < runs.size(); ++run) {
        if (!insights[run].exposure.known) continue;
        const ExposureReport& report = insights[run].exposure;
        const Basis basis = basisOf(runs[run].row.timing);
        for (const auto& [name, total] : {std::pair<const char*, const ExposureTotal&>{"all", report.all},
                                          {"cold", report.cold},
                                          {"warm", report.warm},
                                          {"warm, opening a block", report.opening}}) {
            std::vector<Cell> row{text(runs[run].row.name),
                                  text(name),
                                  count(total.steps),
                                  whole(total.wallNs, Quantity::Nanoseconds, Basis::Measured),
                                  whole(total.time.transferNs, Quantity::Nanoseconds, basis),
                                  whole(total.time.hiddenNs(), Quantity::Nanoseconds, basis),
                                  whole(total.time.exposedNs, Quantity::Nanoseconds, basis)};
            addReasons(row, total.time, runs[run]);
            table.rows.push_back(std::move(row));
        }
    }
    return table;
}

Table exposedLayers(const std::vector<RunData>& runs, const std::vector<InsightReport>& insights) {
    Table table{"exposure_by_layer",
                "Exposed transfer time by layer",
                coldSteps() == ColdSteps::Counted
                    ? "All decode steps, cold ones too."
                    : "Warm decode steps: those in which no sequence selects for the first time.",
                {{"run", "Run", "", false},
                 {"layer", "Layer", "", false},
                 {"exposed_ns", "Exposed", "", false},
                 {"share", "Share", "of all layers' exposed time", false},
                 {"transfer_ns", "Link busy", "", false}},
                {}};
    addReasonColumns(table);
    for (std::size_t run = 0; run < runs.size(); ++run)
        for (const LayerExposure& layer : insights[run].exposure.layers) {
            const Basis basis = basisOf(runs[run].row.timing);
            std::vector<Cell> row{
                text(runs[run].row.name), count(layer.layer), whole(layer.time.exposedNs, Quantity::Nanoseconds, basis),
                real(layer.share, Quantity::Share, basis), whole(layer.time.transferNs, Quantity::Nanoseconds, basis)};
            addReasons(row, layer.time, runs[run]);
            table.rows.push_back(std::move(row));
        }
    return table;
}

} // namespace kvscope::reports

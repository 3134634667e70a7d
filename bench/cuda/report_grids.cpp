#include "bench/cuda/grid_jobs.h"

#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <string_view>

namespace kvscope::bench::grids {
namespace {

constexpr int kExposureRounds = 3; // a step and its ablations in turns: clocks and neighbours drift

/// Median over the rounds of a job; 0 where it did not run.
double exposureMedian(const Json& rows, const Json& batch, const std::string& selection, bool moves, const char* key) {
    std::vector<double> values;
    for (const Json& row : rows)
        if (row.contains(key) && row["batch"] == batch && row["selection"] == selection &&
            row.value("moves_blocks", true) == moves)
            values.push_back(row[key].get<double>());
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

} // namespace

// ---- Exposed transfer time, reported and by ablation

std::vector<DecodeJob> exposureJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {4, 16, 64})
        for (int round = 0; round < kExposureRounds; ++round) {
            for (const double gamma : {kNosaLocality, 0.8})
                for (const bool moves : {true, false}) {
                    jobs.push_back(job("nosa", 16384, batch, gamma));
                    jobs.back().moveBlocks = moves;
                }
            jobs.push_back(job("nosa", 16384, batch, kEverythingHits));
        }
    return jobs;
}

/// Two ablations: the same misses are found and listed, but no block moves; and selections that do not change, which
/// also saves what finding and listing misses takes.
Json exposureConclusions(const Json& rows) {
    Json out = Json::array();
    const std::string hits = fmt::format("planted:{}", kEverythingHits);
    for (const int batch : {4, 16, 64})
        for (const double gamma : {kNosaLocality, 0.8}) {
            const std::string selection = fmt::format("planted:{}", gamma);
            const auto median = [&](const std::string& of, bool moves, const char* key) {
                return exposureMedian(rows, batch, of, moves, key);
            };
            const double step = median(selection, true, "step_ms"), still = median(selection, false, "step_ms"),
                         fixed = median(hits, true, "step_ms"), reported = median(selection, true, "exposed_ms");
            if (still == 0 || fixed == 0 || step <= std::max(still, fixed))
                continue; // nothing exposed that could be told from noise
            const double reportedBeside = reported - median(hits, true, "exposed_ms"),
                         link = median(selection, true, "link_floor_ms") - median(hits, true, "link_floor_ms");
            out.push_back({{"batch", batch},
                           {"selection", selection},
                           {"exposed_reported_ms", reported},
                           {"exposed_by_ablation_ms", step - still},
                           {"reported_over_ablation", reported / (step - still)},
                           {"step_beside_fixed_selection_ms", step - fixed},
                           {"reported_over_step_beside_fixed_selection", reportedBeside / (step - fixed)},
                           {"step_over_compute_plus_copy", step / (fixed + link)}});
        }
    return {{"exposure", std::move(out)}};
}

// ---- What recording costs

std::vector<DecodeJob> recordingJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {1, 16})
        for (const char* what : {"off", "selections", "kernels", "sampled kernels", "off again", "selections again",
                                 "kernels again", "sampled kernels again"}) {
            DecodeJob each = job("nosa", 16384, batch);
            each.steps = 128;
            each.note = what;
            each.record = !each.note.starts_with("off");
            if (each.note.find("kernels") != std::string::npos) {
                each.trace = "bench-recording.kvtrace", each.level = RecordLevel::Full;
                each.pcie = each.note.starts_with("sampled") ? PcieCounting::Pm : PcieCounting::Nvml;
            }
            jobs.push_back(each);
        }
    return jobs;
}

Json recordingConclusions(const Json& rows) {
    Json out = Json::array();
    for (const int batch : {1, 16}) {
        const auto best = [&](std::string_view what) {
            double ms = 0;
            for (const Json& row : rows)
                if (row.contains("step_ms") && row["batch"] == batch &&
                    row["note"].get<std::string>().starts_with(what))
                    ms = ms == 0 ? row["step_ms"].get<double>() : std::min(ms, row["step_ms"].get<double>());
            return ms;
        };
        out.push_back({{"batch", batch},
                       {"off_over_selections", best("off") / best("selections")},
                       {"off_over_kernels", best("off") / best("kernels")},
                       {"off_over_sampled_kernels", best("off") / best("sampled kernels")}});
    }
    return {{"recording", std::move(out)}};
}

std::vector<DecodeJob> recordedJobs() {
    std::vector<DecodeJob> jobs = recordingJobs();
    std::erase_if(jobs, [](const DecodeJob& each) { return each.note.starts_with("sampled"); });
    return jobs;
}

} // namespace kvscope::bench::grids

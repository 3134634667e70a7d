#include "app/cli/rank_report.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/merge/rank_group.h"
#include "profiler/merge/rank_numbers.h"

#include <fmt/format.h>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

template <class T> Json orNull(const std::optional<T>& value) { return value ? Json(*value) : Json(); }

Json rateOf(const std::optional<std::int64_t>& hits, const std::optional<std::int64_t>& misses) {
    if (!hits || !misses || *hits + *misses <= 0) return {};
    return double(*hits) / double(*hits + *misses);
}

} // namespace

nlohmann::ordered_json rankGroupsOf(const TraceReader& reader, const std::vector<RunRow>& runs) {
    Json groups = Json::array();
    for (const RankGroup& group : rankGroups(runs)) {
        const GroupNumbers numbers = numbersOf(reader, runs, group);
        Json ranks = Json::array();
        for (std::size_t i = 0; i < group.ranks.size(); ++i) {
            const RankedRun& ranked = group.ranks[i];
            const RunRow& run = runs[ranked.run];
            const RankNumbers& own = numbers.ranks[i];
            const nlohmann::json clock = parseJson(run.metaOr(run_meta::kClockOffset));
            ranks.push_back({{"rank", ranked.rank},
                             {"run_id", run.runId},
                             {"host", run.metaOr(run_meta::kHost)},
                             {"layout", run.metaOr(run_meta::kLayout)},
                             {"kv_heads", fmt::format("{}..{}", ranked.heads.first, ranked.heads.last)},
                             {"replica_of", orNull(ranked.replicaOf)},
                             {"steps", own.steps},
                             {"step_ms", orNull(own.medianStepMs)},
                             {"slowest_in", numbers.commonSteps > 0 ? Json(own.slowest) : Json()},
                             {"hits", orNull(own.hits)},
                             {"misses", orNull(own.misses)},
                             {"hit_rate", rateOf(own.hits, own.misses)},
                             {"h2d_bytes", orNull(own.h2dBytes)},
                             {"exposed_ms", orNull(own.exposedMs)},
                             {"clock_offset_ns", Json(member(clock, "added_ns"))},
                             {"clock_error_ns", Json(member(clock, "error_ns"))},
                             {"clock_by", Json(member(clock, "by"))}});
        }
        Json out{{"group", group.name}, {"world", group.world}, {"missing", group.missing}};
        if (const std::string missing = missingSentence(group); !missing.empty()) out["remark"] = missing;
        out["layout"] = layoutSentence(group);
        if (!numbers.differing.empty())
            out["not_replicas"] = numbers.differing; // ranks that hold the same heads and select other blocks
        out["common_steps"] = numbers.commonSteps;
        out["hits"] = orNull(numbers.hits);
        out["misses"] = orNull(numbers.misses);
        out["hit_rate"] = rateOf(numbers.hits, numbers.misses);
        out["ranks"] = std::move(ranks);
        groups.push_back(std::move(out));
    }
    return groups;
}

} // namespace kvscope::cli

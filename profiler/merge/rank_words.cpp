#include "profiler/merge/rank_words.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace {

constexpr std::size_t kNamed = 4; // ranks whose offsets are named one by one

std::string time(std::int64_t ns) {
    const std::int64_t size = std::abs(ns);
    if (size >= 1'000'000'000) return fmt::format("{:.3f} s", double(ns) / 1e9);
    if (size >= 1'000'000) return fmt::format("{:.3f} ms", double(ns) / 1e6);
    if (size >= 1000) return fmt::format("{:.1f} us", double(ns) / 1e3);
    return fmt::format("{} ns", ns);
}

const char* wayOf(const std::string& by) {
    if (by == "monotonic") return "by the clock of their machine";
    if (by == "collectives") return "by the collectives that all ranks leave together";
    if (by == "utc") return "by UTC";
    return by == "created_utc" ? "by the second in which the run began" : "by its own clock";
}

} // namespace

std::optional<RankClockFact> clockFactOf(const RunRow& run) {
    const nlohmann::json fact = parseJson(run.metaOr(run_meta::kClockOffset));
    const nlohmann::json added = member(fact, "added_ns"), error = member(fact, "error_ns"), by = member(fact, "by"),
                         doubt = member(fact, "doubt");
    if (!added.is_number_integer() || !by.is_string()) return std::nullopt;
    RankClockFact out{added.get<std::int64_t>(), 0, by.get<std::string>(), {}};
    if (error.is_number_integer()) out.errorNs = error.get<std::int64_t>();
    if (doubt.is_string()) out.doubt = doubt.get<std::string>();
    return out;
}

std::string clockSentence(const std::vector<RunRow>& runs, const RankGroup& group) {
    std::vector<std::string> ways, named;
    std::int64_t least = 0, most = 0, error = 0;
    bool any = false, byUtc = false;
    for (const RankedRun& ranked : group.ranks) {
        const auto fact = clockFactOf(runs[ranked.run]);
        if (!fact) continue;
        least = any ? std::min(least, fact->addedNs) : fact->addedNs;
        most = any ? std::max(most, fact->addedNs) : fact->addedNs;
        any = true;
        error = std::max(error, fact->errorNs);
        byUtc = byUtc || fact->by == "utc"; // the readings do not contain the error of UTC between two machines
        if (fact->by == "reference")
            named.push_back(fmt::format("rank {} +{}", ranked.rank, time(fact->addedNs)));
        else
            named.push_back(
                fmt::format("rank {} +{} (error {})", ranked.rank, time(fact->addedNs), time(fact->errorNs)));
        if (const std::string way = wayOf(fact->by);
            fact->by != "reference" && std::find(ways.begin(), ways.end(), way) == ways.end())
            ways.push_back(way);
    }
    if (!any) return {};
    const std::string offsets = named.size() <= kNamed
                                    ? fmt::format("{}", fmt::join(named, ", "))
                                    : fmt::format("{} ranks by +{} to +{}, error at most {}", named.size(), time(least),
                                                  time(most), time(error));
    const std::string how = ways.empty() ? std::string() : fmt::format(", {}", fmt::join(ways, " and "));
    return fmt::format("Clocks aligned{}: {}{}", how, offsets,
                       error > kCertainNs || byUtc ? "; the order of what happens on different ranks is not certain"
                                                   : "");
}

std::vector<std::string> rankProblems(const std::vector<RunRow>& runs, const RankGroup& group) {
    std::vector<std::string> problems;
    if (std::string missing = missingSentence(group); !missing.empty()) {
        missing[0] = 'R';
        problems.push_back(std::move(missing));
    }
    const bool aligned = std::any_of(group.ranks.begin(), group.ranks.end(), [&](const RankedRun& ranked) {
        return clockFactOf(runs[ranked.run]).has_value();
    });
    for (const RankedRun& ranked : group.ranks) {
        const auto fact = clockFactOf(runs[ranked.run]);
        if (!fact && (aligned || group.ranks.size() > 1))
            problems.push_back(
                fmt::format("Rank {} has no clock in common with the others: its times are not shifted", ranked.rank));
        if (fact && !fact->doubt.empty())
            problems.push_back(
                fmt::format("Rank {} beside rank {}: {}", ranked.rank, group.ranks.front().rank, fact->doubt));
    }
    return problems;
}

} // namespace kvscope

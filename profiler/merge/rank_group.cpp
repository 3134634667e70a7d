#include "profiler/merge/rank_group.h"

#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string_view>
#include <tuple>

namespace kvscope {
namespace {

constexpr int kMostRanks = 1 << 20;

std::optional<int> wholeNumber(std::string_view text, int most) {
    int number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool good = failure == std::errc() && end == text.data() + text.size() && number >= 0 && number <= most;
    return good ? std::optional(number) : std::nullopt;
}

/// The heads that a merged trace says the rank has; else those from its first one on.
HeadRange headsOf(const RunRow& run) {
    const std::string& range = run.metaOr(run_meta::kHeadRange);
    const std::size_t dots = range.find("..");
    if (dots != std::string::npos) {
        const auto first = wholeNumber(std::string_view(range).substr(0, dots), trace::kMaxKvHeads - 1);
        const auto last = wholeNumber(std::string_view(range).substr(dots + 2), trace::kMaxKvHeads - 1);
        if (first && last && *first <= *last) return {*first, *last};
    }
    const int first = numberOf(run, run_meta::kHeadFirst, trace::kMaxKvHeads - 1, 0);
    return {first, first + run.kvHeads - 1};
}

/// The places of a rank in the dimensions that decide which requests (dp), layers (pp) and keys (cp) it has. Ranks that
/// differ in `tp` or `ep` alone have the same part.
std::vector<int> partOf(const RankedRun& ranked) {
    std::vector<int> part;
    for (const char* dimension : {"dp", "pp", "cp"}) {
        const auto found = ranked.layout.find(dimension);
        part.push_back(found == ranked.layout.end() ? 0 : found->second.place);
    }
    return part;
}

void findReplicas(RankGroup& group) {
    for (std::size_t i = 0; i < group.ranks.size(); ++i)
        for (std::size_t k = 0; k < i && !group.ranks[i].replicaOf; ++k)
            if (!group.ranks[k].replicaOf && group.ranks[k].heads == group.ranks[i].heads &&
                partOf(group.ranks[k]) == partOf(group.ranks[i]))
                group.ranks[i].replicaOf = group.ranks[k].rank;
}

void findWorld(RankGroup& group, const std::vector<RunRow>& runs) {
    for (const RankedRun& ranked : group.ranks) {
        int product = 1;
        for (const auto& [dimension, place] : ranked.layout)
            if (dimension != "ep")
                // Experts are spread over the ranks of the other dimensions.
                product = std::min(product * place.size, kMostRanks);
        const int said = numberOf(runs[ranked.run], run_meta::kWorld, kMostRanks, ranked.layout.empty() ? 0 : product);
        group.worldSaid = group.worldSaid || said > 0;
        group.world = std::max({group.world, said, ranked.rank + 1});
        const auto dp = ranked.layout.find("dp");
        group.otherRequests = group.otherRequests || (dp != ranked.layout.end() && dp->second.size > 1);
    }
    constexpr int kMostMissing = 1024; // a group that says a million ranks is not listed rank by rank
    for (int rank = 0; rank < group.world && int(group.missing.size()) < kMostMissing; ++rank)
        if (std::none_of(group.ranks.begin(), group.ranks.end(), [&](const RankedRun& r) { return r.rank == rank; }))
            group.missing.push_back(rank);
}

} // namespace

int numberOf(const RunRow& run, const char* key, int most, int otherwise) {
    return wholeNumber(run.metaOr(key), most).value_or(otherwise);
}

std::map<std::string, LayoutPlace> parseLayout(const std::string& text) {
    std::map<std::string, LayoutPlace> layout;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        const std::string_view word = std::string_view(text).substr(at, end - at);
        const std::size_t equals = word.find('='), slash = word.find('/');
        at = end + 1;
        if (equals == std::string_view::npos || slash == std::string_view::npos || slash < equals) continue;
        const auto place = wholeNumber(word.substr(equals + 1, slash - equals - 1), kMostRanks);
        const auto size = wholeNumber(word.substr(slash + 1), kMostRanks);
        if (place && size && *place < *size) layout[std::string(word.substr(0, equals))] = {*place, *size};
    }
    return layout;
}

std::vector<RankGroup> rankGroups(const std::vector<RunRow>& runs) {
    using Key = std::tuple<std::string, std::string, std::string, int>; // and how many runs of its rank came before
    std::vector<RankGroup> groups;
    std::map<Key, std::size_t> places;
    std::map<std::tuple<std::string, std::string, std::string, int>, int> before; // of a rank
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const int rank = numberOf(runs[i], run_meta::kRank, kMostRanks, -1);
        if (rank < 0) continue;
        const std::string& said = runs[i].metaOr(run_meta::kGroup);
        std::string name = said;
        if (said.empty()) { // a merged trace adds the rank to the name
            name = runs[i].name;
            const std::string behind = fmt::format(", rank {}", rank);
            if (name.ends_with(behind)) name.resize(name.size() - behind.size());
        }
        const std::string model = said.empty() ? runs[i].model : "", method = said.empty() ? runs[i].method : "";
        const int occurrence = before[{name, model, method, rank}]++;
        const auto [found, isNew] = places.emplace(Key{name, model, method, occurrence}, groups.size());
        if (isNew) groups.push_back({name, {}, 0, false, {}, false});
        groups[found->second].ranks.push_back(
            {i, rank, parseLayout(runs[i].metaOr(run_meta::kLayout)), headsOf(runs[i]), {}});
    }
    for (RankGroup& group : groups) {
        std::sort(group.ranks.begin(), group.ranks.end(),
                  [](const RankedRun& a, const RankedRun& b) { return a.rank < b.rank; });
        findWorld(group, runs);
        findReplicas(group);
    }
    return groups;
}

std::string missingSentence(const RankGroup& group) {
    if (group.missing.empty()) return {};
    const bool one = group.missing.size() == 1;
    return fmt::format("{} {} of {} {} missing from group {}{}", one ? "rank" : "ranks", fmt::join(group.missing, ", "),
                       group.world, one ? "is" : "are", group.name,
                       group.worldSaid ? "" : " (no trace says how many ranks there are)");
}

std::string layoutSentence(const RankGroup& group) {
    const bool replicas = std::any_of(group.ranks.begin(), group.ranks.end(),
                                      [](const RankedRun& ranked) { return ranked.replicaOf.has_value(); });
    if (group.otherRequests)
        return fmt::format("ranks serve requests of their own: compare rates, sums grow with the requests of a rank{}",
                           replicas ? "; ranks with the same heads and requests are counted once" : "");
    if (replicas)
        return "ranks with the same KV heads select the same: their hits and misses are counted once, and each rank's "
               "transfers on their own";
    return "every KV head is on one rank: hits, misses and bytes of the ranks add up";
}

} // namespace kvscope

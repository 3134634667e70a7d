#include "profiler/merge/rank_numbers.h"

#include <algorithm>
#include <map>

namespace kvscope {
namespace {

constexpr int kComparedSteps = 64;

/// Whether two runs chose the same blocks wherever both say what they chose, in their first steps.
bool selectTheSame(const TraceReader& reader, const RunRow& a, const RunRow& b, HeadRange heads) {
    for (int layer = 0; layer < std::min(a.layers, b.layers); ++layer)
        for (int sequence = 0; sequence < std::min(a.sequences, b.sequences); ++sequence)
            for (int head = std::max(heads.first, 0); head <= heads.last; ++head) {
                const auto mine = reader.selections(a.runId, layer, sequence, head, 1, kComparedSteps);
                const auto others = reader.selections(b.runId, layer, sequence, head, 1, kComparedSteps);
                std::map<int, const SelectionRow*> at;
                for (const SelectionRow& row : mine) at[row.step] = &row;
                for (const SelectionRow& row : others) {
                    const auto found = at.find(row.step);
                    if (found == at.end()) continue;
                    if (!std::equal(row.blocks.begin(), row.blocks.end(), found->second->blocks.begin(),
                                    found->second->blocks.end(), [](PackedBlock x, PackedBlock y) {
                                        // Equal whether or not the block was resident on its rank.
                                        return x.id() == y.id();
                                    }))
                        return false;
                }
            }
    return true;
}

RankNumbers numbersOfRank(const RunRow& run, const std::vector<StepRow>& steps) {
    RankNumbers numbers;
    std::vector<std::int64_t> durations;
    std::int64_t hits = 0, misses = 0, bytes = 0, exposed = 0;
    for (const StepRow& step : steps) {
        if (step.phase != Phase::Decode) continue;
        ++numbers.steps;
        durations.push_back(step.durationNs);
        hits += step.hits;
        misses += step.misses;
        bytes += step.h2dBytes;
        exposed += step.exposedNs;
    }
    if (run.knows.has(Known::StepTimes) && !durations.empty()) {
        const auto middle = durations.begin() + std::ptrdiff_t(durations.size() / 2);
        std::nth_element(durations.begin(), middle, durations.end());
        numbers.medianStepMs = double(*middle) / 1e6;
    }
    if (run.knows.has(Known::Hits)) {
        numbers.hits = hits;
        numbers.misses = misses;
    }
    if (run.knows.has(Known::Bytes)) numbers.h2dBytes = bytes;
    if (run.knows.has(Known::ExposedTimes)) numbers.exposedMs = double(exposed) / 1e6;
    return numbers;
}

} // namespace

GroupNumbers numbersOf(const TraceReader& reader, const std::vector<RunRow>& runs, const RankGroup& group) {
    GroupNumbers numbers;
    std::map<int, std::vector<std::int64_t>> durations; // [step] of the ranks, in their order
    bool timed = true;
    for (const RankedRun& ranked : group.ranks) {
        const RunRow& run = runs[ranked.run];
        const std::vector<StepRow> steps = reader.steps(run.runId);
        numbers.ranks.push_back(numbersOfRank(run, steps));
        timed = timed && run.knows.has(Known::StepTimes);
        for (const StepRow& step : steps)
            if (step.phase == Phase::Decode) durations[step.step].push_back(step.durationNs);
        const auto original = std::find_if(group.ranks.begin(), group.ranks.end(), [&](const RankedRun& other) {
            return ranked.replicaOf && other.rank == *ranked.replicaOf;
        });
        const bool differs = original != group.ranks.end() && run.knows.has(Known::Selections) &&
                             !selectTheSame(reader, runs[original->run], run, ranked.heads);
        if (differs) numbers.differing.push_back(ranked.rank);
        if (original != group.ranks.end() && !differs) continue;
        const RankNumbers& own = numbers.ranks.back();
        if (own.hits) {
            numbers.hits = numbers.hits.value_or(0) + *own.hits;
            numbers.misses = numbers.misses.value_or(0) + *own.misses;
        }
    }
    if (!timed || group.ranks.size() < 2) return numbers;
    for (const auto& [step, all] : durations) {
        if (all.size() != group.ranks.size()) continue;
        ++numbers.commonSteps;
        ++numbers.ranks[std::size_t(std::max_element(all.begin(), all.end()) - all.begin())].slowest;
    }
    return numbers;
}

} // namespace kvscope

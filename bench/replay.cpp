// How long it takes to replay the selections of a long run: 32 layers of 2 KV heads, 64 of 512 blocks in each step, of
// which about a tenth changes from step to step, and more in deeper layers.
#include "profiler/replay/replay.h"
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/workload.h"

#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

namespace kvscope::bench {
namespace {

constexpr int kLayers = 32, kKvHeads = 2, kSteps = 24'415, kSelected = 64, kBlocks = 512;

/// The selections of one head, one after the other, each in ascending order.
std::vector<std::int32_t> driftingSelections(unsigned seed, double exchanged) {
    std::mt19937_64 random(seed);
    const auto unit = [&] { return double(random() >> 11) * 0x1p-53; };
    std::vector<std::int32_t> members(kSelected), all;
    std::vector<bool> selected(kBlocks, false);
    std::iota(members.begin(), members.end(), 0);
    for (const std::int32_t block : members) selected[std::size_t(block)] = true;
    all.reserve(std::size_t(kSteps) * kSelected);
    for (int step = 0; step < kSteps; ++step) {
        for (int i = int(kSelected * exchanged * (0.5 + unit())); i > 0; --i) {
            std::int32_t& member = members[random() % kSelected];
            auto block = std::int32_t(kBlocks * std::pow(unit(), 2)); // some blocks are selected more often than others
            while (selected[std::size_t(block)]) block = (block + 1) % kBlocks;
            selected[std::size_t(member)] = false;
            selected[std::size_t(block)] = true;
            member = block;
        }
        for (int block = 0; block < kBlocks; ++block)
            if (selected[std::size_t(block)]) all.push_back(block);
    }
    return all;
}

double largestDifference(const MissCurve& a, const MissCurve& b) {
    double largest = 0;
    for (int slots = a.smallest; slots <= std::max(a.largest(), b.largest()); ++slots)
        largest = std::max(largest, std::abs(a.ratio(slots) - b.ratio(slots)));
    return largest;
}

} // namespace

nlohmann::ordered_json replay(const Log& log) {
    SelectionTrace trace;
    trace.run.layers = kLayers;
    trace.run.blockBytes = 16'384;
    for (int step = 0; step < kSteps; ++step) trace.steps.push_back({step + 1, 1, 1'000'000, 0});
    double indexing = 0;
    for (int layer = 0; layer < kLayers; ++layer)
        for (int head = 0; head < kKvHeads; ++head) {
            PoolTrace& pool = trace.pools.emplace_back();
            pool.layer = layer;
            pool.kvHead = head;
            const double exchanged = 0.04 + 0.12 * layer / (kLayers - 1);
            const auto sets = driftingSelections(unsigned(layer * kKvHeads + head) + 1, exchanged);
            indexing += seconds([&] {
                for (std::size_t first = 0; first < sets.size(); first += kSelected)
                    pool.visits.add(std::span(sets).subspan(first, kSelected));
            });
            for (int step = 0; step < kSteps; ++step) pool.steps.push_back(step);
        }
    trace.largest = kSelected;
    std::int64_t references = 0;
    for (const PoolTrace& pool : trace.pools) references += pool.visits.references();
    log(fmt::format("{} references indexed in {:.2f} s", references, indexing));

    constexpr int kThreads = 2, kRounds = 5;
    nlohmann::ordered_json out{{"block_references", references}, {"threads", kThreads}, {"index_s", indexing}};
    out["floor_read_references_once_s"] = double(references) * sizeof(std::int32_t) /
                                          streamingReadBytesPerSecond(std::size_t(1) << 28, hardwareThreads(), 3);
    double both = 0;
    for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) {
        std::vector<double> exactTimes, sampledTimes;
        double error = 0;
        MissCurve exact;
        for (int round = 0; round < kRounds; ++round)
            exactTimes.push_back(seconds([&] { exact = sum(missCurves(trace, policy, kThreads)); }));
        for (int round = 0; round < 4 * kRounds; ++round) {
            CurveSample sample;
            sample.seed = std::uint64_t(round) + 1;
            MissCurve estimate;
            sampledTimes.push_back(seconds([&] { estimate = sampledMissCurve(trace, policy, sample); }));
            error = std::max(error, largestDifference(exact, estimate));
        }
        both += median(exactTimes);
        const std::string name(nameOf(policy));
        out[name + "_curve_s"] = median(exactTimes);
        out[name + "_sampled_s"] = median(sampledTimes);
        // Sampling runs on one thread, so that its time is compared with the exact curve's time on one thread.
        const double alone = seconds([&] { missCurves(trace, policy, 1); });
        out[name + "_curve_one_thread_s"] = alone;
        out[name + "_sampled_share_of_one_thread"] = median(sampledTimes) / alone;
        out[name + "_sampled_worst_miss_ratio_error"] = error;
        log(fmt::format("{}: {:.3f} s, sampled {:.4f} s, off by {:.4f} at most", name, median(exactTimes),
                        median(sampledTimes), error));
    }
    out["index_and_both_curves_s"] = indexing + both;
    for (const ReplayPolicyEntry& policy : replayPolicies())
        out["one_size_" + policy.name + "_s"] =
            seconds([&] { replayCache(trace, policy, kSelected * 3 / 2, kThreads); });
    return out;
}

} // namespace kvscope::bench

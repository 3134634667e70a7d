#include "core/diffusion/canvas_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope {
namespace {

/// Draws `count` places without replacement from the softmax of ranks / heat.
std::vector<std::size_t> drawn(std::span<const double> ranks, double heat, std::size_t count,
                               const std::function<double()>& draw) {
    const double most = *std::max_element(ranks.begin(), ranks.end());
    std::vector<double> weights;
    for (const double rank : ranks) weights.push_back(std::exp((rank - most) / heat));
    std::vector<std::size_t> places;
    while (places.size() < count) {
        double target = draw() * std::accumulate(weights.begin(), weights.end(), 0.0);
        std::size_t chosen = weights.size(), last = 0;
        for (std::size_t i = 0; i < weights.size() && chosen == weights.size(); ++i) {
            if (weights[i] <= 0) continue;
            last = i;
            if ((target -= weights[i]) < 0) chosen = i;
        }
        if (chosen == weights.size()) chosen = last;
        if (std::find(places.begin(), places.end(), chosen) != places.end()) break; // nothing has a weight any more
        places.push_back(chosen);
        weights[chosen] = 0;
    }
    return places;
}

/// How many candidates are written, of the first ones of `order`.
std::size_t countOf(const CanvasOptions& options, int step, int masks, std::span<const Candidate> candidates,
                    std::span<const std::size_t> order) {
    if (options.writes == CanvasWrites::Quota) return std::size_t(options.quota(step, masks, int(candidates.size())));
    std::size_t count = 1;
    while (count < order.size()) {
        const double confidence = candidates[order[count]].confidence,
                     least = options.writes == CanvasWrites::Threshold
                                 ? options.threshold
                                 : 1 - options.factor / double(count + 2); // the (count + 1)-th
        if (!(confidence >= least)) break;
        ++count;
    }
    return count;
}

} // namespace

double rankOf(const CanvasOptions& options, const Candidate& candidate, const std::function<double()>& draw) {
    switch (options.rank) {
    case CanvasRank::Random:
        return draw();
    case CanvasRank::Margin:
        return candidate.margin;
    case CanvasRank::Entropy:
        return -candidate.entropy;
    case CanvasRank::Confidence:
    case CanvasRank::Chance:
        break;
    }
    return candidate.confidence;
}

std::vector<std::int32_t> chooseOnCanvas(const CanvasOptions& options, int step, int masks,
                                         std::span<const Candidate> candidates, std::span<const double> ranks,
                                         const std::function<double()>& draw) {
    std::vector<std::int32_t> written;
    if (options.seedsFirst(step)) return {candidates.front().position};
    if (options.rank == CanvasRank::Chance) {
        const double share = options.share(step);
        for (const Candidate& candidate : candidates)
            if (draw() < share) written.push_back(candidate.position);
        return written;
    }
    std::vector<std::size_t> order(candidates.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ranks[a] > ranks[b]; });
    const std::size_t count = countOf(options, step, masks, candidates, order);
    if (options.rankHeat > 0 && count > 0 && count < candidates.size()) {
        std::vector<std::size_t> places = drawn(ranks, options.rankHeat, count, draw);
        for (const std::size_t place : order) // fills up with the highest, where no other place had a weight
            if (places.size() < count && std::find(places.begin(), places.end(), place) == places.end())
                places.push_back(place);
        order = std::move(places);
    }
    for (std::size_t i = 0; i < count; ++i) written.push_back(candidates[order[i]].position);
    std::sort(written.begin(), written.end());
    return written;
}

} // namespace kvscope

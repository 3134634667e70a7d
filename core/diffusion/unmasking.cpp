#include "core/diffusion/unmasking.h"

#include <algorithm>
#include <cmath>

namespace kvscope {
namespace {

/// The entropy of weights that sum to `sum`, in nats.
double entropyOf(std::span<const std::pair<double, std::int32_t>> weights, double sum) {
    double entropy = 0;
    for (const auto& [weight, id] : weights)
        if (weight > 0) entropy -= weight / sum * std::log(weight / sum);
    return entropy;
}

/// The largest of the weights less the second largest, which is 0 where there is one alone.
double leadOf(std::span<const std::pair<double, std::int32_t>> weights) {
    double first = 0, second = 0;
    for (const auto& [weight, id] : weights) {
        second = std::max(second, std::min(first, weight));
        first = std::max(first, weight);
    }
    return first - second;
}

/// Candidates in the order in which `before` puts them; equal ones: the lower position.
template <class Before> std::vector<Candidate> sorted(std::span<const Candidate> candidates, const Before& before) {
    std::vector<Candidate> order(candidates.begin(), candidates.end());
    std::stable_sort(order.begin(), order.end(), before);
    return order;
}

} // namespace

double CandidateChooser::plainOf(std::span<const float> logits, std::int32_t chosen) const {
    double sum = 0;
    for (std::size_t id = 0; id < logits.size(); ++id)
        if (allowed_[id] != 0) sum += std::exp(double(logits[id]) - double(logits[std::size_t(chosen)]));
    return 1 / sum;
}

Candidate CandidateChooser::choose(std::span<const float> logits, const std::function<double()>& draw) {
    kept_.clear();
    for (std::size_t id = 0; id < logits.size(); ++id) {
        if (allowed_[id] == 0) continue;
        if (!std::isfinite(logits[id])) return {};
        kept_.emplace_back(double(logits[id]), std::int32_t(id));
    }
    const auto better = [](const auto& a, const auto& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    const bool greedy = sampling_.temperature <= 0;
    const double temperature = greedy ? 1 : sampling_.temperature;
    std::iter_swap(kept_.begin(), std::min_element(kept_.begin(), kept_.end(), better));
    const double top = kept_.front().first;
    double all = 0; // weight of all ids
    if (!greedy) {
        if (sampling_.topPOfAll)
            for (const auto& [logit, id] : kept_) all += std::exp((logit - top) / temperature);
        const std::size_t keep =
            sampling_.topK > 0 ? std::min(kept_.size(), std::size_t(sampling_.topK)) : kept_.size();
        std::partial_sort(kept_.begin(), kept_.begin() + std::ptrdiff_t(keep), kept_.end(), better);
        kept_.resize(keep);
    }
    double sum = 0;
    for (auto& [weight, id] : kept_) sum += weight = std::exp((weight - top) / temperature);
    if (greedy) {
        const double best = kept_.front().first / sum;
        return {0, kept_.front().second, best, entropyOf(kept_, sum), leadOf(kept_) / sum, best};
    }
    // top-p keeps the smallest set of best tokens whose probability reaches p.
    const double enough = sampling_.topP * (sampling_.topPOfAll ? all : sum);
    double mass = 0;
    std::size_t count = 0;
    while (count < kept_.size() && (count == 0 || mass < enough)) mass += kept_[count++].first;
    const auto nucleus = std::span(kept_).first(count);
    double target = draw() * mass;
    std::size_t chosen = 0;
    while (chosen + 1 < count && (target -= nucleus[chosen].first) >= 0) ++chosen;
    const std::int32_t id = nucleus[chosen].second;
    return {0, id, nucleus[chosen].first / mass, entropyOf(nucleus, mass), leadOf(nucleus) / mass, plainOf(logits, id)};
}

std::vector<std::int32_t> chooseWritten(const DenoiseOptions& options, int step,
                                        std::span<const Candidate> candidates) {
    const std::size_t masks = candidates.size();
    std::size_t count = std::clamp<std::size_t>(std::size_t(options.tokensOf(step)), 1, masks);
    std::vector<Candidate> order(candidates.begin(), candidates.end());
    switch (options.strategy) {
    case Unmasking::Sequential:
        break;
    case Unmasking::LowConfidenceStatic:
    case Unmasking::LowConfidenceDynamic: {
        order = sorted(candidates, [](const Candidate& a, const Candidate& b) { return a.confidence > b.confidence; });
        if (options.strategy == Unmasking::LowConfidenceStatic) break;
        const auto sure = std::find_if(order.begin(), order.end(),
                                       [&](const Candidate& c) { return !(c.confidence > options.threshold); });
        count = std::max(count, std::size_t(sure - order.begin()));
        break;
    }
    case Unmasking::EntropyBounded: {
        order = sorted(candidates, [](const Candidate& a, const Candidate& b) { return a.entropy < b.entropy; });
        double sum = 0;
        for (count = 0; count < masks; ++count) {
            sum += order[count].entropy;
            if (count > 0 && !(sum < options.entropyBound)) break;
        }
        break;
    }
    }
    std::vector<std::int32_t> written;
    for (std::size_t i = 0; i < count; ++i) written.push_back(order[i].position);
    std::sort(written.begin(), written.end());
    return written;
}

} // namespace kvscope

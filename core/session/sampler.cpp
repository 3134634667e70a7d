#include "core/session/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvscope {

bool allFinite(std::span<const float> logits) {
    constexpr std::uint32_t exponent = 0x7f800000; // all bits set only in infinities and NaN
    // The loop does not end early, so that the compiler can test many logits at a time.
    bool wrong = false;
    for (const float logit : logits) wrong |= (std::bit_cast<std::uint32_t>(logit) & exponent) == exponent;
    return !wrong;
}

std::int32_t argMax(std::span<const float> logits) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < logits.size(); ++i)
        if (logits[i] > logits[best]) best = i;
    return std::int32_t(best);
}

Sampler::Sampler(const Sampling& sampling, int sequence)
    : sampling_(sampling), random_(sampling.seed + std::uint64_t(0x9E3779B97F4A7C15) * std::uint64_t(sequence)) {}

std::int32_t Sampler::sample(std::span<const float> logits) {
    if (sampling_.temperature <= 0) return argMax(logits);
    candidates_.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) candidates_.emplace_back(logits[i], std::int32_t(i));
    const auto better = [](const auto& a, const auto& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    std::size_t keep = candidates_.size();
    if (sampling_.topK > 0) keep = std::min(keep, std::size_t(sampling_.topK));
    std::partial_sort(candidates_.begin(), candidates_.begin() + std::ptrdiff_t(keep), candidates_.end(), better);
    candidates_.resize(keep);
    const float top = candidates_.front().first;
    double sum = 0;
    for (auto& [weight, id] : candidates_) {
        weight = float(std::exp((double(weight) - double(top)) / sampling_.temperature));
        sum += double(weight);
    }
    // top-p keeps the smallest set of best tokens whose probability reaches p.
    double mass = 0;
    std::size_t count = 0;
    while (count < candidates_.size() && (count == 0 || mass < sampling_.topP * sum))
        mass += double(candidates_[count++].first);
    double target = draw() * mass;
    for (std::size_t i = 0; i < count; ++i) {
        target -= double(candidates_[i].first);
        if (target < 0) return candidates_[i].second;
    }
    return candidates_[count - 1].second;
}

} // namespace kvscope

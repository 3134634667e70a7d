#include "core/diffusion/locality.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvscope {
namespace {

/// A number that sorts: NaN, which broken weights give, comes last.
float ranked(float value) { return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value; }

} // namespace

float changeScore(std::span<const float> now, std::span<const float> before) {
    constexpr double sameNumbers = 1e-10;
    double change = 0, size = 0;
    for (std::size_t c = 0; c < now.size(); ++c) {
        const double difference = double(now[c]) - double(before[c]);
        change += difference * difference;
        size += double(now[c]) * double(now[c]);
    }
    return change < sameNumbers * size ? 0.f : float(change / double(now.size()));
}

std::uint64_t activeTokens(const DenoiseOptions& options, std::span<const float> changes) {
    std::uint64_t active = 0;
    if (options.activeThreshold) {
        for (std::size_t i = 0; i < changes.size(); ++i)
            if (double(changes[i]) >= *options.activeThreshold) active |= std::uint64_t(1) << i;
        return active;
    }
    std::vector<std::size_t> order(changes.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return ranked(changes[a]) > ranked(changes[b]); });
    for (std::size_t i = 0; i < std::min(order.size(), std::size_t(options.active)); ++i)
        active |= std::uint64_t(1) << order[i];
    return active;
}

void choosePages(std::span<const float> scores, int pagesPerQuery, std::span<std::uint8_t> chosen,
                 std::vector<std::int32_t>& order) {
    const std::size_t count = std::min(scores.size(), std::size_t(pagesPerQuery));
    if (count == scores.size()) {
        std::fill_n(chosen.begin(), scores.size(), std::uint8_t(1));
        return;
    }
    order.resize(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + std::ptrdiff_t(count), order.end(),
                     [&](std::int32_t a, std::int32_t b) {
                         const float x = ranked(scores[std::size_t(a)]), y = ranked(scores[std::size_t(b)]);
                         return x > y || (x == y && a < b);
                     });
    for (std::size_t i = 0; i < count; ++i) chosen[std::size_t(order[i])] = 1;
}

} // namespace kvscope

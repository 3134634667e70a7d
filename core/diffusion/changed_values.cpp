#include "core/diffusion/changed_values.h"

#include "base/indexed.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope {

double likeness(std::span<const float> now, std::span<const float> before) {
    constexpr double kShortest = 1e-8, kSame = 1e-12;
    double product = 0, ofNow = 0, ofBefore = 0;
    for (std::size_t i = 0; i < now.size(); ++i) {
        product += double(now[i]) * double(before[i]);
        ofNow += double(now[i]) * double(now[i]);
        ofBefore += double(before[i]) * double(before[i]);
    }
    const double cosine = product / (std::max(std::sqrt(ofNow), kShortest) * std::max(std::sqrt(ofBefore), kShortest));
    return cosine > 1 - kSame ? 1 : cosine;
}

std::vector<std::int32_t> leastAlike(std::span<const double> values, int count) {
    Numbered<std::int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return values[std::size_t(a)] < values[std::size_t(b)]; });
    order.resize(count);
    std::sort(order.begin(), order.end());
    return order;
}

} // namespace kvscope

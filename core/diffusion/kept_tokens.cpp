#include "core/diffusion/kept_tokens.h"

#include "base/indexed.h"

#include <algorithm>
#include <numeric>

namespace kvscope {

std::vector<std::int32_t> keptTokens(std::span<const double> importance, int kernel, int kept) {
    const int all = int(importance.size()), reach = kernel / 2;
    Numbered<double> pooled;
    for (int i = 0; i < all; ++i) {
        const auto begin = importance.begin() + std::max(0, i - reach);
        pooled.push_back(*std::max_element(begin, importance.begin() + std::min(all, i + reach + 1)));
    }
    Numbered<std::int32_t> order(importance.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return pooled[a] > pooled[b]; });
    order.resize(kept);
    std::sort(order.begin(), order.end());
    return order;
}

} // namespace kvscope

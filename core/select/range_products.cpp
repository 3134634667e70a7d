#include "core/select/range_products.h"

#include <algorithm>

namespace kvscope::select {

void rangeProducts(const float* q, int group, int dim, const float* ranges, std::span<float> halves,
                   std::span<float> scores) {
    const auto width = std::size_t(dim);
    std::fill(halves.begin(), halves.end(), 0.f);
    for (std::size_t h = 0; h < std::size_t(group); ++h)
        for (std::size_t c = 0; c < width; ++c) {
            halves[c] += std::min(q[h * width + c], 0.f);
            halves[width + c] += std::max(q[h * width + c], 0.f);
        }
    for (std::size_t b = 0; b < scores.size(); ++b) {
        const float* block = ranges + b * 2 * width;
        float sum = 0;
        for (std::size_t c = 0; c < 2 * width; ++c) sum += halves[c] * block[c];
        scores[b] = sum;
    }
}

} // namespace kvscope::select

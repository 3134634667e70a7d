// Digests of pages: for each page two vectors that bound, or nearly bound, its keys channel by channel.
#pragma once

#include "base/elements.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace kvscope::select {

enum class Digest { CuboidMean, Bounds };

/// The digests of one (sequence, layer, KV head): two vectors for each complete page, in the form of key ranges.
class PageDigests {
public:
    PageDigests() = default;
    PageDigests(int dim, int pageTokens, int maxTokens, Digest digest)
        : dim_(Elements(dim)), pageTokens_(Elements(pageTokens)), digest_(digest), page_(Elements(pageTokens, dim)),
          ranges_(Elements(maxTokens / pageTokens + 1, 2, dim)) {}

    /// key: its channels `stride` floats apart.
    void append(const float* key, int stride) {
        float* row = page_.data() + tokens_ % pageTokens_ * dim_;
        for (int c = 0; c < int(dim_); ++c) row[c] = key[c * stride];
        if (++tokens_ % pageTokens_ == 0) close();
    }
    int pages() const { return int(tokens_ / pageTokens_); } // complete ones
    const float* ranges() const { return ranges_.data(); }   // [pages, 2, dim]: lower, upper

private:
    void close() {
        float* lower = ranges_.data() + (tokens_ / pageTokens_ - 1) * 2 * dim_;
        float* upper = lower + dim_;
        for (std::size_t c = 0; c < dim_; ++c) {
            float least = page_[c], most = page_[c];
            for (std::size_t t = 1; t < pageTokens_; ++t) {
                least = std::min(least, page_[t * dim_ + c]);
                most = std::max(most, page_[t * dim_ + c]);
            }
            if (digest_ == Digest::CuboidMean) {
                const float centre = (most + least) / 2;
                float radius = 0;
                for (std::size_t t = 0; t < pageTokens_; ++t) radius += std::abs(centre - page_[t * dim_ + c]);
                radius /= float(pageTokens_);
                least = centre - radius;
                most = centre + radius;
            }
            lower[c] = least;
            upper[c] = most;
        }
    }

    std::size_t dim_ = 0, pageTokens_ = 1, tokens_ = 0;
    Digest digest_ = Digest::CuboidMean;
    std::vector<float> page_; // [pageTokens, dim] of the incomplete page
    std::vector<float> ranges_;
};

} // namespace kvscope::select

// Confidence intervals for series whose neighbours resemble each other, as the times of decode steps do.
#pragma once

#include "base/extents.h"
#include "profiler/compare/range_ranks.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

struct Interval {
    double value = 0, low = 0, high = 0;
    bool contains(double x) const { return low <= x && x <= high; }
};

/// Middle value; of an even number the mean of the two. Reorders `values`, which is not empty.
double medianOf(std::span<double> values);

/// How many neighbours to keep together when resampling a series. Twice what Politis and White, Automatic block-length
/// selection (2004; corrected by Patton, Politis and White 2009) choose for circular blocks, at least a sixteenth and
/// at most a fifth of the series. Their choice makes the variance's error smallest and leaves intervals too narrow;
/// with these, a comparison of equals is called different in 4 to 8 % of cases at 95 % (docs/compare.md).
int bootstrapBlockLength(std::span<const double> series);

/// The circular block bootstrap (Politis and Romano 1992): series of `length` values are put together again from blocks
/// of neighbours, and the statistic of each such series says how much chance there is in the real one's. The same
/// resamples serve all series of one object. Intervals are percentiles, widened as Student's t is against the normal
/// distribution for as many values as there are blocks. Same seed, same numbers.
class BlockBootstrap {
public:
    BlockBootstrap(std::size_t length, int blockLength, double confidence, std::uint64_t seed, int resamples = 2000);

    /// Intervals of a series of `length` values.
    Interval median(std::span<const double> series) const;
    Interval mean(std::span<const double> series) const;
    /// sum(above) / sum(below)
    Interval ratioOfSums(std::span<const double> above, std::span<const double> below) const;

private:
    std::span<const std::uint32_t> starts(int resample) const { return places_.part(std::span(starts_), resample); }
    std::vector<RangeRanks::Piece> piecesOf(int resample) const;
    Interval percentiles(double value, std::vector<double>& statistics) const;
    std::vector<double> resampledSums(std::span<const double> series) const; // [resample]

    std::size_t length_, blockLength_, blocks_;
    Extents<int, int> places_; // [resample][block]
    double confidence_, widening_ = 1;
    int resamples_;
    std::vector<std::uint32_t> starts_; // [resample][block]
};

/// Two-sided quantile of Student's t: P(|T| <= t) = confidence. degrees: 1 or more.
double studentQuantile(double confidence, int degrees);

} // namespace kvscope

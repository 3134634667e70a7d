// A line, or a plane, through samples of which some are far off.
#pragma once

#include <array>
#include <vector>

namespace kvscope::serve {

/// One sample of y = c0 x0 + c1 x1 + c2 x2; a column that a fit has no use for is 0 in all samples.
struct Deviation {
    std::array<double, 3> x{};
    double y = 0;
};

/// The coefficients that make the sum of |y - c x| smallest: a median where x is one column of ones, so that samples
/// which took long by accident do not move it. None is negative, because they are costs: one that would be is 0, and
/// the others are fitted without it. A column that isApart() denies gets 0 as well.
std::array<double, 3> leastDeviations(const std::vector<Deviation>& samples);
/// Whether the column differs from every linear combination of the columns before it by more than noise, so that it can
/// have a coefficient of its own.
bool isApart(const std::vector<Deviation>& samples, std::size_t column);

} // namespace kvscope::serve

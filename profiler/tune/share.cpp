#include "profiler/tune/share.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope {

ShareInterval wilsonInterval(std::int64_t good, std::int64_t all, double z) {
    if (all <= 0) return {};
    const double n = double(all), p = double(good) / n, z2 = z * z;
    const double middle = (p + z2 / (2 * n)) / (1 + z2 / n);
    const double half = z * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n);
    return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

double CountedShare::value() const {
    return all > 0 ? double(good) / double(all) : std::numeric_limits<double>::quiet_NaN();
}

} // namespace kvscope

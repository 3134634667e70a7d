// A counted share, with the interval in which the true share lies.
#pragma once

#include <cstdint>

namespace kvscope {

struct ShareInterval {
    double low = 0, high = 1;
};

/// Wilson's score interval of `good` successes in `all` independent trials (Wilson, 1927). z: quantile of the normal
/// distribution, 1.96 for 95 %. Without a trial: from 0 to 1.
ShareInterval wilsonInterval(std::int64_t good, std::int64_t all, double z = 1.959963984540054);

struct CountedShare {
    std::int64_t good = 0, all = 0;
    double value() const; // NaN without trials
    ShareInterval interval() const { return wilsonInterval(good, all); }
};

} // namespace kvscope

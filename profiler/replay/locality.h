// How selections resemble each other over time: the working set against the window, locality against distance.
#pragma once

#include "profiler/replay/selection_trace.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// Sums over counted requests, so that profiles of several heads add up.
struct LocalityProfile {
    std::int64_t requests = 0;
    std::vector<std::int64_t> united;   // [window - 1] blocks of the last `window` requests together, over all requests
    std::vector<std::int64_t> common;   // [distance - 1] blocks that the request `distance` earlier had too
    std::vector<std::int64_t> compared; // [distance - 1] blocks of the requests that have one so much earlier

    int longest() const { return int(united.size()); }
    /// Mean blocks of the union of `window` requests in a row (Denning's working set; SparseServe sizes its cache by
    /// window 12), 1 <= window <= longest(). Windows that begin before the first request have what there is.
    double workingSet(int window) const;
    /// Share of a request's blocks that the one `distance` before it had, 0..1; NaN if no request is so far from
    /// another. Distance 1 is the locality of the views, here with the steps that open a block.
    double kept(int distance) const;
    LocalityProfile& operator+=(const LocalityProfile& other);
};

/// Windows and distances 1 .. longest, all in one pass over the changes. The first counted request is the first.
LocalityProfile localityProfile(const BlockVisits& visits, int longest);

/// One per pool. @throws Error(Cancelled)
std::vector<LocalityProfile> localityProfiles(const SelectionTrace& trace, int longest, int threads = 0,
                                              const Progress& progress = {}, const std::stop_token& stop = {});

} // namespace kvscope

// How selections of different steps resemble each other: the working set by length of the window, and the locality by
// distance of the steps.
#pragma once

#include "base/indexed.h"
#include "profiler/replay/selection_trace.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// Sums over the requests that count, so that profiles of several heads can be added.
struct LocalityProfile {
    std::int64_t requests = 0;
    Numbered<std::int64_t> united;   // [window - 1] blocks in the union of the last `window` requests
    Numbered<std::int64_t> common;   // [distance - 1] blocks that the request `distance` earlier has too
    Numbered<std::int64_t> compared; // [distance - 1] blocks of requests for which there is one so much earlier

    int longest() const { return united.count(); }
    /// The mean number of blocks in the union of `window` consecutive requests (Denning's working set; SparseServe
    /// sizes its cache by window 12), 1 <= window <= longest(). A window that begins before the first request has only
    /// the requests that exist.
    double workingSet(int window) const;
    /// The share of a request's blocks that the request `distance` earlier has too, 0..1; NaN if no two requests are so
    /// far apart. For distance 1 it is the locality of the views, but includes the steps that open a block.
    double kept(int distance) const;
    LocalityProfile& operator+=(const LocalityProfile& other);
};

/// Makes the profile for windows and distances 1 .. longest in one pass over the changes. It begins with the first
/// request that counts.
LocalityProfile localityProfile(const BlockVisits& visits, int longest);

/// One profile for each pool. @throws Error(Cancelled)
std::vector<LocalityProfile> localityProfiles(const SelectionTrace& trace, int longest, int threads = 0,
                                              const Progress& progress = {}, const std::stop_token& stop = {});

} // namespace kvscope

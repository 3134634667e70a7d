#include "profiler/replay/locality.h"

#include "base/parallel.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

double portionOf(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? double(part) / double(whole) : std::numeric_limits<double>::quiet_NaN();
}

/// A request in which a block's presence begins or ends.
struct Edge {
    std::int32_t request = 0;
    bool begins = false;
};

/// Counts for every distance the pairs of a block's edges that lie so far apart: pairs of the same kind count 1, a
/// begin and an end count -1. These counts are the autocorrelation of the differences of the block's presence; summed
/// up twice they give the autocorrelation of the presence itself, which is how often the block is present at both
/// requests.
class EdgeCorrelation {
public:
    EdgeCorrelation(std::int32_t blocks, int longest) : edges_(blocks), sums_(longest + 1, 0) {}
    void add(std::int32_t block, Edge edge) {
        std::vector<Edge>& earlier = edges_[block];
        ++sums_[0];
        std::size_t kept = earlier.size();
        for (; kept > 0; --kept) {
            const int distance = edge.request - earlier[kept - 1].request;
            if (distance >= sums_.count()) break;
            sums_[distance] += earlier[kept - 1].begins == edge.begins ? 1 : -1;
        }
        earlier.erase(earlier.begin(), earlier.begin() + std::ptrdiff_t(kept));
        earlier.push_back(edge);
    }
    std::int64_t at(int distance) const { return sums_[distance]; }

private:
    Numbered<std::vector<Edge>> edges_; // [block] edges that are near enough to the newest one
    Numbered<std::int64_t> sums_;       // [distance]
};

} // namespace

double LocalityProfile::workingSet(int window) const { return portionOf(united[window - 1], requests); }
double LocalityProfile::kept(int distance) const { return portionOf(common[distance - 1], compared[distance - 1]); }

LocalityProfile& LocalityProfile::operator+=(const LocalityProfile& other) {
    const auto add = [](std::vector<std::int64_t>& sums, const std::vector<std::int64_t>& more) {
        sums.resize(std::max(sums.size(), more.size()), 0);
        for (std::size_t i = 0; i < more.size(); ++i) sums[i] += more[i];
    };
    requests += other.requests;
    add(united, other.united);
    add(common, other.common);
    add(compared, other.compared);
    return *this;
}

LocalityProfile localityProfile(const BlockVisits& visits, int longest) {
    LocalityProfile profile;
    for (auto* sums : {&profile.united, &profile.common, &profile.compared}) sums->assign(longest, 0);
    std::size_t begin = 0; // the first request that counts
    while (begin < visits.requests() && visits.counted(begin) == 0) ++begin;
    if (begin == visits.requests() || longest < 1) return profile;
    const auto first = std::int32_t(begin), end = std::int32_t(visits.requests());
    profile.requests = end - first;

    constexpr std::int32_t kUnused = -1, kPresent = std::numeric_limits<std::int32_t>::max();
    Numbered<std::int32_t> leftAt(visits.blockLimit(), kUnused);
    for (std::size_t request = 0; request <= begin; ++request) { // finds the blocks present when counting begins
        for (const std::int32_t block : visits.left(request)) leftAt[block] = kUnused;
        for (const BlockVisits::Entry& e : visits.entered(request)) leftAt[e.block()] = kPresent;
    }
    EdgeCorrelation edges(visits.blockLimit(), longest);
    for (std::int32_t block = 0; block < visits.blockLimit(); ++block)
        if (leftAt[block] == kPresent) edges.add(block, {first, true});
    Numbered<std::int64_t> absences(longest + 1, 0); // [requests until the block returns, or the end]
    const auto absent = [&](std::int32_t requests) { ++absences[std::min(requests, longest)]; };
    std::int64_t blocks = visits.size(begin);
    Numbered<std::int64_t> early{blocks}; // blocks of the first requests
    for (std::size_t request = begin + 1; request < visits.requests(); ++request) {
        const auto now = std::int32_t(request);
        for (const std::int32_t block : visits.left(request)) {
            leftAt[block] = now;
            edges.add(block, {now, false});
        }
        for (const BlockVisits::Entry& e : visits.entered(request)) {
            std::int32_t& left = leftAt[e.block()];
            if (left != kUnused) absent(now - left);
            left = kPresent;
            edges.add(e.block(), {now, true});
        }
        blocks += visits.size(request);
        if (early.count() < longest) early.push_back(visits.size(request));
    }
    for (std::int32_t block = 0; block < visits.blockLimit(); ++block) {
        const std::int32_t left = leftAt[block];
        if (left == kPresent)
            edges.add(block, {end, false});
        else if (left != kUnused)
            absent(end - left);
    }

    // A block that has left still counts in the union of windows that reach back to its presence, until it returns.
    std::int64_t absentAtLeast = 0;
    for (const std::int64_t count : absences) absentAtLeast += count;
    std::int64_t united = blocks;
    for (int window = 1; window <= longest; ++window) {
        profile.united[window - 1] = united;
        absentAtLeast -= absences[window - 1];
        united += absentAtLeast;
    }
    std::int64_t before = blocks, common = blocks - edges.at(0) / 2, compared = blocks;
    for (int distance = 1; distance <= longest; ++distance) {
        const int i = distance - 1;
        compared -= i < early.count() ? early[i] : 0;
        profile.common[i] = common;
        profile.compared[i] = compared;
        const std::int64_t after = 2 * common - before - edges.at(distance);
        before = common;
        common = after;
    }
    return profile;
}

std::vector<LocalityProfile> localityProfiles(const SelectionTrace& trace, int longest, int threads,
                                              const Progress& progress, const std::stop_token& stop) {
    std::vector<LocalityProfile> profiles(trace.pools.size());
    forEachParallel(profiles.size(), threads, "comparing selections", progress, stop,
                    [&](std::size_t i) { profiles[i] = localityProfile(trace.pools[i].visits, longest); });
    return profiles;
}

} // namespace kvscope

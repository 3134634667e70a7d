#include "profiler/replay/locality.h"

#include "base/parallel.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
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
    EdgeCorrelation(std::int32_t blocks, int longest)
        : edges_(std::size_t(blocks)), sums_(std::size_t(longest) + 1, 0) {}
    void add(std::int32_t block, Edge edge) {
        std::vector<Edge>& earlier = edges_[std::size_t(block)];
        ++sums_[0];
        std::size_t kept = earlier.size();
        for (; kept > 0; --kept) {
            const auto distance = std::size_t(edge.request - earlier[kept - 1].request);
            if (distance >= sums_.size()) break;
            sums_[distance] += earlier[kept - 1].begins == edge.begins ? 1 : -1;
        }
        earlier.erase(earlier.begin(), earlier.begin() + std::ptrdiff_t(kept));
        earlier.push_back(edge);
    }
    std::int64_t at(int distance) const { return sums_[std::size_t(distance)]; }

private:
    std::vector<std::vector<Edge>> edges_; // [block] edges that are near enough to the newest one
    std::vector<std::int64_t> sums_;
};

} // namespace

double LocalityProfile::workingSet(int window) const { return ratio(united[std::size_t(window) - 1], requests); }
double LocalityProfile::kept(int distance) const {
    return ratio(common[std::size_t(distance) - 1], compared[std::size_t(distance) - 1]);
}

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
    for (auto* sums : {&profile.united, &profile.common, &profile.compared}) sums->assign(std::size_t(longest), 0);
    const auto end = std::int32_t(visits.requests());
    std::int32_t first = 0;
    while (first < end && visits.counted(std::size_t(first)) == 0) ++first;
    if (first == end || longest < 1) return profile;
    profile.requests = end - first;

    constexpr std::int32_t kUnused = -1, kPresent = std::numeric_limits<std::int32_t>::max();
    std::vector<std::int32_t> leftAt(std::size_t(visits.blockLimit()), kUnused);
    for (std::int32_t request = 0; request <= first; ++request) { // finds the blocks present when counting begins
        for (const std::int32_t block : visits.left(std::size_t(request))) leftAt[std::size_t(block)] = kUnused;
        for (const BlockVisits::Entry& e : visits.entered(std::size_t(request)))
            leftAt[std::size_t(e.block())] = kPresent;
    }
    EdgeCorrelation edges(visits.blockLimit(), longest);
    for (std::int32_t block = 0; block < visits.blockLimit(); ++block)
        if (leftAt[std::size_t(block)] == kPresent) edges.add(block, {first, true});
    std::vector<std::int64_t> absences(std::size_t(longest) + 1, 0); // [requests until the block returns, or the end]
    const auto absent = [&](std::int32_t requests) { ++absences[std::size_t(std::min(requests, longest))]; };
    std::int64_t blocks = visits.size(std::size_t(first));
    std::vector<std::int64_t> early{blocks}; // blocks of the first requests
    for (std::int32_t request = first + 1; request < end; ++request) {
        for (const std::int32_t block : visits.left(std::size_t(request))) {
            leftAt[std::size_t(block)] = request;
            edges.add(block, {request, false});
        }
        for (const BlockVisits::Entry& e : visits.entered(std::size_t(request))) {
            std::int32_t& left = leftAt[std::size_t(e.block())];
            if (left != kUnused) absent(request - left);
            left = kPresent;
            edges.add(e.block(), {request, true});
        }
        blocks += visits.size(std::size_t(request));
        if (early.size() < std::size_t(longest)) early.push_back(visits.size(std::size_t(request)));
    }
    for (std::int32_t block = 0; block < visits.blockLimit(); ++block) {
        const std::int32_t left = leftAt[std::size_t(block)];
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
        profile.united[std::size_t(window) - 1] = united;
        absentAtLeast -= absences[std::size_t(window) - 1];
        united += absentAtLeast;
    }
    std::int64_t before = blocks, common = blocks - edges.at(0) / 2, compared = blocks;
    for (int distance = 1; distance <= longest; ++distance) {
        const auto i = std::size_t(distance) - 1;
        compared -= i < early.size() ? early[i] : 0;
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

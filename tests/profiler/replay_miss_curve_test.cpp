// Curves of one pass are what simulations of every size find, and Belady's is the least that is possible.
#include "profiler/replay/sampled_curve.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <gmock/gmock.h>
#include <map>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

struct Request {
    std::vector<std::int32_t> blocks; // ascending
    std::int32_t fresh = -1;
    bool counted = true;
};
using History = std::vector<Request>;

BlockVisits visitsOf(const History& history) {
    BlockVisits visits;
    for (const Request& request : history) visits.add(request.blocks, request.fresh, request.counted);
    return visits;
}

struct Shape {
    int requests = 150, blocks = 40, largest = 12;
    int changes = 3;      // blocks that a request exchanges at most
    bool varying = false; // requests differ in size
    bool growing = false; // now and then a block begins
    int uncounted = 0;    // the first requests
};

History randomHistory(std::mt19937& random, const Shape& shape) {
    const auto below = [&](int limit) { return std::int32_t(random() % unsigned(limit)); };
    History history;
    std::set<std::int32_t> set;
    int blocks = shape.growing ? shape.blocks / 2 : shape.blocks;
    for (int r = 0; r < shape.requests; ++r) {
        Request request;
        for (int i = below(shape.changes + 1); i > 0 && !set.empty(); --i)
            set.erase(std::next(set.begin(), below(int(set.size()))));
        const bool begins = shape.growing && r > 0 && blocks < shape.blocks && below(6) == 0;
        if (begins) set.insert(request.fresh = blocks++);
        const auto wanted = std::size_t(shape.varying ? 1 + below(shape.largest) : shape.largest);
        while (set.size() > wanted) {
            const auto drop = std::next(set.begin(), below(int(set.size())));
            if (*drop != request.fresh) set.erase(drop);
        }
        while (set.size() < std::min(wanted, std::size_t(blocks))) set.insert(below(blocks));
        request.blocks.assign(set.begin(), set.end());
        request.counted = r >= shape.uncounted;
        history.push_back(request);
    }
    return history;
}

/// The textbook's cache, one request at a time: the resident block of the lowest rank leaves, of equals the lowest id.
template <class RankOf> std::int64_t simulate(const History& history, int slots, const RankOf& rankOf) {
    std::set<std::int32_t> resident;
    std::int64_t misses = 0;
    for (std::size_t r = 0; r < history.size(); ++r) {
        const auto& wanted = history[r].blocks;
        for (const std::int32_t block : wanted) {
            if (resident.contains(block)) continue;
            misses += history[r].counted && block != history[r].fresh;
        }
        std::vector<std::pair<std::int64_t, std::int32_t>> idle;
        for (const std::int32_t block : resident)
            if (!std::binary_search(wanted.begin(), wanted.end(), block)) idle.emplace_back(rankOf(r, block), block);
        std::sort(idle.begin(), idle.end());
        resident.insert(wanted.begin(), wanted.end());
        for (std::size_t i = 0; int(resident.size()) > slots; ++i) resident.erase(idle.at(i).second);
    }
    return misses;
}

bool has(const Request& request, std::int32_t block) {
    return std::binary_search(request.blocks.begin(), request.blocks.end(), block);
}

std::int64_t lruMisses(const History& history, int slots) {
    return simulate(history, slots, [&](std::size_t request, std::int32_t block) {
        while (!has(history[--request], block)) {
        }
        return std::int64_t(request);
    });
}

std::int64_t beladyMisses(const History& history, int slots) {
    return simulate(history, slots, [&](std::size_t request, std::int32_t block) {
        while (++request < history.size() && !has(history[request], block)) {
        }
        return -std::int64_t(request);
    });
}

/// Fewest misses of any way to keep blocks: tries every set of them after every request.
std::int64_t fewestMisses(const History& history, int slots, int blocks) {
    std::map<unsigned, std::int64_t> states{{0u, 0}}; // resident blocks -> fewest misses to get there
    for (const Request& request : history) {
        unsigned wanted = 0;
        for (const std::int32_t block : request.blocks) wanted |= 1u << block;
        std::map<unsigned, std::int64_t> next;
        for (const auto& [resident, misses] : states) {
            const std::int64_t cost = misses + std::popcount(wanted & ~resident);
            for (unsigned kept = 0; kept < 1u << blocks; ++kept) {
                const unsigned after = kept | wanted;
                if ((kept & ~resident) != 0 || std::popcount(after) > slots) continue;
                const auto [entry, isNew] = next.try_emplace(after, cost);
                if (!isNew) entry->second = std::min(entry->second, cost);
            }
        }
        states = std::move(next);
    }
    std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
    for (const auto& [resident, misses] : states) fewest = std::min(fewest, misses);
    return fewest;
}

const std::vector<Shape> kShapes{
    {},
    {.requests = 60, .blocks = 9, .largest = 1},
    {.changes = 12},
    {.varying = true},
    {.changes = 0, .varying = true},
    {.growing = true},
    {.blocks = 70, .changes = 6, .varying = true, .growing = true, .uncounted = 9},
    {.requests = 400, .blocks = 300, .largest = 40, .changes = 9, .growing = true},
    {.requests = 900, .blocks = 150, .largest = 30, .changes = 20, .varying = true}, // the stack is renumbered often
};

class MissCurves : public testing::TestWithParam<std::size_t> {};

TEST_P(MissCurves, OfOnePassAreThoseOfEverySimulation) {
    std::mt19937 random(unsigned(GetParam()) + 1);
    const Shape shape = kShapes[GetParam()];
    const int rounds = shape.blocks > 100 ? 2 : 6;
    for (int round = 0; round < rounds; ++round) {
        const History history = randomHistory(random, shape);
        const BlockVisits visits = visitsOf(history);
        const MissCurve lru = missCurve(visits, CurvePolicy::Lru), belady = missCurve(visits, CurvePolicy::Belady);
        ASSERT_EQ(lru.smallest, visits.largest());
        std::int64_t references = 0;
        for (const Request& request : history) references += request.counted ? std::int64_t(request.blocks.size()) : 0;
        EXPECT_EQ(lru.references, references);
        const int step = shape.blocks > 100 ? 41 : 1;
        for (int slots = lru.smallest; slots <= shape.blocks + step; slots += step) {
            ASSERT_EQ(lru.at(slots), lruMisses(history, slots)) << slots << " slots, round " << round;
            ASSERT_EQ(belady.at(slots), beladyMisses(history, slots)) << slots << " slots, round " << round;
            ASSERT_LE(belady.at(slots), lru.at(slots));
            ASSERT_LE(lru.at(slots + 1), lru.at(slots));
            ASSERT_LE(belady.at(slots + 1), belady.at(slots));
        }
        EXPECT_EQ(lru.misses.back(), lru.compulsory);
        EXPECT_EQ(belady.misses.back(), belady.compulsory);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MissCurves, testing::Range(std::size_t(0), kShapes.size()));

TEST(MissCurve, BeladyIsTheMinimumOfAllPossibilities) {
    std::mt19937 random(7);
    for (int round = 0; round < 60; ++round) {
        const History history =
            randomHistory(random, {.requests = 12, .blocks = 7, .largest = 3, .varying = round % 2 == 0});
        const MissCurve curve = missCurve(visitsOf(history), CurvePolicy::Belady);
        for (int slots = curve.smallest; slots <= 7; ++slots)
            EXPECT_EQ(curve.at(slots), fewestMisses(history, slots, 7)) << slots;
    }
}

TEST(MissCurve, CountsFirstUsesApartAndBegunBlocksAsHits) {
    BlockVisits visits;
    const std::vector<std::vector<std::int32_t>> wanted{{3}, {0, 3}, {1, 3}, {0, 4}, {3, 4}};
    for (std::size_t r = 0; r < wanted.size(); ++r)
        visits.add(wanted[r], r == 0 ? 3 : r == 3 ? 4 : -1, r > 0); // 3 is there from the start, 4 begins
    const MissCurve lru = missCurve(visits, CurvePolicy::Lru);
    EXPECT_EQ(lru.smallest, 2);
    EXPECT_EQ(lru.references, 8);
    EXPECT_EQ(lru.compulsory, 2);                        // 0 and 1
    EXPECT_THAT(lru.misses, testing::ElementsAre(4, 2)); // 0 and 3 come back when one other block was used since
    EXPECT_DOUBLE_EQ(lru.ratio(2), 4. / 8);
    EXPECT_EQ(lru.at(1000), 2);
    EXPECT_EQ(lru.largest(), 3);
}

TEST(MissCurve, SumsWhereAllCachesAreLargeEnough) {
    MissCurve a, b;
    a.smallest = 2, a.misses = {9, 5, 3}, a.references = 20, a.compulsory = 3;
    b.smallest = 3, b.misses = {4, 4, 4, 1}, b.references = 10, b.compulsory = 1;
    const std::array<MissCurve, 2> both{a, b};
    const MissCurve total = sum(both);
    EXPECT_EQ(total.smallest, 3);
    EXPECT_EQ(total.references, 30);
    EXPECT_EQ(total.compulsory, 4);
    EXPECT_THAT(total.misses, testing::ElementsAre(9, 7, 7, 4));
}

TEST(MissCurve, EmptyHistoriesHaveNoMisses) {
    const MissCurve none = missCurve(BlockVisits(), CurvePolicy::Lru);
    EXPECT_EQ(none.at(0), 0);
    EXPECT_TRUE(std::isnan(none.ratio(0)));
    BlockVisits hollow;
    hollow.add(std::vector<std::int32_t>{});
    hollow.add(std::vector<std::int32_t>{});
    EXPECT_EQ(missCurve(hollow, CurvePolicy::Belady).at(5), 0);
}

/// A head's selections over a long text: some blocks are popular, and each exchanges at its own pace.
History driftingHistory(unsigned seed, int requests, int blocks, int size) {
    std::mt19937 random(seed);
    const auto unit = [&] { return double(random()) / 4294967296.0; };
    const auto popular = [&] { return std::int32_t(double(blocks) * std::pow(unit(), 2)); };
    const double pace = (0.03 + 0.1 * unit()) * size;
    std::vector<std::int32_t> members;
    std::vector<bool> in(std::size_t(blocks), false);
    const auto fresh = [&] {
        std::int32_t block = popular();
        while (in[std::size_t(block)]) block = (block + 1) % blocks;
        in[std::size_t(block)] = true;
        return block;
    };
    while (int(members.size()) < size) members.push_back(fresh());
    History history;
    for (int r = 0; r < requests; ++r) {
        for (int i = int(pace * 2 * unit()); i > 0; --i) {
            std::int32_t& member = members[random() % members.size()];
            const std::int32_t old = member;
            member = fresh();
            in[std::size_t(old)] = false;
        }
        Request request;
        request.blocks = members;
        std::sort(request.blocks.begin(), request.blocks.end());
        history.push_back(request);
    }
    return history;
}

TEST(SampledMissCurve, IsWithinAHundredthOfTheExactOne) {
    std::vector<BlockVisits> caches;
    for (unsigned i = 0; i < 24; ++i) caches.push_back(visitsOf(driftingHistory(i, 3000, 300, 48)));
    std::vector<const BlockVisits*> pointers;
    for (const BlockVisits& cache : caches) pointers.push_back(&cache);
    for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) {
        std::vector<MissCurve> curves;
        for (const BlockVisits& cache : caches) curves.push_back(missCurve(cache, policy));
        const MissCurve exact = sum(curves);
        EXPECT_GT(exact.ratio(exact.smallest), 0.05);
        EXPECT_LT(exact.ratio(150), 0.5 * exact.ratio(exact.smallest));
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
            CurveSample sample;
            sample.share = 0.1; // 20 windows, as in a run of a hundred million references at 0.005
            sample.seed = seed;
            const MissCurve estimate = sampledMissCurve(pointers, policy, sample);
            EXPECT_EQ(estimate.smallest, exact.smallest);
            EXPECT_EQ(estimate.references, exact.references);
            EXPECT_EQ(estimate.compulsory, exact.compulsory);
            EXPECT_EQ(estimate.misses, sampledMissCurve(pointers, policy, sample).misses) << "the same seed again";
            for (int slots = exact.smallest; slots <= 310; ++slots) {
                EXPECT_NEAR(estimate.ratio(slots), exact.ratio(slots), 0.01) << nameOf(policy) << " " << slots;
                EXPECT_LE(estimate.at(slots + 1), estimate.at(slots));
            }
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

// Working sets and locality of one pass are what unions and intersections of the sets themselves give.
#include "profiler/replay/locality.h"

#include "profiler/read/summary.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Sets = std::vector<std::set<std::int32_t>>;

Sets randomSets(std::mt19937& random, int requests, int blocks, int largest) {
    Sets sets;
    std::set<std::int32_t> set;
    for (int r = 0; r < requests; ++r) {
        for (int i = int(random() % 4u); i > 0 && !set.empty(); --i)
            set.erase(std::next(set.begin(), std::ptrdiff_t(random() % set.size())));
        const auto wanted = std::size_t(random() % unsigned(largest + 1));
        while (set.size() < wanted) set.insert(std::int32_t(random() % unsigned(blocks)));
        sets.push_back(set);
    }
    return sets;
}

BlockVisits visitsOf(const Sets& sets, int uncounted) {
    BlockVisits visits;
    for (const auto& set : sets)
        visits.add(std::vector<std::int32_t>(set.begin(), set.end()), -1, int(visits.requests()) >= uncounted);
    return visits;
}

TEST(LocalityProfile, CountsWhatUnionsAndIntersectionsHave) {
    std::mt19937 random(3);
    for (const int uncounted : {0, 1, 7}) {
        const Sets sets = randomSets(random, 120, 25, 9);
        const int longest = 40, first = uncounted, end = int(sets.size());
        const LocalityProfile profile = localityProfile(visitsOf(sets, uncounted), longest);
        ASSERT_EQ(profile.longest(), longest);
        // An empty request is not counted, so the first one that has blocks is where counting begins.
        int begin = first;
        while (sets[std::size_t(begin)].empty()) ++begin;
        EXPECT_EQ(profile.requests, end - begin);
        for (int length = 1; length <= longest; ++length) {
            std::int64_t united = 0, common = 0, compared = 0;
            for (int t = begin; t < end; ++t) {
                std::set<std::int32_t> all;
                for (int u = std::max(begin, t - length + 1); u <= t; ++u)
                    all.insert(sets[std::size_t(u)].begin(), sets[std::size_t(u)].end());
                united += std::int64_t(all.size());
                if (t - length < begin) continue;
                const auto &now = sets[std::size_t(t)], &then = sets[std::size_t(t - length)];
                compared += std::int64_t(now.size());
                common += std::count_if(now.begin(), now.end(), [&](std::int32_t b) { return then.contains(b); });
            }
            EXPECT_EQ(profile.united[std::size_t(length) - 1], united) << length;
            EXPECT_EQ(profile.common[std::size_t(length) - 1], common) << length;
            EXPECT_EQ(profile.compared[std::size_t(length) - 1], compared) << length;
        }
    }
}

TEST(LocalityProfile, OfHeadsAddUpAndEndWhereTheRunEnds) {
    const BlockVisits a = visitsOf({{1, 2}, {2, 3}, {1, 2}}, 0), b = visitsOf({{5}, {5}}, 0);
    LocalityProfile both = localityProfile(a, 4);
    both += localityProfile(b, 4);
    EXPECT_EQ(both.requests, 5);
    EXPECT_DOUBLE_EQ(both.workingSet(1), 8. / 5);
    EXPECT_DOUBLE_EQ(both.workingSet(2), (2 + 3 + 3 + 1 + 1) / 5.);
    EXPECT_DOUBLE_EQ(both.kept(1), (1 + 1 + 1) / 5.);
    EXPECT_DOUBLE_EQ(both.kept(2), 1.);
    EXPECT_TRUE(std::isnan(both.kept(3)));
    EXPECT_TRUE(std::isnan(localityProfile(BlockVisits(), 3).workingSet(1)));
}

TEST(LocalityProfile, AtDistanceOneIsTheRecordedLocality) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::RunShape shape;
    shape.sequences = 2;
    synthetic::recordFile(file, shape);
    const TraceReader reader(file);
    std::int64_t kept = 0, selected = 0;
    for (int layer = 0; layer < shape.layers; ++layer)
        for (int sequence = 0; sequence < shape.sequences; ++sequence)
            for (int head = 0; head < shape.kvHeads; ++head)
                for (const SelectionRow& row : reader.selections(1, layer, sequence, head)) {
                    if (row.kept < 0) continue;
                    kept += row.kept;
                    selected += std::int64_t(row.blocks.size());
                }
    LocalityProfile all;
    for (const LocalityProfile& profile : localityProfiles(loadSelectionTrace(reader, 1), 12)) all += profile;
    EXPECT_EQ(all.common[0], kept);
    EXPECT_EQ(all.compared[0], selected);
    EXPECT_GE(all.workingSet(12), all.workingSet(1));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

// A span beside the others of its name, against numbers written by hand.
#include "profiler/read/span_kind.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

/// Spans one after the other: track, name, length, step.
struct Given {
    std::int32_t track, name;
    std::int64_t length;
    int step;
};

SpanIndex indexOf(const std::vector<Given>& given) {
    SpanBatch batch;
    batch.texts = {"host", "other track", "ffn", "rope"};
    std::int64_t at = 0;
    for (const Given& each : given) {
        batch.spans.push_back({at, each.length, each.track, each.name, each.step, -1, 0});
        at += each.length + 1;
    }
    SpanIndex index;
    index.append(batch);
    return index;
}

SpanRef refOf(const SpanIndex& index, int lane, std::uint32_t i) {
    EXPECT_LT(i, index.lane(lane).spans);
    return {lane, i};
}

TEST(SpanKind, CountsTheSameNameOnTheSameTrackInDecodeSteps) {
    std::vector<Given> given{{0, 2, 5'000, 0}};                                  // the prefill's: not one of them
    for (int step = 1; step <= 200; ++step) given.push_back({0, 2, step, step}); // 1 .. 200 ns
    given.push_back({0, 3, 7, 5});
    given.push_back({1, 2, 9'999, 5});
    const SpanIndex index = indexOf(given);
    const int host = index.trackOf("host");
    int lane = 0;
    while (index.lane(lane).track != host) ++lane;
    const auto kind = kindOfSpan(index, refOf(index, lane, 150)); // 150 ns: the prefill's is at 0
    ASSERT_TRUE(kind);
    EXPECT_EQ(kind->spans, 200u);
    EXPECT_EQ(kind->shorter, 149u);
    EXPECT_EQ(kind->shortestNs, 1);
    EXPECT_EQ(kind->medianNs, 100);
    EXPECT_EQ(kind->percentile99Ns, 198);
    EXPECT_EQ(kind->longestNs, 200);
    EXPECT_FALSE(kindOfSpan(index, refOf(index, lane, 0))) << "one prefill has nothing to be compared with";
    EXPECT_FALSE(kindOfSpan(index, refOf(index, lane, 201))) << "the only rope";
    EXPECT_FALSE(kindOfSpan(index, refOf(index, lane, 150), {}, 100)) << "more than may be looked at";
}

TEST(SpanKind, FewSpansHaveTheLongestAtTheirEdge) {
    const SpanIndex index = indexOf({{0, 2, 30, 1}, {0, 2, 10, 2}, {0, 2, 20, 3}});
    const auto kind = kindOfSpan(index, {0, 0});
    ASSERT_TRUE(kind);
    EXPECT_EQ(kind->medianNs, 20);
    EXPECT_EQ(kind->percentile99Ns, 30);
    EXPECT_EQ(kind->shorter, 2u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

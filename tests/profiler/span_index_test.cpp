// The span index against the plainest thing that could be right: a list of all spans, looked through from end to end.
#include "profiler/read/self_time.h"
#include "profiler/read/span_index.h"
#include "profiler/read/span_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <utility>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

SpanBatch batchOf(std::vector<std::string> texts, std::vector<SpanRow> spans) {
    SpanBatch batch;
    batch.texts = std::move(texts);
    batch.spans = std::move(spans);
    return batch;
}

/// One track of spans that do not overlap, with gaps; texts: 0 the track, 1..5 names.
std::vector<SpanRow> randomSpans(int count, std::uint32_t seed, int depth = 0) {
    std::mt19937 random(seed);
    std::vector<SpanRow> spans;
    std::int64_t clock = -5000;
    for (int i = 0; i < count; ++i) {
        clock += random() % 50;
        const std::int64_t duration = random() % 8 == 0 ? 0 : random() % 300;
        spans.push_back({clock, duration, 0, 1 + int(random() % 5), i / 7, int(random() % 4), depth});
        clock += duration;
    }
    return spans;
}
const std::vector<std::string> kTexts{"gpu", "a", "b", "c", "d", "e"};

using Seen = std::tuple<std::int64_t, std::int64_t, std::string, int, int>;

/// Every span of the index, read back one by one.
std::vector<Seen> everything(const SpanIndex& index) {
    std::vector<Seen> all;
    for (int lane = 0; lane < index.laneCount(); ++lane)
        for (std::uint32_t i = 0; i < index.lane(lane).spans; ++i) {
            const TimelineSpan span = index.at({lane, i});
            all.emplace_back(span.startNs, span.durationNs, index.names()[std::size_t(span.name)], span.step,
                             span.layer);
        }
    std::sort(all.begin(), all.end());
    return all;
}
std::vector<Seen> everything(const std::vector<SpanRow>& spans) {
    std::vector<Seen> all;
    for (const SpanRow& span : spans)
        all.emplace_back(span.startNs, span.durationNs, kTexts[std::size_t(span.name)], span.step, span.layer);
    std::sort(all.begin(), all.end());
    return all;
}

class SpanIndexSizes : public testing::TestWithParam<int> {};

TEST_P(SpanIndexSizes, KeepsEverySpanExactly) {
    const auto spans = randomSpans(GetParam(), 1);
    SpanIndex index;
    index.append(batchOf(kTexts, spans));
    EXPECT_EQ(index.size(), spans.size());
    EXPECT_EQ(everything(index), everything(spans));
}

TEST_P(SpanIndexSizes, CoversEverySpanOnceAtEveryZoom) {
    const auto spans = randomSpans(GetParam(), 2);
    SpanIndex index;
    index.append(batchOf(kTexts, spans));
    std::int64_t busy = 0;
    for (const SpanRow& span : spans) busy += span.durationNs;
    for (const double merge : {-1.0, 0.0, 10.0, 500.0, 4000.0, 1e5, 1e9}) {
        std::uint32_t count = 0, next = 0;
        std::int64_t sum = 0;
        for (int lane = 0; lane < index.laneCount(); ++lane) {
            next = 0;
            index.cover(lane, index.firstNs() - 1, index.endNs() + 1, merge, [&](const SpanBar& bar) {
                EXPECT_EQ(bar.first, next) << "bars follow each other without a gap";
                next = bar.first + bar.count;
                count += bar.count;
                sum += bar.busyNs;
                if (bar.count > 1) {
                    EXPECT_LE(double(bar.endNs - bar.startNs), merge);
                }
            });
        }
        EXPECT_EQ(count, spans.size()) << merge;
        EXPECT_NEAR(double(sum), double(busy), 1e-5 * double(busy) + 1) << "float sums of at most 16 parts a level";
    }
}

TEST_P(SpanIndexSizes, FindsWhatALinearSearchFinds) {
    const auto spans = randomSpans(GetParam(), 3);
    SpanIndex index;
    index.append(batchOf(kTexts, spans));
    std::mt19937 random(4);
    for (int i = 0; i < 300; ++i) {
        const std::int64_t from =
            index.firstNs() - 100 + std::int64_t(random() % std::uint64_t(index.endNs() - index.firstNs() + 200));
        const std::int64_t to = from + 1 + std::int64_t(random() % 3000);
        std::size_t expected = 0, seen = 0;
        for (const SpanRow& span : spans) {
            const std::int64_t end = span.startNs + span.durationNs;
            expected += span.startNs < to && (end > from || (span.durationNs == 0 && span.startNs >= from)) ? 1u : 0u;
        }
        for (int lane = 0; lane < index.laneCount(); ++lane)
            index.cover(lane, from, to, -1, [&](const SpanBar&) { ++seen; });
        EXPECT_EQ(seen, expected) << from << ".." << to;
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SpanIndexSizes, testing::Values(1, 2, 15, 16, 17, 255, 256, 257, 1023, 1025, 5000));

TEST(SpanIndex, GrowsToTheSameAsWhenBuiltAtOnce) {
    const auto spans = randomSpans(3000, 5);
    SpanIndex whole, grown;
    whole.append(batchOf(kTexts, spans));
    std::mt19937 random(6);
    for (std::size_t at = 0; at < spans.size();) {
        const std::size_t take = std::min<std::size_t>(1 + random() % 90, spans.size() - at);
        grown.append(batchOf(kTexts, {spans.begin() + std::ptrdiff_t(at), spans.begin() + std::ptrdiff_t(at + take)}));
        at += take;
    }
    EXPECT_EQ(everything(grown), everything(whole));
    ASSERT_EQ(grown.laneCount(), whole.laneCount());
    for (const double merge : {100.0, 1000.0, 20000.0}) {
        std::vector<std::tuple<std::int64_t, std::int64_t, std::uint32_t, int>> a, b;
        whole.cover(0, -10000, 1 << 30, merge,
                    [&](const SpanBar& bar) { a.emplace_back(bar.startNs, bar.endNs, bar.count, bar.name); });
        grown.cover(0, -10000, 1 << 30, merge,
                    [&](const SpanBar& bar) { b.emplace_back(bar.startNs, bar.endNs, bar.count, bar.name); });
        EXPECT_EQ(a, b) << merge;
    }
}

TEST(SpanIndex, TakesSpansInAnyOrder) {
    auto spans = randomSpans(2000, 7);
    const auto wanted = everything(spans);
    std::shuffle(spans.begin(), spans.end(), std::mt19937(8));
    SpanIndex index;
    for (std::size_t at = 0; at < spans.size(); at += 100)
        index.append(batchOf(kTexts, {spans.begin() + std::ptrdiff_t(at), spans.begin() + std::ptrdiff_t(at + 100)}));
    EXPECT_EQ(everything(index), wanted);
    EXPECT_EQ(index.laneCount(), 1) << "they do not overlap once all are there";
    for (std::uint32_t i = 1; i < index.lane(0).spans; ++i)
        EXPECT_LE(index.at({0, i - 1}).startNs, index.at({0, i}).startNs);
}

/// Two tracks of 150,000 spans each, one newest first, one in no order, with a third in order between them.
std::vector<SpanRow> lateSpans() {
    auto reversed = randomSpans(150'000, 21, 0);
    std::reverse(reversed.begin(), reversed.end());
    auto shuffled = randomSpans(150'000, 22, 1);
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(23));
    const auto ordered = randomSpans(150'000, 24, 2);
    std::vector<SpanRow> all;
    for (std::size_t i = 0; i < ordered.size(); ++i)
        for (const std::vector<SpanRow>* each : {&std::as_const(reversed), &std::as_const(shuffled), &ordered})
            all.push_back((*each)[i]);
    return all;
}

TEST(SpanIndex, PutsManyLateSpansInTheirPlaceAPieceAtATime) {
    const auto spans = lateSpans();
    SpanIndex index;
    std::size_t mostWaiting = 0, pieces = 0;
    for (std::size_t at = 0; at < spans.size(); at += 9'000) {
        const auto begin = spans.begin() + std::ptrdiff_t(at);
        index.append(batchOf(kTexts, {begin, begin + std::min<std::ptrdiff_t>(9'000, spans.end() - begin)}));
        mostWaiting = std::max(mostWaiting, index.waiting());
        index.settle(5'000, false); // the lanes grow while they are merged
    }
    EXPECT_GT(mostWaiting, 9'000u) << "moving all that lies behind every piece would take a minute for millions";
    const std::uint64_t moves = index.moves();
    while (index.settle(20'000, true)) ++pieces;
    EXPECT_GT(pieces, 2u);
    EXPECT_NE(index.moves(), moves);
    EXPECT_EQ(index.waiting(), 0u);
    EXPECT_EQ(index.size(), spans.size());
    EXPECT_EQ(everything(index), everything(spans));
    std::int64_t busy = 0, sum = 0;
    for (const SpanRow& span : spans) busy += span.durationNs;
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        if (index.lane(lane).spans > 0) {
            EXPECT_EQ(index.lane(lane).row, 0) << "they do not overlap once all are there";
        }
        for (std::uint32_t i = 1; i < index.lane(lane).spans; ++i)
            ASSERT_LE(index.at({lane, i - 1}).startNs, index.at({lane, i}).startNs);
        sum += index.lane(lane).busyNs;
        std::uint32_t covered = 0;
        index.cover(lane, index.firstNs(), index.endNs() + 1, 1e5, [&](const SpanBar& bar) { covered += bar.count; });
        EXPECT_EQ(covered, index.lane(lane).spans);
    }
    EXPECT_EQ(sum, busy);
}

TEST(SpanIndex, SpreadsOverlappingSpansOverRows) {
    SpanIndex index;
    index.append(
        batchOf({"copies", "x"}, {{0, 100, 0, 1, -1, -1, 0}, {50, 100, 0, 1, -1, -1, 0}, {120, 10, 0, 1, -1, -1, 0}}));
    ASSERT_EQ(index.laneCount(), 2);
    EXPECT_EQ(index.lane(0).spans, 2u) << "the third fits behind the first";
    EXPECT_EQ(index.lane(1).spans, 1u);
    EXPECT_EQ(index.lane(1).row, 1);
    ASSERT_TRUE(index.find(1, 149));
    EXPECT_FALSE(index.find(1, 150)) << "an end is not part of a span";
}

TEST(SpanIndex, HoldsDurationsBeyond32Bits) {
    const std::int64_t hour = 3'600'000'000'000;
    SpanIndex index;
    index.append(batchOf({"host", "prefill"}, {{0, hour, 0, 1, 0, -1, 0}, {hour, 5, 0, 1, 1, -1, 0}}));
    EXPECT_EQ(index.at({0, 0}).durationNs, hour);
    EXPECT_EQ(index.endNs(), hour + 5);
    index.append(batchOf({"host", "prefill"}, {{-hour, hour, 0, 1, 0, -1, 0}})); // moves both
    EXPECT_EQ(index.at({0, 1}).durationNs, hour);
    EXPECT_EQ(index.at({0, 2}).durationNs, 5);
}

TEST(SpanIndex, SaysWhichNameTakesMostOfAMergedBar) {
    std::vector<SpanRow> spans;
    for (int i = 0; i < 400; ++i) spans.push_back({i * 100, i % 10 == 0 ? 60 : 1, 0, i % 10 == 0 ? 2 : 1, -1, -1, 0});
    SpanIndex index;
    index.append(batchOf(kTexts, spans));
    std::vector<SpanBar> bars;
    index.cover(0, 0, 40'000, 1e6, [&](const SpanBar& bar) { bars.push_back(bar); });
    for (const SpanBar& bar : bars)
        if (bar.count >= 16) {
            EXPECT_EQ(index.names()[std::size_t(bar.name)], "b");
        }
}

TEST(SpanIndex, NeedsFewBytesForASpan) {
    SpanIndex index;
    index.append(batchOf(kTexts, randomSpans(200'000, 9)));
    EXPECT_LT(double(index.memoryBytes()) / 200'000, 24) << "20 for the columns, 2.2 for the pyramid, some room";
}

TEST(SelfTime, LeavesOutWhatIsNested) {
    // parent 0..100 with children 10..40 and 50..60; a second parent 100..120 without any.
    SpanIndex index;
    index.append(
        batchOf({"host", "layer", "ffn", "rope"},
                {{0, 100, 0, 1, 0, 0, 0}, {100, 20, 0, 1, 0, 1, 0}, {10, 30, 0, 2, 0, 0, 1}, {50, 10, 0, 3, 0, 0, 1}}));
    const auto rows = selfTimes(index, 0, 1000, SelfTimeBy::Name);
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[0].name, "layer");
    EXPECT_EQ(rows[0].selfNs, 80);
    EXPECT_EQ(rows[0].totalNs, 120);
    EXPECT_EQ(rows[0].spans, 2u);
    EXPECT_EQ(rows[0].longestNs, 100);
    EXPECT_EQ(rows[1].name, "ffn");
    EXPECT_EQ(rows[1].selfNs, 30);
    EXPECT_EQ(rows[2].selfNs, 10);
    // Cut in the middle of parent and child.
    const auto cut = selfTimes(index, 20, 55, SelfTimeBy::Name);
    ASSERT_EQ(cut.size(), 3u);
    EXPECT_EQ(cut[0].name, "ffn");
    EXPECT_EQ(cut[0].selfNs, 20);
    EXPECT_EQ(cut[1].name, "layer");
    EXPECT_EQ(cut[1].selfNs, 35 - 20 - 5);
    EXPECT_EQ(cut[2].selfNs, 5);
}

TEST(SelfTime, AddsUpToTheOutermostSpansWhateverTheRange) {
    // Depth 1 and 2 fill random parts of depth 0: all self times of a track together are depth 0's time.
    std::mt19937 random(11);
    std::vector<SpanRow> spans;
    for (std::int64_t at = 0; at < 50'000; at += 100) {
        spans.push_back({at, 90, 0, 1, 0, 0, 0});
        for (std::int64_t inner = at + std::int64_t(random() % 20); inner + 20 <= at + 90;
             inner += 20 + std::int64_t(random() % 10)) {
            spans.push_back({inner, 20, 0, 2, 0, 0, 1});
            spans.push_back({inner + std::int64_t(random() % 5), 5 + std::int64_t(random() % 10), 0, 3, 0, 0, 2});
        }
    }
    SpanIndex index;
    index.append(batchOf(kTexts, spans));
    for (const auto& [from, to] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 50'000}, {37, 4'999}, {12'345, 12'399}, {95, 99}}) {
        std::int64_t outermost = 0, sum = 0;
        for (const SpanRow& span : spans)
            if (span.depth == 0)
                outermost += std::max<std::int64_t>(0, std::min(span.startNs + span.durationNs, to) -
                                                           std::max(span.startNs, from));
        for (const SelfTime& row : selfTimes(index, from, to, SelfTimeBy::Name)) sum += row.selfNs;
        EXPECT_EQ(sum, outermost) << from << ".." << to;
    }
}

TEST(SelfTime, IsTheSameInPiecesWhileTheIndexGrows) {
    auto spans = randomSpans(4'000, 31);
    auto nested = randomSpans(4'000, 32, 1);
    spans.insert(spans.end(), nested.begin(), nested.end());
    SpanIndex index;
    index.append(batchOf(kTexts, spans));
    const std::int64_t from = 1'234, to = index.endNs() - 4'321;
    for (const std::size_t piece : {std::size_t(1), std::size_t(7), std::size_t(3'000)}) {
        const auto wanted = selfTimes(index, from, to, SelfTimeBy::Name);
        SelfTimeSum sum(index, from, to, SelfTimeBy::Name);
        std::size_t advances = 0;
        while (!sum.advance(piece))
            if (++advances == 1) // more of the run arrives, behind the range
                index.append(batchOf({"gpu", "new"}, {{index.endNs() + 10, 5, 0, 1, 0, 0, 0}}));
        EXPECT_GE(advances, sum.spans() / piece - 1);
        EXPECT_EQ(sum.looked(), sum.spans());
        const auto rows = sum.rows();
        ASSERT_EQ(rows.size(), wanted.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            EXPECT_EQ(rows[i].name, wanted[i].name);
            EXPECT_EQ(rows[i].spans, wanted[i].spans);
            EXPECT_EQ(rows[i].selfNs, wanted[i].selfNs);
            EXPECT_EQ(rows[i].totalNs, wanted[i].totalNs);
        }
    }
}

TEST(SelfTime, GroupsKernelsByTheStageTheyServe) {
    SpanIndex index;
    SpanBatch batch = batchOf({"stream 7", "ffn: a", "ffn: b", "memset: c"},
                              {{0, 10, 0, 1, 0, 0, 0}, {10, 5, 0, 2, 0, 0, 0}, {15, 2, 0, 3, 0, 0, 0}});
    batch.fields = {{1, {"ffn", -1}}, {2, {"ffn", -1}}};
    index.append(batch);
    const auto rows = selfTimes(index, 0, 100, SelfTimeBy::Component);
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].name, "ffn");
    EXPECT_EQ(rows[0].selfNs, 15);
    EXPECT_EQ(rows[1].name, "memset: c") << "a name is nothing to take apart";
}

TEST(SpanSearch, VisitsEveryHitOnceForwardsAndBackwards) {
    SpanIndex index;
    auto spans = randomSpans(500, 12);
    auto nested = randomSpans(500, 13, 1);
    for (SpanRow& span : nested) span.startNs += 3;
    spans.insert(spans.end(), nested.begin(), nested.end());
    spans.push_back({spans[100].startNs, 1, 0, 2, 0, 0, 2}); // the same start in two lanes
    spans[100].name = 2;
    index.append(batchOf(kTexts, spans));
    const auto matches = namesMatching(index, " B");
    EXPECT_THAT(matches, testing::ElementsAreArray([&] {
                    std::vector<bool> wanted;
                    for (const std::string& name : index.names()) wanted.push_back(name == "b");
                    return wanted;
                }()));
    const auto expected =
        std::size_t(std::count_if(spans.begin(), spans.end(), [](const SpanRow& s) { return s.name == 2; }));
    EXPECT_EQ(matchCount(index, matches), expected);
    std::vector<SpanRef> forwards, backwards;
    for (auto at = nextMatch(index, matches, std::nullopt, index.firstNs()); at; at = nextMatch(index, matches, at, 0))
        forwards.push_back(*at);
    for (auto at = previousMatch(index, matches, std::nullopt, index.endNs() + 1); at;
         at = previousMatch(index, matches, at, 0))
        backwards.push_back(*at);
    EXPECT_EQ(forwards.size(), expected);
    std::reverse(backwards.begin(), backwards.end());
    EXPECT_EQ(forwards, backwards);
    for (std::size_t i = 1; i < forwards.size(); ++i)
        EXPECT_LE(index.at(forwards[i - 1]).startNs, index.at(forwards[i]).startNs);
}

TEST(SpanSearch, FindsARareNameAmongManyOthers) {
    // 700 names, so that several share the bits by which whole stretches are stepped over.
    std::vector<std::string> texts{"gpu"};
    for (int i = 0; i < 700; ++i) texts.push_back("name " + std::to_string(i) + '.');
    std::vector<SpanRow> spans;
    for (int i = 0; i < 60'000; ++i) {
        const bool rare = i == 11 || i == 1'023 || i == 1'024 || i == 47'000 || i == 59'999;
        spans.push_back({i * 10, 5, 0, rare ? 700 : 1 + i / 100 % 699, 0, 0, 0});
    }
    SpanIndex index;
    index.append(batchOf(texts, spans));
    const auto matches = namesMatching(index, "699.");
    std::vector<std::uint32_t> forwards, backwards;
    for (auto at = nextMatch(index, matches, std::nullopt, 0); at; at = nextMatch(index, matches, at, 0)) {
        forwards.push_back(at->index);
        EXPECT_EQ(matchNumber(index, matches, *at), forwards.size());
    }
    for (auto at = previousMatch(index, matches, std::nullopt, 1 << 30); at; at = previousMatch(index, matches, at, 0))
        backwards.insert(backwards.begin(), at->index);
    EXPECT_THAT(forwards, testing::ElementsAre(11, 1'023, 1'024, 47'000, 59'999));
    EXPECT_EQ(backwards, forwards);
}

TEST(SpanSearch, LooksAtNewNamesOnly) {
    SpanIndex index;
    index.append(batchOf({"gpu", "gather"}, {{0, 1, 0, 1, 0, 0, 0}}));
    auto matches = namesMatching(index, "gather");
    index.append(batchOf({"gpu", "ffn", "gather late"}, {{1, 1, 0, 1, 0, 0, 0}, {2, 1, 0, 2, 0, 0, 0}}));
    std::vector<std::string> asked;
    const auto also = [&](std::string_view name) { return asked.emplace_back(name), std::string(); };
    matchNewNames(index, "gather", also, matches);
    EXPECT_EQ(matches, namesMatching(index, "gather"));
    EXPECT_THAT(asked, testing::ElementsAre("ffn", "gather late"));
}

TEST(SpanSearch, WantsEveryWordInAnyCase) {
    SpanIndex index;
    index.append(batchOf({"stream 7", "offloading: gatherKernel", "ffn: gather"},
                         {{0, 1, 0, 1, 0, 0, 0}, {1, 1, 0, 2, 0, 0, 0}}));
    EXPECT_EQ(matchCount(index, namesMatching(index, "GATHER")), 2u);
    EXPECT_EQ(matchCount(index, namesMatching(index, "kernel off")), 1u);
    EXPECT_TRUE(namesMatching(index, "  ").empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

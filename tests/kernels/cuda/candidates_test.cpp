// What chosen tokens make of the blocks they were chosen in, against brute force in float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/candidates.h"

#include <algorithm>
#include <set>

namespace kvscope::cuda {
namespace {

using namespace test;

/// Random candidates, choices and filters: the record, and what is left for the next step.
TEST_F(CudaTest, CandidatesSettleAsBruteForceSays) {
    const int kvHeads = 3, rows = 3, heads = rows * kvHeads, group = 2, dim = 64, maxBlocks = 70, capacity = 21,
              mostChosen = 40, maxWords = (maxBlocks + 31) / 32;
    for (int round = 0; round < 8; ++round) {
        SCOPED_TRACE(round);
        const int bs = round < 4 ? 16 : 32;
        const AttentionShape shape{kvHeads * group, kvHeads, dim, bs};
        const bool lags = round % 4 != 3, predicts = round % 2 == 0;
        std::vector<std::int32_t> position{uniform(20 * bs, 60 * bs), uniform(20, 60) * bs + bs - 1,
                                           uniform(20, 60) * bs};
        const std::vector<std::uint8_t> active{std::uint8_t(round % 3 == 2 ? 0 : 1), 1, 1};
        std::vector<PackedBlock> candidates(std::size_t(heads * capacity), PackedBlock::ofWord(7)),
            next(candidates.size(), PackedBlock::ofWord(9));
        std::vector<std::int32_t> count, nextCount;
        std::vector<std::uint16_t> chosen(candidates.size() * (bs / 16), 0xffff); // beyond the list: whatever was there
        std::vector<SelectionHead> ahead, nextHead;
        std::vector<std::uint32_t> previous(std::size_t(heads * maxWords));
        for (std::uint32_t& word : previous) word = std::uint32_t(random());
        std::vector<std::uint8_t> hasPrevious;
        for (int head = 0; head < heads; ++head) {
            const int last = position[std::size_t(head / kvHeads)] / bs;
            const bool begins = position[std::size_t(head / kvHeads)] % bs == 0;
            const auto mine = randomBlocks(uniform(2, capacity), last, random),
                       after = randomBlocks(uniform(2, capacity - 1), last, random);
            for (std::size_t i = 0; i < mine.size(); ++i)
                candidates[std::size_t(head * capacity) + i] =
                    PackedBlock(mine[i], Origin::QueryAware, (begins && i + 1 == mine.size()) || random() % 3 != 0);
            for (std::size_t i = 0; i < after.size(); ++i)
                next[std::size_t(head * capacity) + i] = PackedBlock(after[i], Origin::Window, random() % 2 != 0);
            count.push_back(std::int32_t(mine.size()));
            nextCount.push_back(std::int32_t(after.size()));
            const int tokens = (int(mine.size()) - 1) * bs + position[std::size_t(head / kvHeads)] % bs + 1;
            std::fill_n(chosen.begin() + head * capacity * (bs / 16), mine.size() * (bs / 16), std::uint16_t(0));
            for (int i = uniform(1, std::min(tokens, mostChosen)); i > 0; --i) {
                const int place = uniform(0, tokens - 1);
                chosen[std::size_t(head * capacity * (bs / 16) + place / 16)] |= std::uint16_t(1u << place % 16);
            }
            const int predicted = predicts ? int(mine.size()) - (begins ? 1 : 0) : -1;
            ahead.push_back({predicted, -1, 0, 0, 3});
            nextHead.push_back({std::int32_t(after.size()), -1, 1, 2, 0});
            hasPrevious.push_back(std::uint8_t(random() % 4 != 0));
        }
        const auto q = halves(std::size_t(rows * kvHeads * group * dim));
        const auto ranges = halves(std::size_t(heads * maxBlocks * 2 * dim));
        std::vector<std::int64_t> blockFirst;
        for (int head = 0; head < heads; ++head) blockFirst.push_back(std::int64_t(head) * maxBlocks);
        const OnDevice<std::int32_t> dposition(position), dcount(count), dnextCount(nextCount);
        const OnDevice<std::uint16_t> dchosen(chosen);
        const OnDevice<std::uint8_t> dactive(active), dhas(hasPrevious);
        const OnDevice<PackedBlock> dcandidates(candidates), dnext(next);
        const OnDevice<PackedBlock> outBlocks(candidates.size());
        const OnDevice<std::uint32_t> dprevious(previous), counts(std::vector<std::uint32_t>{5, 6}),
            published(std::vector<std::uint32_t>{4, 0});
        const OnDevice<SelectionHead> dahead(ahead), dnextHead(nextHead), outHead(std::vector<SelectionHead>(9));
        const OnDevice<LagHead> lag(std::vector<LagHead>(9));
        const OnDevice<LagLayer> layer(std::vector<LagLayer>(1));
        const OnDevice<LagMarks> marks(std::vector<LagMarks>{{11, 12, 13, 14, 15}});
        const OnDevice<Half> dq(q), dranges(ranges);
        const OnDevice<std::int64_t> dblockFirst(blockFirst);
        const OnDevice<float> outScores(candidates.size());
        SettleArgs a;
        a.shape = shape;
        a.rows = rows;
        a.capacity = capacity;
        a.maxBlocks = maxBlocks;
        a.position = dposition.get();
        a.active = dactive.get();
        const OnDevice<std::int32_t> ids(candidates.size());
        a.candidates = {dcandidates.get(), ids.get(), dcount.get(), lags ? dahead.get() : nullptr};
        if (lags) {
            a.next = {dnext.get(), nullptr, dnextCount.get(), dnextHead.get()};
            a.counts = counts.get();
            a.published = published.get();
            a.lag = lag.get();
        }
        a.chosen = dchosen.get();
        a.q = dq.bf16();
        a.index.ranges = dranges.bf16();
        a.index.blockFirst = dblockFirst.get();
        a.previous = dprevious.get();
        a.hasPrevious = dhas.get();
        a.head = outHead.get();
        a.blocks = outBlocks.get();
        a.scores = outScores.get();
        a.layer = layer.get();
        a.marks = marks.get();
        settleCandidates(launch, a);
        check(cudaStreamSynchronize(launch.stream), "settling");

        const auto gotHead = outHead.read(), gotAhead = dahead.read();
        const auto gotLag = lag.read();
        const auto gotBlocks = outBlocks.read(), left = dcandidates.read();
        const auto gotPrevious = dprevious.read();
        const auto leftCount = dcount.read(), leftIds = ids.read();
        const auto gotScores = outScores.read();
        const LagLayer gotLayer = layer.read()[0];
        EXPECT_EQ(gotLayer.marks.listed, 11u);
        EXPECT_EQ(gotLayer.marks.end, 15u);
        EXPECT_EQ(gotLayer.loads, lags ? 4u : 0u);
        EXPECT_EQ(published.read()[0], lags ? 5u : 4u);
        EXPECT_EQ(counts.read()[0], lags ? 0u : 5u);
        for (int head = 0; head < heads; ++head) {
            SCOPED_TRACE(head);
            const int row = head / kvHeads;
            const auto first = std::size_t(head * capacity);
            if (active[std::size_t(row)] == 0) {
                EXPECT_EQ(gotHead[std::size_t(head)].selected, 0) << "an inactive row is left alone";
                EXPECT_EQ(leftCount[std::size_t(head)], count[std::size_t(head)]);
                continue;
            }
            std::set<int> used;
            for (int i = 0; i < count[std::size_t(head)]; ++i)
                for (int unit = 0; unit < bs / 16; ++unit)
                    if (chosen[std::size_t((head * capacity + i) * (bs / 16) + unit)] != 0) used.insert(i);
            const int predicted = lags && predicts ? ahead[std::size_t(head)].selected : 0;
            int hits = 0, kept = 0, usedAhead = 0, wasted = 0, stale = 0, at = 0;
            std::set<std::uint32_t> listed;
            std::vector<std::uint32_t> bits(std::size_t(maxWords), 0);
            for (int i = 0; i < count[std::size_t(head)]; ++i) {
                const PackedBlock entry = candidates[first + std::size_t(i)];
                const auto block = std::uint32_t(entry.id());
                listed.insert(block);
                if (used.count(i) == 0) {
                    wasted += i < predicted && !entry.hit() ? 1 : 0;
                    continue;
                }
                hits += entry.hit() ? 1 : 0;
                usedAhead += i < predicted ? 1 : 0;
                bits[block / 32] |= 1u << block % 32;
                kept += int(previous[std::size_t(head * maxWords) + block / 32] >> block % 32 & 1u);
                EXPECT_EQ(gotBlocks[first + std::size_t(at)], PackedBlock(entry.id(), Origin::TokenLevel, entry.hit()));
                double score = 0, size = 0;
                for (int h = 0; h < group; ++h)
                    for (int ch = 0; ch < dim; ++ch) {
                        const double x = double(toFloat(q[std::size_t((head * group + h) * dim + ch)]));
                        const std::size_t range = (std::size_t(head * maxBlocks) + block) * 2 * dim + std::size_t(ch);
                        score += std::max(x * double(toFloat(ranges[range])),
                                          x * double(toFloat(ranges[range + std::size_t(dim)])));
                        size += std::abs(x) * 4;
                    }
                EXPECT_NEAR(gotScores[first + std::size_t(at)], score, 1e-6 * size);
                ++at;
            }
            const SelectionHead& h = gotHead[std::size_t(head)];
            EXPECT_EQ(h.selected, at);
            EXPECT_EQ(h.hits, hits);
            EXPECT_EQ(h.misses, at - hits);
            EXPECT_EQ(h.kept, hasPrevious[std::size_t(head)] != 0 ? kept : -1);
            for (int w = 0; w < maxWords; ++w)
                EXPECT_EQ(gotPrevious[std::size_t(head * maxWords + w)], bits[std::size_t(w)]);
            if (!lags) continue;
            for (int i = 0; i < nextCount[std::size_t(head)]; ++i)
                stale += listed.count(std::uint32_t(next[first + std::size_t(i)].id())) == 0 ? 1 : 0;
            const LagHead& l = gotLag[std::size_t(head)];
            EXPECT_EQ(l.predicted, ahead[std::size_t(head)].selected);
            EXPECT_EQ(l.used, predicts ? usedAhead : 0);
            EXPECT_EQ(l.wasted, predicts ? wasted : 0);
            EXPECT_EQ(l.late, predicts ? 3 : 0);
            EXPECT_EQ(l.stale, stale);
            const bool begins = (position[std::size_t(row)] + 1) % bs == 0;
            ASSERT_EQ(leftCount[std::size_t(head)], nextCount[std::size_t(head)] + (begins ? 1 : 0));
            for (int i = 0; i < nextCount[std::size_t(head)]; ++i)
                EXPECT_EQ(left[first + std::size_t(i)], next[first + std::size_t(i)]);
            for (int i = 0; i < leftCount[std::size_t(head)]; ++i)
                EXPECT_EQ(leftIds[first + std::size_t(i)], left[first + std::size_t(i)].id());
            if (begins) {
                EXPECT_EQ(left[first + std::size_t(nextCount[std::size_t(head)])],
                          PackedBlock((position[std::size_t(row)] + 1) / bs, Origin::Window, true));
            }
            EXPECT_EQ(gotAhead[std::size_t(head)].selected, nextHead[std::size_t(head)].selected);
            EXPECT_EQ(gotAhead[std::size_t(head)].late, 0u);
        }
    }
}

TEST_F(CudaTest, AttendedShareAgreesWithFloat64) {
    const int kvHeads = 2, group = 5, rows = 2, maxBlocks = 300, bs = 64;
    const std::vector<std::int32_t> position{40, 299 * bs + 3};
    const auto blocks = floats(std::size_t(rows * kvHeads * group * maxBlocks), 4);
    for (const int window : {0, 1000}) {
        std::vector<float> attended;
        std::vector<double> want(std::size_t(rows * kvHeads), 0.0);
        for (int head = 0; head < rows * kvHeads * group; ++head) {
            const int at = position[std::size_t(head / (kvHeads * group))];
            double all = 0;
            for (int b = window > 0 ? std::max(0, at + 1 - window) / bs : 0; b <= at / bs; ++b)
                all += std::exp(double(blocks[std::size_t(head * maxBlocks + b)]));
            attended.push_back(float(std::log(all * (0.1 + 0.08 * (head % 10)))));
            want[std::size_t(head / group)] += (0.1 + 0.08 * (head % 10)) / group;
        }
        const OnDevice<float> dblocks(blocks), dattended(attended), share(want.size());
        const OnDevice<std::int32_t> dposition(position);
        AttendedShareArgs args;
        args.shape = {kvHeads * group, kvHeads, 64, bs};
        args.rows = rows;
        args.maxBlocks = maxBlocks;
        args.window = window;
        args.position = dposition.get();
        args.attended = dattended.get();
        args.blocks = dblocks.get();
        args.share = share.get();
        attendedShare(launch, args);
        check(cudaStreamSynchronize(launch.stream), "measuring");
        const auto got = share.read();
        for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * 20); // logs of float32
    }
}

} // namespace
} // namespace kvscope::cuda

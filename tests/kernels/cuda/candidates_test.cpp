// What chosen tokens make of the blocks they were chosen in, against brute force in float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/candidates.h"

#include <algorithm>
#include <set>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

/// Settles random candidates with random choices among their tokens, and keeps what was there before and after. The
/// parameter is a case: rounds 0 to 3 have blocks of 16 tokens, the others of 32; of four rounds one does not lag and
/// two predict.
class CudaCandidates : public CudaTest, public ::testing::WithParamInterface<int> {
protected:
    static constexpr int kKvHeads = 3, kRows = 3, kHeads = kRows * kKvHeads, kGroup = 2, kDim = 64;
    static constexpr int kMaxBlocks = 70, kCapacity = 21, kMostChosen = 40, kMaxWords = (kMaxBlocks + 31) / 32;

    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        draw();
        settle();
    }

    int round() const { return GetParam(); }
    int blockSize() const { return round() < 4 ? 16 : 32; }
    int units() const { return blockSize() / 16; } // of 16 places in a block
    bool lags() const { return round() % 4 != 3; }
    bool predicts() const { return round() % 2 == 0; }
    int positionOf(int head) const { return position_[std::size_t(head / kKvHeads)]; }
    bool isActive(int head) const { return active_[std::size_t(head / kKvHeads)] != 0; }
    int countOf(int head) const { return count_[std::size_t(head)]; }
    std::size_t first(int head) const { return std::size_t(head) * kCapacity; }
    const PackedBlock& candidate(int head, int i) const { return candidates_[first(head) + std::size_t(i)]; }
    /// Whether a token of the candidate was chosen.
    bool isUsed(int head, int i) const {
        const auto from = chosen_.begin() + (head * kCapacity + i) * units();
        return std::any_of(from, from + units(), [](std::uint16_t places) { return places != 0; });
    }
    /// How many candidates the step before predicted; a block that begins with this token comes behind them.
    int predictedOf(int head) const { return lags() && predicts() ? ahead_[std::size_t(head)].selected : 0; }
    /// Calls what(head) for every KV head of the active rows.
    template <class What> void eachHead(What&& what) const {
        for (int head = 0; head < kHeads; ++head) {
            SCOPED_TRACE(head);
            if (isActive(head)) what(head);
        }
    }

    std::vector<std::int32_t> position_, count_, nextCount_;
    std::vector<std::uint8_t> active_, hasPrevious_;
    std::vector<PackedBlock> candidates_, next_; // [heads, capacity]: of this step, and what it chose for the next
    std::vector<std::uint16_t> chosen_;          // [heads, capacity, units] a bit for each place
    std::vector<SelectionHead> ahead_, nextHead_;
    std::vector<std::uint32_t> previous_; // [heads, words]
    std::vector<Half> q_, ranges_;
    struct Settled {
        std::vector<SelectionHead> head, ahead;
        std::vector<LagHead> lag;
        std::vector<PackedBlock> blocks, candidates;
        std::vector<float> scores;
        std::vector<std::uint32_t> previous, counts, published;
        std::vector<std::int32_t> count, ids;
        LagLayer layer;
    } after_;

private:
    void draw();
    void drawHead(int head);
    void settle();
};

void CudaCandidates::draw() {
    const int bs = blockSize();
    position_ = {uniform(20 * bs, 60 * bs), uniform(20, 60) * bs + bs - 1, uniform(20, 60) * bs};
    active_ = {std::uint8_t(round() % 3 == 2 ? 0 : 1), 1, 1};
    candidates_.assign(std::size_t(kHeads * kCapacity), PackedBlock::ofWord(7));
    next_.assign(candidates_.size(), PackedBlock::ofWord(9));
    chosen_.assign(candidates_.size() * std::size_t(units()), 0xffff); // beyond the list: whatever was there
    previous_.resize(std::size_t(kHeads * kMaxWords));
    for (std::uint32_t& word : previous_) word = std::uint32_t(random());
    for (int head = 0; head < kHeads; ++head) drawHead(head);
    q_ = halves(std::size_t(kRows * kKvHeads * kGroup * kDim));
    ranges_ = halves(std::size_t(kHeads * kMaxBlocks * 2 * kDim));
}

void CudaCandidates::drawHead(int head) {
    const int bs = blockSize(), last = positionOf(head) / bs;
    const bool begins = positionOf(head) % bs == 0;
    const auto mine = randomBlocks(uniform(2, kCapacity), last, random),
               after = randomBlocks(uniform(2, kCapacity - 1), last, random);
    for (std::size_t i = 0; i < mine.size(); ++i)
        candidates_[first(head) + i] =
            PackedBlock(mine[i], Origin::QueryAware, (begins && i + 1 == mine.size()) || random() % 3 != 0);
    for (std::size_t i = 0; i < after.size(); ++i)
        next_[first(head) + i] = PackedBlock(after[i], Origin::Window, random() % 2 != 0);
    count_.push_back(std::int32_t(mine.size()));
    nextCount_.push_back(std::int32_t(after.size()));
    const int tokens = (int(mine.size()) - 1) * bs + positionOf(head) % bs + 1;
    std::fill_n(chosen_.begin() + head * kCapacity * units(), int(mine.size()) * units(), std::uint16_t(0));
    for (int i = uniform(1, std::min(tokens, kMostChosen)); i > 0; --i) {
        const int place = uniform(0, tokens - 1);
        chosen_[std::size_t(head * kCapacity * units() + place / 16)] |= std::uint16_t(1u << place % 16);
    }
    const int predicted = predicts() ? int(mine.size()) - (begins ? 1 : 0) : -1;
    ahead_.push_back({predicted, -1, 0, 0, 3});
    nextHead_.push_back({std::int32_t(after.size()), -1, 1, 2, 0});
    hasPrevious_.push_back(std::uint8_t(random() % 4 != 0));
}

void CudaCandidates::settle() {
    std::vector<std::int64_t> firstOfBlocks;
    for (int head = 0; head < kHeads; ++head) firstOfBlocks.push_back(std::int64_t(head) * kMaxBlocks);
    const OnDevice<std::int32_t> position(position_), count(count_), nextCount(nextCount_), ids(candidates_.size());
    const OnDevice<std::uint16_t> chosen(chosen_);
    const OnDevice<std::uint8_t> active(active_), hasPrevious(hasPrevious_);
    const OnDevice<PackedBlock> candidates(candidates_), next(next_), blocks(candidates_.size());
    const OnDevice<std::uint32_t> previous(previous_), counts(std::vector<std::uint32_t>{5, 6}),
        published(std::vector<std::uint32_t>{4, 0});
    const OnDevice<SelectionHead> ahead(ahead_), nextHead(nextHead_), outHead{std::vector<SelectionHead>(kHeads)};
    const OnDevice<LagHead> lag{std::vector<LagHead>(kHeads)};
    const OnDevice<LagLayer> layer(std::vector<LagLayer>(1));
    const OnDevice<LagMarks> marks(std::vector<LagMarks>{{11, 12, 13, 14, 15}});
    const OnDevice<Half> q(q_), ranges(ranges_);
    const OnDevice<std::int64_t> blockFirst(firstOfBlocks);
    const OnDevice<float> scores(candidates_.size());
    SettleArgs a;
    a.shape = {kKvHeads * kGroup, kKvHeads, kDim, blockSize()};
    a.rows = kRows;
    a.capacity = kCapacity;
    a.maxBlocks = kMaxBlocks;
    a.position = position.get();
    a.active = active.get();
    a.candidates = {candidates.get(), ids.get(), count.get(), lags() ? ahead.get() : nullptr};
    if (lags()) {
        a.next = {next.get(), nullptr, nextCount.get(), nextHead.get()};
        a.counts = counts.get();
        a.published = published.get();
        a.lag = lag.get();
    }
    a.chosen = chosen.get();
    a.q = q.bf16();
    a.index.ranges = ranges.bf16();
    a.index.blockFirst = blockFirst.get();
    a.previous = previous.get();
    a.hasPrevious = hasPrevious.get();
    a.head = outHead.get();
    a.blocks = blocks.get();
    a.scores = scores.get();
    a.layer = layer.get();
    a.marks = marks.get();
    settleCandidates(launch, a);
    check(cudaStreamSynchronize(launch.stream), "settling");
    after_ = {outHead.read(),  ahead.read(),  lag.read(),       blocks.read(), candidates.read(), scores.read(),
              previous.read(), counts.read(), published.read(), count.read(),  ids.read(),        layer.read()[0]};
}

TEST_P(CudaCandidates, ThatHaveChosenTokensAreReported) {
    for (int head = 0; head < kHeads; ++head)
        if (!isActive(head)) {
            EXPECT_EQ(after_.head[std::size_t(head)].selected, 0) << "an inactive row is left alone";
        }
    eachHead([&](int head) {
        int hits = 0, kept = 0, at = 0;
        std::vector<std::uint32_t> bits(std::size_t(kMaxWords), 0);
        for (int i = 0; i < countOf(head); ++i) {
            if (!isUsed(head, i)) continue;
            const PackedBlock entry = candidate(head, i);
            const auto block = std::uint32_t(entry.id());
            hits += entry.hit() ? 1 : 0;
            bits[block / 32] |= 1u << block % 32;
            kept += int(previous_[std::size_t(head * kMaxWords) + block / 32] >> block % 32 & 1u);
            EXPECT_EQ(after_.blocks[first(head) + std::size_t(at++)],
                      PackedBlock(entry.id(), Origin::TokenLevel, entry.hit()));
        }
        const SelectionHead& h = after_.head[std::size_t(head)];
        EXPECT_EQ(h.selected, at);
        EXPECT_EQ(h.hits, hits);
        EXPECT_EQ(h.misses, at - hits);
        EXPECT_EQ(h.kept, hasPrevious_[std::size_t(head)] != 0 ? kept : -1);
        for (int w = 0; w < kMaxWords; ++w)
            EXPECT_EQ(after_.previous[std::size_t(head * kMaxWords + w)], bits[std::size_t(w)]);
    });
}

/// Scores are Quest's bounds in float64.
TEST_P(CudaCandidates, AreReportedWithTheirScores) {
    eachHead([&](int head) {
        int at = 0;
        for (int i = 0; i < countOf(head); ++i) {
            if (!isUsed(head, i)) continue;
            double score = 0, size = 0;
            const std::size_t range =
                (std::size_t(head * kMaxBlocks) + std::size_t(candidate(head, i).id())) * 2 * kDim;
            for (int h = 0; h < kGroup; ++h)
                for (int ch = 0; ch < kDim; ++ch) {
                    const double x = double(toFloat(q_[std::size_t((head * kGroup + h) * kDim + ch)]));
                    score += std::max(x * double(toFloat(ranges_[range + std::size_t(ch)])),
                                      x * double(toFloat(ranges_[range + std::size_t(kDim + ch)])));
                    size += std::abs(x) * 4;
                }
            EXPECT_NEAR(after_.scores[first(head) + std::size_t(at++)], score, 1e-6 * size);
        }
    });
}

TEST_P(CudaCandidates, TellHowThePredictionFared) {
    EXPECT_EQ(after_.layer.marks.listed, 11u);
    EXPECT_EQ(after_.layer.marks.end, 15u);
    EXPECT_EQ(after_.layer.loads, lags() ? 4u : 0u);
    EXPECT_EQ(after_.published[0], lags() ? 5u : 4u);
    EXPECT_EQ(after_.counts[0], lags() ? 0u : 5u);
    if (!lags()) return;
    eachHead([&](int head) {
        int used = 0, wasted = 0, stale = 0;
        std::set<int> listed;
        for (int i = 0; i < countOf(head); ++i) {
            listed.insert(candidate(head, i).id());
            const bool predicted = i < predictedOf(head);
            used += isUsed(head, i) && predicted ? 1 : 0;
            wasted += !isUsed(head, i) && predicted && !candidate(head, i).hit() ? 1 : 0;
        }
        for (int i = 0; i < nextCount_[std::size_t(head)]; ++i)
            stale += listed.count(next_[first(head) + std::size_t(i)].id()) == 0 ? 1 : 0;
        const LagHead& l = after_.lag[std::size_t(head)];
        EXPECT_EQ(l.predicted, ahead_[std::size_t(head)].selected);
        EXPECT_EQ(l.used, predicts() ? used : 0);
        EXPECT_EQ(l.wasted, predicts() ? wasted : 0);
        EXPECT_EQ(l.late, predicts() ? 3 : 0);
        EXPECT_EQ(l.stale, stale);
    });
}

TEST_P(CudaCandidates, OfTheNextStepAreThoseThatThisStepChose) {
    for (int head = 0; head < kHeads; ++head)
        if (!isActive(head)) {
            EXPECT_EQ(after_.count[std::size_t(head)], countOf(head)) << "an inactive row is left alone";
        }
    if (!lags()) return;
    eachHead([&](int head) {
        const int chosen = nextCount_[std::size_t(head)], last = positionOf(head);
        const bool begins = (last + 1) % blockSize() == 0;
        ASSERT_EQ(after_.count[std::size_t(head)], chosen + (begins ? 1 : 0));
        for (int i = 0; i < chosen; ++i)
            EXPECT_EQ(after_.candidates[first(head) + std::size_t(i)], next_[first(head) + std::size_t(i)]);
        for (int i = 0; i < after_.count[std::size_t(head)]; ++i)
            EXPECT_EQ(after_.ids[first(head) + std::size_t(i)], after_.candidates[first(head) + std::size_t(i)].id());
        if (begins) {
            EXPECT_EQ(after_.candidates[first(head) + std::size_t(chosen)],
                      PackedBlock((last + 1) / blockSize(), Origin::Window, true));
        }
        EXPECT_EQ(after_.ahead[std::size_t(head)].selected, nextHead_[std::size_t(head)].selected);
        EXPECT_EQ(after_.ahead[std::size_t(head)].late, 0u);
    });
}

INSTANTIATE_TEST_SUITE_P(Rounds, CudaCandidates, ::testing::Range(0, 8));

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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda

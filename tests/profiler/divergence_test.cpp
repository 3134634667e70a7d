// Two runs laid over each other: alignment, differences, overlap and the first difference, against brute force over the
// recorded steps.
#include "profiler/compare/alignment.h"
#include "profiler/compare/difference.h"
#include "profiler/compare/divergence.h"
#include "profiler/compare/overlap.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Records the shape's steps, each after `change` has been called on it.
void recordChanged(const std::filesystem::path& path, const RunShape& shape,
                   const std::function<void(StepRecord&)>& change, RecordLevel level = RecordLevel::Full) {
    RecorderOptions options;
    options.level = level;
    Recorder recorder(path.string(), options);
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    for (int step = 0; step < generator.steps(); ++step) {
        auto next = recorder.acquire();
        generator.fillNext(*next, level);
        change(*next);
        recorder.take(std::move(next));
    }
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
}

class TwoRuns : public ::testing::Test {
protected:
    TraceReader open(const char* name) const { return TraceReader((folder / name).string()); }
    Alignment aligned(const RunShape& a, const RunShape& b, AlignBy by = AlignBy::Step) {
        for (const char* name : {"a.kvtrace", "b.kvtrace"}) // a second run would not be the first of its file
            for (const char* suffix : {"", "-wal", "-shm"})
                std::filesystem::remove(folder / (std::string(name) + suffix));
        synthetic::recordFile(folder / "a.kvtrace", a);
        synthetic::recordFile(folder / "b.kvtrace", b);
        return align(loadStepIndex(open("a.kvtrace"), 1), loadStepIndex(open("b.kvtrace"), 1), by);
    }
    test::Folder folder;
};

TEST_F(TwoRuns, AlignByStepUpToTheShorterRun) {
    const Alignment alignment = aligned({.decodeSteps = 12}, {.decodeSteps = 9, .seed = 2});
    ASSERT_EQ(alignment.refusal, "");
    ASSERT_EQ(alignment.pairs.size(), 9u);
    EXPECT_EQ(alignment.onlyA, 3);
    EXPECT_EQ(alignment.onlyB, 0);
    EXPECT_EQ(alignment.pairs.front(), (StepPair{1, 1, 1, false})) << "the first decode step is not steady";
    EXPECT_EQ(alignment.pairs.back().a, 9);
    EXPECT_EQ(alignment.pairs.back().b, 9);
    // The prompt has 200 tokens in blocks of 16: step 9 feeds position 208 and opens a block.
    EXPECT_FALSE(alignment.pairs[8].steady);
    EXPECT_TRUE(alignment.pairs[7].steady);
    EXPECT_THAT(alignment.notes, ElementsAre(HasSubstr("3 of A's decode steps")));
}

TEST_F(TwoRuns, AlignByTokenWhereTheContextIsEquallyLong) {
    const Alignment alignment =
        aligned({.promptTokens = 200, .decodeSteps = 20}, {.promptTokens = 205, .decodeSteps = 20}, AlignBy::Token);
    ASSERT_EQ(alignment.refusal, "");
    ASSERT_EQ(alignment.pairs.size(), 15u);
    for (const StepPair& pair : alignment.pairs) EXPECT_EQ(pair.a, pair.b + 5);
    EXPECT_EQ(alignment.pairs.front().at, 206) << "B's first decode step gives the token at 206";
}

TEST_F(TwoRuns, RefuseWithASentence) {
    EXPECT_THAT(aligned({.layers = 4}, {.layers = 6}).refusal, HasSubstr("A has 4 layers and B 6"));
    EXPECT_THAT(
        aligned({.promptTokens = 100, .decodeSteps = 5}, {.promptTokens = 400, .decodeSteps = 5}, AlignBy::Token)
            .refusal,
        HasSubstr("none is common; align by step"));
    EXPECT_THAT(aligned({}, {.decodeSteps = 0}).refusal, HasSubstr("B has no decode step"));
    const Alignment blocks = aligned({.blockSize = 16}, {.blockSize = 32});
    EXPECT_EQ(blocks.refusal, "");
    EXPECT_THAT(blocks.notes, ElementsAre(HasSubstr("blocks are 16 tokens in A and 32 in B")));
    RunRow counters, heads, two;
    counters.level = RecordLevel::Counters;
    heads.kvHeads = 8;
    two.kvHeads = 2;
    EXPECT_THAT(overlapRefusal(heads, counters), HasSubstr("B was recorded at level counters"));
    EXPECT_THAT(overlapRefusal(heads, two), HasSubstr("A has 8 KV heads a layer and B 2"));
}

TEST_F(TwoRuns, SayWhichOfThemSelectsNothing) {
    const RunShape sparse{.layers = 3, .decodeSteps = 8};
    RunShape full = sparse, upper = sparse;
    full.denseLayers = 3;
    upper.denseLayers = 2;
    synthetic::recordFile(folder / "sparse.kvtrace", sparse);
    synthetic::recordFile(folder / "full.kvtrace", full);
    synthetic::recordFile(folder / "upper.kvtrace", upper);
    const auto coverage = [&](const char* nameA, const char* nameB, int sequence = -1) {
        const TraceReader a = open(nameA), b = open(nameB);
        const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
        const OverlapRows rows = readOverlap(a, 1, b, 1, alignment.pairs, {}, sequence);
        EXPECT_EQ(rows.coverage.compared > 0, std::any_of(rows.jaccard.begin(), rows.jaccard.end(),
                                                          [](float value) { return !std::isnan(value); }));
        return rows.coverage;
    };
    EXPECT_EQ(coverageRefusal(coverage("sparse.kvtrace", "sparse.kvtrace")), "");
    EXPECT_EQ(coverageRefusal(coverage("sparse.kvtrace", "upper.kvtrace")), "") << "one layer is enough";
    EXPECT_EQ(coverage("sparse.kvtrace", "upper.kvtrace").compared, 8 * 2);
    EXPECT_THAT(coverageRefusal(coverage("sparse.kvtrace", "full.kvtrace"), "C"),
                HasSubstr("C has no selected blocks in these steps: full attention selects none"));
    EXPECT_THAT(coverageRefusal(coverage("full.kvtrace", "sparse.kvtrace"), "C"),
                HasSubstr("A has no selected blocks in these steps"));
    EXPECT_THAT(coverageRefusal(coverage("full.kvtrace", "full.kvtrace"), "C"),
                HasSubstr("neither A nor C has selected blocks"));
    EXPECT_THAT(coverageRefusal(coverage("sparse.kvtrace", "sparse.kvtrace", 3)), HasSubstr("neither A nor B"))
        << "there is no such sequence";
    EXPECT_THAT(coverageRefusal({true, true, 0}), HasSubstr("no KV head of a layer selects blocks in both A and B"));
}

TEST_F(TwoRuns, DifferOnlyWhereOneWasChanged) {
    const RunShape shape{.decodeSteps = 30};
    synthetic::recordFile(folder / "a.kvtrace", shape);
    recordChanged(folder / "b.kvtrace", shape, [](StepRecord& step) {
        if (step.step >= 10) step.layers[2].h2dBytes += 4096;
    });
    const TraceReader a = open("a.kvtrace"), b = open("b.kvtrace");
    const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
    const PairMatrix matrix = readPairs(a, 1, b, 1, Metric::H2dBytes, {}, alignment.pairs);
    ASSERT_EQ(matrix.pairs, 30);
    int steadyChanged = 0, steady = 0;
    for (int pair = 0; pair < 30; ++pair) {
        const StepPair& at = alignment.pairs[std::size_t(pair)];
        for (int layer = 0; layer < 4; ++layer)
            EXPECT_EQ(matrix.difference(pair, layer), layer == 2 && at.a >= 10 ? 4096 : 0);
        if (at.steady) ++steady, steadyChanged += at.a >= 10;
    }
    const auto deltas = layerDeltas(matrix, alignment.pairs);
    ASSERT_EQ(deltas.size(), 4u);
    EXPECT_EQ(deltas[1].delta.value, 0);
    EXPECT_EQ(deltas[1].delta.high, 0);
    EXPECT_EQ(deltas[2].pairs, steady);
    EXPECT_NEAR(deltas[2].delta.value, 4096. * steadyChanged / steady, 1e-9);
    EXPECT_LT(deltas[2].delta.low, deltas[2].delta.value);
    EXPECT_GT(deltas[2].delta.high, deltas[2].delta.value);
}

TEST_F(TwoRuns, DifferenceOfEveryMetricIsThatOfItsMatrices) {
    const Alignment alignment =
        aligned({.decodeSteps = 15, .oracle = true}, {.decodeSteps = 18, .oracle = true, .seed = 3});
    const TraceReader a = open("a.kvtrace"), b = open("b.kvtrace");
    for (const MetricInfo& info : metrics()) {
        const PairMatrix matrix = readPairs(a, 1, b, 1, info.metric, {}, alignment.pairs);
        const StepMatrix left = a.layerMatrix(1, info.metric), right = b.layerMatrix(1, info.metric);
        for (int pair = 0; pair < matrix.pairs; ++pair)
            for (int layer = 0; layer < 4; ++layer) {
                const float wanted = right.at(alignment.pairs[std::size_t(pair)].b, layer) -
                                     left.at(alignment.pairs[std::size_t(pair)].a, layer);
                if (std::isnan(wanted))
                    EXPECT_TRUE(std::isnan(matrix.difference(pair, layer)));
                else
                    EXPECT_FLOAT_EQ(matrix.difference(pair, layer), wanted) << info.id;
            }
    }
}

TEST(Jaccard, CountsBlocksAndWhereSizesDifferTokens) {
    const auto packed = [](const std::vector<std::int32_t>& ids) { return test::packed(ids); };
    const auto a = packed({0, 1, 5}), b = packed({1, 5, 9, 10}), none = packed({});
    EXPECT_DOUBLE_EQ(jaccard(a, 16, b, 16), 2. / 5);
    EXPECT_DOUBLE_EQ(jaccard(a, 16, a, 16), 1);
    EXPECT_DOUBLE_EQ(jaccard(a, 16, none, 16), 0);
    EXPECT_TRUE(std::isnan(jaccard(none, 16, none, 16)));
    // A: tokens 0-31 and 80-95. B in blocks of 32: 0-31 and 64-95. 48 in common of 64.
    EXPECT_DOUBLE_EQ(jaccard(a, 16, packed({0, 2}), 32), 48. / 64);
}

TEST_F(TwoRuns, OverlapIsThatOfTheSetsOfBlocks) {
    for (const int blockSizeB : {16, 32}) {
        const RunShape shapeA{.kvHeads = 3, .sequences = 2, .denseLayers = 1, .decodeSteps = 16},
            shapeB{
                .kvHeads = 3, .sequences = 2, .decodeSteps = 16, .blockSize = blockSizeB, .queryAware = 3, .seed = 7};
        const Alignment alignment = aligned(shapeA, shapeB);
        const TraceReader a = open("a.kvtrace"), b = open("b.kvtrace");
        const OverlapRows rows = readOverlap(a, 1, b, 1, alignment.pairs);
        // Brute force: sets of tokens.
        const auto stepsA = synthetic::stepsOf(shapeA), stepsB = synthetic::stepsOf(shapeB);
        const auto tokens = [](const StepRecord& step, const RunShape& shape) {
            std::map<std::tuple<int, int, int>, std::set<int>> sets;
            for (const SelectionRecord& s : step.selections)
                for (const PackedBlock block : step.blocksOf(s))
                    for (int t = 0; t < shape.blockSize; ++t)
                        sets[{s.layer, s.sequence, s.kvHead}].insert(block.id() * shape.blockSize + t);
            return sets;
        };
        std::optional<std::tuple<int, int, int, int>> firstDifference;
        for (std::size_t pair = 0; pair < alignment.pairs.size(); ++pair) {
            const auto setsA = tokens(stepsA[std::size_t(alignment.pairs[pair].a)], shapeA),
                       setsB = tokens(stepsB[std::size_t(alignment.pairs[pair].b)], shapeB);
            for (int layer = 0; layer < 4; ++layer) {
                double sum = 0;
                int count = 0;
                for (const auto& [place, setA] : setsA) {
                    if (std::get<0>(place) != layer || !setsB.contains(place)) continue;
                    const auto& setB = setsB.at(place);
                    std::set<int> both = setB;
                    both.insert(setA.begin(), setA.end());
                    const auto common = double(setA.size() + setB.size() - both.size());
                    sum += common / double(both.size());
                    ++count;
                    if (setA != setB && !firstDifference)
                        firstDifference = {alignment.pairs[pair].a, layer, std::get<1>(place), std::get<2>(place)};
                }
                const float found = rows.jaccard[pair * 4 + std::size_t(layer)];
                if (count == 0)
                    EXPECT_TRUE(std::isnan(found)) << "layer 0 is dense in A";
                else
                    EXPECT_NEAR(found, sum / count, 1e-6); // stored as float
            }
        }
        ASSERT_TRUE(rows.first && firstDifference);
        EXPECT_EQ(std::tuple(rows.first->pair.a, rows.first->layer, rows.first->sequence, rows.first->kvHead),
                  *firstDifference);
        const auto perLayer = overlapPerLayer(rows, alignment.pairs);
        EXPECT_TRUE(std::isnan(perLayer[0]));
        double sum = 0;
        int count = 0;
        for (std::size_t pair = 0; pair < alignment.pairs.size(); ++pair)
            if (alignment.pairs[pair].steady) sum += double(rows.jaccard[pair * 4 + 2]), ++count;
        EXPECT_NEAR(perLayer[2], sum / count, 1e-9);
        EXPECT_NEAR(overlapPerPair(rows)[4], double(rows.jaccard[17] + rows.jaccard[18] + rows.jaccard[19]) / 3, 1e-6);
    }
}

/// Makes another block of the last one that the selection has.
void changeLastBlock(StepRecord& step, const SelectionRecord& selection) {
    PackedBlock& last = step.blocks[selection.first + std::uint32_t(selection.selected) - 1];
    last = test::moved(last, 100);
}

TEST_F(TwoRuns, OverlapOfSomeHeadsLeavesTheOthersOut) {
    const RunShape shape{.kvHeads = 2, .decodeSteps = 8};
    synthetic::recordFile(folder / "a.kvtrace", shape);
    recordChanged(folder / "b.kvtrace", shape, [](StepRecord& step) {
        for (const SelectionRecord& s : step.selections)
            if (s.kvHead == 1 && s.layer == 1 && step.step >= 5) changeLastBlock(step, s);
    });
    const TraceReader a = open("a.kvtrace"), b = open("b.kvtrace");
    const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
    const OverlapRows all = readOverlap(a, 1, b, 1, alignment.pairs);
    ASSERT_TRUE(all.first);
    EXPECT_EQ(all.first->pair.a, 5);
    EXPECT_EQ(all.first->layer, 1);
    EXPECT_EQ(all.first->kvHead, 1);
    EXPECT_EQ(all.first->onlyA.size(), 1u);
    ASSERT_EQ(all.first->onlyB.size(), 1u);
    EXPECT_EQ(all.first->onlyB[0], all.first->onlyA[0] + 100);
    EXPECT_FALSE(readOverlap(a, 1, b, 1, alignment.pairs, {true, false}).first) << "head 0 selects the same";
}

TEST_F(TwoRuns, CompareOneSequenceOfABatchOrAllOfThem) {
    const RunShape shape{.sequences = 2, .decodeSteps = 12};
    synthetic::recordFile(folder / "a.kvtrace", shape);
    recordChanged(folder / "b.kvtrace", shape, [](StepRecord& step) {
        for (const SelectionRecord& s : step.selections)
            if (s.sequence == 1 && step.step >= 3) changeLastBlock(step, s);
    });
    const TraceReader a = open("a.kvtrace"), b = open("b.kvtrace");
    const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
    const OverlapRows all = readOverlap(a, 1, b, 1, alignment.pairs),
                      equal = readOverlap(a, 1, b, 1, alignment.pairs, {}, 0),
                      changed = readOverlap(a, 1, b, 1, alignment.pairs, {}, 1);
    EXPECT_FALSE(equal.first);
    ASSERT_TRUE(changed.first);
    EXPECT_EQ(changed.first->sequence, 1);
    EXPECT_EQ(changed.first->pair.a, 3);
    int compared = 0;
    for (std::size_t i = 0; i < all.jaccard.size(); ++i) {
        if (std::isnan(changed.jaccard[i])) continue; // the second sequence stops before the first
        EXPECT_FLOAT_EQ(equal.jaccard[i], 1);
        EXPECT_NEAR(all.jaccard[i], (equal.jaccard[i] + changed.jaccard[i]) / 2, 1e-6) << "as many heads in both";
        ++compared;
    }
    EXPECT_GT(compared, 0);
    const PairMatrix second = readPairs(a, 1, b, 1, Metric::Misses, {}, alignment.pairs, 1);
    const StepMatrix reference = a.layerMatrix(1, Metric::Misses, {1, -1});
    EXPECT_FLOAT_EQ(second.a[std::size_t(4 * second.layers + 2)], reference.at(alignment.pairs[4].a, 2));
}

TEST_F(TwoRuns, SayTheFirstTokenThatDiffersWithTheTextAroundIt) {
    const RunShape shape{.promptTokens = 40, .decodeSteps = 12};
    synthetic::recordFile(folder / "a.kvtrace", shape);
    recordChanged(folder / "b.kvtrace", shape, [](StepRecord& step) {
        if (step.step == 7) step.generated[0].id = 3, step.generated[0].bytes = " other";
    });
    const TraceReader a = open("a.kvtrace"), b = open("b.kvtrace");
    const TokenComparison tokens = compareTokens(a, 1, b, 1, 0, 5);
    // Step 0, the prefill, gives position 40; step 7 gives 47.
    ASSERT_TRUE(tokens.first);
    EXPECT_EQ(tokens.first->position, 47);
    EXPECT_EQ(tokens.common, 47);
    EXPECT_EQ(tokens.first->stepA, 7);
    EXPECT_EQ(tokens.first->stepB, 7);
    EXPECT_FALSE(tokens.first->inPrompt);
    EXPECT_THAT(tokens.first->afterB, ::testing::StartsWith(" other"));
    std::string before;
    for (const TokenRow& token : a.tokens(1, 0))
        if (token.position >= 42 && token.position < 47) before += token.bytes;
    EXPECT_EQ(tokens.first->before.size(), before.size()) << "five tokens, valid UTF-8 apart";
    EXPECT_FALSE(compareTokens(a, 1, a, 1, 0).first);
    EXPECT_EQ(compareTokens(a, 1, a, 1, 0).common, 53);
}

TEST_F(TwoRuns, OfDifferentPromptsPartInThePrompt) {
    aligned({.promptTokens = 40}, {.promptTokens = 38});
    const TokenComparison tokens = compareTokens(open("a.kvtrace"), 1, open("b.kvtrace"), 1, 0);
    ASSERT_TRUE(tokens.first);
    EXPECT_TRUE(tokens.first->inPrompt);
    EXPECT_GE(tokens.first->position, 38) << "the prompts are cut from the same text";
    EXPECT_EQ(tokens.first->stepA, -1);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

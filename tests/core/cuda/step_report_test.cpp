// What a step reports, as its kernels would write it, becomes the record that a trace keeps. No GPU: the report is
// filled by hand.
#include "core/cuda/report_reader.h"
#include "core/cuda/step_report.h"
#include "core/engine/step_order.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;
using enum StepReport::Mark;
using enum StepReport::StepMark;

ReportNeeds needsOf(const BatchLayout& layout, int layers) {
    ReportNeeds needs;
    needs.rows = layout.rows;
    needs.kvHeads = layout.kvHeads;
    needs.layers = layers;
    needs.capacity = Elements(layout.capacity);
    needs.blocks = needs.scores = true;
    return needs;
}

TEST(StepReport, PartsFollowEachOtherWithoutOverlapping) {
    ReportNeeds needs{3, 2, 5, 7};
    needs.blocks = needs.scores = true;
    needs.units = 11;
    needs.ownBytes = 48;
    std::size_t measured = 0, placed = 0;
    const StepReport nowhere(needs, nullptr, measured);
    alignas(64) static char memory[1 << 14];
    ASSERT_LE(measured, sizeof memory);
    const StepReport report(needs, memory, placed);
    EXPECT_EQ(measured, placed);
    const std::vector<std::pair<const void*, std::size_t>> parts{{report.tokens, 3 * 4},
                                                                 {report.marks, 5 * kMarks * 8},
                                                                 {report.stepMarks, kStepMarks * 8},
                                                                 {report.heads, 5 * 6 * sizeof(cuda::SelectionHead)},
                                                                 {report.counts, 5 * 2 * 4},
                                                                 {report.blocks, 5 * 6 * 7 * 4},
                                                                 {report.scores, 5 * 6 * 7 * 4},
                                                                 {report.masses, 5 * 6 * 11 * 4},
                                                                 {report.own, 5 * 48}};
    std::size_t next = 0;
    for (const auto& [begin, bytes] : parts) {
        const auto at = std::size_t(static_cast<const char*>(begin) - memory);
        EXPECT_EQ(at, next);
        EXPECT_EQ(at % 64, 0U);
        next = (at + bytes + 63) / 64 * 64;
    }
    EXPECT_EQ(next, placed);
    EXPECT_EQ(static_cast<void*>(report.tokens), memory) << "the tokens alone are copied where nothing is recorded";
    // Of the last layer
    EXPECT_EQ(report.blocksOf(LayerId{4}), report.blocks + 4 * 6 * 7);
    EXPECT_EQ(report.massesOf(LayerId{4}), report.masses + 4 * 6 * 11);
    EXPECT_EQ(report.ownOf(LayerId{4}), report.own + 4 * 48);
    EXPECT_EQ(report.mark(LayerId{4}, kFfn), report.marks + 4 * kMarks + kFfn);
}

TEST(StepReport, HalvesShareNothing) {
    ReportNeeds needs{5, 2, 4, 7};
    needs.blocks = needs.scores = true;
    needs.units = 11;
    needs.halves = 2;
    std::size_t bytes = 0;
    alignas(64) static char memory[1 << 14];
    const StepReport all(needs, memory, bytes);
    ASSERT_LE(bytes, sizeof memory);
    const int head = firstHalf(5) * 2; // three rows, and two
    const StepReport first = all.half(0, 0), second = all.half(1, head);
    EXPECT_EQ(first.marks, all.marks);
    EXPECT_EQ(second.marks, all.marks + 4 * kMarks) << "behind those of the first half's layers";
    EXPECT_LE(static_cast<const void*>(second.marks + 4 * kMarks), static_cast<const void*>(all.stepMarks));
    EXPECT_EQ(first.countsOf(LayerId{3}) + 2, second.countsOf(LayerId{0}));
    EXPECT_EQ(first.mark(kEnd), second.mark(kEnd)) << "the step is that of both";
    const LayerId last{3}; // a layer's heads are those of all rows
    EXPECT_EQ(second.headsOf(last), all.headsOf(last) + head);
    EXPECT_EQ(second.blocksOf(last), all.blocksOf(last) + 7 * head);
    EXPECT_EQ(second.scoresOf(last), all.scoresOf(last) + 7 * head);
    EXPECT_EQ(second.massesOf(last), all.massesOf(last) + 11 * head);
}

TEST(StepReport, LeavesOutWhatNobodyWants) {
    ReportNeeds needs{3, 2, 5, 7};
    needs.recorded = false;
    std::size_t bytes = 0;
    alignas(64) static char memory[1 << 13];
    const StepReport report(needs, memory, bytes);
    EXPECT_EQ(report.blocksOf(LayerId{1}), nullptr);
    EXPECT_EQ(report.scoresOf(LayerId{1}), nullptr);
    EXPECT_EQ(report.massesOf(LayerId{1}), nullptr);
    EXPECT_EQ(report.ownOf(LayerId{1}), nullptr);
    EXPECT_EQ(report.mark(LayerId{1}, kQkv), nullptr);
    EXPECT_EQ(report.mark(kEnd), nullptr);
}

/// Two sequences of two KV heads; layer 0 attends to everything, layers 1 and 2 choose.
class ReadReport : public ::testing::Test {
protected:
    ReadReport() {
        config_.layers = 3;
        config_.kvHeads = 2;
        config_.queryHeads = 4;
        config_.headDim = 64;
        options_.maxTokens = {1000, 500};
        options_.spec.blockSize = 64;
        options_.spec.budget.sink = 1;
        options_.spec.budget.window = 2;
        options_.spec.budget.windowAddsCurrent = false;
        options_.spec.budget.queryAware = 1;
        layers_.resize(3);
        for (const std::size_t i : {1, 2}) {
            layers_[i].sparse = layers_[i].offloaded = layers_[i].indexed = true;
            layers_[i].chosen = Chosen::InLayer;
        }
    }
    /// Every stage of every layer takes 10 ns, each after the one before.
    void lay(const BatchLayout& layout) {
        const ReportNeeds needs = needsOf(layout, config_.layers);
        std::size_t bytes = 0;
        report_ = StepReport(needs, nullptr, bytes);
        memory_.assign(bytes + 64, 0);
        const auto misaligned = reinterpret_cast<std::uintptr_t>(memory_.data()) % 64;
        report_ = StepReport(needs, memory_.data() + (64 - misaligned) % 64, bytes);
        std::uint64_t now = 1000;
        const auto next = [&] { return now += 10; };
        *report_.mark(kEmbed) = next();
        for (const LayerId i : idsUpTo<LayerId>(config_.layers))
            for (const StepReport::Mark mark : {kQkv, kRope, kCompression, kStage1, kPooling, kOffloading, kGather,
                                                kLoaded, kReady, kAttention, kOLinear, kFfn})
                *report_.mark(i, mark) = next();
        *report_.mark(kLmHead) = next();
        *report_.mark(kSample) = next();
        *report_.mark(kEnd) = next();
    }
    /// A choice of sequence 1's KV head 1.
    void choose(const BatchLayout& layout, LayerId layer, const std::vector<PackedBlock>& blocks, int misses) {
        const int item = layout.headOf(RowId{1}) + 1;
        cuda::SelectionHead& head = report_.headsOf(layer)[item];
        head.selected = int(blocks.size());
        head.misses = misses;
        head.hits = head.selected - misses;
        head.kept = 2;
        head.late = 1;
        std::copy(blocks.begin(), blocks.end(), RowsOf(report_.blocksOf(layer), layout.capacity)[item]);
        float* const scores = RowsOf(report_.scoresOf(layer), layout.capacity)[item];
        for (int i = 0; i < head.selected; ++i) scores[i] = float(i) + 0.5f;
        report_.countsOf(layer)[0] = std::uint32_t(misses);
        report_.countsOf(layer)[1] = 1;
    }
    StepRecord read(const BatchLayout& layout) {
        ReportReader reader(config_, options_, layout, layers_, order_, clock_, selector_);
        StepRecord record;
        record.step = 4;
        reader.fill(report_, record, std::vector<ActiveSequence>{{RowId{0}, 700}, {RowId{1}, 300}});
        return record;
    }
    static std::int64_t of(const LayerRecord& layer, Stage stage) { return layer.stageNs[std::size_t(stage)]; }

    ModelConfig config_;
    CudaEngineOptions options_;
    PerLayer<DeviceLayerState> layers_;
    ChoiceOrder order_{layers_};
    GpuClock clock_;
    std::unique_ptr<DeviceSelector> selector_;
    std::vector<char> memory_;
    StepReport report_;
};

TEST_F(ReadReport, StagesAndTransfersOnDemand) {
    const BatchLayout layout(config_, options_);
    lay(layout);
    choose(layout, LayerId{1}, {PackedBlock(0, Origin::Sink, true), PackedBlock(3, Origin::QueryAware, false)}, 1);
    const StepRecord record = read(layout);
    EXPECT_EQ(record.startNs, 1010);
    EXPECT_EQ(record.durationNs, 390);
    EXPECT_EQ(record.stepStageNs[std::size_t(StepStage::Embed)], 10);
    EXPECT_EQ(record.stepStageNs[std::size_t(StepStage::Sample)], 10);
    const LayerRecord& dense = record.layers[0];
    EXPECT_EQ(dense.startNs, 1020);
    EXPECT_EQ(of(dense, Stage::Rope), 80) << "nothing is remembered and nothing chosen before the attention";
    EXPECT_EQ(of(dense, Stage::Attention), 10);
    EXPECT_EQ(of(dense, Stage::Stage2), 0);
    EXPECT_EQ(of(dense, Stage::Ffn), 10);
    EXPECT_EQ(dense.h2dBlocks, 0);
    const LayerRecord& sparse = record.layers[1];
    EXPECT_EQ(of(sparse, Stage::Compression), 10);
    EXPECT_EQ(of(sparse, Stage::Stage1), 10);
    EXPECT_EQ(of(sparse, Stage::Pooling), 10);
    EXPECT_EQ(of(sparse, Stage::Offloading), 40) << "to the attention, the gather included";
    EXPECT_EQ(of(sparse, Stage::Stage2), 10);
    EXPECT_EQ(of(sparse, Stage::Attention), 0);
    EXPECT_EQ(sparse.h2dBlocks, 1);
    EXPECT_EQ(sparse.d2hBlocks, 1);
    EXPECT_EQ(sparse.h2dBytes, std::int64_t(layout.blockElements * 2));
    EXPECT_EQ(sparse.transferNs, 10) << "from the gather's begin to its last block";
    EXPECT_EQ(sparse.exposedNs, 10);
    EXPECT_EQ(record.layers[2].transferNs, 0) << "nothing moved";
    ASSERT_EQ(record.selections.size(), 1U) << "heads that attended to everything have none";
    const SelectionRecord& selection = record.selections[0];
    EXPECT_EQ(selection.layer, 1);
    EXPECT_EQ(selection.sequence, 1);
    EXPECT_EQ(selection.kvHead, 1);
    EXPECT_EQ(selection.kept, 2);
    EXPECT_EQ(selection.predicted, -1) << "nothing was asked for ahead";
    EXPECT_THAT(record.blocks,
                ElementsAre(PackedBlock(0, Origin::Sink, true), PackedBlock(3, Origin::QueryAware, false)));
    EXPECT_THAT(record.scores, ElementsAre(0.5f, 1.5f));
    EXPECT_TRUE(std::isnan(selection.mass));
    EXPECT_EQ(sparse.selected, 2);
    EXPECT_EQ(sparse.kept, 2);
    EXPECT_EQ(record.layers[2].kept, -1);
    EXPECT_TRUE(record.spans.empty()) << "nobody records kernels";
}

TEST_F(ReadReport, TransfersBesideTheStepAreExposedWhereTheyComeLate) {
    order_.lookAhead();
    layers_[1].chosen = layers_[2].chosen = Chosen::LayerAhead;
    const BatchLayout layout(config_, options_);
    lay(layout);
    choose(layout, LayerId{2}, {PackedBlock(0, Origin::Sink, true), PackedBlock(3, Origin::QueryAware, false)}, 1);
    *report_.mark(LayerId{2}, kBack) = 5000, *report_.mark(LayerId{2}, kBackEnd) = 5007;
    { // the last block came before all else was there
        const StepRecord record = read(layout);
        EXPECT_EQ(record.layers[2].exposedNs, 0);
        EXPECT_EQ(record.layers[2].transferNs, 10 + 7);
        ASSERT_EQ(record.selections.size(), 1U);
        EXPECT_EQ(record.selections[0].predicted, 2) << "what was asked for is what is attended";
        EXPECT_EQ(record.selections[0].late, 1);
        EXPECT_EQ(of(record.layers[0], Stage::Stage1), 10) << "layer 1 is chosen in layer 0";
        EXPECT_EQ(of(record.layers[2], Stage::Stage1), 0) << "nothing is chosen in the last layer";
        EXPECT_EQ(of(record.layers[2], Stage::Offloading), 10) << "from all being there to the attention";
    }
    { // and after: the attention waited, from then on until it began
        const std::uint64_t ready = *report_.mark(LayerId{2}, kReady),
                            attention = *report_.mark(LayerId{2}, kAttention);
        *report_.mark(LayerId{2}, kLoaded) = ready + 8;
        const StepRecord record = read(layout);
        EXPECT_EQ(record.layers[2].exposedNs, std::int64_t(attention - ready));
    }
}

/// Every stage of each half takes 10 ns, each after the one before, in the order in which halves take turns.
TEST_F(ReadReport, HalvesOfALayerAddUp) {
    order_.inHalves();
    const BatchLayout layout(config_, options_);
    ReportNeeds needs = needsOf(layout, config_.layers);
    needs.halves = 2;
    std::size_t bytes = 0;
    StepReport(needs, nullptr, bytes);
    std::vector<std::uint64_t> memory(bytes / 8 + 8, 0);
    const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    report_ = StepReport(needs, reinterpret_cast<char*>(memory.data()) + (64 - misaligned) % 64, bytes);
    const StepReport of[] = {report_.half(0, 0), report_.half(1, 2)};
    std::uint64_t now = 1000;
    const auto mark = [&](const StepReport& half, LayerId layer, std::initializer_list<StepReport::Mark> marks) {
        for (const StepReport::Mark each : marks) *half.mark(layer, each) = now += 10;
    };
    *report_.mark(kEmbed) = now;
    inHalves(
        config_.layers,
        [&](int half, LayerId layer) {
            mark(of[half], layer, {kQkv, kRope});
            if (layers_[layer].sparse) mark(of[half], layer, {kCompression, kStage1, kPooling, kOffloading});
        },
        [&](int half, LayerId layer) {
            if (layers_[layer].offloaded) mark(of[half], layer, {kReady});
            mark(of[half], layer, {kAttention, kOLinear, kFfn});
        });
    for (const StepReport::StepMark each : {kLmHead, kSample, kEnd}) *report_.mark(each) = now += 10;
    for (int half = 0; half < 2; ++half)
        for (const LayerId layer : {LayerId{1}, LayerId{2}}) {
            of[half].countsOf(layer)[0] = std::uint32_t(half + 1), of[half].countsOf(layer)[1] = 1;
            const std::uint64_t ready = *of[half].mark(layer, kReady);
            // The blocks of the second half come 4 ns after it is ready for them, those of the first half before.
            *of[half].mark(layer, kGather) = ready - 20,
                                  *of[half].mark(layer, kLoaded) = half == 0 ? ready - 3 : ready + 4;
        }
    const StepRecord record = read(layout);
    EXPECT_EQ(record.stepStageNs[StepStage::Embed], 10);
    const LayerRecord &dense = record.layers[0], &sparse = record.layers[1];
    EXPECT_EQ(dense.startNs, 1010);
    EXPECT_EQ(dense.stageNs[Stage::Attention], 20) << "of both halves";
    EXPECT_EQ(dense.stageNs[Stage::Offloading], 0);
    EXPECT_EQ(sparse.startNs, 1010 + 2 * 5 * 10) << "behind the five stages of both halves in the dense layer";
    EXPECT_EQ(record.layers[2].startNs, sparse.startNs + 2 * 10 * 10);
    for (const Stage stage : {Stage::QkvLinear, Stage::Compression, Stage::Stage1, Stage::Stage2, Stage::Ffn})
        EXPECT_EQ(sparse.stageNs[stage], 20) << nameOf(stage);
    EXPECT_EQ(sparse.stageNs[Stage::Offloading], 40) << "making slots, and waiting for blocks";
    EXPECT_EQ(sparse.h2dBlocks, 1 + 2);
    EXPECT_EQ(sparse.d2hBlocks, 2);
    EXPECT_EQ(sparse.h2dBytes, 3 * std::int64_t(layout.blockElements * 2));
    EXPECT_EQ(sparse.exposedNs, 10) << "the second half waited, from being ready until it attended";
    EXPECT_EQ(sparse.transferNs, 17 + 24);
    std::int64_t sum = 0;
    for (const LayerRecord& layer : record.layers)
        for (const std::int64_t ns : layer.stageNs) sum += ns;
    for (const std::int64_t ns : record.stepStageNs) sum += ns;
    EXPECT_EQ(sum, record.durationNs);
}

TEST(BatchLayout, SequencesLieOneAfterTheOther) {
    ModelConfig config;
    config.layers = 2;
    config.kvHeads = 2;
    config.queryHeads = 4;
    config.headDim = 64;
    config.windows = {0, 100};
    CudaEngineOptions options;
    options.maxTokens = {130, 64};
    options.maxPrompt = 100;
    options.spec.blockSize = 64;
    options.spec.budget.sink = 1;
    options.spec.budget.window = 1;
    options.plans = LayerPlans(config, options.spec, {true, false, Ahead::No, 130});
    const BatchLayout layout(config, options);
    EXPECT_EQ(layout.rows, 2);
    EXPECT_THAT(layout.blocks, ElementsAre(3, 1));
    EXPECT_THAT(layout.blockFirst, ElementsAre(0, 3, 6, 7));
    EXPECT_THAT(layout.tokenFirst, ElementsAre(0, 192, 384, 448));
    EXPECT_EQ(layout.blocksTotal, 8);
    EXPECT_EQ(layout.maxBlocks, 3);
    EXPECT_EQ(layout.headStride(RowId{0}), 3 * std::int64_t(layout.blockElements));
    EXPECT_EQ(layout.firstElement(RowId{1}), 6 * layout.blockElements);
    EXPECT_EQ(layout.blocksInSight(LayerId{0}), 3);
    EXPECT_EQ(layout.blocksInSight(LayerId{1}), 3) << "100 tokens that begin anywhere touch 3 blocks";
    EXPECT_EQ(layout.pieceTokens, 100);
    options.maxTokens = {300, 64};
    EXPECT_EQ(BatchLayout(config, options).blocksInSight(LayerId{0}), 5);
    EXPECT_EQ(BatchLayout(config, options).blocksInSight(LayerId{1}), 3) << "as many with a longer sequence";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

#include "profiler/export/step_slices.h"

#include "core/trace/trace_sink.h"
#include "profiler/export/line_writer.h"
#include "profiler/format/trace_keys.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace kvscope {

StepSliceReader::StepSliceReader(Connection& connection, int runId, const LinkClock& clock)
    : clock_(clock), prompts_(connection, runId),
      steps_(connection,
             "SELECT id, phase, start_ns, duration_ns, embed_ns, lm_head_ns, sample_ns, tokens, hits, misses,"
             " h2d_bytes, d2h_bytes, exposed_ns FROM step WHERE id BETWEEN ? AND ? ORDER BY id"),
      layers_(connection,
              "SELECT id, start_ns, qkv_linear_ns, rope_ns, compression_ns, stage1_ns, pooling_ns, offloading_ns,"
              " stage2_ns, attention_ns, o_linear_ns, ffn_ns, h2d_blocks, d2h_blocks, h2d_bytes, d2h_bytes, h2d_ns,"
              " d2h_ns FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id") {
    steps_.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, trace::kMaxStep));
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kLayerShift);
    layers_.bindAll(low, high);
    layerWaits_ = layers_.step();
    Statement newest(connection, "SELECT id FROM step WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1");
    newest.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, trace::kMaxStep));
    if (newest.step()) lastStep_ = trace::stepOf(newest.int64(0), 0);
}

void StepSliceReader::addLayer(StepSlices& step) {
    const auto layer = std::int32_t(layers_.int64(0) & (trace::kMaxLayers - 1));
    const std::int64_t start = layers_.int64(1);
    std::array<std::int64_t, kStageCount> ns{};
    std::int64_t total = 0;
    for (int stage = 0; stage < kStageCount; ++stage)
        total = sumOf(total, ns[std::size_t(stage)] = layers_.int64(2 + stage));
    const auto index = std::int32_t(step.transfers.size());
    step.slices.push_back({fmt::format("layer {}", layer), start, total, layer, index, false});
    LayerTransfer transfer;
    std::int64_t at = start, offloading = start;
    bool hasAttention = false;
    for (int stage = 0; stage < kStageCount; ++stage) {
        if (stage == int(Stage::Offloading)) offloading = at;
        const std::int64_t length = ns[std::size_t(stage)];
        if (length > 0) {
            const bool attends = stage == int(Stage::Stage2) || stage == int(Stage::Attention);
            step.slices.push_back(
                {std::string(kStageNames[std::size_t(stage)]), at, length, layer, index, attends && !hasAttention});
            hasAttention |= attends;
        }
        at = sumOf(at, length);
    }
    // A layer whose attention has no time of its own still moved its blocks.
    if (!hasAttention) (step.slices.end() - 1)->attention = true;
    std::int64_t* const fields[] = {&transfer.h2dBlocks, &transfer.d2hBlocks, &transfer.h2dBytes,
                                    &transfer.d2hBytes,  &transfer.h2dNs,     &transfer.d2hNs};
    for (int i = 0; i < int(std::size(fields)); ++i) *fields[i] = layers_.int64(2 + kStageCount + i);
    transfer.startNs =
        transferStart(clock_, offloading, ns[std::size_t(Stage::Offloading)], transfer.h2dNs, transfer.d2hNs);
    step.transfers.push_back(transfer);
}

bool StepSliceReader::next(StepSlices& step) {
    if (!steps_.step()) return false;
    const std::int64_t key = steps_.int64(0);
    step.step = trace::stepOf(key, 0);
    step.phase = steps_.int64(1) == 0 ? Phase::Prefill : Phase::Decode;
    step.startNs = steps_.int64(2);
    step.durationNs = steps_.int64(3);
    const std::int64_t embed = steps_.int64(4), head = steps_.int64(5), sample = steps_.int64(6);
    step.tokens = steps_.int64(7) - prompts_.mixedTokens(step.step);
    step.hits = steps_.int64(8);
    step.misses = steps_.int64(9);
    step.h2dBytes = steps_.int64(10);
    step.d2hBytes = steps_.int64(11);
    step.exposedNs = steps_.int64(12);
    step.slices.clear();
    step.transfers.clear();
    const std::int64_t end = sumOf(step.startNs, step.durationNs);
    const bool mixed = prompts_.reads(step.step) == StepReads::Mixed;
    step.slices.push_back({mixed ? std::string(kMixedName) : nameOf(step.phase), step.startNs, step.durationNs});
    const auto outside = [&](StepStage stage, std::int64_t start, std::int64_t length) {
        if (length > 0) step.slices.push_back({std::string(kStepStageNames[std::size_t(stage)]), start, length});
    };
    outside(StepStage::Embed, step.startNs, embed);
    for (; layerWaits_ && layers_.int64(0) >> trace::kLayerShift <= key; layerWaits_ = layers_.step())
        if (layers_.int64(0) >> trace::kLayerShift == key) addLayer(step);
    const std::int64_t sampleStart = std::int64_t(std::uint64_t(end) - std::uint64_t(sample));
    outside(StepStage::LmHead, std::int64_t(std::uint64_t(sampleStart) - std::uint64_t(head)), head);
    outside(StepStage::Sample, sampleStart, sample);
    std::stable_sort(step.slices.begin(), step.slices.end(), [](const StageSlice& a, const StageSlice& b) {
        return a.startNs != b.startNs ? a.startNs < b.startNs : a.durationNs > b.durationNs;
    });
    return true;
}

} // namespace kvscope

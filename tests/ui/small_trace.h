// A small recorded run for tests of the desktop: real file, made-up numbers that tests can compute by hand.
#pragma once

#include "profiler/record/recorder.h"

#include <QString>

#include <memory>
#include <string>

namespace kvscope::ui {

struct SmallTrace {
    int decodeSteps = 6, layers = 2, kvHeads = 2, promptTokens = 70, missesPerHead = 1;
    std::string name = "NOSA on a test model", method = "nosa";
    std::int64_t stepNs = 2'000'000; // wall time of every decode step; one begins every 3 ms, or as a longer one ends
    std::int64_t prefillNs = 2'900'000; // the first of them 0.1 ms after it
    int blockSize = 64;                 // tokens
};

/// Each decode step selects blocks 0 and 1 for every layer and head. Step 1 misses both; later steps miss
/// `missesPerHead`.
inline void recordSmallTrace(const QString& path, const SmallTrace& shape = {}) {
    Recorder recorder(path.toStdString(), {});
    RunInfo info;
    info.name = shape.name;
    info.model = "test model";
    info.method = shape.method;
    info.paramsJson = R"({"total_blocks":16})";
    info.backend = "cpu";
    info.device = "test device";
    info.link = "custom, 32.768 GB/s, 0 us per transfer (modelled)"; // a block takes 1000 ns
    info.linkGbps = 32.768;
    info.linkLatencyUs = 0;
    info.blockSize = shape.blockSize;
    info.layers = shape.layers;
    info.kvHeads = shape.kvHeads;
    info.queryHeads = 4;
    info.headDim = 64;
    info.sequences = 1;
    info.deviceSlots = 16;
    info.budgetBlocks = 16;
    info.blockBytes = 32768;
    std::vector<std::int32_t> ids;
    for (int token = 0; token < shape.promptTokens; ++token) ids.push_back(100 + token);
    info.prompts = {std::make_shared<const RunPrompts::Ids>(1, std::move(ids)),
                    [](std::int32_t id) { return " p" + std::to_string(id - 100); }};
    recorder.beginRun(info);
    const std::int64_t periodNs = std::max<std::int64_t>(3'000'000, shape.stepNs);
    for (int number = 0; number <= shape.decodeSteps; ++number) {
        std::unique_ptr<StepRecord> step = recorder.acquire();
        step->clear();
        const bool prefill = number == 0;
        step->step = number;
        step->phase = prefill ? Phase::Prefill : Phase::Decode;
        step->tokens = prefill ? shape.promptTokens : 1;
        step->startNs = prefill ? 0 : shape.prefillNs + 100'000 + (number - 1) * periodNs;
        step->durationNs = prefill ? shape.prefillNs : shape.stepNs;
        step->layers.resize(std::size_t(shape.layers));
        for (int layer = 0; layer < shape.layers; ++layer) {
            LayerRecord& record = step->layers[std::size_t(layer)];
            const std::int64_t layerNs = std::min(shape.stepNs, step->durationNs) / (2 * shape.layers);
            record.startNs = step->startNs + layer * layerNs;
            record.stageNs[std::size_t(Stage::Ffn)] = layerNs;
            record.kept = -1;
            if (prefill) continue;
            const int misses = number == 1 ? 2 : shape.missesPerHead;
            record.kept = number == 1 ? -1 : 2 * shape.kvHeads;
            record.selected = 2 * shape.kvHeads;
            record.misses = record.h2dBlocks = misses * shape.kvHeads;
            record.hits = record.selected - record.misses;
            record.h2dBytes = std::int64_t(record.misses) * info.blockBytes;
            record.transferNs = record.misses * 1000;
            record.exposedNs = record.misses * 500;
            for (int head = 0; head < shape.kvHeads; ++head) {
                SelectionRecord selection;
                selection.layer = layer;
                selection.kvHead = head;
                selection.selected = 2;
                selection.kept = number == 1 ? -1 : 2;
                selection.misses = misses;
                selection.hits = 2 - misses;
                selection.first = std::uint32_t(step->blocks.size());
                for (int block = 0; block < 2; ++block) {
                    step->blocks.emplace_back(block, block == 0 ? Origin::Sink : Origin::QueryAware,
                                              block < 2 - misses);
                    step->scores.push_back(0.25F + float(block));
                }
                step->selections.push_back(selection);
            }
        }
        step->generated.push_back({0, 500 + number, shape.promptTokens + number, " word" + std::to_string(number)});
        recorder.take(std::move(step));
    }
    recorder.endRun(RunStatus::Finished, {});
    recorder.flush();
}

} // namespace kvscope::ui

// Recorded runs in whose prompts a test knows every word.
#pragma once

#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::synthetic {

/// As infoOf, but the token at a position of every sequence's prompt is `planted` there and else " word".
inline RunInfo plantedInfo(const RunShape& shape, const std::map<int, std::string>& planted) {
    RunInfo info = infoOf(shape);
    RunPrompts::Ids ids(std::size_t(shape.sequences));
    for (std::size_t sequence = 0; sequence < ids.size(); ++sequence)
        for (int position = 0; position < shape.promptTokens + int(sequence); ++position)
            ids[sequence].push_back(position);
    info.prompts = {std::make_shared<const RunPrompts::Ids>(std::move(ids)), [planted](std::int32_t position) {
                        const auto at = planted.find(position);
                        return at == planted.end() ? std::string(" word") : at->second;
                    }};
    return info;
}

/// Records that many of the generator's next steps.
inline void recordSteps(Recorder& recorder, RunGenerator& generator, int count) {
    for (int i = 0; i < count; ++i) {
        auto step = recorder.acquire();
        step->clear();
        generator.fillNext(*step, RecordLevel::Full);
        recorder.take(std::move(step));
    }
}

/// As recordFile, with the prompts of plantedInfo.
inline void recordPlanted(const std::filesystem::path& path, const RunShape& shape,
                          const std::map<int, std::string>& planted) {
    Recorder recorder(path.string(), {});
    recorder.beginRun(plantedInfo(shape, planted));
    RunGenerator generator(shape);
    recordSteps(recorder, generator, generator.steps());
    recorder.endRun(RunStatus::Finished, {});
}

} // namespace kvscope::synthetic

// Qt's macro comes with the precompiled header; files behind this one in a batch have it again.
#pragma push_macro("slots")
#undef slots
#include "tests/ui/served_trace.h"

#include "core/prompt/prompts.h"
#include "core/serve/load.h"
#include "core/serve/scheduler_options.h"
#include "profiler/record/recorder.h"

#include <cstdint>

namespace kvscope::test {

void recordServedTrace(const std::string& path, const std::vector<std::pair<std::string, std::string>>& knobs,
                       double faster, bool together) {
    const auto model = Model::load(kDefaultModel);
    serve::Workload workload;
    for (int i = 0; i < 10; ++i) {
        serve::WorkloadLine& line = workload.lines.emplace_back();
        line.arrivalUs = i * (together ? 300 : 300'000);
        line.promptTokens = 80 + 10 * i, line.outputTokens = 8;
        line.seed = std::uint64_t(i);
    }
    workload.spanUs = 3'000'000;
    serve::EngineOptions engine;
    engine.session.method = "quest";
    engine.session.settings = {{"block_size", "16"}, {"total_blocks", "8"}};
    engine.session.threads = 1;
    ParameterValues values = serve::schedulerDefaults();
    for (const auto& [key, value] : knobs) values.set(serve::schedulerParameters(), key, value);
    engine.scheduler = serve::schedulerOptions(values);
    engine.budget = {0, std::int64_t(1) << 30, std::int64_t(1) << 30, std::int64_t(1) << 28, true};
    RecorderOptions recording;
    recording.level = RecordLevel::Selections;
    Recorder recorder(path, recording);
    serve::LoadOptions options;
    options.counted = 10, options.warmUpRequests = 0, options.warmUpSeconds = 0;
    options.prompt = [&](const serve::WorkloadLine& line, std::int64_t) {
        return model->tokenizer().encode(longDocumentPrompt(model->tokenizer(), line.promptTokens));
    };
    options.sink = &recorder;
    options.recordSteps = true;
    for (const double rate : {faster, 2 * faster}) {
        serve::Workload scaled = workload;
        serve::changeRate(scaled, rate);
        serve::load(model, scaled, engine, options);
        recorder.flush();
    }
}

} // namespace kvscope::test

#pragma pop_macro("slots")

// What recording costs: two sessions on the same prompt decode in turns, one of them recorded at level full, and their
// speeds are compared.
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/workload.h"
#include "profiler/read/open_trace.h"
#include "profiler/record/recorder.h"

#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {

nlohmann::ordered_json recording(const Log& log) {
    constexpr int kTurn = 250, kTurns = 12;
    const auto model = Model::load(kDefaultModel);
    const auto prompt = needlePrompt(*model, 9000);
    const TemporaryFolder folder;
    const auto path = std::filesystem::path(folder.path()) / "bench.kvtrace";
    nlohmann::ordered_json out;
    {
        NullSink none;
        RecorderOptions recorderOptions;
        recorderOptions.overwrite = true;
        Recorder recorder(path.string(), recorderOptions);
        DecodeSession plain(model, {prompt}, greedy("nosa", 1 + kTurn * (kTurns + 1)), none);
        DecodeSession recorded(model, {prompt}, greedy("nosa", 1 + kTurn * (kTurns + 1)), recorder);
        plain.prefill();
        recorded.prefill();
        const auto turn = [&](DecodeSession& session) {
            return seconds([&] {
                for (int i = 0; i < kTurn; ++i) session.step();
            });
        };
        turn(plain), turn(recorded);
        recorder.flush();
        std::vector<double> ratios, plainRates, recordedRates;
        for (int i = 0; i < kTurns; ++i) {
            // The two sessions go first alternately. The time of a recorded turn includes writing what is still queued.
            double a = 0, b = 0;
            const auto timeRecorded = [&] { b = turn(recorded) + seconds([&] { recorder.flush(); }); };
            if (i % 2) timeRecorded();
            a = turn(plain);
            if (i % 2 == 0) timeRecorded();
            ratios.push_back(b / a);
            plainRates.push_back(kTurn / a);
            recordedRates.push_back(kTurn / b);
            log(fmt::format("{:.0f} tokens/s alone, {:.0f} recorded", kTurn / a, kTurn / b));
        }
        out = {{"context_tokens", prompt.size()},
               {"tokens_per_s_alone", median(plainRates)},
               {"tokens_per_s_recorded", median(recordedRates)},
               {"cost_share_of_decode_time_median", median(ratios) - 1},
               {"cost_share_of_decode_time_best", *std::min_element(ratios.begin(), ratios.end()) - 1},
               {"dropped_steps", recorder.health().droppedSteps},
               {"writer_busy_us_per_step", double(recorder.health().writerBusyNs) / 1e3 / (kTurn * (kTurns + 1))}};
        recorded.end(RunStatus::Finished);
    }
    out["trace_bytes_per_step"] =
        double(std::filesystem::file_size(path)) / (kTurn * (kTurns + 1)); // the file has the prompt too
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path.string() + suffix);
    return out;
}

} // namespace kvscope::bench

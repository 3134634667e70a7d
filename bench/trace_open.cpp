// The first picture of a large trace: open it, list its runs, read the locality of the first chunk of steps.
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/workload.h"
#include "profiler/read/trace_reader.h"
#include "profiler/record/recorder.h"

#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace kvscope::bench {

nlohmann::ordered_json traceOpen(const Log& log) {
    constexpr std::uintmax_t kBytes = 200'000'000;
    const auto path =
        (std::filesystem::temp_directory_path() / fmt::format("kvscope-open-{}.kvtrace", getpid())).string();
    const auto model = Model::load(kDefaultModel);
    CollectingSink sample;
    { // real records of a short run, repeated until the file is large enough
        DecodeSession session(model, {needlePrompt(*model, 3000)}, greedy("nosa", 65), sample);
        session.prefill();
        while (session.step()) {
        }
    }
    int steps = 0;
    {
        RecorderOptions options;
        options.overwrite = true;
        Recorder recorder(path, options);
        recorder.beginRun(sample.info);
        while (std::filesystem::file_size(path) < kBytes) {
            for (int i = 0; i < 2000; ++i, ++steps) {
                auto record = recorder.acquire();
                *record = sample.steps[steps == 0 ? 0 : 1 + std::size_t(steps) % (sample.steps.size() - 1)];
                record->step = steps;
                recorder.commit(std::move(record));
            }
            recorder.flush();
        }
        recorder.endRun(RunStatus::Finished, "");
    }
    const auto bytes = std::filesystem::file_size(path);
    log(fmt::format("{} steps, {:.0f} MB", steps, double(bytes) / 1e6));
    std::vector<double> open, first, whole;
    for (int round = 0; round < 5; ++round) {
        double opened = 0, picture = 0;
        whole.push_back(1e3 * seconds([&] {
                            picture = 1e3 * seconds([&] {
                                          std::unique_ptr<TraceReader> reader;
                                          opened = 1e3 * seconds([&] {
                                                       reader = std::make_unique<TraceReader>(path);
                                                       (void)reader->runs();
                                                   });
                                          (void)reader->layerMatrix(1, Metric::Locality, {}, 0, 4095);
                                      });
                            (void)TraceReader(path).layerMatrix(1, Metric::Locality);
                        }));
        open.push_back(opened);
        first.push_back(picture);
    }
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
    return {{"trace_mb", double(bytes) / 1e6},
            {"steps", steps},
            {"open_and_list_ms", median(open)},
            {"first_4096_steps_ms", median(first)},
            {"whole_locality_ms", median(whole)}};
}

} // namespace kvscope::bench

#include "bench/bench.h"

#include "base/error.h"

#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {

nlohmann::ordered_json cpuDecode(const Settings& settings, const Log& log);
nlohmann::ordered_json cpuPrefill(const Log& log);
nlohmann::ordered_json firstToken(const Log& log);
nlohmann::ordered_json headline(const Settings& settings, const Log& log);
nlohmann::ordered_json recording(const Log& log);
nlohmann::ordered_json replay(const Log& log);
nlohmann::ordered_json serving(const Settings& settings, const Log& log);
nlohmann::ordered_json servingSimulator(const Settings& settings, const Log& log);
nlohmann::ordered_json servingSoak(const Settings& settings, const Log& log);
#ifdef KVSCOPE_HAVE_CUDA
nlohmann::ordered_json decodeShapes(const Settings& settings, const Log& log);
nlohmann::ordered_json servedSteps(const Settings& settings, const Log& log);
nlohmann::ordered_json gpuKernels(const Settings& settings, const Log& log);
nlohmann::ordered_json losaAttention(const Settings& settings, const Log& log);
nlohmann::ordered_json firstPrompt(const Settings& settings, const Log& log);
nlohmann::ordered_json prefill(const Settings& settings, const Log& log);
nlohmann::ordered_json transfers(const Settings& settings, const Log& log);
#endif

Settings readSettings(const std::vector<std::string>& words) {
    Settings settings;
    for (const std::string& word : words) {
        const auto equals = word.find('=');
        if (equals == std::string::npos || equals == 0)
            throw Error(ErrorKind::BadInput, fmt::format("cannot read --set '{}'", word), "write --set key=value");
        settings[word.substr(0, equals)] = word.substr(equals + 1);
    }
    return settings;
}

std::span<const BenchEntry> benchmarks() {
    static constexpr std::array table{
        BenchEntry{"cpu-decode", "How close does a decode step come to reading the weights at memory speed?", nullptr,
                   nullptr, cpuDecode},
        BenchEntry{"cpu-prefill", "How close does reading a prompt come to the machine's matrix-multiply peak?",
                   cpuPrefill},
        BenchEntry{"first-token", "How long from nothing to the first decoded token of a 600-token prompt?",
                   firstToken},
        BenchEntry{"headline", "What do the rows of bench/results measure on this machine, each twice?", nullptr,
                   nullptr, headline, false, true},
        BenchEntry{"recording", "What does recording everything cost a 9k-token decode?", recording},
        BenchEntry{"replay", "How long do the miss curves of 100 million block references take?", replay},
        BenchEntry{"serving", "What do plans, recording and HTTP add to the engine's work? (its steps: served-steps)",
                   nullptr, nullptr, serving, false, true},
        BenchEntry{"serving-simulator", "How far is the simulator from the engine?", nullptr, nullptr, servingSimulator,
                   false, true},
        BenchEntry{"serving-soak", "Does an hour of serving make the engine slower or larger?", nullptr, nullptr,
                   servingSoak, false, true},
        BenchEntry{"trace-open", "How soon does a 1 GB trace show its first picture, and all of it?", nullptr, nullptr,
                   nullptr, true},
        BenchEntry{"ui-heatmap", "How fluently do heatmaps and masks of 100,000 steps pan and zoom?", nullptr, nullptr,
                   nullptr, true},
        BenchEntry{"ui-live", "What does watching a run in the desktop cost its engine?", nullptr, nullptr, nullptr,
                   true},
        BenchEntry{"ui-timeline", "How fluently does the timeline of 10 million spans pan and zoom?", nullptr, nullptr,
                   nullptr, true},
#ifdef KVSCOPE_HAVE_CUDA
        BenchEntry{"decode", "How fast does a published model shape decode on the GPU, beside the floor of its bytes?",
                   nullptr, decodeShapes},
        BenchEntry{"first-prompt", "What does the first prompt of a process pay that the second does not?", nullptr,
                   firstPrompt},
        BenchEntry{"gpu-kernels", "How close does each CUDA kernel come to its ceiling?", nullptr, gpuKernels},
        BenchEntry{"losa-attention",
                   "What does attention of a block take with LoSA, with Quest and with the whole prefix?", nullptr,
                   losaAttention},
        BenchEntry{"prefill", "How long does a published model shape read a prompt on the GPU, library loading apart?",
                   nullptr, prefill},
        BenchEntry{"served-steps", "What does a step of rows that come and go take beside the step of a fixed batch?",
                   nullptr, servedSteps},
        BenchEntry{"transfers", "How fast do scattered KV blocks come from host memory, and how else could they?",
                   nullptr, transfers},
#endif
    };
    return table;
}

} // namespace kvscope::bench

// kvscope-cli bench: runs the benchmarks of bench/.
#include "app/cli/commands.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "bench/bench.h"
#include "bench/desktop_program.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

struct Arguments {
    std::vector<std::string> names, settings;
    bool json = false;
};

int run(const Arguments& arguments) {
    std::string known;
    for (const auto& entry : bench::benchmarks()) known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
    for (const std::string& name : arguments.names)
        if (std::none_of(bench::benchmarks().begin(), bench::benchmarks().end(),
                         [&](const auto& e) { return e.name == name; }))
            throw Error(ErrorKind::BadInput, fmt::format("unknown benchmark '{}'", name), "known benchmarks: " + known);
    const bench::Log log = [](std::string_view line) { printErr("  {}\n", line); };
    bench::Settings settings;
    for (const std::string& setting : arguments.settings) {
        const auto equals = setting.find('=');
        if (equals == std::string::npos || equals == 0)
            throw Error(ErrorKind::BadInput, fmt::format("cannot read --set '{}'", setting), "write --set key=value");
        settings[setting.substr(0, equals)] = setting.substr(equals + 1);
    }
    nlohmann::ordered_json all = nlohmann::ordered_json::object();
    for (const auto& entry : bench::benchmarks()) {
        if (!arguments.names.empty() &&
            std::find(arguments.names.begin(), arguments.names.end(), entry.name) == arguments.names.end())
            continue;
        if (arguments.names.empty() && entry.run == nullptr && entry.runWith == nullptr) continue;
        printErr("{}: {}\n", entry.name, entry.question);
        const auto result = entry.inDesktop            ? bench::runInDesktop(entry.name, settings)
                            : entry.run != nullptr     ? entry.run(log)
                            : entry.runWith != nullptr ? entry.runWith(settings, log)
                                                       : entry.runOnGpu(settings, log);
        if (!arguments.json)
            for (const auto& [key, value] : result.items()) printOut("{} {} {}\n", entry.name, key, value.dump());
        all[std::string(entry.name)] = result;
    }
    if (arguments.json) printOut("{}\n", all.dump(2));
    return 0;
}

} // namespace

Command addBench(Options& program) {
    auto arguments = std::make_shared<Arguments>();
    Options sub = program.command("bench", "Measure this machine and this build, each number beside its floor");
    sub.add("names", arguments->names, "Benchmarks to run; none: all that need no GPU and no desktop");
    sub.add("--set", arguments->settings,
            "key=value; ui-timeline: spans, or trace; ui-live: steps, rounds, prompt; cpu-decode: model, "
            "prompt, steps, rounds; of the GPU benchmarks, "
            "decode: grid, "
            "or shape, "
            "method, context, batch, steps, offload, planted, slots, policy, parameters, ahead-blocks, "
            "transfer-loop, stored-sequences, record, "
            "trace, level; gpu-kernels: "
            "only, rows");
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli

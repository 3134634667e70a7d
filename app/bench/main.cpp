// kvscope-bench: runs the benchmarks of bench/. `kvscope-cli bench` starts it, so that a build of the two programs for
// users need not compile them.
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "bench/bench.h"
#include "bench/desktop_program.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace kvscope;

struct Arguments {
    std::vector<std::string> names, settings;
    bool json = false;
};

void run(const Arguments& arguments) {
    std::string known;
    for (const auto& entry : bench::benchmarks()) known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
    for (const std::string& name : arguments.names)
        if (std::none_of(bench::benchmarks().begin(), bench::benchmarks().end(),
                         [&](const auto& e) { return e.name == name; }))
            throw Error(ErrorKind::BadInput, fmt::format("unknown benchmark '{}'", name), "known benchmarks: " + known);
    const bench::Log log = [](std::string_view line) { printErr("  {}\n", line); };
    const bench::Settings settings = bench::readSettings(arguments.settings);
    nlohmann::ordered_json all = nlohmann::ordered_json::object();
    for (const auto& entry : bench::benchmarks()) {
        if (!arguments.names.empty() &&
            std::find(arguments.names.begin(), arguments.names.end(), entry.name) == arguments.names.end())
            continue;
        if (arguments.names.empty() && (entry.onlyNamed || (entry.run == nullptr && entry.runWith == nullptr)))
            continue;
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
}

/// Runs the program. @return its exit status, if standard output takes everything that was written
int runProgram(int argc, char** argv) {
    Arguments arguments;
    CommandLine program("kvscope-bench", "Measure this machine and this build, each number beside its floor.",
                        KVSCOPE_VERSION);
    program.add("names", arguments.names, "Benchmarks to run; none: all that need no GPU and no desktop");
    program.add("--set", arguments.settings,
                "key=value; ui-timeline: spans, or trace; ui-live: steps, rounds, prompt; cpu-decode: model, "
                "prompt, steps, rounds; headline: only, out, join, list; serving: only, backend, model, streams, "
                "tokens; of the GPU benchmarks, decode: "
                "grid, or shape, method, context, batch, steps, "
                "offload, planted, slots, policy, parameters, ahead-blocks, transfer-loop, stored-sequences, record, "
                "trace, level, kv-type; gpu-kernels: only, rows; transfers: only");
    program.flag("--json", arguments.json, "Print one JSON document");
    if (const std::optional<int> status = program.parse(argc, argv)) return *status;
    try {
        run(arguments);
        return 0;
    } catch (const Error& error) {
        printErr("kvscope-bench: {}\n", oneLine(error));
    } catch (const std::bad_alloc&) {
        printErr("kvscope-bench: out of memory; use a smaller setting or a smaller model\n");
    } catch (const std::exception& error) {
        printErr("kvscope-bench: {}\n", error.what());
    }
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    prepareOutput();
    const int status = runProgram(argc, argv);
    return statusAfterOutput(status, "kvscope-bench");
}

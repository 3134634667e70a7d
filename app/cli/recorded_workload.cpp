#include "app/cli/recorded_workload.h"

#include "base/error.h"
#include "profiler/read/serving.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <vector>

namespace kvscope::cli {

bool isTraceName(const std::string& file) { return file.ends_with(".kvtrace"); }

serve::Workload recordedWorkload(const std::string& trace) {
    const TraceReader reader(trace);
    const std::vector<RunRow> runs = reader.runs();
    const auto served = std::find_if(runs.rbegin(), runs.rend(), [](const RunRow& run) { return run.serves(); });
    if (served == runs.rend())
        throw Error(ErrorKind::BadInput, fmt::format("no run of '{}' served requests", trace),
                    "record one with load --trace or serve --trace, or name a JSONL file");
    std::vector<RequestRow> requests = readServing(reader, served->runId).requests;
    std::stable_sort(requests.begin(), requests.end(),
                     [](const RequestRow& a, const RequestRow& b) { return a.arrivalNs < b.arrivalNs; });
    std::string lines; // read by the rules of a workload's file, which refuse what a damaged trace may hold
    for (const RequestRow& request : requests) {
        const double sinceFirstMs = (double(request.arrivalNs) - double(requests.front().arrivalNs)) / 1e6;
        const std::int64_t output = request.finished() ? request.outputTokens : request.maxTokens;
        lines += nlohmann::json{{"timestamp", sinceFirstMs},
                                {"input_length", request.promptTokens},
                                {"output_length", output},
                                {"class", request.kind},
                                {"seed", std::uint64_t(std::max<std::int64_t>(request.number, 0))}}
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                 "\n";
    }
    return serve::readWorkload(lines, std::filesystem::path(trace).filename().string());
}

} // namespace kvscope::cli

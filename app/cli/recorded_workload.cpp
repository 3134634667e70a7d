#include "app/cli/recorded_workload.h"

#include "base/error.h"
#include "profiler/replay/recorded_server.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
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
    return kvscope::recordedWorkload(readServing(reader, served->runId).requests,
                                     std::filesystem::path(trace).filename().string());
}

} // namespace kvscope::cli

#include "app/cli/run_choice.h"

#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/check/check.h"

#include <fmt/format.h>

namespace kvscope::cli {

int chooseRun(const TraceReader& reader, int wanted) {
    const std::vector<RunRow> runs = reader.runs();
    if (runs.empty())
        throw Error(ErrorKind::BadInput, fmt::format("{} has no runs", reader.path()),
                    "record one with kvscope-cli run --trace");
    if (wanted == 0) return runs.back().runId;
    if (!reader.run(wanted))
        throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), wanted),
                    "kvscope-cli info lists its runs");
    return wanted;
}

std::string remarkOnBrokenRules(const TraceReader& reader, int run) {
    std::string rules = checkRun(reader, run, counting()).sentence();
    if (!rules.empty())
        printErr("kvscope-cli: rows of run {} break rules of the trace format, and what follows is computed from them: "
                 "{}\n",
                 run, rules);
    return rules;
}

} // namespace kvscope::cli

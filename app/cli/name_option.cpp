#include "app/cli/name_option.h"

#include "base/error.h"
#include "profiler/read/own_views.h"

#include <fmt/format.h>

namespace kvscope::cli {

Option addNameOption(Options& command, std::string& target, const Option& trace) {
    return command.addWords("--name", target, "Name of the run in the trace").needs(trace);
}

void checkRunName(const std::string& name) {
    if (name.size() <= std::size_t(kLongestName)) return;
    throw Error(ErrorKind::BadInput,
                fmt::format("--name has {} bytes, and a run's name in a trace at most {}", name.size(), kLongestName),
                "give a shorter name");
}

} // namespace kvscope::cli

// The requests of a recorded serving run as a workload, so that another server can be tried on them.
#pragma once

#include "core/serve/workload.h"

#include <string>

namespace kvscope::cli {

/// Whether the file is a trace by its name.
bool isTraceName(const std::string& file);
/// The requests of the trace's last serving run: arrivals from the first one on, prompts, tokens that were made (of
/// requests that did not finish: that were asked for), classes. @throws Error(BadInput) where no run served requests,
/// Error as TraceReader does
serve::Workload recordedWorkload(const std::string& trace);

} // namespace kvscope::cli

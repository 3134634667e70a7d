// The command that records a run again, from what the trace says about it.
#pragma once

#include "profiler/report/run_data.h"

#include <string>
#include <vector>

namespace kvscope::reports {

struct Reproduction {
    std::vector<std::string> arguments; // of kvscope-cli, "run" first; empty if the run cannot be repeated
    std::vector<std::string> notes;     // what a person has to fill in or know; complete sentences
    std::string command() const;        // for a shell; empty if there are no arguments
};

Reproduction reproduce(const RunData& run);

/// A word as a POSIX shell takes it, quoted where needed.
std::string shellWord(const std::string& word);

} // namespace kvscope::reports

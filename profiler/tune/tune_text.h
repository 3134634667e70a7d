// A tuning in words and as a document: the same for the command line and the desktop.
#pragma once

#include "profiler/tune/tune.h"

#include <functional>
#include <string>

namespace kvscope {

/// The verdict in one or two sentences: what is recommended and whether it was the first predicted, or why nothing is.
/// nameOf: what a candidate is called in it; by itself as a command line has it.
std::string tuneVerdict(const TuneResult& result,
                        const std::function<std::string(const TuneCandidate&)>& nameOf = &TuneCandidate::name);

/// The command that decodes with the row's method and memory, on a needle prompt of the tuned length.
std::string tuneCommand(const TuneResult& result, const TuneRow& row);

/// One JSON document, with a newline at its end. docs/tune.md says what its keys mean.
std::string tuneJson(const TuneResult& result);

/// "9/10, 0.60..0.98"
std::string qualityText(const CountedShare& quality);

} // namespace kvscope

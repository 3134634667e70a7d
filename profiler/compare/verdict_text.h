// The verdict in words.
#pragma once

#include "profiler/compare/compare.h"

#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// One sentence without a full stop: the verdict, the size of the difference and its interval.
std::string sentenceOf(const Comparison& comparison);
/// What a reader should know before trusting the verdict.
std::vector<std::string> notesOf(std::span<const RunSample> a, std::span<const RunSample> b,
                                 const Comparison& comparison);

} // namespace kvscope

// What share of the prefix a KV head of a denoising forward reads, by the number of tokens that choose pages: the
// numbers behind LoSA's claim that fewer active tokens load less.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// Layers and KV heads of forwards that chose pages with so many active tokens.
struct ActiveSets {
    int active = 0; // tokens
    std::int64_t rows = 0;
    double pages = 0;   // mean pages that any of the tokens chose
    double density = 0; // mean tokens of these pages / prefix, 0..1
};

/// By the number of active tokens, ascending. Empty where no forward chose pages. @throws Error as TraceReader does
std::vector<ActiveSets> readActiveSets(const TraceReader& reader, int runId);
/// All of them together: LoSA's density, over steps, layers and KV heads. `active` is the rounded mean.
ActiveSets together(const std::vector<ActiveSets>& sets);

} // namespace kvscope

// The tokens of a recorded run: what it read and what it wrote.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvscope {

struct RecordedText {
    using Ids = std::vector<std::vector<std::int32_t>>; // [sequence]
    Ids prompts, generated;
    /// Tokens that the sequence with the most of them has generated.
    std::size_t longest() const;
};

/// @throws Error(BadInput) where the trace does not hold the prompt of every sequence
RecordedText readText(const TraceReader& reader, const RunRow& run);

} // namespace kvscope

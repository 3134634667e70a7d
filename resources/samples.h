// Sample traces compiled into the desktop program.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kvscope::resources {

struct SampleTrace {
    std::string_view file;  // name to save it under
    std::string_view title; // one line for people
    std::string_view view;  // id of the view that it opens with; with "compare" all its runs are marked
    std::span<const std::byte> bytes;
};

std::span<const SampleTrace> sampleTraces();

} // namespace kvscope::resources

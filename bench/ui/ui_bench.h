// Benchmarks of the desktop measure what a person waits for. They need Qt and therefore have a program of their own,
// kvscope-bench-desktop, which kvscope-bench starts. They need no display.
#pragma once

#include "bench/bench.h"

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string_view>

namespace kvscope::bench {

/// A QApplication exists while the benchmark runs. Its result has numbers with units in their keys.
struct UiBenchEntry {
    std::string_view name;
    nlohmann::ordered_json (*run)(const Settings& settings, const Log& log);
};

/// All of them; a new one is one file in bench/ui, one line in its registry.cpp and one in bench/registry.cpp.
std::span<const UiBenchEntry> uiBenchmarks();

} // namespace kvscope::bench

// Starts the program for benchmarks that need Qt: this library and kvscope-bench do not link Qt.
#pragma once

#include "bench/bench.h"

#include <nlohmann/json_fwd.hpp>

namespace kvscope::bench {

/// Runs `kvscope-bench-desktop NAME`, from the folder of the running program.
/// @throws Error(Unsupported) when there is no such program, or when it fails, after it has said why on stderr
nlohmann::ordered_json runInDesktop(std::string_view name, const Settings& settings);

} // namespace kvscope::bench

// Benchmarks. A file answers one question, and gives its number beside the best that the hardware could do, measured in
// the same run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::bench {

/// Says what is being measured while it runs.
using Log = std::function<void(std::string_view line)>;

/// key=value pairs of the command line; each benchmark documents its own.
using Settings = std::map<std::string, std::string>;

/// The settings given with --set. @throws Error(BadInput) when a word is not key=value
Settings readSettings(const std::vector<std::string>& words);

struct BenchEntry {
    std::string_view name;
    std::string_view question;
    // An entry sets exactly one of the following four.
    /// Runs the benchmark. @return numbers with units in their keys; the key of a ratio names its denominator
    nlohmann::ordered_json (*run)(const Log& log) = nullptr;
    /// Runs a benchmark that takes settings and needs a GPU. It runs only when it is named.
    nlohmann::ordered_json (*runOnGpu)(const Settings& settings, const Log& log) = nullptr;
    /// Runs a benchmark that takes settings and needs no GPU.
    nlohmann::ordered_json (*runWith)(const Settings& settings, const Log& log) = nullptr;
    /// The benchmark is in bench/ui, and kvscope-bench-desktop runs it. It runs only when it is named.
    bool inDesktop = false;
    /// The benchmark takes so long that it runs only when it is named.
    bool onlyNamed = false;
};

/// All benchmarks; a new one is one file and one line in registry.cpp.
std::span<const BenchEntry> benchmarks();

} // namespace kvscope::bench

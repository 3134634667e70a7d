// The parts of the headline: which benchmarks and peers give which rows of bench/results/index.json.
#pragma once

#include "bench/bench.h"
#include "bench/headline/headline_rows.h"

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::bench {

/// One run of a part.
struct HeadlineRun {
    const Settings& settings; // python, peers, llama-model, checkpoint
    const Log& log;
    bool peerFirst = false;  // ours and the peer take turns, and who begins changes
    std::string peer = {};   // what the peer says of itself, or why there is none
    bool peerFailed = false; // a second run does not try again
};

enum class HeadlineMachine { Gpu, Host, Desktop };

struct HeadlinePart {
    std::string_view name;
    HeadlineMachine machine;
    double minutes; // of both runs, about
    std::string_view what;
    std::string_view rows; // their ids, with commas
    /// The rows of one run, or of two that the benchmark makes itself, in turns.
    nlohmann::ordered_json (*run)(HeadlineRun& run);
    bool runsTwice = false; // the benchmark itself
};

/// All parts, in the order in which they run.
std::span<const HeadlinePart> headlineParts();

} // namespace kvscope::bench

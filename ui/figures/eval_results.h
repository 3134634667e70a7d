// Reads the scores of an evaluation from the JSON that `kvscope-cli eval --json` writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::ui {

/// One configuration, a method with a budget, with its score and its speed.
struct EvalPoint {
    std::string method;
    int context = 0;                     // tokens; 0: the file does not name it
    double share = 0;                    // query-aware share of the budget, k_q / k, 0..1; NaN: the method has none
    double score = 0;                    // higher is better
    std::string scoreName;               // "Score", "Needle accuracy"
    double tokensPerSecond = 0;          // NaN: not measured
    std::int64_t right = 0, prompts = 0; // needles answered, of so many; 0 prompts: the file does not say
    double bytesPerToken = 0;            // from the host to the device, of the needles' decode steps; NaN: not measured
};

/// @throws Error(BadInput) with the file and what it lacks
std::vector<EvalPoint> readEvalResults(const std::string& path);

} // namespace kvscope::ui

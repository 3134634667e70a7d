// Scores of an evaluation, as `kvscope-cli eval --json` writes them.
#pragma once

#include <string>
#include <vector>

namespace kvscope::ui {

/// One configuration: a method with a budget, what it scored and how fast it was.
struct EvalPoint {
    std::string method;
    int context = 0;            // tokens; 0: it does not say
    double share = 0;           // query-aware part of the budget, k_q / k, 0..1
    double score = 0;           // higher is better
    std::string scoreName;      // "Score", "Needle accuracy"
    double tokensPerSecond = 0; // NaN: not measured
};

/// @throws Error(BadInput) naming the file and what is missing
std::vector<EvalPoint> readEvalResults(const std::string& path);

} // namespace kvscope::ui

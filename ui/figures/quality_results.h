// Reads how well a block-diffusion model answers from the JSON that `kvscope-cli quality --json` writes.
#pragma once

#include <string>
#include <vector>

namespace kvscope::ui {

/// One cell: a method with a budget on one kind of prompts. Shares are 0..1; NaN: not measured.
struct QualityPoint {
    std::string method, title;   // "losa", "LoSA"
    std::string task, pace;      // "keys4", "slow"
    int context = 0, budget = 0; // tokens; budget 0: the method reads everything
    int prompts = 0;
    double right = 0, low = 0, high = 0; // with the 95 % interval
    double sameText = 0, density = 0;
};

/// Whether a file is such a document: its rows have tasks.
bool holdsQuality(const std::string& path);
/// Cells without a prompt are left out. @throws Error(BadInput) with the file and what it lacks
std::vector<QualityPoint> readQuality(const std::string& path);

} // namespace kvscope::ui

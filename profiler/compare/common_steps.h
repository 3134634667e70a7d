// Which decode steps of two runs are compared.
#pragma once

#include "profiler/compare/compare.h"

#include <span>
#include <vector>

namespace kvscope {

constexpr int kFewestSteps = 20;

struct CommonSteps {
    std::vector<int> steps; // ascending
    int first = 0, opening = 0, unpaired = 0;
    bool openingKept = false;
};

/// Steps that all runs have, without those that are cold in some run, as coldSteps() says, and without those that open
/// a block in some run (the window moves, whatever the method does); unless too few are left without the latter.
CommonSteps commonSteps(std::span<const RunSample> a, std::span<const RunSample> b);

/// The settings in which two runs differ.
std::vector<SettingDifference> settingDifferences(const RunRow& a, const RunRow& b);

} // namespace kvscope

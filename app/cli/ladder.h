// The search for the capacity of every rung of SparseServe's ladder, for `simulate` and `load`.
#pragma once

#include "app/cli/finished_points.h"
#include "core/serve/capacity.h"
#include "core/serve/rungs.h"

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {

/// A rate that was tried.
struct LadderPoint {
    double rate = 0;
    std::string broken;            // the bound that the run breaks, in words; empty: every bound is kept
    int refused = 0;               // requests that can never be served
    nlohmann::ordered_json result; // as serving_report.h writes it
};

struct Ladder {
    std::vector<serve::Rung> rungs;
    std::vector<std::uint64_t> seeds;
    double tolerance = 0.025;           // of a rate
    FinishedPoints* finished = nullptr; // not null: what it has is not tried again
    std::function<double(const serve::Rung&, std::uint64_t seed)> firstRate;
    std::function<LadderPoint(const serve::Rung&, std::uint64_t seed, double rate)> simulated;
    /// The same by an engine; empty: nothing is measured.
    std::function<LadderPoint(const serve::Rung&, std::uint64_t seed, double rate)> measured;
    std::function<void(double done, const std::string& text)> progress; // what it throws ends the search
    std::function<void()> clearProgress;
};

/// Searches rung by rung and seed by seed in the simulator. Where an engine measures, it then runs every rung at 0.9
/// and 1.1 of its mean capacity, with the first and the last rung for all seeds and the others for the first one.
/// @return the document; with print also written for people, rung by rung
/// @throws Error(BadInput | Storage) for the file of finished points
nlohmann::ordered_json climb(const Ladder& ladder, bool print);

/// @throws Error(BadInput) where a knob is given that the rungs decide
void refuseKnobsOfRungs(const std::vector<std::string>& knobs, const char* option);

} // namespace kvscope::cli

// Searches the capacity of every rung of SparseServe's ladder, for `simulate` and `load`.
#pragma once

#include "app/cli/finished_points.h"
#include "app/cli/serving_options.h"
#include "core/serve/capacity.h"
#include "core/serve/rungs.h"

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {

/// The bounds that a rate must keep, as the options of `simulate` and `load` give them.
struct CapacityArguments {
    std::string rule = "mean-queue";
    double queueSeconds = 2, attainment = 0.9;
};
/// Declares --rule, --queue and --attainment.
void addCapacityOptions(Options& command, CapacityArguments& arguments);
/// Refuses bounds that the rule does not use. @throws Error(BadInput) naming the option
void refuseVainCapacity(const Options& command, const CapacityArguments& arguments);
serve::CapacityOptions capacityOf(const CapacityArguments& arguments);

/// What `simulate` and `load` are told about the ladder.
struct LadderArguments {
    std::string rungs, resume;
    int seeds = 1;
    bool search = false;
    bool searchEngine = false; // also searches every rung with the engine, with all seeds
};
/// Declares --rungs and --resume. search: the option --search, which --rungs needs. @return the option --rungs
Option addLadderOptions(Options& command, LadderArguments& arguments, const char* help, const Option& search);

/// What a run at one rate gave.
struct LadderPoint {
    double rate = 0;
    std::string broken;            // the bound that the run breaks, in words; empty: every bound is kept
    int refused = 0;               // how many requests can never be served
    nlohmann::ordered_json result; // as serving_report.h writes it
};

struct Ladder {
    /// The rungs and the workloads that the arguments name. knobOption: the option that gives knobs, for messages
    /// @throws Error(BadInput) where a knob is given that the rungs decide
    Ladder(const ServingArguments& serving, const LadderArguments& arguments, const char* knobOption);

    std::vector<serve::Rung> rungs;
    std::vector<std::uint64_t> seeds;
    std::map<std::uint64_t, serve::Workload> workloads; // one for each seed
    serve::CapacityOptions rule;
    FinishedPoints* finished = nullptr; // points that are not run again
    /// How a rung is simulated.
    std::function<serve::SimulationOptions(const serve::Rung&)> simulation;
    /// Runs a rate on a real engine; empty: nothing is measured.
    std::function<LadderPoint(const serve::Rung&, std::uint64_t seed, double rate)> measured;
    /// Where an engine measures: it searches as well, instead of running around what the simulator found.
    bool searchMeasured = false;
    /// Is told how far the search is; what it throws ends the search.
    std::function<void(double done, const std::string& text)> progress;
    std::function<void()> clearProgress;
};

/// Searches in the simulator, rung by rung and seed by seed. Where an engine measures, every rung then runs on it at
/// 0.9 and 1.1 of the rung's mean capacity: the first and the last rung with all seeds, the others with the first one;
/// or it searches from there with all seeds.
/// @return the document; with `print` also written for people, rung by rung
/// @throws Error(BadInput | Storage) for the file of finished points
nlohmann::ordered_json climb(const Ladder& ladder, bool print);

} // namespace kvscope::cli

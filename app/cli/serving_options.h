// Options that `simulate` and `load` share: a workload, the scheduler's knobs, budgets and bounds.
#pragma once

#include "app/terminal/options.h"

#include "core/serve/scheduler.h"
#include "core/serve/tally.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::cli {

struct ServingArguments {
    std::string workload, costs, deviceKv = "4G", hostKv = "64G", scratch = "2G", arrivals, slo, cap;
    const char* knobOption = "--set"; // the option that gives knobs
    std::vector<std::string> knobs;
    std::vector<double> rates;
    double scale = 1, outputs = 1, spread = 0, warmUpSeconds = 60, burst = 1;
    int requests = 0, counted = 0, warmUp = 100;
    std::uint64_t seed = 1;
    bool json = false, tpot = false;
};

/// Which option sets knobs: --set, or --knob where --set is the method's.
enum class KnobOption : std::uint8_t { Set, Knob };

/// Declares all of the options. @return the option --rate, which others exclude
Option addServingOptions(Options& command, ServingArguments& arguments, KnobOption kind = KnobOption::Set);

/// Declares the options that make an engine: knobs, costs and budgets.
void addEngineOptions(Options& command, ServingArguments& arguments, KnobOption kind);

/// Refuses options that have no effect on the named workload, such as --burst where arrivals are not bursty. @throws
/// Error(BadInput) naming the option
void refuseVainWorkload(const Options& command, const ServingArguments& arguments);

/// A table of costs, and which of its numbers are its own.
struct CostTable {
    serve::ServiceCosts costs;
    /// Keys whose numbers were measured or given by a person: those of the table's list `fitted`, or, in a table
    /// without that list, all keys whose numbers are not the defaults.
    std::vector<std::string> own;
    std::string method;  // method with which the table was measured; empty: the table does not say
    bool listed = false; // whether the table has a list `fitted`, so that all other numbers are defaults

    bool owns(std::string_view key) const;
    /// The table as --costs reads it, with its list where there is one.
    std::string toJson() const;
};

/// The table of costs that --costs names, or the default one.
CostTable costTableOf(const ServingArguments& arguments);
serve::ServiceCosts costsOf(const ServingArguments& arguments);

/// Called for a ladder with the rung `full`, which decodes with full attention: its steps cost full_us_per_ktoken, and
/// measuring a sparse method does not give that number. @throws Error(BadInput) where the table has a list `fitted`
/// without it
void refuseFullAttentionBy(const CostTable& table, const ServingArguments& arguments);

/// Called for a ladder with rungs above `full`, which decode with a sparse method. Measuring full attention does not
/// give what context costs these. @throws Error(BadInput) where the table was measured with full attention
void refuseSparseBy(const CostTable& table, const ServingArguments& arguments);

/// The workload that the options name, for one seed. @throws Error(BadInput) where they name none, or its file cannot
/// be read
serve::Workload workloadOf(const ServingArguments& arguments, std::uint64_t seed);
/// The same for `count` seeds from `first` on, [seed]. A file is read once: a pipe gives its bytes only once.
std::vector<serve::Workload> workloadsOf(const ServingArguments& arguments, std::uint64_t first, int count);

struct ServingChoices {
    serve::SchedulerOptions scheduler;
    serve::ServiceCosts costs;
    serve::Budget budget;
    serve::WindowOptions window;
};
/// What the options choose. @throws Error(BadInput) naming the option
ServingChoices servingChoices(const ServingArguments& arguments, const serve::ServiceCosts& costs);

} // namespace kvscope::cli

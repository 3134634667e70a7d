// What an expert would say after a first look at a trace: a short ranked list, each claim with its numbers and the
// place that shows it. docs/insights.md lists the rules, their thresholds and why.
#pragma once

#include "base/indexed.h"
#include "core/select/parameters.h"
#include "profiler/insights/exposure.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

enum class Severity : std::uint8_t {
    Note, // worth knowing, costs little
    Alarm // at least a tenth of the decode time is at stake, or numbers or output cannot be trusted
};
constexpr const char* nameOf(Severity severity) { return severity == Severity::Alarm ? "alarm" : "note"; }

/// Where to look: a view of the desktop and what the shared cursor should point at; -1: does not matter.
struct Evidence {
    std::string view;   // id of a view: locality, selection, transfers, cache, breakdown, compare
    std::string metric; // id of a metric (read/metrics.cpp) or a stage; may be empty
    int firstStep = -1, lastStep = -1;
    int sequence = -1, layer = -1, kvHead = -1;
    int compareRun = -1; // run of the same trace to compare with
};

struct Figure {
    std::string name; // snake_case, as in --json
    double value = 0;
    std::string unit; // "ms", "blocks", "%", "": a count or ratio
};

/// A change of the run that a finding proposes; what it does not name stays as it was recorded.
struct Proposal {
    int deviceSlots = 0;                       // block slots per sequence, layer and KV head; 0: as recorded
    std::string cachePolicy{};                 // empty: as recorded
    int layersAhead = 0;                       // blocks are guessed so many layers before they are needed
    bool resident = false;                     // every block lies on the device
    std::optional<ForecastSetting> forecast{}; // the layer before chooses, by the model's Forecast heads
    bool canRun() const {
        return deviceSlots > 0 || !cachePolicy.empty() || resident || forecast;
    } // as session options
    bool canReplay() const { return deviceSlots > 0 || !cachePolicy.empty() || layersAhead > 0; }
};

/// What the change that a finding proposes would save: shares of the decode time, 0..1, from the least to the most, and
/// the tokens per second that follow from them.
struct Price {
    double low = 0, high = 0;
    double tokensPerSecondLow = 0, tokensPerSecondHigh = 0;
    /// "+10 to +15 % (602 to 629 tokens/s)", "up to +15 % (629 tokens/s)".
    std::string text() const;
};
/// How far a predicted saving may be from the real one: a third of it, or this share of the step.
inline constexpr double kPriceError = 0.02;

struct Insight {
    std::string id; // of its rule
    Severity severity = Severity::Note;
    bool trust = false; // about whether numbers or output can be trusted: alarms of this kind come first
    double impact = 0;  // share of the decode time that it concerns, 0..1; what the list is ranked by
    /// Share of the decode time that the proposal saves, where a replay or a recorded twin says so.
    std::optional<double> predicted;
    bool priced = true;         // false: the proposal does not save the time that the finding concerns
    std::optional<Price> price; // findings about time have one
    std::optional<Proposal> proposal;
    std::string title;  // one sentence with numbers
    std::string detail; // where these numbers come from
    std::string advice; // what to try
    Evidence evidence;
    std::vector<Figure> figures;
};

struct InsightReport {
    ExposureReport exposure;
    Numbered<Insight> insights;            // alarms first, then by impact
    int rules = 0, judged = 0;             // how many there are, and how many of them have been asked
    std::vector<std::string> unasked = {}; // ids of rules that need what the run does not know; counted as judged
    /// Rows break rules of the trace format (profiler/check): then no number of the exposure means anything, the
    /// headline says so, and only findings about trust are given. Empty: none does.
    std::string refusal{};
    int alarms() const;
};

struct InsightOptions {
    bool replay = true; // also replay the caches where selected blocks were recorded: seconds for very long runs
    /// Called, on the thread that asks, with what is known before more is read than so far: first the exposed time by
    /// the steps alone, then with the rules that look at steps, at layers, at every selection, ... (RuleReads).
    std::function<void(InsightReport soFar)> found;
};

/// @throws Error(BadInput) if there is no such run, Error(Cancelled)
InsightReport insightsOf(const TraceReader& reader, int runId, const InsightOptions& options = {});

} // namespace kvscope

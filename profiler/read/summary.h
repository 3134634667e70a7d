// The numbers a person asks first about a run: for reports, `info` and comparisons.
#pragma once

#include "profiler/read/step_kind.h"
#include "profiler/read/trace_reader.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvscope {

struct ComponentShare {
    Phase phase = Phase::Decode;
    std::string component;
    std::int64_t totalNs = 0; // all layers
    double share = 0;         // of the phase's wall time, 0..1; of decode steps without cold ones, as coldSteps() says
};

struct RunSummary {
    int runId = 0;
    std::int64_t promptTokens = 0;      // those of mixed steps too
    std::int64_t promptSteps = 0;       // recorded ones that read prompts only
    std::int64_t decodeSteps = 0;       // recorded, mixed ones among them
    std::int64_t decodedTokens = 0;     // fed by them, all sequences, without prompts
    std::int64_t droppedSteps = 0;      // not in the trace, so in none of these numbers
    double prefillMs = 0, decodeMs = 0; // measured wall time
    double gapsMs = 0;                  // between decode steps: pauses, and what the engine did beside them

    // Rates and means leave cold and mixed steps out, as coldSteps() says (read/step_kind.h). NaN where there is no
    // step, or the run does not know what they are made of.
    std::int64_t coldSteps = 0;         // of decodeSteps
    std::int64_t mixedSteps = 0;        // likewise: they read pieces of prompts as well
    std::int64_t countedSteps = 0;      // decode steps that the next numbers count
    double tokensPerSecond = 0;         // tokens of the counted steps over their wall time
    double tokensPerSecondWithGaps = 0; // over their wall time and all time between steps
    double stepMs = 0;                  // mean wall time
    double hitRate = 0;                 // hits / (hits + misses)
    double missesPerStep = 0, h2dBytesPerStep = 0;
    double exposedMsPerStep = 0; // measured or modelled, as `timing` says
    /// Whether the time between steps changes the rate by more than 5 %: then one of the two alone misleads.
    bool gapsMatter() const;
    /// "2 cold steps left out", "2 cold and 3 mixed steps left out", "all steps, 2 cold ones among them", "all steps"
    std::string ratesCount() const;

    // Over (layer, sequence, KV head, step) of decode steps; NaN when localityCount is 0.
    double localityMean = 0, localityMin = 0;
    std::int64_t localityCount = 0;     // selections averaged
    std::int64_t localityUndefined = 0; // left out: the first selection of a sequence has nothing to compare with
    std::int64_t localityOpening = 0;   // left out: a new KV block moved the window, whatever the method did

    // Totals of every step; 0 where `knows` says that the run does not know them.
    Knowledge knows;
    std::int64_t selected = 0, hits = 0, misses = 0;
    std::int64_t h2dBytes = 0, d2hBytes = 0;
    RunFact<Timing> timing; // of the next two
    double transferMs = 0;  // link busy
    double exposedMs = 0;   // the part of it that is on the critical path

    std::vector<ComponentShare> components; // by phase, prefill first, in pipeline order, `other` last
};

/// A step, what decides its kind, and what its stages took.
using TakeStep = std::function<void(const StepRow&, const StepMark&, const BreakdownStep&)>;

/// A summary in the making, so that a long run can be read piece by piece. Sums of absurd numbers wrap.
class SummarySums {
public:
    /// Everything of the steps [first, last]; each is shown to `take` as well. @throws Error as TraceReader does
    void read(const TraceReader& reader, int runId, int first, int last, const TakeStep& take = {});
    /// Adds what a step's own row says: no components, no locality. mark: StepMarks::of(step)
    void addStep(const StepRow& step, const StepMark& mark) { addStep(step, mark, nullptr); }
    /// The summary of the steps that were added.
    RunSummary summary(const RunRow& run) const;

private:
    static constexpr int kComponents = kStepStageCount + kStageCount + 1; // in pipeline order, `other` last
    struct PhaseSums {
        std::uint64_t steps = 0, tokens = 0;
        double durationNs = 0;
        std::array<std::uint64_t, kComponents> componentNs{};
        std::array<bool, kComponents> took{}; // whether the component took time in any step
    };
    /// Sums that rates are made of.
    struct RateSums {
        std::uint64_t steps = 0, tokens = 0, hits = 0, misses = 0, h2dBytes = 0;
        double durationNs = 0, exposedNs = 0;
        std::array<std::uint64_t, kComponents> componentNs{};
        void add(const StepRow& step, const BreakdownStep* stages);
        RateSums without(const RateSums& other) const;
    };
    /// Sums over the steps that are cold or mixed, as far as the run is read.
    const RateSums& cold() const { return cold_[rule_.reading()]; }
    void addStep(const StepRow& step, const StepMark& mark, const BreakdownStep* stages);
    void addStages(Phase phase, const BreakdownStep& step);
    void addSelections(const TraceReader& reader, int runId, int first, int last);

    std::array<PhaseSums, 2> phases_; // prefill, decode
    std::uint64_t selected_ = 0, hits_ = 0, misses_ = 0, h2dBytes_ = 0, d2hBytes_ = 0;
    double transferNs_ = 0, exposedNs_ = 0;
    RateSums decode_;
    std::int64_t mixedSteps_ = 0;
    ColdRule rule_;
    /// [reading]: which steps are cold is certain only when the whole run is read.
    std::array<RateSums, ColdRule::kReadings> cold_;
    std::int64_t firstStartNs_ = 0, lastEndNs_ = 0; // of the decode steps
    std::int64_t localityCount_ = 0, localityUndefined_ = 0, localityOpening_ = 0;
    double localitySum_ = 0, localityMin_ = 0; // localityMin_: the lowest; means nothing while localityCount_ is 0
};

/// Reads the whole run once. @throws Error(BadInput) if there is no such run, Error(Cancelled)
RunSummary summarize(const TraceReader& reader, int runId);
RunSummary summarize(const TraceReader& reader, int runId, const Progress& progress, const TakeStep& take = {});

} // namespace kvscope

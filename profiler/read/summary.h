// The numbers a person asks first about a run: for reports, `info` and comparisons.
#pragma once

#include "profiler/read/trace_reader.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvscope {

struct ComponentShare {
    std::string phase, component;
    std::int64_t totalNs = 0; // all layers
    double share = 0;         // of the phase's wall time, 0..1
};

struct RunSummary {
    int runId = 0;
    std::int64_t promptTokens = 0;
    std::int64_t decodeSteps = 0;       // recorded
    std::int64_t decodedTokens = 0;     // fed by them, all sequences
    std::int64_t droppedSteps = 0;      // not in the trace, so in none of these numbers
    double prefillMs = 0, decodeMs = 0; // measured wall time
    double tokensPerSecond = 0;         // decodedTokens / decodeMs; 0 without a decode step

    // Over (layer, sequence, KV head, step) of decode steps; NaN when localityCount is 0.
    double localityMean = 0, localityMin = 0;
    std::int64_t localityCount = 0;     // selections averaged
    std::int64_t localityUndefined = 0; // left out: the first selection of a sequence has nothing to compare with
    std::int64_t localityOpening = 0;   // left out: a new KV block moved the window, whatever the method did

    std::int64_t selected = 0, hits = 0, misses = 0;
    double hitRate = 0; // hits / (hits + misses); NaN without selections
    std::int64_t h2dBytes = 0, d2hBytes = 0;
    std::string timing;    // of the next two: "measured" or "modelled"
    double transferMs = 0; // link busy
    double exposedMs = 0;  // of that, on the critical path

    std::vector<ComponentShare> components; // by phase, prefill first, in pipeline order, `other` last
};

/// A step and what its stages took.
using TakeStep = std::function<void(const StepRow&, const BreakdownStep&)>;

/// A summary in the making, so that a long run can be read piece by piece. Sums of absurd numbers wrap.
class SummarySums {
public:
    /// Everything of the steps [first, last]; each is shown to `take` as well. @throws Error as TraceReader does
    void read(const TraceReader& reader, int runId, int first, int last, const TakeStep& take = {});
    /// What a step's own row says: no components, no locality.
    void addStep(const StepRow& step);
    /// Of what was added.
    RunSummary summary(const RunRow& run) const;

private:
    static constexpr int kComponents = kStepStageCount + kStageCount + 1; // in pipeline order, `other` last
    struct PhaseSums {
        std::uint64_t steps = 0, tokens = 0;
        double durationNs = 0;
        std::array<std::uint64_t, kComponents> componentNs{};
        std::array<bool, kComponents> took{}; // any time in any step
    };
    void addStages(Phase phase, const BreakdownStep& step);
    void addSelections(const TraceReader& reader, int runId, int first, int last);

    std::array<PhaseSums, 2> phases_; // prefill, decode
    std::uint64_t selected_ = 0, hits_ = 0, misses_ = 0, h2dBytes_ = 0, d2hBytes_ = 0;
    double transferNs_ = 0, exposedNs_ = 0;
    std::int64_t localityCount_ = 0, localityUndefined_ = 0, localityOpening_ = 0;
    double localitySum_ = 0, localityMin_ = 0; // the lowest: once there is any
};

/// Reads the whole run once. @throws Error(BadInput) if there is no such run, Error(Cancelled)
RunSummary summarize(const TraceReader& reader, int runId);
RunSummary summarize(const TraceReader& reader, int runId, const Progress& progress, const TakeStep& take = {});

} // namespace kvscope

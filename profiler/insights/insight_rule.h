// Inside of the insights: what the rules know of a run, and their registry. A rule = one function in the file of its
// family, declared here, and one line in registry.cpp.
#pragma once

#include "profiler/check/check.h"
#include "profiler/insights/insight.h"
#include "profiler/read/serving.h"
#include "profiler/replay/miss_curve.h"
#include "profiler/replay/selection_trace.h"

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

// One tenth of the decode time is what a person changes a configuration for; 3 % is what a careful comparison of two
// runs can still tell from noise. Rules about time raise an alarm from the first and a note from the second.
inline constexpr double kAlarmImpact = 0.10, kNoteImpact = 0.03;
inline Severity severityOf(double impact) { return impact >= kAlarmImpact ? Severity::Alarm : Severity::Note; }

struct HeadFacts { // one (layer, sequence, KV head): its selections that are not cold
    int layer = 0, sequence = 0, kvHead = 0, largest = 0;
    std::int64_t selections = 0, selected = 0, hits = 0, misses = 0;
    double localitySum = 0, localityCount = 0; // without steps that open a block, as in the views
    double massSum = 0, massCount = 0;
};

struct CacheFacts { // the results of replaying the recorded requests
    SelectionTrace trace;
    std::vector<MissCurve> lruPools, beladyPools; // [pool]
    MissCurve lru, belady;                        // sums
    std::int64_t misses = 0, compulsory = 0;      // recorded, of counted requests; first uses that had to be loaded
};

/// Where the GPU's time went in the decode steps that have spans of kernels (recorded at level full).
struct GpuFacts {
    int steps = 0; // counted decode steps with kernels
    std::int64_t wallNs = 0, idleNs = 0, idleInOffloadingNs = 0, shortGapsNs = 0, kernelNs = 0, kernels = 0;
};

struct ServedFacts { // what a server did
    ServingRows rows;
    std::vector<TokenGap> gaps; // of all tokens, in the order of their times
};

/// Reads a run once and answers the rules; what only some of them need is read when it is first asked for.
class RunFacts {
public:
    RunFacts(const TraceReader& reader, int runId, const InsightOptions& options);

    const TraceReader& reader() const { return reader_; }
    const RunRow& run() const { return exposure_.run; }
    /// Which rules of the format the run's rows and the file as a whole break. Nothing for a run that is being
    /// recorded, because the check would read the whole run every second.
    const RunCheck& check();
    /// Whether the run has selections that cannot be decoded: no rule may read them.
    bool hasDamagedBlobs();
    /// The exposure by the steps' sums; with reasons and layers once readLayers() was called.
    const ExposureReport& exposure() const { return exposure_; }
    void readLayers() { readLayerExposure(reader_, exposure_); }
    ExposureReport takeExposure() { return std::move(exposure_); }
    const std::vector<StepRow>& decodeSteps() const { return decode_; }
    std::int64_t prefillNs() const { return prefillNs_; }
    const std::vector<HeadFacts>& heads();
    const CacheFacts* caches(); // null: no selected blocks in the trace, or not wanted
    const GpuFacts& gpu();
    const ServedFacts* served(); // null: the run served no requests
    int contextAt(int step);     // tokens that sequence 0 has in this decode step; 0: unknown
    int firstWarmStep() const;   // 0: none
    /// First and last decode step, for evidence.
    Evidence evidence(std::string view, std::string metric = {}) const;

private:
    const TraceReader& reader_;
    InsightOptions options_;
    ExposureReport exposure_;
    std::vector<StepRow> decode_;
    std::int64_t prefillNs_ = 0;
    std::optional<std::vector<HeadFacts>> heads_;
    std::optional<std::optional<CacheFacts>> caches_;
    std::optional<GpuFacts> gpu_;
    std::optional<ServedFacts> served_;
    std::optional<std::vector<TokenRow>> tokens_;
    std::optional<RunCheck> check_;
};

/// How much a rule reads. Rules that read little run first, so that the first findings about a long run come soon.
enum class RuleReads : std::uint8_t {
    Steps,      // rows of steps and runs
    Tokens,     // tokens, and the steps of other runs
    Layers,     // every layer of every step: from here on the exposure has reasons and layers
    Selections, // counts of every selection
    Spans,      // kernels and counters
    Replays     // every selected block
};
inline constexpr std::array kRuleReads{RuleReads::Steps,      RuleReads::Tokens, RuleReads::Layers,
                                       RuleReads::Selections, RuleReads::Spans,  RuleReads::Replays};

struct InsightRule {
    const char* id;
    const char* claims; // what it says, in a line
    RuleReads reads;
    void (*find)(RunFacts& facts, std::vector<Insight>& out);
    Knowledge needs = Knowledge::nothing(); // a run that does not know these is not asked
};
std::span<const InsightRule> insightRules();

/// Median; 0 of nothing.
double medianOf(std::vector<double> values);

// The rules, by family.
void findLinkSaturated(RunFacts&, std::vector<Insight>&); // transfer_insights.cpp
void findLatencyBound(RunFacts&, std::vector<Insight>&);
void findSerialTransfers(RunFacts&, std::vector<Insight>&);
void findLatePrediction(RunFacts&, std::vector<Insight>&);
void findWriteBack(RunFacts&, std::vector<Insight>&);
void findLowLocality(RunFacts&, std::vector<Insight>&); // cache_insights.cpp
void findThrash(RunFacts&, std::vector<Insight>&);
void findWrongPolicy(RunFacts&, std::vector<Insight>&);
void findOversizedCache(RunFacts&, std::vector<Insight>&);
void findUnusedBudget(RunFacts&, std::vector<Insight>&);
void findResidentHitRate(RunFacts&, std::vector<Insight>&); // hit_rate_insights.cpp
void findColdHitRate(RunFacts&, std::vector<Insight>&);
void findGpuWaitsForKv(RunFacts&, std::vector<Insight>&); // gpu_insights.cpp
void findLaunchBound(RunFacts&, std::vector<Insight>&);
void findGpuIdle(RunFacts&, std::vector<Insight>&);
void findSelectionGrowth(RunFacts&, std::vector<Insight>&); // time_insights.cpp
void findSlowSteps(RunFacts&, std::vector<Insight>&);
void findPrefillDominates(RunFacts&, std::vector<Insight>&);
void findOffloadSlower(RunFacts&, std::vector<Insight>&); // pair_insights.cpp
void findOutputDiffers(RunFacts&, std::vector<Insight>&);
void findLowMass(RunFacts&, std::vector<Insight>&);
void findAnswer(RunFacts&, std::vector<Insight>&);       // answer_insights.cpp
void findDroppedSteps(RunFacts&, std::vector<Insight>&); // recorder_insights.cpp
void findLostGpuRecords(RunFacts&, std::vector<Insight>&);
void findLostPmSamples(RunFacts&, std::vector<Insight>&);
void findRecorderOverhead(RunFacts&, std::vector<Insight>&);
void findRecordingCost(RunFacts&, std::vector<Insight>&);
void findUnfinished(RunFacts&, std::vector<Insight>&);
void findPrefillStallsDecode(RunFacts&, std::vector<Insight>&); // serving_insights.cpp
void findQueueBound(RunFacts&, std::vector<Insight>&);
void findWorkingSetsBeyond(RunFacts&, std::vector<Insight>&);
void findLongPauses(RunFacts&, std::vector<Insight>&);
void findWorkingSetEstimateOff(RunFacts&, std::vector<Insight>&);
void findPlanTimesOff(RunFacts&, std::vector<Insight>&);
void findRefusedRequests(RunFacts&, std::vector<Insight>&);
void findBrokenRules(RunFacts&, std::vector<Insight>&);

} // namespace kvscope

// How much of the transfer time a run waits for, where, and why: per step, per layer, in total, and in one sentence.
// docs/insights.md has the definitions.
#pragma once

#include "core/transfer/link.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/trace_reader.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// Why exposed time is exposed; every exposed nanosecond has one reason. In order of blame:
enum class Exposure : std::uint8_t {
    WriteBack, // the copy of full blocks back to the host
    Late,      // the load had been started ahead, so that part of it was hidden, but it came late or had guessed wrong
    Latency,   // the fixed cost of a transfer, whatever its size
    Serial, // it would have fitted beside one layer's compute, but begins only when the layer's own selection is known
    Bandwidth // longer than a layer's compute: loading one layer ahead could not have hidden it
};
inline constexpr int kExposureCount = 5;
/// Short identifiers for columns and JSON.
inline constexpr std::array<std::string_view, kExposureCount> kExposureNames{"write_back", "late", "latency", "serial",
                                                                             "bandwidth"};
/// The reasons in words, for people.
inline constexpr std::array<std::string_view, kExposureCount> kExposureTitles{
    "write-back", "late or wrong prediction", "latency per transfer", "serial dependency", "bandwidth"};

struct TransferTime {
    std::int64_t transferNs = 0;                          // link busy, both directions
    std::int64_t exposedNs = 0;                           // of that, waited for
    std::array<std::int64_t, kExposureCount> becauseNs{}; // sums to exposedNs
    std::int64_t hiddenNs() const { return transferNs - exposedNs; }
    std::int64_t because(Exposure reason) const { return becauseNs[std::size_t(reason)]; }
    TransferTime& operator+=(const TransferTime& other);
};

struct StepExposure { // one decode step
    int step = 0;
    StepKind kind = StepKind::Steady;
    std::int64_t durationNs = 0; // measured wall time
    TransferTime time;
    std::int64_t selectingNs = 0; // compression, stage1 and pooling of all its layers; 0 until those are read
};

struct LayerExposure { // sums over the counted decode steps: all that are not cold, or all (coldSteps())
    int layer = 0;
    std::int64_t wallNs = 0; // its stages, measured
    std::int64_t selected = 0, hits = 0, misses = 0;
    std::int64_t h2dTransfers = 0, h2dBlocks = 0, h2dBytes = 0, d2hBytes = 0; // transfers: one per step that loads
    TransferTime time;
    double share = 0; // of all layers' exposed time, 0..1
};

struct LayerRange {
    int first = 0, last = 0; // both included
};

/// The few layers that cause most of the exposed time.
struct LayerGroup {
    std::vector<LayerRange> ranges; // ascending; empty: no few layers do
    int layers = 0;
    double share = 0; // of the exposed time, 0..1
};

struct ExposureTotal {
    int steps = 0;
    std::int64_t wallNs = 0; // measured wall time of the steps
    TransferTime time;
    ExposureTotal& operator+=(const StepExposure& step);
};

struct ExposureReport {
    RunRow run;
    bool measured = false;    // transfer times are measured; else they are modelled and part of no wall time
    std::optional<Link> link; // the modelled link, or one fitted to the measured times; absent: nothing crossed it
    std::vector<StepExposure> steps;   // decode steps, ascending
    bool byLayer = false;              // the layers are read: without them there are no reasons, layers and group
    std::vector<LayerExposure> layers; // ascending; every layer of the run
    ExposureTotal all, cold, opening;  // all: every decode step, as plain sums over v_step; cold: mixed ones too;
                                       // opening: of warm steps
    ExposureTotal warm;                // all without cold
    int mixedSteps = 0;                // of cold: they read pieces of prompts as well
    bool coldCounted = false;          // the headline, the shares and the layers speak of all steps, else of warm ones
    const ExposureTotal& counted() const { return coldCounted ? all : warm; }
    bool counts(StepKind kind) const { return coldCounted || !isLeftOut(kind); }
    bool known = true; // the run knows its transfer and exposed times; else everything here is 0
    LayerGroup group;

    /// Decode time of the counted steps with its transfers: measured wall time, which contains them, or wall time plus
    /// modelled transfers, which is then a prediction.
    double decodeNs() const;
    double exposedShare() const; // of decodeNs(), 0..1; 0 without decode steps and where it is not known

    std::string headline; // "31 % of decode time is exposed transfer (measured); layers 4-9 cause 70 % of it"
    std::string detail;   // the numbers behind it, and what was left out
};

/// Exposure by the steps' own sums, which takes a moment for any run: totals and shares, without reasons and layers.
ExposureReport exposureOfSteps(const TraceReader& reader, RunRow run, const std::vector<StepRow>& steps);
/// Reads the layer rows of those steps once: reasons, layers, the group. @throws Error(Cancelled)
void readLayerExposure(const TraceReader& reader, ExposureReport& report);
/// exposureOfSteps() and readLayerExposure() in one call. @throws Error(BadInput) if there is no such run,
/// Error(Cancelled)
ExposureReport exposureOf(const TraceReader& reader, int runId);

/// The smallest set of layers, in at most three runs of neighbours, that causes most of the exposed time; empty when
/// none is clearly more to blame than its number of layers says.
LayerGroup groupOf(const std::vector<LayerExposure>& layers);

/// "layer 3", "layers 4-9", "layers 2, 4-9 and 12"
std::string describe(const LayerGroup& group);

} // namespace kvscope

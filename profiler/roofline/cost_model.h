// What one decode step costs at best: bytes and operations of its parts against the rates of a device and its link.
// docs/roofline.md has the formulas, their sources and what they leave out.
#pragma once

#include "core/model/model_shape.h"
#include "core/plan/selection_spec.h"
#include "core/trace/stage.h"
#include "profiler/roofline/gpu_table.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvscope {

/// Where the KV cache lies and when missed blocks travel.
enum class Placement : std::uint8_t {
    Resident, // all blocks on the device
    OnDemand, // a pool of block slots; a layer waits for the blocks it misses
    Lookahead // the same pool; a layer's misses travel while the layer before it computes
};
inline constexpr std::array kPlacements{Placement::Resident, Placement::OnDemand, Placement::Lookahead};
const char* nameOf(Placement placement); // "resident", "offloaded", "lookahead"

/// The resource on which a step spends its time, or which keeps more sequences from being decoded together.
enum class Resource : std::uint8_t { MemoryBandwidth, Compute, Link, MemoryCapacity, HostCapacity };
inline constexpr std::array kResources{Resource::MemoryBandwidth, Resource::Compute, Resource::Link,
                                       Resource::MemoryCapacity, Resource::HostCapacity};
const char* nameOf(Resource resource); // "HBM bandwidth", "compute", "PCIe", "HBM capacity", "host memory"

struct DecodeScenario {
    ModelShape model;
    GpuSpec gpu;
    SelectionSpec method; // dense: full attention, always resident
    Placement placement = Placement::Resident;
    int context = 16384;         // tokens with keys and values, the one being decoded included
    int batch = 1;               // sequences that want to be decoded
    double hitRate = 1;          // of the selected blocks, 0..1; has no effect on resident ones
    int deviceSlots = 0;         // block slots per (sequence, layer, KV head); 0: as many as the method attends
    int bytesPerElement = 2;     // of keys, values and pooled keys
    std::int64_t blockBytes = 0; // of one KV head on the link and in slots; 0: keys and values alone
    double kvGib = 0;            // device memory for KV and its index; 0: what the weights leave
};

/// A step's time by what is done; the same groups for a prediction and for recorded stages.
struct StepParts {
    double projectionsNs = 0; // of the layers and the output head, with norms, embedding and sampling
    double selectionNs = 0;   // index, scores, picks and block lists
    double attentionNs = 0;
    double exposedNs = 0; // transfers that the step waits for
    double otherNs = 0;   // wall time that no stage claims; 0 in a prediction
};

/// What a stage takes at best, in all layers together, and which of the two rates bounds it.
struct StageFloor {
    double ns = 0; // 0: the model of costs has no bytes and no operations for the stage
    Resource bound = Resource::MemoryBandwidth;
};

/// One decode step of all sequences that fit. Times in nanoseconds, bytes and operations per step.
struct StepCost {
    std::int64_t fits = 0;  // sequences the memories hold
    int batch = 0;          // decoded together: the smaller of wanted and fitting; the others wait
    int attendedTokens = 0; // of each KV head in a sparse layer (in every layer where the method is dense)
    double weightBytes = 0, kvBytes = 0, indexBytes = 0; // read from device memory; kvBytes with the new token's write
    double operations = 0;
    double linkBytes = 0, writeBackBytes = 0; // host to device, device to host

    // Each resource alone, as if nothing else took time.
    double hbmNs = 0, computeNs = 0, linkNs = 0;
    // The parts of stepNs on the critical path, which add up to it.
    double hbmBoundNs = 0, computeBoundNs = 0, exposedNs = 0;
    StepParts parts; // add up to stepNs too
    // By StageId::number(); with exposedNs they add up to stepNs. Scores of the index are in stage1, attention in
    // stage2 where blocks are selected and in attention elsewhere.
    std::array<StageFloor, 1 + kStageCount + kStepStageCount> stages{};
    // The parts of linkNs: the fixed cost of transfers, the bytes of loads, the bytes that go back to the host.
    double linkLatencyNs = 0, linkLoadNs = 0, linkReturnNs = 0;
    double stepNs = 0;          // NaN where not even one sequence fits
    double tokensPerSecond = 0; // 0 where not even one sequence fits
    Resource binding = Resource::MemoryBandwidth;
};

/// @throws Error(BadInput) for impossible numbers, in a sentence
StepCost predictStep(const DecodeScenario& scenario);

/// Device bytes that one sequence takes: KV or pool of slots, and the index that selection reads.
std::int64_t sequenceBytes(const DecodeScenario& scenario);
/// Device bytes that are left for sequences; negative where the weights alone do not fit.
double bytesForSequences(const DecodeScenario& scenario);

/// k_q / k: the share of a method's budget that the query may change from one step to the next.
double queryShare(const SelectionSpec& method);
/// The hit rate that a cache of exactly the budget never falls below between two block openings: 1 - k_q / k.
double localityBound(const SelectionSpec& method);

} // namespace kvscope

// What a CUDA engine needs to know. It needs no prompts and no tokenizer, so that benchmarks can build an engine
// directly.
#pragma once

#include "base/indexed.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_selector.h"
#include "core/cuda/engine_changes.h"
#include "core/plan/abilities.h"
#include "core/plan/layer_plan.h"
#include "core/plan/selection_spec.h"
#include "core/plan/transfer_plan.h"
#include "core/session/decode_session.h"
#include "core/trace/gpu_trace.h"

#include <cuda_bf16.h>
#include <optional>
#include <vector>

namespace kvscope {

class Scatter;

/// The method, apart from its choice as data (CudaEngineOptions::spec).
struct DeviceMethod {
    DeviceSelectorMaker makeSelector = nullptr; // null: the method has no selector
    ParameterValues parameters;
    Abilities abilities; // with these parameters
};

/// How KV blocks cross the link.
struct DeviceTransfers {
    RowTransfers plan;   // loads by calls of the driver: only on demand, without step graphs
    int aheadBlocks = 0; // thread blocks of a transfer beside other kernels; 0: by the batch
    /// CudaEngine::transferLoop. Nothing: as KVSCOPE_TRANSFER_LOOP says, and without it wherever kernels run beside
    /// each other and no tool records single ones.
    std::optional<bool> loop;
    Scatter* scatter = nullptr; // with StorePlan::Bounce; must outlive the engine
};

struct CudaEngineOptions {
    SelectionSpec spec;
    PerRow<int> maxTokens;    // of each sequence
    PerRow<int> promptTokens; // empty: as maxTokens (matters where rotation depends on the length)
    int maxPrompt = 1;        // longest prompt that prefill() will get; bounds the scratch memory
    int slots = 0;
    LayerPlans plans; // of all layers
    bool leastRecentlyUsed = false;
    bool ranksBlocks = false; // the selector writes lastUse by worth (CachePolicy::byWorth)
    RecordLevel level = RecordLevel::Counters;
    bool record = true; // false: no selections, counters or marks at all
    bool useLibrary = true;
    bool oracle = false; // also measure the attention of every block; needs `record`
    OracleObserver* oracleObserver = nullptr;
    Sampling sampling; // of maxTokens - promptTokens tokens of each sequence
    GpuTrace* trace = nullptr;
    DeviceMethod method;
    const Model* model = nullptr; // null with random weights
    bool offload = true;
    bool sharesSteps = false; // the sequence is a request of an engine that serves many
    bool halves = false;      // half of the rows computes while blocks of the other half travel (HalfRows)
    bool pooled = false;      // the offloaded layers' slots are one pool of all rows (DevicePool)
    DeviceTransfers transfers;
    std::vector<PlantedStream> planted;     // [layer] of one sequence, see EngineSetup
    const EngineChanges* changes = nullptr; // what a benchmark changes; must outlive the engine
    /// The format of full blocks in the host store, on the link and in slots. Layers without slots hold the bf16
    /// numbers that the format gives back. Without a value blocks are bf16 everywhere. Not for methods with a selector
    /// or with lookahead, not with pools, and not for engines that serve many requests.
    std::optional<KvFormat> quantised;
    const PinnedMemory* store = nullptr; // used as the host store if large enough; must outlive the engine

    /// Bytes of a full block on the host and in a slot, whose numbers are `elements` bf16 numbers.
    std::int64_t fullBlockBytes(std::size_t elements) const {
        return quantised ? quantised->blockBytes() : std::int64_t(elements * sizeof(__nv_bfloat16));
    }
};

} // namespace kvscope

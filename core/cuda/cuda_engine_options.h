// What a CUDA engine needs to know, without prompts or a tokenizer: benchmarks build one directly.
#pragma once

#include "core/cuda/device_memory.h"
#include "core/cuda/device_selector.h"
#include "core/cuda/engine_changes.h"
#include "core/plan/abilities.h"
#include "core/plan/layer_plan.h"
#include "core/plan/selection_spec.h"
#include "core/session/decode_session.h"
#include "core/trace/gpu_trace.h"

#include <vector>

namespace kvscope {

struct CudaEngineOptions {
    SelectionSpec spec;
    std::vector<int> maxTokens;    // [sequence]
    std::vector<int> promptTokens; // [sequence]; empty: as maxTokens (matters where rotation depends on the length)
    int maxPrompt = 1;             // longest prompt that prefill() will get; bounds the scratch
    int slots = 0;
    LayerPlans plans; // of all layers
    bool leastRecentlyUsed = false;
    bool ranksBlocks = false; // the selector says how recent a block counts as (CachePolicy::byWorth)
    RecordLevel level = RecordLevel::Counters;
    bool record = true; // false: no selections, counters or marks at all
    bool useLibrary = true;
    bool oracle = false; // also measure the attention of every block; needs `record`
    OracleObserver* oracleObserver = nullptr;
    Sampling sampling; // of maxTokens - promptTokens tokens of each sequence
    GpuTrace* trace = nullptr;
    DeviceSelectorMaker makeSelector = nullptr; // of a method with kernels of its own
    ParameterValues parameters;                 // its
    Abilities abilities;                        // its, as it is used
    const Model* model = nullptr;               // for what only it knows; null with random weights
    bool offload = true;
    int aheadBlocks = 0;                    // thread blocks of a transfer beside other kernels; 0: by the batch
    bool transferLoop = false;              // see CudaEngine::transferLoop; KVSCOPE_TRANSFER_LOOP asks for it too
    const EngineChanges* changes = nullptr; // of whoever measures the engine; outlives it
    const PinnedMemory* store = nullptr;    // used for the KV store when it is large enough; outlives the engine
};

} // namespace kvscope

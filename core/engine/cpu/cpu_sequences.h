// CPU backend: what belongs to the sequences of one session, or to one request of an engine that serves many.
#pragma once

#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/engine/cpu/cpu_prompt_attention.h"
#include "core/engine/cpu/cpu_prompt_reader.h"
#include "core/engine/cpu/cpu_transfers.h"
#include "core/session/engine.h"

#include <memory>

namespace kvscope {

/// Both KV tiers, what the method remembers, and how far the prompts have been read. No other session or request shares
/// any of it.
struct CpuSequences {
    /// The kernels, the passes and the clock must outlive this object.
    CpuSequences(const EngineSetup& setup, Kernels& kernels, CpuLayerPasses& passes, StageClock& clock);

    const std::shared_ptr<const Model> model;
    const SelectionSpec spec;
    const AttentionRules rules;
    const RopeTables rope;
    KvCache cache;
    const SelectorContext context;
    const std::unique_ptr<Selector> selector;
    CpuTransfers transfers;
    CpuPromptAttention promptAttention;
    CpuPromptReader promptReader;
};

} // namespace kvscope

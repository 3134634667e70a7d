// What a backend does in a session. The engine owns its copies of the weights, both KV tiers and all scratch memory.
// The session checks options, follows sequences, samples tokens and gives records to the sink.
#pragma once

#include "base/ids.h"
#include "core/plan/memory_need.h"
#include "core/select/selector.h"
#include "core/session/decode_session.h"
#include "core/session/stage_clock.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

struct MethodEntry;

/// One sequence of a decode step.
struct ActiveSequence {
    RowId sequence{};
    int position = 0; // of the token being fed
};

/// What an engine is made from; the session has checked all of it.
struct EngineSetup {
    std::shared_ptr<const Model> model;
    const std::vector<std::vector<std::int32_t>>& prompts; // must outlive the engine
    const SessionOptions& options;
    SelectionSpec spec;
    std::vector<int> maxTokens; // [sequence] tokens each sequence may reach
    int slots = 0;              // device slots per (sequence, offloaded layer, KV head)
    LayerPlans plans;           // of all layers
    std::string cachePolicy;
    RecordLevel level = RecordLevel::Counters;
    std::function<std::unique_ptr<Selector>(const SelectorContext&)> makeSelector; // CPU backend
    ParameterValues parameters;                                                    // of the method; CUDA backend
    Abilities abilities;                                                           // of the method, as it is used
    /// The memory that the method takes for a sequence of this length; an empty function: none.
    std::function<std::vector<MemoryNeed>(ContextLength)> methodMemory;
    std::vector<PlantedStream> planted = {}; // [layer] selections that are drawn; empty: the method's own
};

class DecodeEngine {
public:
    virtual ~DecodeEngine() = default;
    /// Short text for traces, e.g. "cpu: AVX3, 2 threads".
    virtual std::string description() const = 0;
    virtual Timing linkTiming() const = 0;
    /// Runs all prompts, and the output head on the last token of each. Fills everything of the record but the step
    /// number, phase, tokens and generated tokens. @throws Error(Cancelled)
    virtual void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) = 0;
    /// Runs one decode step: feeds tokens[i] to active[i]. Fills the same parts of the record as prefill.
    virtual void decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                        StepRecord& record) = 0;
    /// Logits of the last prefill or step, float32 [vocab]. row: index of the sequence among the active ones.
    virtual const float* logits(int row) = 0;
    /// Waits until the device has done all work of this engine.
    virtual void settle() {}
    /// The next token of a row. Where samples() is true, SessionOptions::sampling chooses the token; else it is the
    /// token with the largest logit, of equal ones that with the lowest id. Below 0: some of the row's logits are
    /// infinite or NaN.
    virtual std::int32_t chosenToken(int row) = 0;
    /// Whether chosenToken follows SessionOptions::sampling. If not, the session samples from the logits.
    virtual bool samples() const { return false; }
};

/// @throws Error(Device | Unsupported) with a sentence for people when this program or machine cannot run the CUDA
/// backend
void requireGpu();

/// @throws Error(OutOfMemory) with the numbers
std::unique_ptr<DecodeEngine> makeCpuEngine(const EngineSetup& setup);
/// @throws Error(Unsupported) where this program was built without CUDA or the model is outside its shapes,
/// Error(Device) where there is no GPU, Error(OutOfMemory) with the numbers
std::unique_ptr<DecodeEngine> makeCudaEngine(const EngineSetup& setup);

} // namespace kvscope

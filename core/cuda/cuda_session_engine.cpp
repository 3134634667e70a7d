// The DecodeEngine of a session on the GPU.
#include "core/cache/cache_policy.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/gpu_device.h"
#include "core/cuda/gpu_memory.h"
#include "core/cuda/rehearsal.h"
#include "core/select/method.h"
#include "core/select/overlap.h"
#include "core/session/end_rule.h"
#include "kernels/cuda/transfer/quantised_blocks.h"

#include <algorithm>

namespace kvscope {
namespace {

/// Connects a session with the engine: knows which sequences are in a step, and launches the next step before the
/// session has seen this step's tokens, unless one of the tokens ends its sequence.
class CudaSessionEngine final : public DecodeEngine {
public:
    explicit CudaSessionEngine(const EngineSetup& setup)
        : model_(setup.model), prompts_(setup.prompts), options_(setup.options),
          engine_(uploadRehearsing(setup.model, gpuEngineOptions(setup)), gpuEngineOptions(setup)) {
        for (const auto& ids : options_.given) givenTokens_ = std::max(givenTokens_, int(ids.size()));
    }
    std::string description() const override { return engine_.description(); }
    Timing linkTiming() const override { return Timing::Measured; }

    void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) override {
        engine_.prefill(prompts_, record, progress, stop);
        rowSequence_.clear();
        for (int s = 0; s < int(prompts_.size()); ++s) rowSequence_.push_back(s);
    }

    void decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                StepRecord& record) override {
        if (engine_.inFlight() == 0) {
            std::vector<std::uint8_t> flags(prompts_.size(), 0);
            std::vector<std::int32_t> next(engine_.tokens().begin(), engine_.tokens().end());
            for (std::size_t i = 0; i < active.size(); ++i) {
                flags[index(active[i].sequence)] = 1;
                next[index(active[i].sequence)] = tokens[i];
            }
            engine_.setInputs(next, flags);
            engine_.launch(record.step);
        }
        engine_.wait();
        rowSequence_.clear();
        // A step that is fed given tokens begins when the session has put them in the place of the chosen ones.
        bool certain = options_.twoInFlight && record.step >= givenTokens_;
        for (const ActiveSequence& sequence : active) {
            rowSequence_.push_back(int(sequence.sequence));
            certain &= !finishes(sequence, engine_.tokens()[index(sequence.sequence)]);
        }
        if (certain) engine_.launch(record.step + 1); // the next step runs while the host reads this step's report
        engine_.fill(record, active);
    }

    void settle() override { engine_.settle(); }
    const float* logits(int row) override { return engine_.logits(rowSequence_[row]); }
    bool samples() const override { return true; }
    std::int32_t chosenToken(int row) override { return engine_.tokens()[rowSequence_[row]]; }

private:
    /// Whether this token ends the sequence, by the rule that the session uses too.
    bool finishes(const ActiveSequence& sequence, std::int32_t token) const {
        const int generated = sequence.position + 2 - int(prompts_[index(sequence.sequence)].size());
        return EndRule(options_, model_->config()).ends(generated, token);
    }

    std::shared_ptr<const Model> model_;
    const std::vector<std::vector<std::int32_t>>& prompts_;
    const SessionOptions& options_;
    CudaEngine engine_;
    Numbered<int> rowSequence_;
    int givenTokens_ = 0; // most of any sequence
};

} // namespace

CudaEngineOptions gpuEngineOptions(const EngineSetup& setup) {
    CudaEngineOptions options;
    options.spec = setup.spec;
    options.maxTokens = setup.maxTokens;
    for (const auto& prompt : setup.prompts) {
        options.maxPrompt = std::max(options.maxPrompt, int(prompt.size()));
        options.promptTokens.push_back(int(prompt.size()));
    }
    options.slots = setup.slots;
    options.plans = setup.plans;
    const CachePolicy& policy = findCachePolicy(setup.cachePolicy);
    options.leastRecentlyUsed = policy.byLastUse;
    options.ranksBlocks = policy.byWorth;
    options.level = setup.level;
    options.trace = setup.options.gpuTrace;
    options.sampling = setup.options.sampling;
    options.oracle = setup.options.oracle && !setup.spec.dense;
    options.oracleObserver = setup.options.oracleObserver;
    options.method.makeSelector = findMethod(setup.options.method).deviceMaker(setup.parameters);
    options.method.abilities = setup.abilities;
    options.method.parameters = setup.parameters;
    options.model = setup.model.get();
    options.offload = setup.options.offload;
    options.halves = select::overlapsHalves(setup.parameters);
    options.planted = setup.planted;
    if (setup.options.kvType.value_or(KvType::BF16) != KvType::BF16) {
        options.quantised = kvFormat(Backend::Cuda, setup.model->config(), setup.spec, setup.options.kvType);
        cuda::checkQuantisedFormat(*options.quantised);
        if (options.oracle)
            throw Error(ErrorKind::Unsupported, "the oracle on a GPU reads bf16 blocks on the host",
                        "leave --oracle or --kv-type out, or use --backend cpu");
    }
    return options;
}

MemoryPlan gpuMemory(const EngineSetup& setup, const cuda::Launch& launch) {
    return CudaEngine::memory(DeviceModel::shapesOf(*setup.model), gpuEngineOptions(setup), launch);
}

std::unique_ptr<DecodeEngine> makeCudaEngine(const EngineSetup& setup) {
    requireGpu();
    return std::make_unique<CudaSessionEngine>(setup);
}

} // namespace kvscope

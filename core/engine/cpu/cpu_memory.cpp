#include "core/engine/cpu/cpu_memory.h"

#include "core/engine/cpu/cpu_prompt_reader.h"
#include "core/kv/kv_cache.h"
#include "core/select/head_step.h"
#include "core/session/kv_estimate.h"

#include "base/error.h"
#include "base/host_memory.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

constexpr std::int64_t kFloat = sizeof(float), kInt = sizeof(std::int32_t);

MemoryNeed session(const char* key, const char* what, std::int64_t bytes) {
    return {key, what, MemoryTier::Host, Holds::Scratch, Lifetime::Session, Per::One, bytes, LayerSet::None};
}

/// What one sequence needs in both tiers, in the block index and in the lists that a step makes.
std::vector<MemoryNeed> tiers(const EngineSetup& setup, ContextLength length) {
    const ModelConfig& c = setup.model->config();
    const SelectionSpec& spec = setup.spec;
    const std::int64_t blocks = spec.grid.blocks(length.tokens()), windows = spec.grid.windows(length.tokens());
    std::vector<MemoryNeed> needs =
        tierNeeds({Backend::Cpu, c, spec, setup.slots, setup.model->hasEvictionHead(), false, setup.options.kvType},
                  length.tokens());
    const auto perHead = [&](const char* key, const char* what, std::int64_t bytes, LayerSet layers) {
        needs.push_back({key, what, MemoryTier::Host, Holds::Scratch, Lifetime::Session, Per::KvHead, bytes, layers});
    };
    perHead("slot_maps", "slot maps", (5 * setup.slots + blocks) * kInt, LayerSet::Offloaded);
    perHead("kv_heads", "lists of the last choice",
            std::int64_t(sizeof(KvHead)) + std::min<std::int64_t>(blocks, std::max(1, spec.budgetUnits())) * kInt,
            LayerSet::All);
    // Scores of windows and blocks, the choice, its order, its hits and its views.
    const std::int64_t item = std::int64_t(sizeof(HeadStep)) + (windows + 2 * blocks) * kFloat + 3 * blocks * kInt +
                              blocks * std::int64_t(sizeof(SelectedBlock) + sizeof(CopyItem) + sizeof(KvBlockView) + 1);
    needs.push_back({"step_lists", "a step's lists", MemoryTier::Host, Holds::Scratch, Lifetime::Step, Per::KvHead,
                     item, LayerSet::None});
    needs.push_back({"prompt_stream", "a prompt's residual stream", MemoryTier::Host, Holds::Scratch, Lifetime::Prompt,
                     Per::One, std::int64_t(length.prompt) * c.hidden * kFloat,
                     LayerSet::None}); // prompts are read one by one
    if (const KvFormat own = kvFormat(Backend::Cpu, c, spec); setup.options.kvType.value_or(own.type) != own.type)
        needs.push_back({"prompt_blocks", "a prompt's KV blocks of one layer", MemoryTier::Host, Holds::Scratch,
                         Lifetime::Prompt, Per::One,
                         std::int64_t(spec.grid.blocks(length.prompt)) * c.kvHeads * own.blockBytes(), LayerSet::None});
    return needs;
}

} // namespace

/// The kernels' own buffers are the two products of a feed-forward, the normalised copy of its input, a step's inputs
/// in the order in which weights are read, and a panel of unpacked weights.
std::vector<MemoryNeed> cpuActivations(const ModelConfig& c, const Abilities& needs, std::int64_t rows,
                                       std::int64_t outputs, int threads) {
    constexpr std::int64_t kFewInputs = 8, kPanelOutputs = 32;
    const std::int64_t q = std::int64_t(c.queryHeads) * c.headDim, kv = std::int64_t(c.kvHeads) * c.headDim;
    std::int64_t projected = q + kv + std::int64_t(c.queryHeads) * c.valueDim();
    if (needs.input) projected += c.hidden;
    if (needs.plain) projected += q + kv;
    if (c.latent)
        projected += std::int64_t(c.queryHeads) * c.queryDim() + c.latent->queryRank +
                     std::int64_t(c.queryHeads) * c.outputDim();
    else
        projected += kv + c.kvHeads;
    std::int64_t width = c.ffn, experts = 0;
    if (c.experts) {
        width = std::max({width, std::int64_t(c.experts->width), std::int64_t(c.experts->sharedWidth)});
        experts = c.experts->count + 3 * c.hidden + 1;
    }
    return {session("projections", "projections", rows * projected * kFloat),
            session("feed_forward", "the feed-forward", rows * (width + experts) * kFloat),
            session("products", "the feed-forward's products", rows * 2 * width * kFloat),
            session("step_inputs", "a step's inputs", 2 * kFewInputs * width * kFloat),
            session("weight_panel", "unpacked weights",
                    threads * kPanelOutputs * std::min<std::int64_t>(width, 2048) * kFloat),
            session("rotations", "the rows' rotations", rows * c.rope.dim * kFloat),
            session("normed", "normalised inputs", rows * c.hidden * kFloat),
            session("residual", "the residual stream", outputs * c.hidden * kFloat),
            session("logits", "logits", outputs * c.vocab * kFloat)};
}

MemoryPlan cpuMemory(const EngineSetup& setup) {
    const ModelConfig& config = setup.model->config();
    MemoryPlan plan(config, setup.plans);
    std::int64_t rows = std::int64_t(setup.prompts.size()), longest = 0, all = 0;
    for (std::size_t s = 0; s < setup.prompts.size(); ++s) {
        const int prompt = int(setup.prompts[s].size());
        const ContextLength length{prompt, setup.maxTokens[s] - prompt};
        rows = std::max<std::int64_t>(rows, std::min(prompt, kPromptPieceTokens));
        longest = std::max<std::int64_t>(longest, setup.maxTokens[s]);
        all += setup.maxTokens[s];
        plan.add(tiers(setup, length));
        if (setup.methodMemory) plan.add(setup.methodMemory(length));
    }
    plan.add(cpuActivations(config, setup.abilities, rows, std::int64_t(setup.prompts.size()),
                            std::max(1, setup.options.threads)));
    const std::int64_t tableRows = config.rope.dependsOnLength() ? all : longest;
    plan.add(session("rotary_tables", "rotary tables", tableRows * config.rope.dim * kFloat));
    return plan;
}

void refuseTooLarge(const MemoryPlan& plan) {
    const auto free =
        std::int64_t(std::min<std::size_t>(availableHostMemory(), std::numeric_limits<std::int64_t>::max()));
    if (plan.most() <= free) return;
    throw Error(ErrorKind::OutOfMemory,
                fmt::format("the session needs {}; {:.1f} GiB is free", plan.describe(),
                            double(free) / double(std::int64_t(1) << 30)),
                "use a shorter prompt, fewer new tokens or a smaller batch");
}

} // namespace kvscope

#include "core/session/method_memory.h"

#include "core/plan/kv_format.h"
#include "core/plan/layer_plan.h"
#include "core/plan/memory_plan.h"

#include <algorithm>

namespace kvscope {

MethodMemory methodMemory(const MethodEntry& method, const MethodUse& use, ContextLength length, int sequences) {
    if (method.memory == nullptr) return {};
    MemoryPlan plan(use.config, LayerPlans(use.config, use.spec, {.offload = use.offload, .longest = length.tokens()}));
    const std::vector<MemoryNeed> needs = method.memory(use, length);
    for (int sequence = 0; sequence < sequences; ++sequence) plan.add(needs);
    MethodMemory memory;
    memory.indexBytes = plan.bytes(MemoryTier::Device, Holds::Index);
    memory.deviceKvBytes = plan.bytes(MemoryTier::Device, Holds::Kv);
    memory.hostKvBytes = plan.bytes(MemoryTier::Host, Holds::Kv);
    const std::int64_t blockBytes = kvFormat(use.backend, use.config, use.spec).blockBytes();
    for (const MemoryNeed& need : needs)
        if (need.tier == MemoryTier::Device && need.holds == Holds::Kv && need.per == Per::KvHead)
            memory.blockSlots += int((need.bytes + blockBytes - 1) / blockBytes);
    return memory;
}

int mostAttended(const MethodEntry& method, const MethodUse& use, ContextLength length) {
    const SelectionSpec& spec = use.spec;
    if (spec.dense) return 0;
    const auto all = std::int64_t(length.prompt) + length.added;
    std::int64_t most = spec.traceUnit == 1 && spec.traceBudget > 0
                            ? spec.traceBudget
                            : std::int64_t(spec.budgetBlocks()) * spec.blockSize;
    if (method.attendsAtMost != nullptr) most = method.attendsAtMost(use, length);
    // If the first step has fewer than denseBelowTokens tokens, all steps with fewer tokens than that attend to
    // everything. No step reads the last token that is generated.
    if (length.prompt + 1 < spec.denseBelowTokens)
        most = std::max<std::int64_t>(most, all <= spec.denseBelowTokens ? all : spec.denseBelowTokens - 1);
    return most >= all ? 0 : int(most);
}

} // namespace kvscope

#include "core/session/most_attended.h"

#include <algorithm>

namespace kvscope {

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

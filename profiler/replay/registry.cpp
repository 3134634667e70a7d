#include "base/error.h"
#include "profiler/replay/policy.h"

#include <array>
#include <fmt/format.h>

namespace kvscope {

std::span<const ReplayPolicyEntry> replayPolicies() {
    static const std::array table{keepSelectedReplay(), lruReplay(), fifoReplay(),
                                  lfuReplay(),          arcReplay(), beladyReplay()};
    return table;
}

const ReplayPolicyEntry& findReplayPolicy(std::string_view name) {
    std::string known;
    for (const ReplayPolicyEntry& policy : replayPolicies()) {
        if (policy.name == name) return policy;
        known += (known.empty() ? "" : ", ") + policy.name;
    }
    throw Error(ErrorKind::BadInput, fmt::format("unknown replay policy '{}'", name), "known policies: " + known);
}

} // namespace kvscope

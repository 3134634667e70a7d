// A replay policy decides which resident block leaves when another is loaded. Each policy is one file with one class
// and one line in registry.cpp.
#pragma once

#include "profiler/replay/block_visits.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvscope {

/// One pool of block slots under one policy, request after request.
class ReplayPolicy {
public:
    virtual ~ReplayPolicy() = default;
    /// Makes all blocks of the next request resident at once; they stay at least until the request after it. missed[i]
    /// becomes 1 if the i-th block that enters with the request was not resident, else 0. Requests come in order, from
    /// 0.
    virtual void next(std::size_t request, std::span<std::uint8_t> missed) = 0;
};

struct ReplayPolicyEntry {
    std::string name, help;
    /// slots >= visits.largest(); `visits` outlives the policy.
    std::unique_ptr<ReplayPolicy> (*make)(const BlockVisits& visits, int slots) = nullptr;
};

std::span<const ReplayPolicyEntry> replayPolicies();
/// @throws Error(BadInput) listing the known names
const ReplayPolicyEntry& findReplayPolicy(std::string_view name);

ReplayPolicyEntry keepSelectedReplay();
ReplayPolicyEntry lruReplay();
ReplayPolicyEntry fifoReplay();
ReplayPolicyEntry lfuReplay();
ReplayPolicyEntry arcReplay();
ReplayPolicyEntry beladyReplay();

template <class Policy> std::unique_ptr<ReplayPolicy> makeReplayPolicy(const BlockVisits& visits, int slotCount) {
    return std::make_unique<Policy>(visits, slotCount); // not called `slots`, which is a macro of Qt's
}

} // namespace kvscope

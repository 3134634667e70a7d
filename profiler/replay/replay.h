// What a recorded run would have loaded with another cache: its selections against other policies, sizes and links.
// docs/replay.md has the definitions.
#pragma once

#include "core/transfer/link.h"
#include "profiler/replay/policy.h"
#include "profiler/replay/selection_trace.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvscope {

struct RequestOutcome {
    int hits = 0, misses = 0;
    int compulsory = 0; // misses of blocks that the head has never used before
};

/// Runs one head's requests through a cache of `slots` >= head.largestSet() block slots.
void replayHead(const HeadTrace& head, ReplayPolicy& policy, int slots,
                const std::function<void(const BlockRequest&, const RequestOutcome&)>& seen);

/// One policy at one size, all heads.
struct CacheReplay {
    std::int64_t hits = 0, misses = 0, compulsory = 0;
    std::vector<std::int32_t> loads; // [decode step][layer] blocks loaded
};

/// @throws Error(BadInput) if the largest request does not fit
CacheReplay replayCache(const SelectionTrace& trace, const ReplayPolicyEntry& policy, int cacheBlocks);

/// One policy at one size over one link.
struct ReplayConfig {
    std::string policy;
    int cacheBlocks = 0;
    double linkGbps = 0;
    std::int64_t hits = 0, misses = 0, compulsory = 0, h2dBytes = 0;
    std::int64_t exposedNs = 0;
    double tokensPerSecond = 0;
};

struct ReplayOptions {
    std::vector<std::string> policies; // empty: all
    std::vector<int> cacheBlocks;      // block slots per (sequence, layer, KV head); empty: as recorded
    std::vector<Link> links;           // empty: as recorded, or Link's default where times were measured
};

/// Every combination, policies outermost, links innermost. @throws Error(BadInput)
std::vector<ReplayConfig> replay(const SelectionTrace& trace, const ReplayOptions& options);

} // namespace kvscope

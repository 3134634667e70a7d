// What a recorded run would have loaded with another cache: its selections against other policies, sizes and links.
// docs/replay.md has the definitions.
#pragma once

#include "profiler/replay/miss_curve.h"
#include "profiler/replay/policy.h"
#include "profiler/replay/sampled_curve.h"
#include "profiler/replay/selection_trace.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

struct RequestOutcome {
    int hits = 0, misses = 0; // counted blocks
    int compulsory = 0;       // misses of blocks that the pool was never asked for before
    int loads = 0;            // blocks transferred: misses, and what steps without selection load
};

/// Runs the requests of one pool. seen(request, outcome) is called for each, in order.
void replayPool(const BlockVisits& visits, ReplayPolicy& policy,
                const std::function<void(std::size_t, const RequestOutcome&)>& seen);

struct CacheCounts {
    std::int64_t hits = 0, misses = 0, compulsory = 0; // as in RequestOutcome, summed
    void add(const RequestOutcome& outcome);
    CacheCounts& operator+=(const CacheCounts& other);
};

/// Transfers of that many blocks in one layer of one step.
struct TransferSize {
    std::int32_t blocks = 0;
    std::int64_t transfers = 0;
};

/// One policy at one size, all pools. Nothing in it depends on the link.
struct CacheReplay {
    CacheCounts total;
    std::vector<CacheCounts> pools;      // [pool of the trace]
    std::vector<std::int32_t> loads;     // [decode step][layer] blocks loaded
    std::vector<TransferSize> transfers; // the same by size, ascending, without 0: all that time on demand depends on
};

/// @throws Error(BadInput) if the largest request does not fit, Error(Cancelled)
CacheReplay replayCache(const SelectionTrace& trace, const ReplayPolicyEntry& policy, int cacheBlocks, int threads = 0,
                        const Progress& progress = {}, const std::stop_token& stop = {});

/// Loading before the attention asks: each layer's misses are guessed when the layer `layersAhead` before it begins, or
/// when the step does, and as many blocks are loaded as it will miss. A guess is right for the share `accuracy`; the
/// other blocks are loaded for nothing, and what they should have been is loaded on demand. One link does it in order.
struct Prefetch {
    int layersAhead = 1; // >= 1
    double accuracy = 1; // 0..1
};

struct PrefetchedTime {
    std::int64_t h2dBytes = 0, exposedNs = 0;
    double tokensPerSecond = 0;
};

/// Whether the recording is what its own cache does: requests whose replayed hits or misses are not the recorded ones.
struct Reproduction {
    std::string policy;
    std::int64_t requests = 0, differing = 0;
};

/// Empty where there is nothing to compare: everything was resident, pools are shared, or the policy is unknown. A
/// recording that does not name its policy is compared with keep-selected. @throws Error(Cancelled)
std::optional<Reproduction> reproduce(const SelectionTrace& trace, int threads = 0, const Progress& progress = {},
                                      const std::stop_token& stop = {});

/// One policy at one size over one link. Times are modelled; with recorded compute time they make a prediction.
struct ReplayConfig {
    std::string policy;
    int cacheBlocks = 0, blockSize = 0; // slots of each pool; tokens of a block
    double linkGbps = 0, linkLatencyUs = 0;
    std::int64_t hits = 0, misses = 0, compulsory = 0, h2dBytes = 0;
    std::int64_t exposedNs = 0;               // on demand: everything, one transfer per layer and step
    double computeNs = 0;                     // recorded decode time without transfers
    double tokens = 0;                        // decoded, all sequences
    double tokensPerSecond = 0;               // tokens over computeNs + exposedNs
    std::optional<PrefetchedTime> prefetched; // the same misses, loaded ahead
};

struct ReplayOptions {
    std::vector<std::string> policies; // empty: all
    std::vector<int> cacheBlocks;      // slots of each pool; empty: as recorded, or what the largest request needs
    std::vector<Link> links;           // empty: SelectionTrace::link
    int threads = 0;                   // 0: one per core
    std::optional<Prefetch> prefetch = std::nullopt;
};

/// What those loads cost over a link: no cache is simulated again. On demand takes microseconds, loading ahead a pass
/// over steps and layers. `policy` and `cacheBlocks` are left to the caller. @throws Error(BadInput)
ReplayConfig timeOver(const SelectionTrace& trace, const CacheReplay& cache, const Link& link,
                      const std::optional<Prefetch>& prefetch = std::nullopt);

/// Every combination, policies outermost, links innermost. @throws Error(BadInput | Cancelled)
std::vector<ReplayConfig> replay(const SelectionTrace& trace, const ReplayOptions& options,
                                 const Progress& progress = {}, const std::stop_token& stop = {});

/// One exact curve per pool. @throws Error(Cancelled)
std::vector<MissCurve> missCurves(const SelectionTrace& trace, CurvePolicy policy, int threads = 0,
                                  const Progress& progress = {}, const std::stop_token& stop = {});
/// An estimate of their sum.
MissCurve sampledMissCurve(const SelectionTrace& trace, CurvePolicy policy, const CurveSample& sample = {});

} // namespace kvscope

// What a recorded run would have loaded with another cache: its selections against other policies, sizes and links.
// docs/replay.md has the definitions.
#pragma once

#include "profiler/read/step_kind.h"
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
    int hits = 0, misses = 0; // of blocks that count
    int compulsory = 0;       // of the misses, blocks that no request of the pool had before
    int loads = 0;            // blocks transferred: misses, and the loads of steps without a selection
};

/// Runs the requests of one pool in order, and calls seen(request, outcome) for each.
void replayPool(const BlockVisits& visits, ReplayPolicy& policy,
                const std::function<void(std::size_t, const RequestOutcome&)>& seen);

struct CacheCounts {
    std::int64_t hits = 0, misses = 0, compulsory = 0; // as in RequestOutcome, summed
    void add(const RequestOutcome& outcome);
    CacheCounts& operator+=(const CacheCounts& other);
};

/// How many transfers move exactly `blocks` blocks, each in one layer of one step.
struct TransferSize {
    std::int32_t blocks = 0;
    std::int64_t transfers = 0;
};

/// Counts loads by size, ascending, without 0.
std::vector<TransferSize> transferSizes(const std::vector<std::int32_t>& loads);
/// The same of the cold steps alone. loads: as in CacheReplay.
std::vector<TransferSize> coldTransfers(const SelectionTrace& trace, const std::vector<std::int32_t>& loads);

/// The result of one policy with one number of slots, for all pools. Nothing in it depends on the link.
struct CacheReplay {
    CacheCounts total;
    std::vector<CacheCounts> pools;      // [pool of the trace]
    std::vector<std::int32_t> loads;     // [decode step][layer] blocks loaded
    std::vector<TransferSize> transfers; // `loads` counted by size, ascending, without 0; gives the time on demand
    // The part of the above that belongs to cold steps (ReplayStep::cold)
    CacheCounts coldTotal;
    std::vector<CacheCounts> coldPools;
    std::vector<TransferSize> coldTransfers;
};

/// @throws Error(BadInput) if the largest request does not fit, Error(Cancelled)
CacheReplay replayCache(const SelectionTrace& trace, const ReplayPolicyEntry& policy, int cacheBlocks, int threads = 0,
                        const Progress& progress = {}, const std::stop_token& stop = {});

/// Loads before the attention asks for them. A layer's misses are guessed when the layer `layersAhead` before it
/// begins, or when the step begins, and as many blocks are loaded as the layer misses. The share `accuracy` of them is
/// right. The others are loaded in vain, and the blocks that are missing instead are loaded on demand. One link does
/// all transfers in order.
struct Prefetch {
    int layersAhead = 1; // >= 1
    double accuracy = 1; // 0..1
};

struct PrefetchedTime {
    std::int64_t h2dBytes = 0, exposedNs = 0;
    double tokensPerSecond = 0;
    std::int64_t coldExposedNs = 0; // of exposedNs, the part of cold steps
};

/// Whether replaying the recording's own cache gives the recorded hits and misses, request by request.
struct Reproduction {
    std::string policy;
    std::int64_t requests = 0, differing = 0;
};

/// Replays the recording's own cache. Nothing where there is nothing to compare: all blocks were resident, the pools
/// are shared, or the policy is unknown. A recording that does not name its policy is compared with keep-selected.
/// @throws Error(Cancelled)
std::optional<Reproduction> reproduce(const SelectionTrace& trace, int threads = 0, const Progress& progress = {},
                                      const std::stop_token& stop = {});

/// The result of one policy with one number of slots over one link. Transfer times are modelled; together with the
/// recorded compute time they are a prediction.
struct ReplayConfig {
    std::string policy;
    int cacheBlocks = 0, blockSize = 0; // slots of each pool; tokens of a block
    double linkGbps = 0, linkLatencyUs = 0;
    std::int64_t hits = 0, misses = 0, compulsory = 0, h2dBytes = 0;
    std::int64_t exposedNs = 0; // on demand, where all transfer time is exposed
    double computeNs = 0;       // recorded decode time without transfers; NaN: the run knows no step times
    double tokens = 0;          // decoded tokens of all sequences
    double tokensPerSecond = 0; // tokens over computeNs + exposedNs; NaN where computeNs is
    std::optional<PrefetchedTime> prefetched; // the times if the same misses are loaded ahead
    // The part of the above that belongs to cold steps (ReplayStep::cold)
    std::int64_t coldHits = 0, coldMisses = 0, coldExposedNs = 0;
    double coldComputeNs = 0, coldTokens = 0;
};

/// What rates are made of: sums over the steps that they count.
struct RateSums {
    std::int64_t hits = 0, misses = 0, exposedNs = 0;
    double computeNs = 0, tokens = 0;
    /// 0..1; NaN where nothing was selected.
    double hitRate() const;
    /// Tokens over computeNs + exposedNs; 0 where no time passed, NaN where it is not known.
    double tokensPerSecond() const;
};
/// The sums of a replayed cache: on demand, or loaded ahead where the configuration has that.
RateSums rateSums(const ReplayConfig& config, ColdSteps cold);

struct ReplayOptions {
    std::vector<std::string> policies; // empty: all
    std::vector<int> cacheBlocks; // slots of each pool; empty: as recorded, at least what the largest request needs
    std::vector<Link> links;      // empty: SelectionTrace::link
    int threads = 0;              // 0: one per core
    std::optional<Prefetch> prefetch = std::nullopt;
};

/// The times of a replayed cache's loads over a link. No cache is simulated again: on demand this takes microseconds,
/// loading ahead one pass over steps and layers. The caller sets `policy` and `cacheBlocks`. @throws Error(BadInput)
ReplayConfig timeOver(const SelectionTrace& trace, const CacheReplay& cache, const Link& link,
                      const std::optional<Prefetch>& prefetch = std::nullopt);

/// Replays every combination, in loops over policies, then sizes, then links. @throws Error(BadInput | Cancelled)
std::vector<ReplayConfig> replay(const SelectionTrace& trace, const ReplayOptions& options,
                                 const Progress& progress = {}, const std::stop_token& stop = {});

/// One exact curve for each pool. @throws Error(Cancelled)
std::vector<MissCurve> missCurves(const SelectionTrace& trace, CurvePolicy policy, int threads = 0,
                                  const Progress& progress = {}, const std::stop_token& stop = {});
/// An estimate of the sum of all pools' curves.
MissCurve sampledMissCurve(const SelectionTrace& trace, CurvePolicy policy, const CurveSample& sample = {});

} // namespace kvscope

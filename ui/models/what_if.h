// What another cache or link would have done to one loaded run: what was replayed so far, the curves, and answers at
// once from what is known. No Qt, no threads: the view computes on workers and hands the results in.
#pragma once

#include "profiler/replay/locality.h"
#include "profiler/replay/replay.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope::ui {

/// What the person asks.
struct WhatIfQuestion {
    std::string policy = "keep-selected";
    int size = 0; // of each pool
    double gbps = 0, latencyUs = 0;
    int layersAhead = 0; // 0: on demand
    double accuracy = 1; // of loading ahead, 0..1
    bool operator==(const WhatIfQuestion&) const = default;
    Link link() const { return {"what-if", gbps, latencyUs}; }
    std::optional<Prefetch> prefetch() const {
        return layersAhead > 0 ? std::optional(Prefetch{layersAhead, accuracy}) : std::nullopt;
    }
};

/// Misses by cause: first uses; what even the best policy misses at this size; what this policy misses beyond that.
struct MissCauses {
    std::int64_t compulsory = 0;
    std::optional<std::int64_t> capacity, policy; // empty: no curve of Belady's yet, or none at this size
};

struct WhatIfAnswer {
    ReplayConfig config;
    MissCauses causes;
    bool estimated = false;       // times, at least, are read between replayed sizes; false: all as replay() has it
    bool missesEstimated = false; // so are hits and misses
    std::int64_t bytes() const { return config.prefetched ? config.prefetched->h2dBytes : config.h2dBytes; }
    std::int64_t exposedNs() const { return config.prefetched ? config.prefetched->exposedNs : config.exposedNs; }
    double tokensPerSecond() const {
        return config.prefetched ? config.prefetched->tokensPerSecond : config.tokensPerSecond;
    }
};

/// -1: all of them.
struct PoolScope {
    int sequence = -1, layer = -1, kvHead = -1;
    bool all() const { return sequence < 0 && layer < 0 && kvHead < 0; }
    bool has(const PoolTrace& pool) const {
        return (layer < 0 || pool.layer == layer) && (kvHead < 0 || pool.kvHead == kvHead) &&
               (sequence < 0 || pool.sequence < 0 || pool.sequence == sequence);
    }
    bool operator==(const PoolScope&) const = default;
};

/// Misses per reference at one size.
struct MissPoint {
    int size = 0;
    double ratio = 0; // 0..1
};

class WhatIf {
public:
    static constexpr int kLongestWindow = 64;
    using Trace = std::shared_ptr<const SelectionTrace>;
    using Replayed = std::shared_ptr<const CacheReplay>;

    explicit WhatIf(Trace trace);
    const SelectionTrace& trace() const { return *trace_; }
    const Trace& shared() const { return trace_; }

    int smallestSlots() const { return trace_->largest; }
    int largestSlots() const { return largestSlots_; } // as many as blocks exist, or as recorded
    std::int64_t references() const { return trace_->hits + trace_->misses; }
    /// The recorded cache and link; where every block was resident, lru with the fewest slots.
    WhatIfQuestion recorded() const;
    bool hasRecordedCache() const { return trace_->run.deviceSlots > 0 && !trace_->shared; }
    /// Decoded tokens, all sequences, per second of recorded compute and exposed time.
    double recordedTokensPerSecond() const;
    double computeNs() const { return computeNs_; }

    /// Totals only, until the exact ones are there.
    void setSampled(CurvePolicy policy, MissCurve total);
    void setCurves(CurvePolicy policy, std::vector<MissCurve> pools);
    void setLocality(std::vector<LocalityProfile> pools);
    void add(const std::string& policy, int size, Replayed replay);

    bool exactCurves() const { return !curves_[0].pools.empty() && !curves_[1].pools.empty(); }
    /// Empty: not known for this scope yet.
    std::optional<MissCurve> curve(CurvePolicy policy, const PoolScope& scope) const;
    std::optional<LocalityProfile> locality(const PoolScope& scope) const;
    /// The sizes that were replayed, ascending.
    std::vector<MissPoint> replayedPoints(const std::string& policy, const PoolScope& scope) const;
    /// Between replayed sizes by a straight line, from a curve where there is one; NaN if nothing is known.
    double missRatio(const std::string& policy, int size, const PoolScope& scope, bool* estimated = nullptr) const;
    /// Misses per reference of the recording; NaN where it has none.
    double recordedMissRatio(const PoolScope& scope) const;
    MissCauses recordedCauses() const;

    Replayed replayed(const std::string& policy, int size) const; // null: not yet
    /// What is known at once. Nothing if this policy was not replayed at any size yet.
    std::optional<WhatIfAnswer> answer(const WhatIfQuestion& question) const;
    /// Time at every replayed size of the question's policy, everything else as asked.
    std::vector<WhatIfAnswer> overSizes(const WhatIfQuestion& question, bool prefetch) const;
    /// The sizes worth replaying for a policy's line, few where a replay is long.
    const std::vector<int>& grid() const { return grid_; }

private:
    struct Curves {
        std::optional<MissCurve> total; // sampled while there are no pools
        std::vector<MissCurve> pools;
    };
    const MissCurve* total(CurvePolicy policy) const; // null: not yet
    MissCauses causes(std::int64_t misses, int size) const;
    WhatIfAnswer timed(const WhatIfQuestion& question, int size, const CacheReplay& replay, bool prefetch) const;
    void evict();

    Trace trace_;
    int largestSlots_ = 0;
    double computeNs_ = 0, tokens_ = 0;
    std::int64_t compulsory_ = 0;
    std::array<Curves, 2> curves_;
    std::vector<LocalityProfile> locality_;
    std::map<std::string, std::map<int, Replayed>> replays_;
    std::vector<std::pair<std::string, int>> added_; // beside the grid, the oldest first
    std::vector<int> grid_;
};

} // namespace kvscope::ui

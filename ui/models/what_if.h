// Answers what another cache or link would have done to one loaded run. A WhatIf collects replays and miss curves and
// answers at once from those it has. It uses neither Qt nor threads: the view computes replays and curves on worker
// threads and hands them over.
#pragma once

#include "base/indexed.h"
#include "profiler/replay/locality.h"
#include "profiler/replay/replay.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope::ui {

/// The cache and the link that the user asks about.
struct WhatIfQuestion {
    std::string policy = "keep-selected";
    int size = 0; // slots of each pool
    double gbps = 0, latencyUs = 0;
    int layersAhead = 0; // layers by which blocks are loaded ahead; 0: on demand
    double accuracy = 1; // share of blocks that loading ahead predicts correctly, 0..1
    bool operator==(const WhatIfQuestion&) const = default;
    Link link() const { return {"what-if", gbps, latencyUs}; }
    std::optional<Prefetch> prefetch() const {
        return layersAhead > 0 ? std::optional(Prefetch{layersAhead, accuracy}) : std::nullopt;
    }
};

/// Misses by cause. compulsory: first uses of blocks. capacity: further misses that even the best policy has at this
/// size. policy: the misses that this policy has beyond those.
struct MissCauses {
    std::int64_t compulsory = 0;
    std::optional<std::int64_t> capacity, policy; // absent: Belady's curve is not known at this size
};

struct WhatIfAnswer {
    ReplayConfig config;
    MissCauses causes;
    bool estimated = false;       // at least the times are interpolated between replayed sizes
    bool missesEstimated = false; // hits and misses are interpolated too
    std::int64_t bytes() const { return config.prefetched ? config.prefetched->h2dBytes : config.h2dBytes; }
    std::int64_t exposedNs() const { return config.prefetched ? config.prefetched->exposedNs : config.exposedNs; }
    /// Rates leave cold steps out unless coldSteps() says otherwise; hits, misses, bytes and times count every step.
    double hitRate() const { return rateSums(config, coldSteps()).hitRate(); }
    double tokensPerSecond() const { return rateSums(config, coldSteps()).tokensPerSecond(); }
};

/// The pools to sum up: those of one sequence, layer and KV head, where -1 stands for all.
struct PoolScope {
    int sequence = -1, layer = -1, kvHead = -1;
    bool all() const { return sequence < 0 && layer < 0 && kvHead < 0; }
    bool has(const PoolTrace& pool) const {
        return (layer < 0 || pool.layer == layer) && (kvHead < 0 || pool.kvHead == kvHead) &&
               (sequence < 0 || pool.sequence < 0 || pool.sequence == sequence);
    }
    bool operator==(const PoolScope&) const = default;
};

/// Misses per reference at one size of the cache.
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
    int largestSlots() const { return largestSlots_; } // as many as there are blocks, or recorded slots if more
    std::int64_t references() const { return trace_->hits + trace_->misses; }
    /// The recorded cache and link. If every block was resident in the recording, the policy is lru with the fewest
    /// slots that a replay allows.
    WhatIfQuestion recorded() const;
    bool hasRecordedCache() const { return trace_->run.deviceSlots > 0 && !trace_->shared; }
    /// What the recorded rates are made of, without cold steps unless coldSteps() says otherwise: decoded tokens of all
    /// sequences, recorded compute time and exposed time, hits and misses.
    RateSums recordedRates() const;
    double computeNs() const { return computeNs_; } // of all decode steps
    int coldStepCount() const;                      // steps that rates can leave out

    /// Sets a sampled curve for the total of all pools, to be used until setCurves brings the exact curves.
    void setSampled(CurvePolicy policy, MissCurve total);
    void setCurves(CurvePolicy policy, std::vector<MissCurve> pools);
    void setLocality(std::vector<LocalityProfile> pools);
    void add(const std::string& policy, int size, Replayed replay);

    bool exactCurves() const { return !curves_[0].pools.empty() && !curves_[1].pools.empty(); }
    /// The miss curve of these pools, without cold steps unless coldSteps() says otherwise; absent while it is not
    /// known.
    std::optional<MissCurve> curve(CurvePolicy policy, const PoolScope& scope) const;
    std::optional<LocalityProfile> locality(const PoolScope& scope) const;
    /// The miss ratio at every replayed size of a policy, in the order of the sizes.
    std::vector<MissPoint> replayedPoints(const std::string& policy, const PoolScope& scope) const;
    /// The miss ratio at a size: from the policy's curve if there is one, else from a replay of that size, else
    /// interpolated between the nearest replayed sizes. NaN outside of the replayed sizes. `estimated` receives whether
    /// the ratio is sampled or interpolated.
    double missRatio(const std::string& policy, int size, const PoolScope& scope, bool* estimated = nullptr) const;
    /// Misses per reference in the recording; NaN if every block was resident or if sequences shared the pools.
    double recordedMissRatio(const PoolScope& scope) const;
    MissCauses recordedCauses() const;

    Replayed replayed(const std::string& policy, int size) const; // null: not replayed yet
    /// The answer from what is known: the replay of that size, or an estimate from the nearest replayed sizes. Absent
    /// while the policy has no replay at any size.
    std::optional<WhatIfAnswer> answer(const WhatIfQuestion& question) const;
    /// An answer for every replayed size of the question's policy, with the link and the loading ahead of the question.
    std::vector<WhatIfAnswer> overSizes(const WhatIfQuestion& question, bool prefetch) const;
    /// The sizes to replay for a policy's line in the chart. They are fewer where a replay takes much memory.
    const std::vector<int>& grid() const { return grid_; }

private:
    struct Curves {
        std::optional<MissCurve> total; // a sampled curve while `pools` is empty
        std::vector<MissCurve> pools;
    };
    const MissCurve* total(CurvePolicy policy) const; // of every step; null: not known yet
    MissCauses causes(std::int64_t misses, int size) const;
    WhatIfAnswer timed(const WhatIfQuestion& question, int size, const CacheReplay& replay, bool prefetch) const;
    void evict();

    Trace trace_;
    int largestSlots_ = 0;
    double computeNs_ = 0;
    std::int64_t compulsory_ = 0;
    PerValue<CurvePolicy, Curves, 2> curves_;
    std::vector<LocalityProfile> locality_;
    std::map<std::string, std::map<int, Replayed>> replays_;
    std::vector<std::pair<std::string, int>> added_; // replays of sizes off the grid, oldest first
    std::vector<int> grid_;
};

} // namespace kvscope::ui

// The memory of a session, added up from what its parts declare. Estimates, admission and the parts that take the
// memory use the same list.
#pragma once

#include "core/plan/memory_need.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class MemoryPlan {
public:
    /// What one key of the declarations adds up to.
    struct Part {
        MemoryNeed need; // bytes: of the sequence that has most
        std::int64_t bytes = 0;
        int times = 0; // how often it was declared
    };

    /// A plan for needs that belong to no head and no layer.
    MemoryPlan() = default;
    MemoryPlan(const ModelConfig& config, const LayerPlans& plans)
        : kvHeads_(config.kvHeads), queryHeads_(config.queryHeads), plans_(plans) {}

    /// Adds what a sequence takes, or what the session takes whatever its sequences (Per::One). The same key with
    /// Per::One, declared again, counts once, at its largest.
    void add(const MemoryNeed& need);
    void add(std::span<const MemoryNeed> needs) {
        for (const MemoryNeed& need : needs) add(need);
    }

    const std::vector<Part>& parts() const { return parts_; }
    /// 0 for a key that nobody declared.
    std::int64_t bytes(std::string_view key) const;
    std::int64_t bytes(MemoryTier tier, Holds holds) const;
    /// The most that is held at a time: with the prompts' memory or with the steps', whichever is more.
    std::int64_t most() const;
    std::int64_t most(MemoryTier tier) const;
    /// "1.2 GiB: 0.8 GiB KV blocks, 0.3 GiB page digests and 0.1 GiB for 12 smaller things"
    std::string describe() const;

private:
    std::int64_t times(const MemoryNeed& need) const;
    template <class Wanted> std::int64_t sum(Wanted&& wanted) const;

    int kvHeads_ = 1, queryHeads_ = 1;
    LayerPlans plans_;
    std::vector<Part> parts_;
};

} // namespace kvscope

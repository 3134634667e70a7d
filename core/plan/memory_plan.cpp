#include "core/plan/memory_plan.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace {

std::int64_t layersOf(LayerSet set, const LayerPlans& plans) {
    switch (set) {
    case LayerSet::None:
        return 1;
    case LayerSet::All:
        return plans.size();
    case LayerSet::Dense:
        return plans.dense();
    case LayerSet::Sparse:
        return plans.sparse();
    case LayerSet::Offloaded:
        return plans.offloaded();
    case LayerSet::Resident:
        return plans.resident();
    }
    return 0;
}

std::string gib(std::int64_t bytes) { return fmt::format("{:.1f} GiB", double(bytes) / double(std::int64_t(1) << 30)); }

} // namespace

/// How often the need's bytes are taken for one sequence.
std::int64_t MemoryPlan::times(const MemoryNeed& need) const {
    const int heads = need.per == Per::KvHead ? kvHeads_ : need.per == Per::QueryHead ? queryHeads_ : 1;
    return heads * layersOf(need.layers, plans_);
}

void MemoryPlan::add(const MemoryNeed& need) {
    const std::int64_t bytes = need.bytes * times(need);
    const auto found = std::find_if(parts_.begin(), parts_.end(),
                                    [&](const Part& part) { return std::string_view(part.need.key) == need.key; });
    if (found == parts_.end()) {
        parts_.push_back({need, bytes, 1});
        return;
    }
    ++found->times;
    found->need.bytes = std::max(found->need.bytes, need.bytes);
    if (need.per == Per::One)
        found->bytes = std::max(found->bytes, bytes);
    else if (need.asLongest)
        found->bytes = found->need.bytes * times(need) * found->times;
    else
        found->bytes += bytes;
}

template <class Wanted> std::int64_t MemoryPlan::sum(Wanted&& wanted) const {
    std::int64_t total = 0;
    for (const Part& part : parts_)
        if (wanted(part.need)) total += part.bytes;
    return total;
}

std::int64_t MemoryPlan::bytes(std::string_view key) const {
    return sum([&](const MemoryNeed& need) { return key == need.key; });
}

std::int64_t MemoryPlan::bytes(MemoryTier tier, Holds holds) const {
    return sum([&](const MemoryNeed& need) { return need.tier == tier && need.holds == holds; });
}

std::int64_t MemoryPlan::most() const {
    const auto of = [&](Lifetime life) { return sum([&](const MemoryNeed& need) { return need.life == life; }); };
    return of(Lifetime::Session) + std::max(of(Lifetime::Prompt), of(Lifetime::Step));
}

std::int64_t MemoryPlan::most(MemoryTier tier) const {
    const auto of = [&](Lifetime life) {
        return sum([&](const MemoryNeed& need) { return need.tier == tier && need.life == life; });
    };
    return of(Lifetime::Session) + std::max(of(Lifetime::Prompt), of(Lifetime::Step));
}

std::string MemoryPlan::describe() const {
    std::vector<const Part*> order;
    for (const Part& part : parts_) order.push_back(&part);
    std::stable_sort(order.begin(), order.end(), [](const Part* a, const Part* b) { return a->bytes > b->bytes; });
    constexpr std::size_t kNamed = 3;
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < std::min(kNamed, order.size()); ++i)
        texts.push_back(fmt::format("{} {}", gib(order[i]->bytes), order[i]->need.what));
    std::int64_t rest = 0;
    for (std::size_t i = kNamed; i < order.size(); ++i) rest += order[i]->bytes;
    if (order.size() > kNamed) texts.push_back(fmt::format("{} for the rest", gib(rest)));
    return fmt::format("{}: {}", gib(most()), fmt::join(texts, ", "));
}

} // namespace kvscope

#include "profiler/replay/device_pool.h"

#include "base/error.h"
#include "base/extents.h"
#include "base/parallel.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <unordered_map>
#include <utility>

namespace kvscope {
namespace {

/// Goes through the requests of one pool, step by step.
class Follower {
public:
    Follower(const PoolTrace& pool, std::int32_t first) : pool_(pool), first_(first) { skipPrompt(); }

    /// Whether the pool has a request in the step. If it has, goes to it.
    bool goTo(std::int32_t step) {
        if (next_ == pool_.steps.size() || pool_.steps[next_] != step) return false;
        follow(next_++);
        return true;
    }
    bool counted() const { return pool_.visits.counted(next_ - 1) > 0; }
    /// Ascending; the last one is the sequence's newest block.
    const std::vector<std::int32_t>& blocks() const { return blocks_; }
    /// Whether the sequence begins another block at its next request: the newest block is full then.
    bool fills() const {
        if (next_ == pool_.steps.size() || blocks_.empty()) return false;
        const auto entered = pool_.visits.entered(next_);
        return !entered.empty() && entered.back().block() > blocks_.back();
    }
    /// The number of the sequence's block among those of all pools.
    std::int32_t numberOf(std::int32_t block) const { return first_ + block; }
    std::int32_t first() const { return first_; }
    std::int32_t end() const { return first_ + pool_.visits.blockLimit(); }
    std::int64_t request() const { return pool_.request; }
    int layer() const { return pool_.layer; }

private:
    /// The request before all steps, which only says that the prompt's last block is resident.
    void skipPrompt() {
        while (next_ < pool_.steps.size() && pool_.steps[next_] < 0) follow(next_++);
    }
    void follow(std::size_t request) {
        merged_.clear();
        const auto entered = pool_.visits.entered(request);
        const auto left = pool_.visits.left(request);
        auto arrives = entered.begin();
        auto leaves = left.begin();
        for (const std::int32_t block : blocks_) {
            for (; arrives != entered.end() && arrives->block() < block; ++arrives) merged_.push_back(arrives->block());
            if (leaves != left.end() && *leaves == block)
                ++leaves;
            else
                merged_.push_back(block);
        }
        for (; arrives != entered.end(); ++arrives) merged_.push_back(arrives->block());
        blocks_.swap(merged_);
    }

    const PoolTrace& pool_;
    const std::int32_t first_;
    std::size_t next_ = 0;
    std::vector<std::int32_t> blocks_, merged_;
};

/// Which blocks have a slot, and which of them leaves next.
class Pool {
public:
    Pool(const DeviceRequests& requests, DevicePolicy policy, std::int64_t slots)
        : requests_(requests), policy_(policy), slots_(slots), places_(requests.blockLimit()) {}

    RequestOutcome look(std::size_t layer) {
        unpin();
        for (const auto& [first, end] : requests_.leaving(layer))
            for (std::int32_t block = first; block < end; ++block) drop(block);
        RequestOutcome outcome;
        for (const DeviceRequests::Block& wanted : requests_.blocks(layer)) {
            const bool had = pin(wanted, layer);
            outcome.hits += had, outcome.misses += !had, outcome.compulsory += !had && wanted.first;
        }
        outcome.loads = outcome.misses;
        outcome.hits += requests_.layers()[layer].newest;
        while (resident_ > slots_) evict();
        for (const DeviceRequests::Block& full : requests_.kept(layer)) pin(full, layer);
        return outcome;
    }

private:
    enum class State : std::uint8_t { Absent, Idle, Pinned };
    struct Place {
        State state = State::Absent;
        std::int64_t rank = 0; // while idle; the lowest leaves first
    };
    struct Idle {
        std::int64_t rank = 0;
        std::int32_t block = 0;
        bool operator<(const Idle& other) const { // for std::*_heap, whose front is the next to leave
            return rank != other.rank ? rank > other.rank : block > other.block;
        }
    };

    /// @return whether the block had a slot
    bool pin(const DeviceRequests::Block& wanted, std::size_t layer) {
        Place& place = places_[wanted.block];
        const bool had = place.state != State::Absent;
        if (place.state != State::Pinned) pinned_.push_back(wanted.block);
        idle_ -= place.state == State::Idle;
        resident_ += !had;
        place.state = State::Pinned;
        place.rank = policy_ == DevicePolicy::Lru ? std::int64_t(layer) : -std::int64_t(wanted.next);
        return had;
    }
    void unpin() {
        for (const std::int32_t block : pinned_) {
            Place& place = places_[block];
            if (place.state != State::Pinned) continue;
            place.state = State::Idle;
            ++idle_;
            heap_.push_back({place.rank, block});
            std::push_heap(heap_.begin(), heap_.end());
        }
        pinned_.clear();
        if (std::ssize(heap_) > 64 + 4 * std::ptrdiff_t(idle_)) {
            std::erase_if(heap_, [this](const Idle& idle) { return !isCurrent(idle); });
            std::make_heap(heap_.begin(), heap_.end());
        }
    }
    void drop(std::int32_t block) {
        Place& place = places_[block];
        if (place.state == State::Absent) return;
        idle_ -= place.state == State::Idle;
        --resident_;
        place.state = State::Absent;
    }
    void evict() {
        std::pop_heap(heap_.begin(), heap_.end());
        const Idle next = heap_.back();
        heap_.pop_back();
        if (isCurrent(next)) drop(next.block);
    }
    /// Whether the entry was made after the last use of its block.
    bool isCurrent(const Idle& idle) const {
        const Place& place = places_[idle.block];
        return place.state == State::Idle && place.rank == idle.rank;
    }

    const DeviceRequests& requests_;
    const DevicePolicy policy_;
    const std::int64_t slots_;
    std::int64_t resident_ = 0, idle_ = 0;
    Numbered<Place> places_;           // [block]
    std::vector<std::int32_t> pinned_; // of the layer that is looked up
    std::vector<Idle> heap_;
};

} // namespace

DeviceRequests::DeviceRequests(const SelectionTrace& trace) {
    Numbered<std::vector<Follower>> followers(std::max(trace.run.layers, 0));                      // [layer]
    std::unordered_map<std::int64_t, std::vector<std::pair<std::int32_t, std::int32_t>>> blocksOf; // by request
    std::int64_t blocks = 0;
    for (const PoolTrace& pool : trace.pools) {
        if (blocks + pool.visits.blockLimit() > std::numeric_limits<std::int32_t>::max())
            throw Error(ErrorKind::Unsupported, fmt::format("run {} has too many blocks for one pool", trace.run.runId),
                        "replay it without --pool device");
        Follower& follower = followers[pool.layer].emplace_back(pool, std::int32_t(blocks));
        blocks += pool.visits.blockLimit();
        if (follower.request() >= 0) blocksOf[follower.request()].emplace_back(follower.first(), follower.end());
    }
    blockLimit_ = std::int32_t(blocks);

    Numbered<bool> seen(blockLimit_, false);
    auto leave = trace.leaves.begin();
    std::vector<std::pair<std::int32_t, std::int32_t>> gone; // before the next layer that selects
    std::int64_t selectingSteps = 0, selected = 0;
    for (std::size_t step = 0; step < trace.steps.size(); ++step) {
        for (; leave != trace.leaves.end() && leave->step <= trace.steps[step].step; ++leave)
            if (const auto of = blocksOf.find(leave->request); of != blocksOf.end())
                gone.insert(gone.end(), of->second.begin(), of->second.end());
        std::int64_t ofStep = 0;
        for (std::size_t layer = 0; layer < followers.size(); ++layer) {
            Layer entry{std::int32_t(step), std::int32_t(layer), 0, 0, 0};
            const std::size_t before = blocks_.size();
            bool any = false;
            for (Follower& follower : followers[layer]) {
                if (!follower.goTo(std::int32_t(step))) continue;
                any = true;
                if (follower.counted()) {
                    ++entry.newest;
                    for (const std::int32_t block : std::span(follower.blocks()).first(follower.blocks().size() - 1)) {
                        const std::int32_t number = follower.numberOf(block);
                        blocks_.push_back({number, kNever, !seen[number]});
                        seen[number] = true;
                    }
                }
                if (!follower.fills()) continue;
                const std::int32_t number = follower.numberOf(follower.blocks().back());
                kept_.push_back({number, kNever, false});
                seen[number] = true;
            }
            if (!any) continue;
            entry.end = blocks_.size(), entry.keptEnd = kept_.size();
            const auto ofLayer = std::int64_t(entry.end - before);
            demand_.largest = std::max(demand_.largest, ofLayer);
            ofStep += ofLayer;
            leavingOf_.push_back(gone.empty() ? -1 : std::int32_t(leaving_.size()));
            if (!gone.empty()) leaving_.push_back(std::exchange(gone, {}));
            layers_.push_back(entry);
        }
        selectingSteps += ofStep > 0, selected += ofStep;
        demand_.mostStep = std::max(demand_.mostStep, ofStep);
    }
    if (selectingSteps > 0) demand_.meanStep = double(selected) / double(selectingSteps);
    if (std::ssize(layers_) >= kNever)
        throw Error(ErrorKind::Unsupported, fmt::format("run {} has too many steps for one pool", trace.run.runId),
                    "replay it without --pool device");

    Numbered<std::int32_t> next(blockLimit_, kNever);
    for (std::size_t layer = layers_.size(); layer-- > 0;) {
        const std::size_t begin = layer == 0 ? 0 : layers_[layer - 1].end;
        const std::size_t keptBegin = layer == 0 ? 0 : layers_[layer - 1].keptEnd;
        for (std::size_t i = keptBegin; i < layers_[layer].keptEnd; ++i) kept_[i].next = next[kept_[i].block];
        for (std::size_t i = begin; i < layers_[layer].end; ++i)
            blocks_[i].next = std::exchange(next[blocks_[i].block], std::int32_t(layer));
        // Keeping a block for a later layer is useless if it leaves before this one.
        for (const auto& [first, end] : leaving(layer)) std::fill(next.begin() + first, next.begin() + end, kNever);
    }
}

std::span<const DeviceRequests::Block> DeviceRequests::blocks(std::size_t layer) const {
    const std::size_t begin = layer == 0 ? 0 : layers_[layer - 1].end;
    return std::span(blocks_).subspan(begin, layers_[layer].end - begin);
}

std::span<const DeviceRequests::Block> DeviceRequests::kept(std::size_t layer) const {
    const std::size_t begin = layer == 0 ? 0 : layers_[layer - 1].keptEnd;
    return std::span(kept_).subspan(begin, layers_[layer].keptEnd - begin);
}

const std::vector<std::pair<std::int32_t, std::int32_t>>& DeviceRequests::leaving(std::size_t layer) const {
    static const std::vector<std::pair<std::int32_t, std::int32_t>> nobody;
    const std::int32_t index = leavingOf_[layer];
    return index < 0 ? nobody : leaving_[index];
}

DevicePolicy parseDevicePolicy(const std::string& name) {
    for (const DevicePolicy policy : {DevicePolicy::Lru, DevicePolicy::Belady})
        if (name == nameOf(policy)) return policy;
    findReplayPolicy(name); // an unknown one is refused by its own sentence
    throw Error(ErrorKind::BadInput, fmt::format("a pool for the whole device is not replayed with {}", name),
                "use --policy lru,belady, or leave out --pool device");
}

CacheReplay replayDevice(const SelectionTrace& trace, const DeviceRequests& requests, DevicePolicy policy,
                         std::int64_t slots, const std::stop_token& stop) {
    if (slots < requests.demand().largest)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} block slots for the whole device are too few: in run {} a layer of a step selects "
                                "{} blocks at a time",
                                slots, trace.run.runId, requests.demand().largest),
                    fmt::format("give at least --cache-blocks {}", requests.demand().largest));
    const Extents<int, int> loadsAt(int(trace.steps.size()), trace.run.layers);
    CacheReplay result;
    result.loads.assign(loadsAt.size(), 0);
    Pool pool(requests, policy, slots);
    for (std::size_t i = 0; i < requests.layers().size(); ++i) {
        if (i % 1024 == 0) throwIfCancelled(stop);
        const DeviceRequests::Layer& layer = requests.layers()[i];
        const RequestOutcome outcome = pool.look(i);
        result.total.add(outcome);
        if (trace.isCold(layer.step)) result.coldTotal.add(outcome);
        result.loads[loadsAt.offset(layer.step, layer.layer)] += outcome.loads;
    }
    result.transfers = transferSizes(result.loads);
    result.coldTransfers = coldTransfers(trace, result.loads);
    return result;
}

std::vector<int> deviceSizes(const DeviceDemand& demand) {
    std::vector<int> sizes;
    for (const double share : {0.25, 0.5, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 2.0}) {
        const double size = std::max(share * double(demand.mostStep), double(demand.largest));
        const int blocks = int(std::min(size, double(std::numeric_limits<int>::max())));
        if (sizes.empty() || sizes.back() != blocks) sizes.push_back(blocks);
    }
    return sizes;
}

std::vector<ReplayConfig> replayDevicePool(const SelectionTrace& trace, const DeviceRequests& requests,
                                           const ReplayOptions& options, const Progress& progress,
                                           const std::stop_token& stop) {
    std::vector<DevicePolicy> policies;
    for (const std::string& name : options.policies) policies.push_back(parseDevicePolicy(name));
    if (policies.empty()) policies = {DevicePolicy::Lru, DevicePolicy::Belady};
    const std::vector<int> sizes = options.cacheBlocks.empty() ? deviceSizes(requests.demand()) : options.cacheBlocks;
    const std::vector<Link> links = options.links.empty() ? std::vector{trace.link} : options.links;
    std::vector<CacheReplay> caches(policies.size() * sizes.size());
    forEachParallel(caches.size(), options.threads, "replaying", progress, stop, [&](std::size_t i) {
        caches[i] = replayDevice(trace, requests, policies[i / sizes.size()], sizes[i % sizes.size()], stop);
    });
    std::vector<ReplayConfig> result;
    for (std::size_t i = 0; i < caches.size(); ++i)
        for (const Link& link : links) {
            ReplayConfig& config = result.emplace_back(timeOver(trace, caches[i], link, options.prefetch));
            config.policy = nameOf(policies[i / sizes.size()]);
            config.cacheBlocks = sizes[i % sizes.size()];
        }
    return result;
}

} // namespace kvscope

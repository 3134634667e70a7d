#include "profiler/replay/merged_blocks.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr std::int64_t kMaxMergedBytes = std::int64_t(1) << 32;

/// Goes through the requests of a recorded pool and makes requests of larger blocks.
class Merger {
public:
    Merger(const PoolTrace& from, int factor) : from_(from), factor_(factor) {
        to_.sequence = from.sequence;
        to_.request = from.request;
        to_.layer = from.layer;
        to_.kvHead = from.kvHead;
    }

    PoolTrace run() {
        for (std::size_t request = 0; request < from_.visits.requests(); ++request) {
            const bool begins = follow(request);
            if (recorded_.empty()) {
                add(from_.steps[request], -1, true);
                continue;
            }
            const std::int32_t current = recorded_.back() / factor_;
            if (from_.steps[request] < 0) { // the last block of the prompt, which is not full
                add(-1, current, false, current);
                continue;
            }
            // Where the first request after the prompt begins a recorded block inside a larger one, the earlier parts
            // of the larger block are resident from the prompt on.
            if (tail_ < 0 && begins && recorded_.back() % factor_ != 0) add(-1, current, false, current);
            const bool fresh = begins && current != tail_;
            add(from_.steps[request], fresh ? current : -1, from_.visits.counted(request) > 0);
        }
        return std::move(to_);
    }

private:
    /// Makes recorded_ the blocks of the request. @return whether the last of them is new with this request
    bool follow(std::size_t request) {
        const auto entered = from_.visits.entered(request);
        next_.clear();
        auto gone = from_.visits.left(request).begin();
        auto arrived = entered.begin();
        for (const std::int32_t block : recorded_) {
            while (arrived != entered.end() && arrived->block() < block) next_.push_back((arrived++)->block());
            if (gone != from_.visits.left(request).end() && *gone == block)
                ++gone;
            else
                next_.push_back(block);
        }
        while (arrived != entered.end()) next_.push_back((arrived++)->block());
        recorded_.swap(next_);
        return !entered.empty() && entered.back().begins() && entered.back().block() == recorded_.back();
    }

    void add(std::int32_t step, std::int32_t fresh, bool counted) {
        merged_.clear();
        for (const std::int32_t block : recorded_)
            if (merged_.empty() || merged_.back() != block / factor_) merged_.push_back(block / factor_);
        append(step, merged_, fresh, counted);
        if (!merged_.empty()) tail_ = merged_.back();
    }
    /// Adds a request that has only the block `only`.
    void add(std::int32_t step, std::int32_t fresh, bool counted, std::int32_t only) {
        append(step, std::span(&only, 1), fresh, counted);
        tail_ = only;
    }
    void append(std::int32_t step, std::span<const std::int32_t> blocks, std::int32_t fresh, bool counted) {
        to_.visits.add(blocks, fresh, counted);
        to_.steps.push_back(step);
    }

    const PoolTrace& from_;
    const std::int32_t factor_;
    PoolTrace to_;
    std::vector<std::int32_t> recorded_, next_, merged_; // blocks of the request, as recorded, and merged
    std::int32_t tail_ = -1;                             // the last merged block of the request before; -1: none
};

} // namespace

SelectionTrace withMergedBlocks(const SelectionTrace& trace, int factor, const std::stop_token& stop) {
    if (factor < 1 || trace.run.blockBytes > kMaxMergedBytes / factor || trace.shared)
        throw Error(ErrorKind::BadInput, fmt::format("cannot merge {} recorded blocks to one", factor),
                    "use --block-size with a multiple of the recorded one, up to some thousand blocks");
    if (factor == 1) return trace;
    if (trace.renumbered)
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("the blocks of run {} have ids too large for a replay with larger blocks", trace.run.runId),
            "replay it with its own --block-size");
    SelectionTrace merged = trace.withoutPools();
    merged.run.blockSize *= factor;
    merged.run.blockBytes *= factor;
    merged.run.deviceSlots = (trace.run.deviceSlots + factor - 1) / factor;
    for (const PoolTrace& pool : trace.pools) {
        throwIfCancelled(stop);
        merged.pools.push_back(Merger(pool, factor).run());
        merged.largest = std::max(merged.largest, merged.pools.back().visits.largest());
    }
    return merged;
}

} // namespace kvscope

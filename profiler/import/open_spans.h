// Where the spans of one track lie below each other: the depth of each, and which one encloses a moment.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

/// Spans come in the order of their start, longer ones first. Each gets the first depth that is free at its start: for
/// spans that nest this is their nesting depth, and spans that overlap otherwise never share one.
class OpenSpans {
public:
    explicit OpenSpans(int deepest) : deepest_(deepest) {}

    struct Place {
        int depth = 0;
        bool squeezed = false; // no depth was free up to the deepest: it lies on another span there
    };
    Place place(std::int64_t startNs, std::int64_t lengthNs, std::int64_t id) {
        while (!lanes_.empty() && lanes_.back().endNs <= startNs && lanes_.back().closed(startNs)) lanes_.pop_back();
        std::size_t depth = 0;
        while (depth < lanes_.size() && lanes_[depth].endNs > startNs) ++depth;
        const bool squeezed = int(depth) > deepest_;
        if (squeezed) depth = std::size_t(deepest_);
        const Lane lane{startNs, startNs + lengthNs, id};
        if (depth == lanes_.size())
            lanes_.push_back(lane);
        else
            lanes_[depth] = lane;
        return {int(depth), squeezed};
    }

    struct Found {
        std::int64_t id = -1, startNs = 0; // id -1: none
    };
    /// The deepest span that has begun by then and not ended before it.
    Found innermost(std::int64_t timeNs) const {
        for (auto lane = lanes_.rbegin(); lane != lanes_.rend(); ++lane)
            if (lane->startNs <= timeNs && lane->endNs >= timeNs) return {lane->id, lane->startNs};
        return {};
    }

private:
    struct Lane {
        std::int64_t startNs = 0, endNs = 0, id = -1;
        /// A span without length is still there for the flows of its moment.
        bool closed(std::int64_t now) const { return endNs < now || startNs < now; }
    };
    int deepest_;
    std::vector<Lane> lanes_;
};

} // namespace kvscope

// Gives each span of a track its depth, the line on which the timeline draws it, and finds the span that encloses a
// moment.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

/// The caller adds spans in the order of their starts, and of spans that start together the longer first. A span gets
/// the first depth that is free at its start. For spans that nest, this is their nesting depth; spans that overlap
/// without nesting get different depths.
class OpenSpans {
public:
    explicit OpenSpans(int deepest) : deepest_(deepest) {}

    struct Place {
        int depth = 0;
        bool squeezed = false; // every depth up to the deepest was taken, so it lies on another span at the deepest
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
    /// The deepest span that contains the moment, its start and its end included.
    Found innermost(std::int64_t timeNs) const {
        for (auto lane = lanes_.rbegin(); lane != lanes_.rend(); ++lane)
            if (lane->startNs <= timeNs && lane->endNs >= timeNs) return {lane->id, lane->startNs};
        return {};
    }

private:
    struct Lane {
        std::int64_t startNs = 0, endNs = 0, id = -1;
        /// A span without length stays open during its own moment, so that flows of that moment find it.
        bool closed(std::int64_t now) const { return endNs < now || startNs < now; }
    };
    int deepest_;
    std::vector<Lane> lanes_;
};

} // namespace kvscope

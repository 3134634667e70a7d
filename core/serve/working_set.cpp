#include "core/serve/working_set.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::serve {

WorkingSet::WorkingSet(int window) : window_(window) {
    if (window < 1 || window > 64)
        throw Error(ErrorKind::BadInput, fmt::format("a working set of {} steps", window), "give 1 to 64");
    recent_.resize(window);
}

void WorkingSet::step(std::span<const PackedBlock> blocks) {
    surprises_ = 0;
    now_ = std::uint8_t(now_ % (2 * window_) + 1);
    // Blocks are looked up before the step that leaves the window is forgotten, because the union still had its blocks.
    for (const PackedBlock block : blocks) {
        const auto id = std::size_t(block.id());
        if (id >= last_.size()) last_.resize(id + 1, 0);
        std::uint8_t& last = last_[id];
        if (last == 0) ++size_, ++surprises_;
        last = now_;
    }
    // When the step of w steps ago leaves the window, the blocks that no later step has selected leave the union.
    std::vector<PackedBlock>& slot = recent_[now_ % window_];
    if (steps_ == window_) {
        const std::uint8_t leaving = std::uint8_t(now_ > window_ ? now_ - window_ : now_ + window_);
        for (const PackedBlock block : slot) {
            std::uint8_t& last = last_[block.id()];
            if (last == leaving) last = 0, --size_;
        }
    } else {
        ++steps_;
    }
    slot.assign(blocks.begin(), blocks.end());
}

void WorkingSet::clear() {
    steps_ = size_ = surprises_ = 0, now_ = 0;
    std::fill(last_.begin(), last_.end(), std::uint8_t(0));
    for (auto& step : recent_) step.clear();
}

} // namespace kvscope::serve

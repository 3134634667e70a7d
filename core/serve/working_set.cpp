#include "core/serve/working_set.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::serve {

WorkingSet::WorkingSet(int window) : window_(window) {
    if (window < 1 || window > 64)
        throw Error(ErrorKind::BadInput, fmt::format("a working set of {} steps", window), "give 1 to 64");
    recent_.resize(std::size_t(window));
}

void WorkingSet::step(std::span<const std::int32_t> blocks) {
    surprises_ = 0;
    now_ = std::uint8_t(now_ % (2 * window_) + 1);
    // Blocks are looked up before the step that leaves the window is forgotten: they were in the union until now.
    for (const std::int32_t block : blocks) {
        if (std::size_t(block) >= last_.size()) last_.resize(std::size_t(block) + 1, 0);
        std::uint8_t& last = last_[std::size_t(block)];
        if (last == 0) ++size_, ++surprises_;
        last = now_;
    }
    // The step of w steps ago takes with it the blocks that nobody has selected since.
    std::vector<std::int32_t>& slot = recent_[std::size_t(now_ % window_)];
    if (steps_ == window_) {
        const std::uint8_t leaving = std::uint8_t(now_ > window_ ? now_ - window_ : now_ + window_);
        for (const std::int32_t block : slot) {
            std::uint8_t& last = last_[std::size_t(block)];
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

#include "core/diffusion/canvas_run.h"

#include <algorithm>
#include <utility>

namespace kvscope {

CanvasRun::CanvasRun(std::vector<std::int32_t> prompt, int length, std::vector<std::int32_t> endIds, int block,
                     std::int32_t maskId, bool trimEnd)
    : promptTokens_(int(prompt.size())), length_(block), endIds_(std::move(endIds)), trimEnd_(trimEnd),
      ids_(std::move(prompt)) {
    masked_.assign(ids_.size(), 0);
    ids_.resize(ids_.size() + std::size_t(length), maskId);
    masked_.resize(ids_.size(), 1);
    generated_.reserve(length);
}

std::vector<std::int32_t> CanvasRun::masks() const {
    std::vector<std::int32_t> positions;
    for (int position = first(); position < first() + length_; ++position)
        if (masked(position)) positions.push_back(position);
    return positions;
}

bool CanvasRun::ends(std::int32_t id) const { return std::find(endIds_.begin(), endIds_.end(), id) != endIds_.end(); }

void CanvasRun::write(int position, std::int32_t id) {
    masked_[position] = 0;
    ids_[position] = id;
    while (!trimEnd_ || generated_.empty() || !ends(generated_.back())) {
        const std::size_t next = std::size_t(promptTokens_) + generated_.size();
        if (next >= ids_.size() || masked_[next] != 0) return;
        generated_.push_back(ids_[next]);
    }
}

void CanvasRun::forwardDone() {
    ++step_;
    ++forwards_;
    if (!masks().empty()) return;
    // Everything before the block is written, so that its tokens are among those that were generated.
    const bool ended = std::any_of(generated_.begin(), generated_.end(), [&](std::int32_t id) { return ends(id); });
    if (ended || std::size_t(first() + length_) >= ids_.size()) {
        finished_ = true;
        return;
    }
    ++block_;
    step_ = 0;
}

} // namespace kvscope

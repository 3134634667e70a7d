#include "core/diffusion/block_run.h"

#include <algorithm>
#include <utility>

namespace kvscope {

BlockRun::BlockRun(std::vector<std::int32_t> prompt, int maxNewTokens, std::vector<std::int32_t> endIds, int block,
                   std::int32_t maskId, BlockRunRules rules)
    : promptTokens_(int(prompt.size())), maxNewTokens_(maxNewTokens), length_(block), maskId_(maskId),
      endIds_(std::move(endIds)), rules_(rules), ids_(std::move(prompt)), masked_(block) {
    ids_.reserve(reach(promptTokens_, maxNewTokens_, length_));
    generated_.reserve(maxNewTokens_);
    first_ = promptBlocksEnd_ = firstBlock();
    openBlock();
}

/// Where the first block begins that has a mask.
int BlockRun::firstBlock() const {
    const auto mask = rules_.promptMasks ? std::find(ids_.begin(), ids_.end(), maskId_) : ids_.end();
    return int(mask - ids_.begin()) / length_ * length_;
}

void BlockRun::openBlock() {
    step_ = 0;
    ids_.resize(std::max(ids_.size(), std::size_t(first_ + length_)), maskId_);
    for (int i = 0; i < length_; ++i) {
        const int position = first_ + i;
        masked_[i] = position >= promptTokens_ || (rules_.promptMasks && ids_[position] == maskId_);
    }
    clean_ = masks() == 0; // a block of the prompt behind one with a mask
}

int BlockRun::masks() const { return int(std::count(masked_.begin(), masked_.end(), std::uint8_t(1))); }

bool BlockRun::ends(std::int32_t id) const { return std::find(endIds_.begin(), endIds_.end(), id) != endIds_.end(); }

void BlockRun::write(int i, std::int32_t id) {
    masked_[i] = 0;
    ids_[first_ + i] = id;
    collect();
}

/// Appends to generated_ the tokens that have been written since the last call, up to the first masked position.
void BlockRun::collect() {
    while (int(generated_.size()) < maxNewTokens_ &&
           !(rules_.trimEnd && !generated_.empty() && ends(generated_.back()))) {
        const int position = promptTokens_ + int(generated_.size());
        if (position >= first_ + length_ || (position >= first_ && masked(position - first_))) return;
        generated_.push_back(ids_[position]);
    }
}

void BlockRun::forwardDone() {
    ++step_;
    if (!clean_) {
        clean_ = masks() == 0;
        return;
    }
    bool ended = false;
    for (int i = std::max(first_, promptTokens_); i < first_ + length_; ++i) ended = ended || ends(ids_[i]);
    first_ += length_;
    finished_ = ended || first_ >= promptTokens_ + maxNewTokens_;
    if (!finished_) openBlock();
}

} // namespace kvscope

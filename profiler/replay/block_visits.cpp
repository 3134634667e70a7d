#include "profiler/replay/block_visits.h"

#include <algorithm>

namespace kvscope {

namespace {
std::int32_t idOf(PackedBlock block) { return block.id(); }
std::int32_t idOf(std::int32_t id) { return id; }
} // namespace

template <class Block> void BlockVisits::addBlocks(std::span<const Block> wanted, std::int32_t fresh, bool counted) {
    const auto request = std::int32_t(steps_.size());
    if (!wanted.empty() && idOf(wanted.back()) >= lastRequest_.count())
        lastRequest_.resize(idOf(wanted.back()) + 1, -1);
    for (const Block wantedBlock : wanted) {
        const std::int32_t block = idOf(wantedBlock);
        std::int32_t& last = lastRequest_[block];
        if (last != request - 1 || last < 0) {
            entered_.emplace_back(block, block == fresh, counted, last < 0);
            compulsory_ += entered_.back().compulsory();
        }
        last = request;
    }
    for (const std::int32_t block : current_)
        if (lastRequest_[block] != request) left_.push_back(block);
    current_.clear();
    for (const Block block : wanted) current_.push_back(idOf(block));
    blockLimit_ = lastRequest_.count();
    endRequest(int(wanted.size()), counted ? int(wanted.size()) : 0);
}

void BlockVisits::add(std::span<const PackedBlock> wanted, std::int32_t fresh, bool counted) {
    addBlocks(wanted, fresh, counted);
}

void BlockVisits::add(std::span<const std::int32_t> wanted, std::int32_t fresh, bool counted) {
    addBlocks(wanted, fresh, counted);
}

void BlockVisits::addChange(std::span<const Entry> entered, std::span<const std::int32_t> left, int size, int counted) {
    entered_.insert(entered_.end(), entered.begin(), entered.end());
    left_.insert(left_.end(), left.begin(), left.end());
    for (const Entry& entry : entered) compulsory_ += entry.compulsory();
    if (!entered.empty()) blockLimit_ = std::max(blockLimit_, entered.back().block() + 1);
    endRequest(size, counted);
}

void BlockVisits::endRequest(int size, int counted) {
    steps_.push_back({std::uint32_t(entered_.size()), std::uint32_t(left_.size()), size, counted});
    references_ += counted;
    largest_ = std::max(largest_, size);
}

std::vector<std::int32_t> BlockVisits::nextVisits() const {
    std::vector<std::int32_t> next(left_.size());
    Numbered<std::int32_t> entry(blockLimit_, kNever); // [block]
    for (std::size_t request = steps_.size(); request-- > 0;) {
        const std::size_t begin = leftBegin(request);
        for (std::size_t i = begin; i < steps_[request].leftEnd; ++i) next[i] = entry[left_[i]];
        for (const Entry& e : entered(request)) entry[e.block()] = std::int32_t(request);
    }
    return next;
}

} // namespace kvscope

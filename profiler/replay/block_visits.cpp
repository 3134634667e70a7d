#include "profiler/replay/block_visits.h"

#include <algorithm>

namespace kvscope {

void BlockVisits::add(std::span<const std::int32_t> wanted, std::int32_t fresh, bool counted) {
    const auto request = std::int32_t(steps_.size());
    if (!wanted.empty() && std::size_t(wanted.back()) >= lastRequest_.size())
        lastRequest_.resize(std::size_t(wanted.back()) + 1, -1);
    for (const std::int32_t block : wanted) {
        std::int32_t& last = lastRequest_[std::size_t(block)];
        if (last != request - 1 || last < 0) {
            entered_.emplace_back(block, block == fresh, counted, last < 0);
            compulsory_ += entered_.back().compulsory();
        }
        last = request;
    }
    for (const std::int32_t block : current_)
        if (lastRequest_[std::size_t(block)] != request) left_.push_back(block);
    current_.assign(wanted.begin(), wanted.end());
    blockLimit_ = std::int32_t(lastRequest_.size());
    endRequest(int(wanted.size()), counted ? int(wanted.size()) : 0);
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
    std::vector<std::int32_t> next(left_.size()), entry(std::size_t(blockLimit_), kNever);
    for (std::size_t request = steps_.size(); request-- > 0;) {
        const std::size_t begin = leftBegin(request);
        for (std::size_t i = begin; i < steps_[request].leftEnd; ++i) next[i] = entry[std::size_t(left_[i])];
        for (const Entry& e : entered(request)) entry[std::size_t(e.block())] = std::int32_t(request);
    }
    return next;
}

VisitIndex::VisitIndex(const BlockVisits& visits) : begin_(std::size_t(visits.blockLimit()) + 1, 0) {
    for (std::size_t r = 0; r < visits.requests(); ++r)
        for (const BlockVisits::Entry& e : visits.entered(r)) ++begin_[std::size_t(e.block()) + 1];
    for (std::size_t b = 1; b < begin_.size(); ++b) begin_[b] += begin_[b - 1];
    entered_.resize(begin_.back());
    end_.assign(begin_.back(), std::int32_t(visits.requests()));
    std::vector<std::uint32_t> at(begin_.begin(), begin_.end() - 1);
    for (std::size_t r = 0; r < visits.requests(); ++r) {
        for (const std::int32_t block : visits.left(r)) end_[at[std::size_t(block)] - 1] = std::int32_t(r);
        for (const BlockVisits::Entry& e : visits.entered(r)) entered_[at[std::size_t(e.block())]++] = std::int32_t(r);
    }
}

std::int32_t VisitIndex::nextEntry(std::int32_t block, std::int32_t from) const {
    const auto begin = entered_.begin() + begin_[std::size_t(block)],
               end = entered_.begin() + begin_[std::size_t(block) + 1];
    const auto next = std::lower_bound(begin, end, from);
    return next == end ? BlockVisits::kNever : *next;
}

std::int32_t VisitIndex::lastUse(std::int32_t block, std::int32_t before) const {
    const auto begin = entered_.begin() + begin_[std::size_t(block)],
               end = entered_.begin() + begin_[std::size_t(block) + 1];
    const auto next = std::lower_bound(begin, end, before);
    return next == begin ? -1 : std::min(end_[std::size_t(next - entered_.begin()) - 1], before) - 1;
}

} // namespace kvscope

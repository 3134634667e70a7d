// The numbers and spans of a run's newest calls. When a kernel or copy is written, the call that started it is found
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace kvscope {

class RecentCalls {
public:
    static constexpr std::size_t kKept = 1 << 16; // a kernel ends long before so many calls were made after its own

    void add(std::uint32_t number, std::int64_t span) {
        spans_[number] = span;
        order_.push_back(number);
        if (order_.size() <= kKept) return;
        spans_.erase(order_.front());
        order_.pop_front();
    }
    /// 0: not among them.
    std::int64_t spanOf(std::uint32_t number) const {
        const auto found = spans_.find(number);
        return found == spans_.end() ? 0 : found->second;
    }
    void clear() {
        spans_.clear();
        order_.clear();
    }

private:
    std::unordered_map<std::uint32_t, std::int64_t> spans_;
    std::deque<std::uint32_t> order_; // oldest first
};

} // namespace kvscope

#include "core/select/token_slots.h"

#include <algorithm>

namespace kvscope::select {

TokenSlots::TokenSlots(int slots, int maxTokens)
    : slotOf_(std::size_t(maxTokens), -1), tokenIn_(std::size_t(slots), -1), last_(std::size_t(slots), 0) {
    free_.reserve(std::size_t(slots));
}

int TokenSlots::admit(std::span<const std::int32_t> chosen, std::int32_t made, std::span<std::uint8_t> hit) {
    ++step_;
    int missing = 0;
    const auto isThere = [&](std::int32_t token) { return slotOf_[std::size_t(token)] >= 0; };
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const std::int32_t token = chosen[i];
        hit[i] = token == made || isThere(token) ? 1 : 0;
        missing += hit[i] == 0 ? 1 : 0;
        if (isThere(token)) last_[std::size_t(slotOf_[std::size_t(token)])] = step_;
    }
    const auto slots = std::int32_t(tokenIn_.size());
    const int wanted = missing + (isThere(made) ? 0 : 1);
    free_.clear();
    while (int(free_.size()) < wanted && used_ < slots) free_.push_back(used_++);
    if (const auto short_ = std::size_t(wanted) - free_.size(); short_ > 0) {
        const auto first = std::ptrdiff_t(free_.size());
        for (std::int32_t slot = 0; slot < slots; ++slot)
            if (last_[std::size_t(slot)] != step_ && tokenIn_[std::size_t(slot)] >= 0) free_.push_back(slot);
        std::nth_element(free_.begin() + first, free_.begin() + first + std::ptrdiff_t(short_) - 1, free_.end(),
                         [&](std::int32_t a, std::int32_t b) {
                             const auto left = last_[std::size_t(a)], right = last_[std::size_t(b)];
                             return left != right ? left < right : tokenIn_[std::size_t(a)] < tokenIn_[std::size_t(b)];
                         });
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i)
        if (hit[i] == 0) place(chosen[i], free_[next++]);
    if (!isThere(made)) place(made, free_[next]);
    return missing;
}

/// Puts the token into the slot; what lies there leaves.
void TokenSlots::place(std::int32_t token, std::int32_t slot) {
    std::int32_t& held = tokenIn_[std::size_t(slot)];
    if (held >= 0) slotOf_[std::size_t(held)] = -1;
    held = token;
    last_[std::size_t(slot)] = step_;
    slotOf_[std::size_t(token)] = slot;
}

} // namespace kvscope::select

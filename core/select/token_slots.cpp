#include "core/select/token_slots.h"

#include <algorithm>

namespace kvscope::select {

TokenSlots::TokenSlots(int slots, int maxTokens) : slotOf_(maxTokens, -1), tokenIn_(slots, -1), last_(slots, 0) {
    free_.reserve(slots);
}

int TokenSlots::admit(std::span<const std::int32_t> chosen, std::int32_t made, std::span<std::uint8_t> hit) {
    ++step_;
    int missing = 0;
    const auto isThere = [&](std::int32_t token) { return slotOf_[token] >= 0; };
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const std::int32_t token = chosen[i];
        hit[i] = token == made || isThere(token) ? 1 : 0;
        missing += hit[i] == 0 ? 1 : 0;
        if (isThere(token)) last_[slotOf_[token]] = step_;
    }
    const int slots = tokenIn_.count();
    const int wanted = missing + (isThere(made) ? 0 : 1);
    free_.clear();
    while (free_.count() < wanted && used_ < slots) free_.push_back(used_++);
    if (const int short_ = wanted - free_.count(); short_ > 0) {
        const int first = free_.count();
        for (std::int32_t slot = 0; slot < slots; ++slot)
            if (last_[slot] != step_ && tokenIn_[slot] >= 0) free_.push_back(slot);
        std::nth_element(free_.begin() + first, free_.begin() + first + short_ - 1, free_.end(),
                         [&](std::int32_t a, std::int32_t b) {
                             const auto left = last_[a], right = last_[b];
                             return left != right ? left < right : tokenIn_[a] < tokenIn_[b];
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
    std::int32_t& held = tokenIn_[slot];
    if (held >= 0) slotOf_[held] = -1;
    held = token;
    last_[slot] = step_;
    slotOf_[token] = slot;
}

} // namespace kvscope::select

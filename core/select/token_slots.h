// Which tokens of one KV head lie in a buffer on the device that holds single tokens. The least recently chosen ones
// leave first.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::select {

class TokenSlots {
public:
    TokenSlots() = default;
    /// slots: tokens that the buffer holds; maxTokens: positions are below it.
    TokenSlots(int slots, int maxTokens);

    /// Makes room for what a step attends to: `chosen`, ascending, and `made`, the token that the step has just
    /// computed, which needs no transfer; together at most as many as there are slots. Sets hit[i] to whether chosen[i]
    /// was in the buffer already. @return how many were not
    int admit(std::span<const std::int32_t> chosen, std::int32_t made, std::span<std::uint8_t> hit);

    static std::int64_t bytes(std::int64_t slots, std::int64_t maxTokens) {
        return (3 * slots + maxTokens) * std::int64_t(sizeof(std::int32_t));
    }

private:
    void place(std::int32_t token, std::int32_t slot);

    std::int32_t step_ = 0, used_ = 0;             // used_: slots that ever held a token
    Numbered<std::int32_t> slotOf_;                // [position]; -1: not in the buffer
    Numbered<std::int32_t> tokenIn_, last_, free_; // [slot]: token, step that chose it last; slots to be taken next
};

} // namespace kvscope::select

// What a method that chooses tokens reports of a layer of a step, on its way from its kernels to the records.
#pragma once

#include "core/cuda/device_selector.h"
#include "kernels/cuda/methods/kept_tokens.h"

#include <functional>

namespace kvscope {

class TokenReport {
public:
    /// capacity: most tokens of a (sequence, KV head).
    TokenReport(const DeviceSelectorContext& context, int capacity);

    /// See DeviceSelector::reportBytes.
    std::size_t bytes() const { return bytes_; }
    /// Where a step's kernels write; with its marks. Nothing that the recorder does not want.
    cuda::TokenChoiceRecord at(const DeviceStep& step) const;

    /// A step's choice, and that of the step before: [rows, kvHeads, capacity] and [rows, kvHeads]. scores: or null.
    struct Chosen {
        const std::int32_t* tokens = nullptr;
        const float* scores = nullptr;
        const std::int32_t* count = nullptr;
        std::int32_t *previous = nullptr, *previousCount = nullptr;
    };
    /// Reports a choice and what stayed of the one before.
    void compare(const DeviceSelectorContext& context, const DeviceStep& step, const Chosen& chosen) const;

    /// The first token of a sequence that is chosen for being recent; `newest` is the latest chosen one.
    using FirstRecent = std::function<std::int32_t(int sequence, std::int32_t newest)>;
    /// Appends the selections. Tokens may be reported in any order; those before firstRecent are of `origin`. Where a
    /// head has misses, its only hit is `newest`.
    void fill(int layer, const char* report, std::span<const int> active, LayerRecord& out, StepRecord& record,
              Origin origin, const FirstRecent& firstRecent) const;

private:
    const int kvHeads_, capacity_;
    std::size_t bytes_ = 0, tokensAt_ = 0, scoresAt_ = 0; // 0: not reported
};

} // namespace kvscope

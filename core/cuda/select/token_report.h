// What a method that chooses tokens reports of a layer of a step: where its kernels write the report, and how the
// report becomes records.
#pragma once

#include "core/cuda/device_selector.h"
#include "kernels/cuda/methods/retained_tokens.h"

#include <functional>

namespace kvscope {

class TokenReport {
public:
    /// capacity: most tokens that a KV head of a sequence attends to.
    TokenReport(const DeviceSelectorContext& context, int capacity);

    /// See DeviceSelector::reportBytes.
    std::size_t bytes() const { return bytes_; }
    /// Where the kernels of a step write the report, and the step's marks. Pointers are null for what is not recorded.
    cuda::TokenChoiceRecord at(const DeviceStep& step) const;

    /// The choice of a step, and of the step before: lists [rows, kvHeads, capacity] and counts [rows, kvHeads]. scores
    /// may be null.
    struct Chosen {
        const std::int32_t* tokens = nullptr;
        const float* scores = nullptr;
        const std::int32_t* count = nullptr;
        std::int32_t *previous = nullptr, *previousCount = nullptr;
    };
    /// Reports a choice and how many of its tokens the step before had chosen too.
    void compare(const DeviceSelectorContext& context, const DeviceStep& step, const Chosen& chosen) const;

    /// The first token of a sequence that is chosen for being recent; `newest` is the latest chosen one.
    using FirstRecent = std::function<std::int32_t(RowId sequence, std::int32_t newest)>;
    /// Appends the selections of a layer to `record`. The report may have the tokens in any order. Tokens before
    /// firstRecent get the origin `origin`. Where a head has misses, its only hit is `newest`.
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              Origin origin, const FirstRecent& firstRecent) const;

private:
    const int kvHeads_, capacity_;
    std::size_t bytes_ = 0, tokensAt_ = 0, scoresAt_ = 0; // 0: not reported
};

} // namespace kvscope

// With the oracle: the share of the whole attention that goes to what a method attends to, from the sums of its own
// attention. For methods whose query heads attend apart, or not to every token of what is recorded; not for those with
// other keys than the model's, whose sums say nothing of it.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

class AttendedMass {
public:
    /// The context outlives it.
    explicit AttendedMass(const DeviceSelectorContext& context) : context_(context) {}

    /// Of a layer's report, a multiple of 16; 0 without the oracle.
    std::size_t bytes() const;
    void plan(DeviceArena& arena);
    /// For DecodeAttentionArgs::logSums of the method's own attention; null without the oracle.
    float* logSums() const { return logSums_; }
    /// After both attentions; `at`: where the report has its bytes().
    void measure(const DeviceStep& step, char* at) const;
    /// Of all selections from firstSelection on, which are one layer's.
    void fill(const char* at, StepRecord& record, std::size_t firstSelection) const;

private:
    const DeviceSelectorContext& context_;
    float* logSums_ = nullptr; // [rows, queryHeads]
};

} // namespace kvscope

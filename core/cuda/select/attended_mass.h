// With the oracle: computes which share of the whole attention goes to what a method attends to, from the log-sum-exps
// of the method's own attention. For methods whose query heads attend to different blocks, or which do not attend to
// every token of a recorded block. Not for methods that attend with other keys than the model's: their log-sum-exps
// cannot be compared with the oracle's.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

class AttendedMass {
public:
    /// The context must outlive this object.
    explicit AttendedMass(const DeviceSelectorContext& context) : context_(context) {}

    /// Bytes in a layer's report, a multiple of 16; 0 without the oracle.
    std::size_t bytes() const;
    void plan(DeviceArena& arena);
    /// To be set as DecodeAttentionArgs::logSums of the method's own attention; null without the oracle.
    float* logSums() const { return logSums_; }
    /// Call this after the method's attention and the oracle's. at: the place of these bytes() in the report.
    void measure(const DeviceStep& step, char* at) const;
    /// Sets the mass of all selections from firstSelection on, which belong to one layer. at: as in measure.
    void fill(const char* at, StepRecord& record, std::size_t firstSelection) const;

private:
    const DeviceSelectorContext& context_;
    float* logSums_ = nullptr; // [rows, queryHeads]
};

} // namespace kvscope

// InfiniGen's guess on the GPU: the next layer's own projection of this layer's input. The device form of
// core/select/next_query.h.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

class GuessedQueries {
public:
    /// The context outlives it.
    explicit GuessedQueries(const DeviceSelectorContext& context) : context_(context) {}

    void plan(DeviceArena& arena, const char* what);
    /// Rotated queries of layer `target`, [rows, queryHeads*dim], until the next call. Stamps stage1.
    const __nv_bfloat16* make(const DeviceStep& step, int target) const;

private:
    const DeviceSelectorContext& context_;
    float* projected_ = nullptr;
    __nv_bfloat16* query_ = nullptr;
};

} // namespace kvscope

// InfiniGen's guess of the next layer's queries on the GPU: the query projection of the next layer, applied to the
// input of this layer. The device form of core/select/next_query.h.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

class GuessedQueries {
public:
    /// The context must outlive this object.
    explicit GuessedQueries(const DeviceSelectorContext& context) : context_(context) {}

    void plan(DeviceArena& arena, const char* what);
    /// @return rotated queries [rows, queryHeads*dim] guessed for layer `target`, valid until the next call. Writes the
    /// mark of stage1.
    const __nv_bfloat16* make(const DeviceStep& step, LayerId target) const;

private:
    const DeviceSelectorContext& context_;
    float* projected_ = nullptr;
    __nv_bfloat16* query_ = nullptr;
};

} // namespace kvscope

#include "core/engine/cpu/view_attention.h"

namespace kvscope {

void ViewAttention::run(std::span<HeadStep> work, Numbered<float> HeadStep::*lse) {
    items_.clear();
    for (HeadStep& item : work) {
        if (lse != nullptr) (item.*lse).resize(context_.group());
        items_.push_back({item.rows.q, item.views.data(), std::int32_t(item.views.size()), item.rows.out,
                          lse != nullptr ? (item.*lse).data() : nullptr});
    }
    attend();
}

void ViewAttention::runApart(const float* queries, std::span<const KvBlockView> views, float* out, float* lse) {
    const auto group = std::size_t(context_.group()), outFloats = group * std::size_t(context_.shape.valueDim);
    items_.clear();
    for (std::size_t i = 0; i < views.size(); ++i)
        items_.push_back({queries, &views[i], 1, out + i * outFloats, lse + i * group});
    attend();
}

void ViewAttention::attend() {
    const KvShape& shape = context_.shape;
    context_.kernels.blockAttention({context_.group(), shape.dim, context_.spec.blockSize, shape.dim, shape.valueDim,
                                     context_.rules.scale, context_.spec.bias.scale, items_, shape.valueDim,
                                     context_.cache.format()});
}

} // namespace kvscope

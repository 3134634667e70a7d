#include "core/select/channel_importance.h"

#include "base/error.h"
#include "core/model/safetensors.h"
#include "core/model/safetensors_writer.h"
#include "kernels/half.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <numeric>

namespace kvscope::select {
namespace {

std::string tensorName(int layer, const char* what) { return fmt::format("model.layers.{}.self_attn.{}", layer, what); }

constexpr const char* kMean = "qk_mean";
constexpr const char* kMax = "qk_max";

} // namespace

ChannelImportance readChannelImportance(const std::string& path, const ModelConfig& config) {
    const MappedFile file(path);
    const SafetensorsFile tensors(file.bytes(), path);
    ChannelImportance result{config.layers, config.kvHeads, config.headDim, {}, {}};
    for (int layer = 0; layer < config.layers; ++layer)
        for (const auto& [what, values] : {std::pair{kMean, &result.mean}, {kMax, &result.max}}) {
            const std::string name = tensorName(layer, what);
            const TensorView* view = tensors.find(name);
            const std::vector<std::int64_t> shape{config.kvHeads, config.headDim};
            if (view == nullptr || view->dtype != "F32" || view->shape != shape)
                throw Error(ErrorKind::BadInput,
                            fmt::format("{} lacks the tensor {}, F32 [{}, {}]", path, name, shape[0], shape[1]),
                            "calibrate it for this model, or remove the file: channels then come from the prompt");
            for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i)
                values->push_back(elementAt(view->bytes.data(), DType::F32, i));
        }
    return result;
}

std::optional<ChannelImportance> findChannelImportance(const Model& model) {
    if (model.folder().empty()) return {};
    const auto path = std::filesystem::path(model.folder()) / kChannelImportanceFile;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return {};
    return readChannelImportance(path.string(), model.config());
}

void writeChannelImportance(const std::string& path, const ChannelImportance& importance) {
    const Extents<LayerId, KvHeadId, int> at(importance.layers, importance.kvHeads, importance.dim);
    std::vector<NamedTensor> tensors;
    for (const LayerId layer : idsUpTo<LayerId>(importance.layers))
        for (const auto& [what, values] : {std::pair{kMean, &importance.mean}, {kMax, &importance.max}})
            tensors.push_back({tensorName(int(layer), what),
                               {importance.kvHeads, importance.dim},
                               at.part(std::span(*values), layer)});
    writeSafetensors(path, tensors, {{"format", "kvscope.double_sparsity"}});
}

ChannelObserver::ChannelObserver(const KvShape& shape, int group)
    : kvHeads_(shape.kvHeads), group_(group), dim_(shape.dim), keyAt_(shape.kvHeads, shape.dim),
      queryAt_(shape.kvHeads, group, shape.dim), products_(keyAt_.size()), largestQ_(queryAt_.size()),
      largestK_(keyAt_.size()) {}

void ChannelObserver::observe(const TokenRows& rows, int n) {
    const auto dim = std::size_t(dim_);
    const KeyExtents keyRows(n, kvHeads_, dim_);
    const QueryExtents queryRows(n, kvHeads_, group_, dim_);
    for (int token = 0; token < n; ++token)
        for (const KvHeadId g : idsUpTo<KvHeadId>(kvHeads_)) {
            const float* k = rows.k + keyRows.first(token, g);
            float* largestK = largestK_.data() + keyAt_.first(g);
            double* products = products_.data() + keyAt_.first(g);
            for (std::size_t c = 0; c < dim; ++c) largestK[c] = std::max(largestK[c], std::abs(k[c]));
            for (int h = 0; h < group_; ++h) {
                const float* q = rows.q + queryRows.first(token, g, h);
                float* largestQ = largestQ_.data() + queryAt_.first(g, h);
                for (std::size_t c = 0; c < dim; ++c) {
                    products[c] += double(std::abs(q[c] * k[c]));
                    largestQ[c] = std::max(largestQ[c], std::abs(q[c]));
                }
            }
        }
    tokens_ += n;
}

std::vector<float> ChannelObserver::mean(KvHeadId kvHead) const {
    std::vector<float> result;
    const double count = double(std::max<std::int64_t>(1, tokens_)) * group_;
    for (const double sum : keyAt_.part(std::span(products_), kvHead)) result.push_back(float(sum / count));
    return result;
}

std::vector<float> ChannelObserver::max(KvHeadId kvHead) const {
    const auto largestK = keyAt_.part(std::span(largestK_), kvHead);
    std::vector<float> result(largestK.size(), 0.f);
    for (int h = 0; h < group_; ++h) {
        const auto largestQ = queryAt_.part(std::span(largestQ_), kvHead, h);
        for (std::size_t c = 0; c < result.size(); ++c) result[c] += largestQ[c] / float(group_);
    }
    for (std::size_t c = 0; c < result.size(); ++c) result[c] *= largestK[c];
    return result;
}

std::vector<std::int32_t> bestChannels(std::span<const float> importance, int count) {
    std::vector<std::int32_t> order(importance.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return importance[std::size_t(a)] > importance[std::size_t(b)];
    });
    order.resize(std::min(order.size(), std::size_t(count)));
    return order;
}

} // namespace kvscope::select

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
    const std::size_t perLayer = std::size_t(importance.kvHeads) * std::size_t(importance.dim);
    std::vector<NamedTensor> tensors;
    for (int layer = 0; layer < importance.layers; ++layer)
        for (const auto& [what, values] : {std::pair{kMean, &importance.mean}, {kMax, &importance.max}})
            tensors.push_back({tensorName(layer, what),
                               {importance.kvHeads, importance.dim},
                               std::span(*values).subspan(std::size_t(layer) * perLayer, perLayer)});
    writeSafetensors(path, tensors, {{"format", "kvscope.double_sparsity"}});
}

ChannelObserver::ChannelObserver(const KvShape& shape, int group)
    : kvHeads_(shape.kvHeads), group_(group), dim_(shape.dim),
      products_(std::size_t(shape.kvHeads) * std::size_t(shape.dim)), largestQ_(products_.size() * std::size_t(group)),
      largestK_(products_.size()) {}

void ChannelObserver::observe(const TokenRows& rows, int n) {
    const auto dim = std::size_t(dim_), kvWidth = std::size_t(kvHeads_) * dim, qWidth = kvWidth * std::size_t(group_);
    for (std::size_t token = 0; token < std::size_t(n); ++token)
        for (std::size_t g = 0; g < std::size_t(kvHeads_); ++g) {
            const float* k = rows.k + token * kvWidth + g * dim;
            for (std::size_t c = 0; c < dim; ++c)
                largestK_[g * dim + c] = std::max(largestK_[g * dim + c], std::abs(k[c]));
            for (std::size_t h = g * std::size_t(group_); h < (g + 1) * std::size_t(group_); ++h) {
                const float* q = rows.q + token * qWidth + h * dim;
                for (std::size_t c = 0; c < dim; ++c) {
                    products_[g * dim + c] += double(std::abs(q[c] * k[c]));
                    largestQ_[h * dim + c] = std::max(largestQ_[h * dim + c], std::abs(q[c]));
                }
            }
        }
    tokens_ += n;
}

std::vector<float> ChannelObserver::mean(int kvHead) const {
    std::vector<float> result;
    const double count = double(std::max<std::int64_t>(1, tokens_)) * group_;
    for (int c = 0; c < dim_; ++c) result.push_back(float(products_[std::size_t(kvHead * dim_ + c)] / count));
    return result;
}

std::vector<float> ChannelObserver::max(int kvHead) const {
    std::vector<float> result(std::size_t(dim_), 0.f);
    for (int h = kvHead * group_; h < (kvHead + 1) * group_; ++h)
        for (int c = 0; c < dim_; ++c) result[std::size_t(c)] += largestQ_[std::size_t(h * dim_ + c)] / float(group_);
    for (int c = 0; c < dim_; ++c) result[std::size_t(c)] *= largestK_[std::size_t(kvHead * dim_ + c)];
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

// Which channels of the keys matter: measured over a prompt, or calibrated beforehand and read from a file beside the
// model. Double Sparsity and AsyncTLS cut their labels from the best ones.
#pragma once

#include "core/select/selector.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope::select {

/// double_sparsity.safetensors holds two float32 tensors per layer, both [kvHeads, headDim], of rotated queries and
/// keys:
///   model.layers.N.self_attn.qk_mean   mean over group and tokens of |q * k| of the same token     (Double Sparsity)
///   model.layers.N.self_attn.qk_max    mean over the group of (max over tokens of |q|) * (max over tokens of |k|)
///                                                                                                          (AsyncTLS)
struct ChannelImportance {
    int layers = 0, kvHeads = 0, dim = 0;
    std::vector<float> mean, max; // [layers, kvHeads, dim]
    std::span<const float> of(const std::vector<float>& values, int layer, int kvHead) const {
        return {values.data() + std::size_t(layer * kvHeads + kvHead) * std::size_t(dim), std::size_t(dim)};
    }
};

inline constexpr const char* kChannelImportanceFile = "double_sparsity.safetensors";

/// @throws Error naming the file and the tensor
ChannelImportance readChannelImportance(const std::string& path, const ModelConfig& config);
/// The file beside the model; nothing where there is none. @throws Error likewise
std::optional<ChannelImportance> findChannelImportance(const Model& model);
/// @throws Error(Storage) naming the file
void writeChannelImportance(const std::string& path, const ChannelImportance& importance);

/// Measures one layer of one sequence while its prompt is read, chunk by chunk.
class ChannelObserver {
public:
    ChannelObserver() = default;
    ChannelObserver(const KvShape& shape, int group);
    void clear();
    void observe(const TokenRows& rows, int n);
    /// Of one KV head, [dim].
    std::vector<float> mean(int kvHead) const;
    std::vector<float> max(int kvHead) const;

private:
    int kvHeads_ = 0, group_ = 0, dim_ = 0;
    std::int64_t tokens_ = 0;
    std::vector<double> products_;           // [kvHeads, dim] sums of |q * k| over tokens and group
    std::vector<float> largestQ_, largestK_; // [queryHeads, dim], [kvHeads, dim]
};

/// The `count` best channels, best first; equal ones: the lower channel.
std::vector<std::int32_t> bestChannels(std::span<const float> importance, int count);

} // namespace kvscope::select

// Which channels of the keys matter: measured over a prompt, or calibrated beforehand and read from a file beside the
// model. Double Sparsity and AsyncTLS cut their labels from the best ones.
#pragma once

#include "core/select/channel_table.h"
#include "core/select/selector.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope::select {

inline constexpr const char* kChannelImportanceFile = "double_sparsity.safetensors";

/// @throws Error naming the file and the tensor
ChannelImportance readChannelImportance(const std::string& path, const ModelConfig& config);
/// Reads the file beside the model; nothing where there is none. @throws Error as above
std::optional<ChannelImportance> findChannelImportance(const Model& model);
/// @throws Error(Storage) naming the file
void writeChannelImportance(const std::string& path, const ChannelImportance& importance);

/// Measures one layer of one sequence while its prompt is read, piece by piece.
class ChannelObserver {
public:
    ChannelObserver() = default;
    ChannelObserver(const KvShape& shape, int group);
    void observe(const TokenRows& rows, int n);
    /// [dim] For one KV head, the mean of |q * k| over the tokens and the group.
    std::vector<float> mean(KvHeadId kvHead) const;
    std::vector<float> max(KvHeadId kvHead) const;

private:
    int kvHeads_ = 0, group_ = 0, dim_ = 0;
    Extents<KvHeadId, int> keyAt_;        // [kvHeads, dim]
    Extents<KvHeadId, int, int> queryAt_; // [kvHeads, group, dim]
    std::int64_t tokens_ = 0;
    std::vector<double> products_;           // [kvHeads, dim] sums of |q * k| over tokens and group
    std::vector<float> largestQ_, largestK_; // [queryHeads, dim], [kvHeads, dim]
};

/// The `count` best channels, best first; equal ones: the lower channel.
std::vector<std::int32_t> bestChannels(std::span<const float> importance, int count);

} // namespace kvscope::select

// The label cache of Double Sparsity and AsyncTLS: some channels of every key, four bits each.
#pragma once

#include "core/select/token_choice.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::select {

/// Asymmetric, per vector: code = clamp(round((x - min) * levels / (max - min)), 0, levels), half to even, a range of 0
/// counts as 1 (the public code of Double Sparsity). `x` becomes what the codes stand for.
void roundToLevels(std::span<float> x, int bits);

/// The labels of one (sequence, layer, KV head). Grows token by token.
class LabelCache {
public:
    LabelCache() = default;
    /// bits: 4, or 16 for labels that are kept as they are.
    LabelCache(std::size_t channels, int bits, int maxTokens);

    /// channels: of the rotated key, `stride` floats apart.
    void append(const float* key, std::span<const std::int32_t> channels, std::size_t stride = 1);
    void read(int token, float* label) const;
    int tokens() const { return tokens_; }
    std::size_t channels() const { return channels_; }
    /// Bytes of one token: codes, and scale and minimum where there are codes.
    std::size_t bytesPerToken() const { return bits_ == 4 ? (channels_ + 1) / 2 + 8 : channels_ * 4; }

private:
    std::size_t channels_ = 0;
    int bits_ = 4, tokens_ = 0;
    std::vector<std::uint8_t> codes_; // [token][(channels + 1)/2], the lower half first
    std::vector<float> ranges_;       // [token]: step between codes, minimum
    std::vector<float> plain_;        // [token][channels] without quantisation
};

/// scores[j] = mean over the group of softmax_j(scale * q_h[channels] . label_j) over the positions of `ranges`.
/// q: [group, dim]; queryBits: 16, or 4 to round the query's channels like a label. `logits` is scratch.
void labelScores(const LabelCache& labels, std::span<const std::int32_t> channels, const float* q, int group, int dim,
                 float scale, int queryBits, std::span<const TokenRange> ranges, std::vector<float>& logits,
                 std::vector<float>& scores);

} // namespace kvscope::select

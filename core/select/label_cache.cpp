#include "core/select/label_cache.h"

#include <algorithm>
#include <cmath>

namespace kvscope::select {
namespace {

struct Quantiser {
    float low = 0, scale = 1; // code = (x - low) * scale
    int levels = 15;
    Quantiser(std::span<const float> x, int bits) : levels((1 << bits) - 1) {
        const auto [least, most] = std::minmax_element(x.begin(), x.end());
        low = *least;
        const float range = *most - *least;
        scale = float(levels) / (range == 0.f ? 1.f : range);
    }
    int code(float x) const { return std::clamp(int(std::nearbyint((x - low) * scale)), 0, levels); }
};

} // namespace

void roundToLevels(std::span<float> x, int bits) {
    if (x.empty()) return;
    const Quantiser quantiser(x, bits);
    for (float& value : x) value = float(quantiser.code(value)) / quantiser.scale + quantiser.low;
}

LabelCache::LabelCache(std::size_t channels, int bits, int maxTokens) : channels_(channels), bits_(bits) {
    if (bits == 4) {
        codes_.resize(Elements(maxTokens, (channels + 1) / 2));
        ranges_.resize(Elements(maxTokens, 2));
    } else {
        plain_.resize(Elements(maxTokens, channels));
    }
}

void LabelCache::append(const float* key, std::span<const std::int32_t> channels, std::size_t stride) {
    const auto token = std::size_t(tokens_++);
    float label[1024]; // the widest key
    for (std::size_t i = 0; i < channels_; ++i) label[i] = key[std::size_t(channels[i]) * stride];
    if (bits_ != 4) {
        std::copy_n(label, channels_, plain_.begin() + std::ptrdiff_t(token * channels_));
        return;
    }
    const Quantiser quantiser({label, channels_}, 4);
    std::uint8_t* codes = codes_.data() + token * ((channels_ + 1) / 2);
    for (std::size_t i = 0; i < channels_; ++i) {
        const auto code = std::uint8_t(quantiser.code(label[i]));
        codes[i / 2] = i % 2 == 0 ? code : std::uint8_t(codes[i / 2] | code << 4);
    }
    ranges_[token * 2] = quantiser.scale;
    ranges_[token * 2 + 1] = quantiser.low;
}

void LabelCache::read(int token, float* label) const {
    const auto at = std::size_t(token);
    if (bits_ != 4) {
        std::copy_n(plain_.begin() + std::ptrdiff_t(at * channels_), channels_, label);
        return;
    }
    const std::uint8_t* codes = codes_.data() + at * ((channels_ + 1) / 2);
    const float scale = ranges_[at * 2], low = ranges_[at * 2 + 1];
    for (std::size_t i = 0; i < channels_; ++i)
        label[i] = float(i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4) / scale + low;
}

void labelScores(const LabelCache& labels, std::span<const std::int32_t> channels, const float* q, int group, int dim,
                 float scale, int queryBits, std::span<const TokenRange> ranges, std::vector<float>& logits,
                 std::vector<float>& scores) {
    std::size_t count = 0;
    for (const TokenRange& range : ranges) count += std::size_t(range.end - range.begin);
    const auto heads = std::size_t(group), width = channels.size();
    logits.resize(heads * (count + width));
    float* queries = logits.data() + heads * count;
    for (std::size_t h = 0; h < heads; ++h) {
        const std::span<float> query(queries + h * width, width);
        for (std::size_t i = 0; i < width; ++i) query[i] = q[h * std::size_t(dim) + std::size_t(channels[i])];
        if (queryBits == 4) roundToLevels(query, 4);
    }
    float label[1024];
    std::size_t at = 0;
    for (const TokenRange& range : ranges)
        for (int token = range.begin; token < range.end; ++token, ++at) {
            labels.read(token, label);
            for (std::size_t h = 0; h < heads; ++h) {
                float sum = 0;
                for (std::size_t i = 0; i < width; ++i) sum += queries[h * width + i] * label[i];
                logits[h * count + at] = scale * sum;
            }
        }
    scores.assign(count, 0.f);
    for (std::size_t h = 0; h < heads; ++h) {
        const std::span<float> head(logits.data() + h * count, count);
        softmax(head);
        for (std::size_t i = 0; i < count; ++i) scores[i] += head[i] / float(group);
    }
}

} // namespace kvscope::select

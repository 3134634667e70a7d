// Double Sparsity and AsyncTLS: labels of tokens, which are a few channels of every key in four bits each, and the
// choice of tokens by their labels. The device form of core/select/label_cache.h.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// The labels of one layer; heads are [sequence*kvHeads]. A word holds 8 channels of four bits (the lower half of a
/// byte first) or 2 channels in bf16. The words of neighbouring tokens lie side by side.
struct LabelStore {
    int channels = 0, bits = 4;                // 16 bits: a label has the key's numbers as they are
    std::int64_t stride = 0;                   // tokens of a head, a multiple of 32
    std::uint32_t* codes = nullptr;            // [heads][words()][stride]
    float *steps = nullptr, *lowest = nullptr; // [heads][stride] a channel is code * step + lowest; bits 4
    std::int32_t* channel = nullptr;           // [heads, channels] of the rotated key, best first
    __host__ __device__ int words() const { return bits == 4 ? (channels + 7) / 8 : (channels + 1) / 2; }
};

constexpr int kObservers = 64; // so many thread blocks add up a share of the tokens each

/// For each channel, adds |q * k| of the n tokens of a piece of a prompt, each token's own query and key, to
/// sums[kvHeads][kObservers][dim].
struct ObserveArgs {
    AttentionShape shape;
    int n = 0, first = 0;                  // positions
    const __nv_bfloat16* q = nullptr;      // [n, queryHeads*dim], rotated
    const __nv_bfloat16* blocks = nullptr; // head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;           // in elements
    double* sums = nullptr;
};
void observeChannels(const Launch& launch, const ObserveArgs& args);
/// Writes the channels of the largest sums to LabelStore::channel of one sequence's heads, best first. Equal sums: the
/// lower channel.
void pickChannels(const Launch& launch, const double* sums, int tokens, const AttentionShape& shape, int sequence,
                  const LabelStore& labels);

/// For the other channel importance, a product of maxima (select::ChannelRule): raises maxima[queryHeads +
/// kvHeads][dim] to the largest |q| of every query head's channels and the largest |k| of every KV head's, over n
/// tokens. `maxima` is 0 before the first call. args.sums is not used.
void observeMaxima(const Launch& launch, const ObserveArgs& args, float* maxima);
/// As pickChannels, but a channel's importance is the mean over the group of the largest |q|, times the largest |k|.
void pickChannelsByMaxima(const Launch& launch, const float* maxima, const AttentionShape& shape, int sequence,
                          const LabelStore& labels);

/// Writes the labels of one sequence's prompt.
struct LabelPromptArgs {
    AttentionShape shape;
    int sequence = 0, tokens = 0;
    const __nv_bfloat16* blocks = nullptr;
    std::int64_t headStride = 0;
    LabelStore labels;
};
void labelPrompt(const Launch& launch, const LabelPromptArgs& args);

/// Writes the label of a decode step's token and, where there is a token store (token_pack.h), its key and value there.
struct LabelTokenArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr;                     // [rows]
    const std::uint8_t* active = nullptr;                       // [rows] or null
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim]
    LabelStore labels;
    __nv_bfloat16* store = nullptr;
    const std::int64_t* first = nullptr; // [rows*kvHeads] a head's first token in the store
};
void labelToken(const Launch& launch, const LabelTokenArgs& args);

/// Chooses the `wanted` tokens of the highest score among those up to the position. A token's score is the mean over
/// the group of the softmax of scale * q[channels] . label. With labels of four bits the query's channels are rounded
/// likewise.
struct LabelChoiceArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* q = nullptr;       // [rows, queryHeads*dim], rotated
    LabelStore labels;
    float scale = 1;
    int maxTokens = 0, wanted = 0;  // maxTokens: of a sequence
    std::int32_t* tokens = nullptr; // [rows, kvHeads, capacity] ascending
    float* tokenScores = nullptr;   // likewise; null: not wanted
    std::int32_t* count = nullptr;  // [rows, kvHeads]
    int capacity = 0;
    std::uint64_t* marks[2] = {}; // stage1, pooling
};
/// The longest sequence that chooseByLabels takes, in tokens: its scores must fit a cluster's shared memory.
int mostLabelledTokens(const Launch& launch);
void chooseByLabels(const Launch& launch, const LabelChoiceArgs& args);

} // namespace kvscope::cuda

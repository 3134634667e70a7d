// The mathematics that the CPU backend is made of, one function for each operation. kernels/cpu implements it. The GPU
// has kernels of its own (docs/kernels.md).
//
// Rules for all operations:
// - Memory. Every pointer is ordinary memory, float32 and row-major unless the field says otherwise. An output overlaps
//   no input unless the function says so.
// - Order. An operation is complete when its function returns, so the next one may read its outputs.
// - Errors. A shape outside the stated limits throws Error(BadInput). A size of 0 does nothing.
// - Repeatability. The same inputs, thread count and instruction set give the same bits.
#pragma once

#include "kernels/kv_format.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvscope {

/// F32, F16 and BF16 store each weight by itself. The others are GGUF's block formats: 32 weights (256 in the formats
/// with a K) share scales. A row is a sequence of whole blocks, laid out as in ggml.
enum class DType : std::uint8_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K };
constexpr bool isQuantised(DType type) { return type > DType::BF16; }
constexpr int bytesOf(DType type) { return type == DType::F32 ? 4 : 2; } // of one weight; not for quantised types
const char* nameOf(DType type);                                          // "bf16", "q4_K"

struct WeightBlock {
    int weights, bytes;
};
constexpr WeightBlock blockOf(DType type) {
    constexpr WeightBlock blocks[] = {{1, 4},   {1, 2},   {1, 2},     {32, 34},   {32, 18},  {32, 20},
                                      {32, 22}, {32, 24}, {256, 144}, {256, 176}, {256, 210}};
    return blocks[int(type)];
}
/// Bytes of a row of `cols` weights, a multiple of the block.
constexpr std::size_t rowBytes(DType type, int cols) {
    return std::size_t(cols / blockOf(type).weights) * std::size_t(blockOf(type).bytes);
}

/// A linear layer's weights, [rows = outputs, cols = inputs], row-major, any alignment: y = W x.
struct WeightMatrix {
    const void* data = nullptr;
    DType type = DType::F32;
    int rows = 0, cols = 0;
    std::size_t bytes() const { return std::size_t(rows) * rowBytes(type, cols); }
};

/// One output of a linear operation: y[i, 0..rows) = (accumulate ? y : 0) + W x_i + bias, rows of y `stride` floats
/// apart.
struct LinearTarget {
    WeightMatrix weight;
    const float* bias = nullptr; // [rows] or null
    float* y = nullptr;
    int stride = 0;
    bool accumulate = false;
};

struct LinearArgs {
    const float* x = nullptr; // [n, cols], rows `xStride` floats apart
    int n = 0, xStride = 0;
    const float* normWeight = nullptr; // [cols]: multiply RMS-normalised rows; x is left unchanged. Null: x as it is
    float normEps = 0.f;
    std::span<const LinearTarget> targets; // all share x; equal cols
};

struct GatedArgs {
    const float* x = nullptr; // [n, cols], contiguous
    int n = 0;
    const float* normWeight = nullptr; // [cols]
    float normEps = 0.f;
    WeightMatrix gate, up;                              // [f, cols] each
    float* out = nullptr;                               // [n, f]
    const float *gateBias = nullptr, *upBias = nullptr; // [f] or null
    float slope = 1, limit = 0;                         // limit above 0: a bounded gate, see gatedLinear
};

/// y[i, h, :] = W_h x[i, h, :]: every head has a matrix of its own.
struct HeadLinearArgs {
    int n = 0, heads = 0;
    const float* x = nullptr; // row i of head h: x + i*xStride + h*xHeadStride, [weight.cols]
    int xStride = 0, xHeadStride = 0;
    WeightMatrix weight;       // of head 0, [rows, cols]
    std::size_t headBytes = 0; // from one head's matrix to the next one's
    float* y = nullptr;        // row i of head h: y + i*yStride + h*yHeadStride, [weight.rows]
    int yStride = 0, yHeadStride = 0;
};

/// RMS-normalises vectors in place.
struct NormArgs {
    float* x = nullptr; // [n, heads, dim], rows `stride` floats apart
    int n = 0, heads = 0, dim = 0, stride = 0;
    const float* weight = nullptr; // [dim]
    float eps = 0.f;
};

struct RopeArgs {
    float* x = nullptr; // [n, heads, dim], rotated in place; rows `stride` floats apart
    int n = 0, heads = 0, dim = 0, stride = 0;
    const std::int32_t* positions = nullptr;    // [n] rows of cos and sin
    const float *cos = nullptr, *sin = nullptr; // [rows, rotary/2]
    int first = 0, rotary = 0; // the channels [first, first + rotary) of each head are rotated; rotary 0: all of them
    bool interleaved = false;  // pairs are neighbours (2i, 2i+1) instead of halves (i, i + rotary/2)
};

struct EvictionScoreArgs {
    const float* values = nullptr; // [n, kvHeads*dim], rows `stride` floats apart
    int n = 0, kvHeads = 0, dim = 0, stride = 0;
    const float* delta = nullptr; // [kvHeads, kvHeads*dim]
    const float* gain = nullptr;  // [kvHeads], "A"
    float* scores = nullptr;      // [n, kvHeads]
};

/// One KV block as attention sees it. Keys are stored transposed: one vector register holds one channel of many keys,
/// so that scores need no sum across a register. Decoding, prompts and pooled keys share the inner loop over such
/// tiles.
struct KvBlockView {
    const float* keys = nullptr;     // [dim, blockSize], rotated; columns >= tokens are finite and not used
    const float* values = nullptr;   // [blockSize, valueDim]; rows >= tokens are finite and not used. Null: a token's
                                     // value is the first valueDim channels of its key (latent attention)
    const float* bias = nullptr;     // [blockSize] eviction scores, or null
    std::int32_t tokens = 0;         // the valid tokens are [begin, tokens), tokens at most blockSize
    std::int32_t begin = 0;          // above 0 where a sliding window begins inside the block
    const void* quantised = nullptr; // in place of keys and values: a block of AttentionArgs::format. blockAttention
                                     // alone takes such views
};

/// One query token of one KV head: its `group` query heads attend to a list of blocks.
struct AttentionItem {
    const float* q = nullptr; // [group, dim], rows `qStride` apart
    const KvBlockView* blocks = nullptr;
    std::int32_t blockCount = 0;
    float* out = nullptr; // [group, valueDim], rows `outStride` apart
    float* lse = nullptr; // [group] log of the softmax denominator, or null
};

struct AttentionArgs {
    int group = 0, dim = 0, blockSize = 0, qStride = 0, outStride = 0;
    float scale = 1.f;     // logits = scale * q.k + biasScale * bias
    float biasScale = 0.f; // 0 ignores the bias
    std::span<const AttentionItem> items;
    int valueDim = 0;     // 0: dim
    KvFormat format = {}; // of quantised views
};

/// Causal attention of n consecutive query tokens, all heads: each token attends to every token up to itself.
struct PrefillAttentionArgs {
    const float* q = nullptr; // [n, kvHeads*group, dim], rows `qStride` floats apart
    int n = 0, qStride = 0, firstPosition = 0;
    int kvHeads = 0, group = 0, dim = 0, blockSize = 0;
    const KvBlockView* const* blocks = nullptr; // [kvHeads][nb]: blocks 0..nb-1 covering positions 0..firstPosition+n-1
    float scale = 1.f, biasScale = 0.f;
    float* out = nullptr; // [n, kvHeads*group*valueDim], rows `outStride` floats apart
    int outStride = 0;
    int valueDim = 0; // 0: dim
    int window = 0;   // a query sees the last `window` tokens, itself included; 0: all
    // [n, kvHeads*group] each, or null: every query's largest logit, and its sum of exp(logit - largest logit).
    float* maxima = nullptr;
    float* sums = nullptr;
};

/// Scores of pooled keys (InfLLM-V2, NOSA): every query head takes a softmax over the pooled keys, and the heads of a
/// group add theirs up.
struct GroupScoreItem {
    const float* q = nullptr; // [group, dim], rows `qStride` apart
    const float* const* tiles =
        nullptr;              // pooled keys in tiles of `tileSize`, each [dim, tileSize] like KvBlockView::keys
    std::int32_t windows = 0; // the visible windows are [first, windows); 0 leaves `scores` as they are
    float* scores = nullptr;  // [windows]
    std::int32_t first = 0;   // windows before this one get the score 0
};

struct GroupScoreArgs {
    int group = 0, dim = 0, tileSize = 0, qStride = 0;
    float scale = 1.f;
    std::span<const GroupScoreItem> items;
};

/// Quest: upper bound of q.k from per-channel key ranges, summed over the group's heads.
struct RangeBoundItem {
    const float* q = nullptr;      // [group, dim], rows `qStride` apart
    const float* ranges = nullptr; // [blocks, 2, dim]: lowest, highest rotated key of the block
    std::int32_t blocks = 0;
    float* scores = nullptr; // [blocks]
};

enum class GroupReduce : std::uint8_t { Sum, Max };

struct RangeBoundArgs {
    int group = 0, dim = 0, qStride = 0;
    GroupReduce reduce = GroupReduce::Sum;
    std::span<const RangeBoundItem> items;
};

struct CopyItem {
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
};

class Kernels {
public:
    virtual ~Kernels() = default;

    /// Short text for traces: instruction set and threads, e.g. "cpu: AVX3, 2 threads".
    virtual std::string description() const = 0;

    /// on: from now on linear, gatedLinear and headLinear give every input the same bits as if it were the only one.
    /// They still read the weights from memory once, but combine them with one input at a time. Off, as when the object
    /// is made: the order of a sum depends on the number of inputs.
    virtual void inputsAlone(bool on) = 0;

    /// out[i, :] = table[ids[i], :]; table [vocab, cols]. Ids are trusted: the tokenizer or the caller checked them.
    virtual void embed(const WeightMatrix& table, std::span<const std::int32_t> ids, float* out) = 0;

    /// y (+)= W norm(x) + bias for every target; see LinearTarget. With few inputs the weights are read once in all, so
    /// that a call takes at least the time of reading them. Few inputs and quantised weights: 32 columns of an input at
    /// a time are rounded to 16 bits, with an error of at most 2^-16 of the largest of them, and multiplied with the
    /// blocks' integers. With many inputs nothing is rounded.
    virtual void linear(const LinearArgs& args) = 0;

    /// out = silu(gate(norm(x))) * up(norm(x)); SwiGLU's first half. With a limit: g * sigmoid(slope * g) * (u + 1),
    /// where g = min(gate(norm(x)), limit) and u = up(norm(x)) within [-limit, limit] (SwiGLU-OAI).
    virtual void gatedLinear(const GatedArgs& args) = 0;

    /// Rotary positions; see RopeArgs. rotary even.
    virtual void rope(const RopeArgs& args) = 0;

    /// x = x * weight / sqrt(mean(x^2) + eps), vector by vector (query and key norms, norms of latents).
    virtual void norm(const NormArgs& args) = 0;

    /// One product for every head, see HeadLinearArgs: latent attention's projections into and out of the latent space.
    virtual void headLinear(const HeadLinearArgs& args) = 0;

    /// s[t,g] = gain[g] * softplus(delta[g,:] . values[t,:]), softplus(x) = max(x,0) + log1p(exp(-|x|)) (NOSA, ED-DMA).
    virtual void evictionScore(const EvictionScoreArgs& args) = 0;

    /// Softmax attention over the listed blocks; see AttentionArgs. 1 <= group <= 128, dim and valueDim up to 1024,
    /// blockSize a multiple of 16 up to 256. Few items with many blocks are split over the threads and merged by LSE.
    virtual void blockAttention(const AttentionArgs& args) = 0;

    /// Causal attention over a prompt, with the limits of blockAttention. firstPosition may be any position; all blocks
    /// before the block of firstPosition are full.
    virtual void prefillAttention(const PrefillAttentionArgs& args) = 0;

    /// received[h][p] += the sum, over the queries of `args` in their order, of the softmax weight that query head h
    /// gives to position p. `args` are those of a prefillAttention that has filled `maxima` and `sums`; every weight is
    /// added as a double, so that the sums depend neither on the number of threads nor on how a prompt is cut into
    /// pieces.
    virtual void attentionReceived(const PrefillAttentionArgs& args, std::span<double* const> received) = 0;

    /// scores[c] = sum over the group of softmax_c(scale * q_h . kc). Sums to `group` over c.
    virtual void groupScores(const GroupScoreArgs& args) = 0;

    /// scores[b] = the sum, or the maximum, over the group's heads of sum over c of max(q[c]*low[c], q[c]*high[c])
    /// (Quest, 2024).
    virtual void rangeBound(const RangeBoundArgs& args) = 0;

    /// Plain copies, spread over the threads.
    virtual void copy(std::span<const CopyItem> items) = 0;

    /// Runs body(i) for i in [0, n) on the kernels' own threads: for small host-side work between kernels. body must
    /// not call into this object and must not throw.
    virtual void parallelFor(int n, void (*body)(void* context, int i), void* context) = 0;

    template <class Body> void forEach(int n, Body&& body) {
        parallelFor(
            n, [](void* context, int i) { (*static_cast<std::remove_reference_t<Body>*>(context))(i); }, &body);
    }
};

/// CPU kernels on `threads` threads (0: KVSCOPE_THREADS from the environment, else all cores this process may use).
std::unique_ptr<Kernels> makeCpuKernels(int threads = 0);

} // namespace kvscope

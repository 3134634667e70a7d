// The CPU's implementation of kernels.h: checks the arguments, splits the work over the thread team and calls the inner
// loops of simd.h.
#include "base/aligned_buffer.h"
#include "base/error.h"
#include "base/extents.h"
#include "kernels/cpu/quantised.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <limits>

namespace kvscope {

const char* nameOf(DType type) {
    constexpr const char* names[] = {"f32",  "f16",  "bf16", "q8_0", "q4_0", "q4_1",
                                     "q5_0", "q5_1", "q4_K", "q5_K", "q6_K"};
    return names[int(type)];
}

namespace cpu {
namespace {

constexpr int kSmallBatch = 8;         // up to here a linear layer is bound by reading its weights
constexpr int kPanelDepth = 2048;      // columns packed at once: a panel stays in the second-level cache
constexpr int kPrefillRows = 48;       // query rows (tokens x group) of one prefill tile
constexpr int kBlocksPerSplit = 16;    // blocks that are worth another thread's attention
constexpr int kRangesPerPart = 256;    // block bounds that are worth handing out
constexpr std::int64_t kRowGrain = 16; // rows handed out together: whole cache lines of output
constexpr int kVectorsTogether = 16;   // vectors normalised together
constexpr int kMostDim = 1024;         // of a key or value: latent attention has 576

[[noreturn]] void reject(const std::string& message, const char* hint) {
    throw Error(ErrorKind::BadInput, message, hint);
}

void checkCount(const char* what, int count) {
    if (count < 0) reject(fmt::format("{} cannot be {}", what, count), "counts start at 0");
}

void checkHeads(int group, int dim, int blockSize) {
    if (group < 1 || group > kMostGroup)
        reject(fmt::format("{} query heads share one KV head", group), "a KV head serves 1 to 128 query heads");
    if (dim < 1 || dim > kMostDim)
        reject(fmt::format("a head has {} dimensions", dim), "a head has 1 to 1024 dimensions");
    if (blockSize < 16 || blockSize > 256 || blockSize % 16 != 0)
        reject(fmt::format("a block holds {} tokens", blockSize), "a block holds a multiple of 16 tokens, at most 256");
}

int valueDimOf(int dim, int valueDim) { return valueDim == 0 ? dim : valueDim; }

void checkItem(const AttentionItem& item, int blockSize) {
    if (item.blockCount < 1)
        reject(fmt::format("a query attends to {} blocks", item.blockCount), "attention needs at least one block");
    for (int b = 0; b < item.blockCount; ++b)
        if (const auto& block = item.blocks[b];
            block.begin < 0 || block.tokens <= block.begin || block.tokens > blockSize)
            reject(fmt::format("block {} of the list has {} valid tokens", b, block.tokens - block.begin),
                   "a listed block holds at least one token and at most its size");
}

void checkBlocks(const WeightMatrix& weight) {
    if (const int block = blockOf(weight.type).weights; weight.cols % block != 0)
        reject(fmt::format("a row of {} weights is no sequence of {} blocks", weight.cols, nameOf(weight.type)),
               "quantised weights come in whole blocks");
}

/// Makes a buffer hold at least `count` elements; what it held is lost where it grows.
template <class T> void makeRoom(AlignedBuffer<T>& buffer, std::size_t count) {
    if (buffer.size() < count) buffer = AlignedBuffer<T>(count);
}

/// Elements of an array [rows, cols].
std::size_t elements(int rows, int cols) { return Extents<int, int>(rows, cols).size(); }

class CpuKernels final : public Kernels {
public:
    explicit CpuKernels(int threads)
        : team_(threads), scratch_(std::size_t(team_.threads())), panels_(std::size_t(team_.threads())) {}

    std::string description() const override {
        return fmt::format("cpu: {}, {} thread{}", instructionSet(), team_.threads(), team_.threads() == 1 ? "" : "s");
    }

    void embed(const WeightMatrix& table, std::span<const std::int32_t> ids, float* out) override {
        checkBlocks(table);
        const std::size_t cols = std::size_t(table.cols), bytes = rowBytes(table.type, table.cols);
        team_.split(std::int64_t(ids.size()), 64, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const char* row = static_cast<const char*>(table.data) + std::size_t(ids[std::size_t(i)]) * bytes;
                if (isQuantised(table.type))
                    dequantise(table.type, row, 0, table.cols, out + std::size_t(i) * cols);
                else
                    widenRow(table.type, row, table.cols, out + std::size_t(i) * cols);
            }
        });
    }

    void linear(const LinearArgs& args) override {
        checkCount("the number of inputs", args.n);
        if (args.n == 0 || args.targets.empty()) return;
        const int cols = args.targets.front().weight.cols;
        for (const LinearTarget& target : args.targets) {
            checkCount("the number of outputs", target.weight.rows);
            checkCount("the number of columns", target.weight.cols);
            if (target.weight.cols != cols)
                reject(
                    fmt::format("weights of {} and of {} columns cannot read the same input", cols, target.weight.cols),
                    "outputs of one linear call share their input");
            checkBlocks(target.weight);
        }
        if (alone_ || args.n <= kSmallBatch || cols == 0) return linearFew(args);
        linearMany(args);
    }

    void gatedLinear(const GatedArgs& args) override {
        checkCount("the number of inputs", args.n);
        if (args.n == 0) return;
        const int width = args.gate.rows;
        checkCount("the number of outputs", width);
        checkCount("the number of columns", args.gate.cols);
        if (args.up.rows != width || args.up.cols != args.gate.cols)
            reject(fmt::format("the gate is {} x {}, its partner {} x {}", width, args.gate.cols, args.up.rows,
                               args.up.cols),
                   "gate and up have the same shape");
        checkBlocks(args.gate);
        checkBlocks(args.up);
        const std::size_t half = elements(args.n, width);
        makeRoom(gateScratch_, 2 * half);
        float* gate = gateScratch_.data();
        float* up = gate + half;
        const LinearTarget targets[] = {{args.gate, args.gateBias, gate, width, false},
                                        {args.up, args.upBias, up, width, false}};
        const auto activate = [&](std::int64_t at, std::int64_t n) {
            if (args.limit > 0)
                boundedGate(gate + at, up + at, args.slope, args.limit, n, args.out + at);
            else
                siluMultiply(gate + at, up + at, n, args.out + at);
        };
        LinearArgs linearArgs{args.x, args.n, args.gate.cols, args.normWeight, args.normEps, targets};
        if (alone_ || args.n <= kSmallBatch) {
            // Both matrices and the activation are one job: a thread gates the outputs that it has computed.
            const std::int64_t stride = prepareFew(linearArgs);
            team_.split(width, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
                for (const LinearTarget& target : targets) fewRows(linearArgs, target, stride, begin, end);
                for (int i = 0; i < args.n; ++i) activate(std::int64_t(i) * width + begin, end - begin);
            });
            return;
        }
        linearMany(linearArgs);
        team_.split(std::int64_t(args.n) * width, 4096,
                    [&](std::int64_t begin, std::int64_t end) { activate(begin, end - begin); });
    }

    void inputsAlone(bool on) override { alone_ = on; }

    void rope(const RopeArgs& args) override {
        checkCount("the number of tokens", args.n);
        const int rotary = args.rotary == 0 ? args.dim : args.rotary;
        if (rotary < 0 || rotary % 2 != 0 || args.first < 0 || args.first + rotary > args.dim)
            reject(fmt::format("{} of a head's {} dimensions cannot be rotated", rotary, args.dim),
                   "rotary positions pair the dimensions of a head: their number is even");
        const int half = rotary / 2;
        // Halves: x[i] with x[i + half]; neighbours: x[2i] with x[2i + 1].
        const int step = args.interleaved ? 2 : 1, apart = args.interleaved ? 1 : half;
        team_.split(args.n, 16, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
                const float* cos = args.cos + std::int64_t(args.positions[row]) * half;
                const float* sin = args.sin + std::int64_t(args.positions[row]) * half;
                for (int head = 0; head < args.heads; ++head) {
                    float* x = args.x + row * args.stride + std::int64_t(head) * args.dim + args.first;
                    for (int i = 0; i < half; ++i) {
                        float &low = x[i * step], &high = x[i * step + apart];
                        const float a = low, b = high;
                        low = a * cos[i] - b * sin[i];
                        high = b * cos[i] + a * sin[i];
                    }
                }
            }
        });
    }

    void norm(const NormArgs& args) override {
        checkCount("the number of vectors", args.n);
        checkCount("the number of heads", args.heads);
        checkCount("the number of dimensions", args.dim);
        if (args.dim == 0) return;
        team_.each((args.n * args.heads + kVectorsTogether - 1) / kVectorsTogether, [&](int part, int thread) {
            auto& row = scratchOf(thread).rows;
            if (row.size() < std::size_t(args.dim)) row.resize(std::size_t(args.dim));
            const int begin = part * kVectorsTogether, end = std::min(args.n * args.heads, begin + kVectorsTogether);
            for (int i = begin; i < end; ++i) {
                float* x =
                    args.x + std::int64_t(i / args.heads) * args.stride + std::int64_t(i % args.heads) * args.dim;
                rmsNormRow(x, args.weight, args.eps, args.dim, row.data());
                std::copy_n(row.data(), args.dim, x);
            }
        });
    }

    void headLinear(const HeadLinearArgs& args) override {
        checkCount("the number of inputs", args.n);
        checkCount("the number of heads", args.heads);
        checkCount("the number of outputs", args.weight.rows);
        checkCount("the number of columns", args.weight.cols);
        checkBlocks(args.weight);
        if (args.n == 0 || args.heads == 0 || args.weight.rows == 0) return;
        const int width = panelRows(), panels = (args.weight.rows + width - 1) / width, cols = args.weight.cols;
        const bool few = alone_ || args.n <= kSmallBatch || cols > kPanelDepth;
        team_.each(args.heads * (few ? 1 : panels), [&](int job, int thread) {
            const int head = few ? job : job / panels;
            LinearTarget target;
            target.weight = args.weight;
            target.weight.data = static_cast<const char*>(args.weight.data) + std::size_t(head) * args.headBytes;
            target.y = args.y + std::int64_t(head) * args.yHeadStride;
            target.stride = args.yStride;
            const float* x = args.x + std::int64_t(head) * args.xHeadStride;
            if (few && isQuantised(target.weight.type)) {
                auto& rows = scratchOf(thread).rows;
                const auto stride = std::size_t(roundedBytes(cols)) / sizeof(float);
                if (rows.size() < stride * std::size_t(args.n)) rows.resize(stride * std::size_t(args.n));
                auto* rounded = reinterpret_cast<std::byte*>(rows.data());
                for (int i = 0; i < args.n; ++i)
                    roundInput(x + std::int64_t(i) * args.xStride, cols,
                               rounded + std::int64_t(i) * roundedBytes(cols));
                return quantisedInputs(target, rounded, args.n, 0, target.weight.rows);
            }
            if (few) {
                const std::int64_t stride = arrangedStride(target.weight.type, cols);
                auto& rows = scratchOf(thread).rows;
                if (rows.size() < std::size_t(stride) * std::size_t(args.n))
                    rows.resize(std::size_t(stride) * std::size_t(args.n));
                for (int i = 0; i < args.n; ++i)
                    arrangeInput(target.weight.type, x + std::int64_t(i) * args.xStride, cols,
                                 rows.data() + i * stride);
                return floatInputs(target, rows.data(), stride, args.n, 0, target.weight.rows);
            }
            auto& panel = panelOf(thread);
            makeRoom(panel, elements(cols, width));
            const int begin = job % panels * width, outputs = std::min(width, target.weight.rows - begin);
            packPanel(target.weight, begin, 0, cols, panel.data());
            panelMultiply(x, args.xStride, args.n, panel.data(), cols, target.y + begin, target.stride, outputs, false);
        });
    }

    void evictionScore(const EvictionScoreArgs& args) override {
        checkCount("the number of tokens", args.n);
        const int width = args.kvHeads * args.dim;
        team_.split(args.n, 16, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row)
                for (int g = 0; g < args.kvHeads; ++g) {
                    const float* delta = args.delta + std::int64_t(g) * width;
                    const float* value = args.values + row * args.stride;
                    float parts[8] = {}; // independent sums, so that the loop vectorises without reordering at run time
                    int c = 0;
                    for (; c + 8 <= width; c += 8)
                        for (int lane = 0; lane < 8; ++lane) parts[lane] += delta[c + lane] * value[c + lane];
                    float x = 0;
                    for (; c < width; ++c) x += delta[c] * value[c];
                    for (const float part : parts) x += part;
                    args.scores[row * args.kvHeads + g] =
                        args.gain[g] * (std::max(x, 0.f) + std::log1p(std::exp(-std::abs(x))));
                }
        });
    }

    void blockAttention(const AttentionArgs& args) override {
        if (args.items.empty()) return;
        checkHeads(args.group, args.dim, args.blockSize);
        checkHeads(args.group, valueDimOf(args.dim, args.valueDim), args.blockSize);
        const int items = int(args.items.size());
        int most = 0;
        for (const AttentionItem& item : args.items) {
            checkItem(item, args.blockSize);
            most = std::max(most, item.blockCount);
        }
        const int wanted = (team_.threads() + items - 1) / items;
        const int splits = std::clamp(std::min(wanted, most / kBlocksPerSplit), 1, team_.threads());
        if (splits > 1) return attendSplit(args, splits);
        team_.each(items, [&](int i, int thread) {
            float maxima[kMostGroup], sums[kMostGroup];
            const AttentionItem& item = args.items[std::size_t(i)];
            attendBlocks(args, item, 0, item.blockCount, item.out, args.outStride, maxima, sums, scratchOf(thread));
            normalise(args, item, maxima, sums);
        });
    }

    void prefillAttention(const PrefillAttentionArgs& args) override {
        checkCount("the number of tokens", args.n);
        checkCount("the number of KV heads", args.kvHeads);
        checkCount("the first position", args.firstPosition);
        if (args.n == 0) return;
        checkHeads(args.group, args.dim, args.blockSize);
        checkHeads(args.group, valueDimOf(args.dim, args.valueDim), args.blockSize);
        checkCount("the sliding window", args.window);
        const int tileTokens = std::max(1, kPrefillRows / args.group), tiles = (args.n + tileTokens - 1) / tileTokens;
        team_.each(tiles * args.kvHeads, [&](int job, int thread) {
            // The last tiles attend to the most keys. They are handed out first, so that the threads end together.
            const int tile = tiles - 1 - job / args.kvHeads, begin = tile * tileTokens;
            prefillTile(args, job % args.kvHeads, begin, std::min(args.n, begin + tileTokens), scratchOf(thread));
        });
    }

    void attentionReceived(const PrefillAttentionArgs& args, std::span<double* const> received) override {
        if (args.n == 0) return;
        checkHeads(args.group, args.dim, args.blockSize);
        if (args.maxima == nullptr || args.sums == nullptr || received.size() != std::size_t(args.kvHeads * args.group))
            reject(fmt::format("{} lists for what tokens received from {} query heads", received.size(),
                               args.kvHeads * args.group),
                   "it needs a list for every query head, and the maxima and sums that prefillAttention wrote");
        const int oldest = args.window > 0 ? std::max(0, args.firstPosition - args.window + 1) / args.blockSize : 0;
        const int blocks = (args.firstPosition + args.n - 1) / args.blockSize + 1 - oldest;
        team_.each(blocks * args.kvHeads, [&](int job, int thread) {
            // The first blocks are seen by the most queries. They are handed out first, so that the threads end
            // together.
            receivedByBlock(args, job % args.kvHeads, oldest + job / args.kvHeads, received.data(), scratchOf(thread));
        });
    }

    void groupScores(const GroupScoreArgs& args) override {
        if (args.items.empty()) return;
        checkHeads(args.group, args.dim, args.tileSize);
        team_.each(int(args.items.size()), [&](int i, int thread) {
            if (args.items[std::size_t(i)].windows > 0)
                groupScoreItem(args, args.items[std::size_t(i)], scratchOf(thread));
        });
    }

    void rangeBound(const RangeBoundArgs& args) override {
        checkCount("the number of query heads", args.group);
        checkCount("the head dimension", args.dim);
        int most = 0;
        for (const RangeBoundItem& item : args.items) most = std::max(most, item.blocks);
        // A sequence with few KV heads has fewer items than there are threads: the items' blocks are split into parts.
        const int parts = (most + kRangesPerPart - 1) / kRangesPerPart;
        team_.each(int(args.items.size()) * parts, [&](int job, int) {
            RangeBoundItem item = args.items[std::size_t(job / parts)];
            const int first = job % parts * kRangesPerPart;
            if (first >= item.blocks) return;
            item.ranges += std::int64_t(first) * 2 * args.dim;
            item.scores += first;
            item.blocks = std::min(kRangesPerPart, item.blocks - first);
            rangeBoundItem(args, item);
        });
    }

    void copy(std::span<const CopyItem> items) override {
        if (int(items.size()) < team_.threads()) { // few and perhaps long
            for (const CopyItem& item : items)
                team_.split(std::int64_t(item.bytes), 64 << 10, [&](std::int64_t begin, std::int64_t end) {
                    std::memcpy(static_cast<char*>(item.to) + begin, static_cast<const char*>(item.from) + begin,
                                std::size_t(end - begin));
                });
            return;
        }
        team_.each(int(items.size()), [&](int i, int) {
            const CopyItem& item = items[std::size_t(i)];
            if (item.bytes > 0) std::memcpy(item.to, item.from, item.bytes);
        });
    }

    void parallelFor(int n, void (*body)(void* context, int i), void* context) override {
        team_.each(n, [&](int i, int) { body(context, i); });
    }

private:
    static void normalise(const AttentionArgs& args, const AttentionItem& item, const float* maxima,
                          const float* sums) {
        for (int h = 0; h < args.group; ++h) {
            const float factor = 1.f / sums[h];
            float* out = item.out + std::int64_t(h) * args.outStride;
            for (int c = 0; c < valueDimOf(args.dim, args.valueDim); ++c) out[c] *= factor;
            if (item.lse) item.lse[h] = maxima[h] + std::log(sums[h]);
        }
    }

    /// Attends to the blocks of each item in `splits` parts and merges the parts by their log-sum-exp.
    void attendSplit(const AttentionArgs& args, int splits) {
        const int items = int(args.items.size()), dim = valueDimOf(args.dim, args.valueDim);
        const auto outFloats = std::size_t(args.group) * std::size_t(dim),
                   perPart = outFloats + 2 * std::size_t(args.group);
        makeRoom(partials_, std::size_t(items * splits) * perPart);
        const auto part = [&](int index) { return partials_.data() + std::size_t(index) * perPart; };
        team_.each(items * splits, [&](int index, int thread) {
            const AttentionItem& item = args.items[std::size_t(index / splits)];
            const int which = index % splits, first = item.blockCount * which / splits,
                      last = item.blockCount * (which + 1) / splits;
            float* out = part(index);
            float *maxima = out + outFloats, *sums = maxima + args.group;
            if (first == last) {
                std::fill_n(maxima, args.group, -std::numeric_limits<float>::infinity());
                std::fill_n(out, outFloats, 0.f);
                std::fill_n(sums, args.group, 0.f);
                return;
            }
            attendBlocks(args, item, first, last, out, dim, maxima, sums, scratchOf(thread));
        });
        for (int i = 0; i < items; ++i) {
            const AttentionItem& item = args.items[std::size_t(i)];
            for (int h = 0; h < args.group; ++h) {
                float top = -std::numeric_limits<float>::infinity(), sum = 0;
                for (int p = 0; p < splits; ++p) top = std::max(top, part(i * splits + p)[outFloats + std::size_t(h)]);
                float* out = item.out + std::int64_t(h) * args.outStride;
                std::fill_n(out, dim, 0.f);
                for (int p = 0; p < splits; ++p) {
                    const float* from = part(i * splits + p);
                    const float factor = std::exp(from[outFloats + std::size_t(h)] - top);
                    sum += factor * from[outFloats + std::size_t(args.group + h)];
                    for (int c = 0; c < dim; ++c) out[c] += factor * from[std::size_t(h * dim + c)];
                }
                for (int c = 0; c < dim; ++c) out[c] /= sum;
                if (item.lse) item.lse[h] = top + std::log(sum);
            }
        }
    }

    /// Normalises the inputs of a small batch and brings them into the forms in which the targets' weight types read
    /// them: as they are, in the order of bf16 weights, or rounded for quantised weights. @return floats per row of the
    /// first two forms
    std::int64_t prepareFew(const LinearArgs& args) {
        const int cols = args.targets.front().weight.cols;
        const std::int64_t stride = arrangedStride(DType::BF16, cols);
        const auto any = [&](auto&& property) {
            return std::any_of(args.targets.begin(), args.targets.end(),
                               [&](const LinearTarget& target) { return property(target.weight.type); });
        };
        const bool bfloat = any([](DType type) { return type == DType::BF16; }), quantised = any(isQuantised);
        const auto need = std::size_t(2 * args.n) * std::size_t(stride);
        makeRoom(inputs_, need);
        const std::size_t rounded = quantised ? std::size_t(roundedBytes(cols)) : 0;
        makeRoom(rounded_, rounded * std::size_t(args.n));
        for (int i = 0; i < args.n; ++i) {
            const float* x = args.x + std::int64_t(i) * args.xStride;
            float* plain = inputs_.data() + i * stride;
            if (args.normWeight)
                rmsNormRow(x, args.normWeight, args.normEps, cols, plain);
            else
                std::copy_n(x, cols, plain);
            if (bfloat) arrangeInput(DType::BF16, plain, cols, inputs_.data() + (args.n + i) * stride);
            if (quantised) roundInput(plain, cols, rounded_.data() + std::size_t(i) * rounded);
        }
        return stride;
    }

    /// Computes the outputs [begin, end) of one target from the prepared inputs.
    void fewRows(const LinearArgs& args, const LinearTarget& target, std::int64_t stride, std::int64_t begin,
                 std::int64_t end) const {
        if (isQuantised(target.weight.type)) return quantisedInputs(target, rounded_.data(), args.n, begin, end);
        const std::int64_t form = target.weight.type == DType::BF16 ? args.n * stride : 0;
        floatInputs(target, inputs_.data() + form, stride, args.n, begin, end);
    }

    /// The outputs [begin, end) of n inputs, together or one by one.
    void floatInputs(const LinearTarget& target, const float* x, std::int64_t stride, int n, std::int64_t begin,
                     std::int64_t end) const {
        if (!alone_ || n == 1) return smallBatchRows(target, x, n, begin, end);
        eachAlone(target, n, begin, end, [&](const LinearTarget& one, int i, std::int64_t from, std::int64_t to) {
            smallBatchRows(one, x + i * stride, 1, from, to);
        });
    }
    void quantisedInputs(const LinearTarget& target, const std::byte* rounded, int n, std::int64_t begin,
                         std::int64_t end) const {
        if (!alone_ || n == 1) return quantisedRows(target, rounded, n, begin, end);
        const std::int64_t bytes = roundedBytes(target.weight.cols);
        eachAlone(target, n, begin, end, [&](const LinearTarget& one, int i, std::int64_t from, std::int64_t to) {
            quantisedRows(one, rounded + i * bytes, 1, from, to);
        });
    }
    /// Calls work for every input and few rows of weights at a time, which the second input finds in the cache.
    template <class Work>
    static void eachAlone(const LinearTarget& target, int n, std::int64_t begin, std::int64_t end, Work&& work) {
        for (std::int64_t from = begin; from < end; from += kRowGrain)
            for (int i = 0; i < n; ++i) {
                LinearTarget one = target;
                one.y += std::int64_t(i) * target.stride;
                work(one, i, from, std::min(end, from + kRowGrain));
            }
    }

    void linearFew(const LinearArgs& args) {
        const std::int64_t stride = prepareFew(args);
        // All targets are one job: their rows are laid end to end and split evenly over the threads.
        std::int64_t total = 0;
        for (const LinearTarget& target : args.targets) total += target.weight.rows;
        team_.split(total, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
            std::int64_t offset = 0;
            for (const LinearTarget& target : args.targets) {
                const std::int64_t from = std::max(begin, offset) - offset,
                                   to = std::min(end, offset + target.weight.rows) - offset;
                if (from < to) fewRows(args, target, stride, from, to);
                offset += target.weight.rows;
            }
        });
    }

    void linearMany(const LinearArgs& args) {
        const int cols = args.targets.front().weight.cols, width = panelRows();
        const float* x = args.x;
        std::int64_t xStride = args.xStride;
        if (args.normWeight) {
            makeRoom(normed_, elements(args.n, cols));
            team_.split(args.n, 8, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i)
                    rmsNormRow(args.x + i * args.xStride, args.normWeight, args.normEps, cols,
                               normed_.data() + i * cols);
            });
            x = normed_.data();
            xStride = cols;
        }
        int panels = 0;
        for (const LinearTarget& target : args.targets) panels += (target.weight.rows + width - 1) / width;
        for (auto& panel : panels_) makeRoom(panel, elements(std::min(cols, kPanelDepth), width));
        team_.each(panels, [&](int job, int thread) {
            auto& panel = panelOf(thread);
            int index = job;
            const LinearTarget* target = args.targets.data();
            while (index >= (target->weight.rows + width - 1) / width)
                index -= (target->weight.rows + width - 1) / width, ++target;
            const int begin = index * width, outputs = std::min(width, target->weight.rows - begin);
            float* y = target->y + begin;
            if (target->bias)
                for (int i = 0; i < args.n; ++i)
                    for (int o = 0; o < outputs; ++o) {
                        float& value = y[std::int64_t(i) * target->stride + o];
                        value = (target->accumulate ? value : 0.f) + target->bias[begin + o];
                    }
            bool add = target->accumulate || target->bias;
            for (int k = 0; k < cols; k += kPanelDepth, add = true) {
                const int depth = std::min(kPanelDepth, cols - k);
                packPanel(target->weight, begin, k, depth, panel.data());
                panelMultiply(x + k, xStride, args.n, panel.data(), depth, y, target->stride, outputs, add);
            }
        });
    }

    AttentionScratch& scratchOf(int thread) { return scratch_[std::size_t(thread)]; }
    AlignedBuffer<float>& panelOf(int thread) { return panels_[std::size_t(thread)]; }

    ThreadTeam team_;
    std::vector<AttentionScratch> scratch_;    // [thread]
    std::vector<AlignedBuffer<float>> panels_; // [thread]
    bool alone_ = false;                       // inputsAlone
    AlignedBuffer<std::byte> rounded_;         // [input]
    AlignedBuffer<float> inputs_, normed_, gateScratch_, partials_;
};

} // namespace
} // namespace cpu

std::unique_ptr<Kernels> makeCpuKernels(int threads) { return std::make_unique<cpu::CpuKernels>(threads); }

} // namespace kvscope

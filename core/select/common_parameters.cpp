#include "core/select/common_parameters.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::select {
namespace {

std::optional<std::string> number(int value) { return std::to_string(value); }

} // namespace

Parameter blockSize() {
    return {"block_size",
            ParameterType::Integer,
            "64",
            16,
            256,
            "tokens",
            "Tokens of one KV block: the unit of selection and of transfer. A multiple of 16.",
            {},
            [](const SparseConfig& c) { return number(c.blockSize); }};
}
Parameter sinkBlocks() {
    return {"sink_blocks",
            ParameterType::Integer,
            "1",
            0,
            64,
            "blocks",
            "First blocks of the sequence, always attended.",
            {},
            [](const SparseConfig& c) { return number(c.sinkBlocks); }};
}
Parameter windowBlocks(int defaultBlocks) {
    return {"window_blocks",
            ParameterType::Integer,
            std::to_string(defaultBlocks),
            0,
            4096,
            "blocks",
            "Most recent blocks, always attended; see window_adds_current.",
            {},
            [](const SparseConfig& c) { return number(c.windowBlocks); }};
}
Parameter windowAddsCurrent() {
    return {"window_adds_current",
            ParameterType::Boolean,
            "true",
            0,
            1,
            "",
            "On: the current block comes on top of window_blocks, as the public kernels count. Off: it is one of them.",
            {},
            [](const SparseConfig& c) { return std::optional<std::string>(c.windowAddsCurrent ? "true" : "false"); }};
}
Parameter totalBlocks() {
    return {"total_blocks",
            ParameterType::Integer,
            "64",
            1,
            65536,
            "blocks",
            "Blocks each KV head attends in total, sink and window included.",
            {},
            [](const SparseConfig& c) { return c.totalBlocks > 0 ? number(c.totalBlocks) : std::nullopt; }};
}
Parameter kernelSize() {
    return {"kernel_size",
            ParameterType::Integer,
            "32",
            1,
            256,
            "tokens",
            "Tokens averaged into one pooled key.",
            {},
            [](const SparseConfig& c) { return number(c.kernelSize); }};
}
Parameter kernelStride() {
    return {"kernel_stride",
            ParameterType::Integer,
            "16",
            1,
            256,
            "tokens",
            "Distance between pooled keys; divides block_size and is at most kernel_size.",
            {},
            [](const SparseConfig& c) { return number(c.kernelStride); }};
}
Parameter denseLen(int defaultTokens) {
    return {"dense_len",
            ParameterType::Integer,
            std::to_string(defaultTokens),
            0,
            1 << 24,
            "tokens",
            "Dense attention while fewer tokens are cached; 0: always sparse.",
            {},
            [](const SparseConfig& c) { return number(std::max(0, c.denseLen)); }};
}
Parameter bias() {
    return {
        "bias",
        ParameterType::Choice,
        "ed-dma",
        0,
        0,
        "",
        "How the eviction head is used. ed-dma: its score s selects and exp(s) weighs each token; dma: exp(s) selects "
        "and "
        "weighs; s-dma: s selects, plain attention; none: plain attention. Without an eviction head: plain attention.",
        {"ed-dma", "dma", "s-dma", "none"}};
}
Parameter biasScale() {
    return {"bias_scale",
            ParameterType::Choice,
            "trained",
            0,
            0,
            "",
            "trained: the bias is added after the 1/sqrt(d) scale, as in training; nosi: before it, as NOSI's decode "
            "kernel does.",
            {"trained", "nosi"}};
}
Parameter prefill() {
    return {"prefill",
            ParameterType::Choice,
            "full",
            0,
            0,
            "",
            "Attention over the prompt: full, or the method's own selection for every prompt token.",
            {"full", "sparse"}};
}
Parameter labelBits() {
    return {"label_bits", ParameterType::Choice, "4", 0, 0, "bits", "Bits of a label's channel; 16: not quantised.",
            {"4", "16"}};
}

std::optional<std::string> trainedSelectBlocks(const SparseConfig& c) {
    return c.queryAwareBlocks > 0 ? number(c.queryAwareBlocks) : std::nullopt;
}
std::optional<std::string> noLayers(const SparseConfig&) { return number(0); }

int dynamicBlocks(const SparseConfig& c) {
    return c.totalBlocks > 0 ? std::max(1, c.totalBlocks - c.sinkBlocks - c.windowBlocks) : 0;
}
std::optional<std::string> whereBudgeted(const SparseConfig& c, int value) {
    return c.totalBlocks > 0 ? number(value) : std::nullopt;
}
std::optional<std::string> shareOfDynamicTokens(const SparseConfig& c, int numerator, int denominator) {
    return whereBudgeted(c, dynamicBlocks(c) * c.blockSize * numerator / denominator);
}

Abilities usualAbilities(Backend backend) {
    Abilities a;
    a.latent = a.pastWindow = backend == Backend::Cpu;
    a.headNorms = a.rowsIndependent = true;
    return a;
}

namespace {

void require(bool condition, const std::string& message, const std::string& hint) {
    if (!condition) throw Error(ErrorKind::BadInput, message, hint);
}

} // namespace

SelectionSpec commonSpec(const ParameterValues& values, const ModelConfig& config) {
    SelectionSpec spec;
    if (values.has("block_size")) spec.blockSize = values.integer("block_size");
    require(spec.blockSize % 16 == 0, fmt::format("block_size {} is not a multiple of 16", spec.blockSize),
            "use 16, 32, 64 or 128");
    spec.grid.blockSize = spec.blockSize;
    if (values.has("kernel_size")) {
        spec.grid.kernel = values.integer("kernel_size");
        spec.grid.stride = values.integer("kernel_stride");
        require(spec.blockSize % spec.grid.stride == 0,
                fmt::format("kernel_stride {} does not divide block_size {}", spec.grid.stride, spec.blockSize),
                "use a stride that divides the block size, e.g. 16");
        require(spec.grid.stride <= spec.grid.kernel,
                fmt::format("kernel_stride {} is larger than kernel_size {}", spec.grid.stride, spec.grid.kernel),
                "tokens between the windows would never be seen; use a stride of at most kernel_size");
    }
    if (values.has("sink_blocks")) {
        spec.budget.sink = values.integer("sink_blocks");
        spec.budget.window = values.integer("window_blocks");
        spec.budget.windowAddsCurrent = !values.has("window_adds_current") || values.boolean("window_adds_current");
        require(spec.budget.window > 0 || spec.budget.windowAddsCurrent,
                "window_blocks 0 without window_adds_current leaves the current block out",
                "set window_blocks to at least 1");
    }
    if (values.has("dense_len")) spec.denseBelowTokens = values.integer("dense_len");
    if (values.has("prefill")) spec.sparsePrefill = values.text("prefill") == "sparse";
    if (values.has("bias")) {
        const std::string& variant = values.text("bias");
        const bool inAttention = variant == "ed-dma" || variant == "dma";
        const bool nosi = values.has("bias_scale") && values.text("bias_scale") == "nosi";
        spec.bias.scale = !inAttention ? 0.f : nosi ? config.attentionScale() : 1.f;
    }
    return spec;
}

int remainingBlocks(const ParameterValues& values, const SelectionSpec& spec, int taken) {
    const SelectionBudget& budget = spec.budget;
    const int forced = budget.sink + budget.window + (budget.windowAddsCurrent ? 1 : 0);
    const int total = values.integer("total_blocks");
    if (total < forced + taken)
        throw Error(ErrorKind::BadInput,
                    fmt::format("total_blocks {} is smaller than the {} blocks that {} take", total, forced + taken,
                                taken > 0 ? "sink, window and query-aware share" : "sink and window"),
                    taken > 0 ? "raise total_blocks, or lower sink_blocks, window_blocks or select_blocks"
                              : "raise total_blocks, or lower sink_blocks or window_blocks");
    return total - forced - taken;
}

} // namespace kvscope::select

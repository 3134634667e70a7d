#include "core/engine/cpu/cpu_canvas_features.h"

#include "base/indexed.h"
#include "core/diffusion/changed_values.h"

#include <algorithm>
#include <numeric>

namespace kvscope {
namespace {

int longestOf(std::span<const int> tokens) { return *std::max_element(tokens.begin(), tokens.end()); }

} // namespace

CpuCanvasFeatures::CpuCanvasFeatures(Kernels& kernels, const ModelConfig& config, const CanvasOptions& options,
                                     std::span<const int> prompts, std::span<const int> tokens, const RopeTables& rope,
                                     CpuLayerPasses& passes, StageClock& clock)
    : kernels_(kernels), config_(config), options_(options), prompts_(prompts.begin(), prompts.end()),
      tokens_(tokens.begin(), tokens.end()), rope_(rope), passes_(passes), clock_(clock),
      layerAt_(int(tokens.size()), config.layers), streamAt_(longestOf(tokens), config.hidden),
      layers_(layerAt_.size()), rows_(streamAt_.size()), made_(streamAt_.size()) {
    for (const RowId sequence : idsUpTo<RowId>(int(tokens.size())))
        for (const LayerId layer : idsUpTo<LayerId>(config.layers)) {
            Layer& of = layers_[layerAt_.offset(sequence, layer)];
            const Extents<int, int> addedAt(tokensOf(sequence), config.hidden);
            of.attention = AlignedBuffer<float>(addedAt.size());
            of.feedForward = AlignedBuffer<float>(addedAt.size());
            if (options.sinceComputed)
                of.values = AlignedBuffer<float>(
                    KeyExtents(tokensOf(sequence) - promptOf(sequence), config.kvHeads, config.headDim).size());
        }
}

std::int64_t CpuCanvasFeatures::bytes(const ModelConfig& config, const CanvasOptions& options,
                                      std::span<const int> prompts, std::span<const int> tokens) {
    const std::int64_t all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t(0)),
                       ofPrompts = std::accumulate(prompts.begin(), prompts.end(), std::int64_t(0));
    std::int64_t numbers = all * 2 * config.hidden;
    if (options.sinceComputed) numbers += (all - ofPrompts) * config.kvHeads * config.headDim;
    return numbers * config.layers * std::int64_t(sizeof(float));
}

void CpuCanvasFeatures::run(const Pass& pass, const BlockLayout& layout, LayerRecord& times) {
    Layer& layer = layers_[layerAt_.offset(pass.sequence, pass.layer)];
    const int prompt = promptOf(pass.sequence), tokens = tokensOf(pass.sequence);
    layer.computed.begin();
    layer.changes.clear();
    if (pass.wholePrompt) layer.computed.add(0, prompt);
    if (pass.wholeCanvas)
        layer.computed.add(prompt, tokens);
    else if (options_.updateRatio > 0)
        addChanged(pass, layout, layer, times);
    layer.computed.compare(pass.block, tokens);
    const int n = int(layer.computed.positions.size());
    if (n > 0) {
        gather(pass, layer);
        for (int i = 0; i < n; ++i)
            passes_.rotateAs(i, rope_, rope_.first(int(pass.sequence)) + layer.computed.positions[std::size_t(i)]);
        passes_.project(pass.layer, rows_.data(), n, times);
        clock_.run(times, n == tokens ? Stage::Attention : Stage::Stage2, [&] {
            write(pass, layout, layer);
            pass.attend(n);
        });
        passes_.outputOf(pass.layer, n, made_.data(), times);
        scatter(layer, layer.attention);
    }
    add(pass, layer.attention);
    if (n > 0) {
        gather(pass, layer);
        passes_.feedForwardOf(pass.layer, rows_.data(), n, made_.data(), times);
        scatter(layer, layer.feedForward);
    }
    add(pass, layer.feedForward);
}

/// Makes the values of all tokens of the canvas and puts them in the place of the earlier ones. Adds the tokens whose
/// values changed most to those that are computed.
void CpuCanvasFeatures::addChanged(const Pass& pass, const BlockLayout& layout, Layer& layer, LayerRecord& times) {
    const int prompt = promptOf(pass.sequence), canvas = tokensOf(pass.sequence) - prompt;
    passes_.projectValues(pass.layer, pass.x + streamAt_.first(prompt), canvas, times);
    clock_.run(times, Stage::Compression, [&] {
        const KeyExtents valueAt(canvas, config_.kvHeads, config_.headDim);
        const std::span<const float> made(passes_.rows().v, valueAt.size());
        const std::size_t width = valueAt.under(1);
        Numbered<double> alike(canvas, 0.0);
        kernels_.forEach(canvas, [&](int token) {
            std::vector<float> before(valueAt.under(0));
            for (const KvHeadId g : idsUpTo<KvHeadId>(config_.kvHeads)) {
                float* const stored = pass.blockAt(g, layout.blockOf(prompt + token)) + layout.valuesAt() +
                                      std::size_t(layout.rowOf(prompt + token)) * width;
                std::copy_n(stored, width, before.begin() + std::ptrdiff_t(std::size_t(int(g)) * width));
                std::copy_n(made.data() + valueAt.first(token, g), width, stored);
            }
            if (options_.sinceComputed)
                std::copy_n(layer.values.data() + valueAt.first(token), before.size(), before.data());
            alike[token] = likeness(valueAt.part(made, token), before);
        });
        for (const double value : alike) layer.changes.push_back(float(std::max(0.0, 1 - value)));
        for (const std::int32_t token : leastAlike(alike, int(canvas * options_.updateRatio)))
            layer.computed.positions.push_back(prompt + token);
    });
}

/// Puts the keys of the computed tokens in the place of the earlier ones, and so the values that addChanged() has not
/// written.
void CpuCanvasFeatures::write(const Pass& pass, const BlockLayout& layout, Layer& layer) {
    const TokenRows made = passes_.rows();
    const int n = int(layer.computed.positions.size()), prompt = promptOf(pass.sequence);
    const KeyExtents keyAt(n, config_.kvHeads, config_.headDim);
    kernels_.forEach(config_.kvHeads, [&](int i) {
        const KvHeadId g{i};
        for (int row = 0; row < n; ++row) {
            const int position = layer.computed.positions[std::size_t(row)];
            const std::size_t at = keyAt.first(row, g);
            float* const block = pass.blockAt(g, layout.blockOf(position));
            if (position >= prompt && !pass.wholeCanvas) // addChanged() has written its values
                layout.writeKey(block, layout.rowOf(position), made.k + at);
            else
                layout.write(block, layout.rowOf(position), made.k + at, made.v + at, 0.f);
        }
    });
    if (!options_.sinceComputed) return;
    for (int row = 0; row < n; ++row)
        if (const int token = layer.computed.positions[std::size_t(row)] - prompt; token >= 0)
            std::copy_n(made.v + keyAt.first(row), keyAt.under(0),
                        layer.values.data() + std::size_t(token) * keyAt.under(0));
}

void CpuCanvasFeatures::gather(const Pass& pass, const Layer& layer) {
    int row = 0;
    for (const std::int32_t position : layer.computed.positions)
        std::copy_n(pass.x + streamAt_.first(position), streamAt_.under(0), rows_.data() + streamAt_.first(row++));
}

void CpuCanvasFeatures::scatter(const Layer& layer, AlignedBuffer<float>& to) const {
    int row = 0;
    for (const std::int32_t position : layer.computed.positions)
        std::copy_n(made_.data() + streamAt_.first(row++), streamAt_.under(0), to.data() + streamAt_.first(position));
}

void CpuCanvasFeatures::add(const Pass& pass, const AlignedBuffer<float>& what) const {
    const float* const from = what.data();
    kernels_.forEach(tokensOf(pass.sequence), [&](int token) {
        const std::size_t first = streamAt_.first(token), end = first + streamAt_.under(0);
        for (std::size_t i = first; i < end; ++i) pass.x[i] += from[i];
    });
}

} // namespace kvscope

// dLLM-Cache's part of a forward over a canvas on the CPU backend: each layer computes some tokens and adds to the
// others what it added to them before.
#pragma once

#include "core/diffusion/computed_tokens.h"
#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/kv/block_layout.h"
#include "core/model/model_config.h"
#include "core/select/canvas.h"

#include <functional>
#include <span>
#include <vector>

namespace kvscope {

/// Every layer keeps what its attention and its feed-forward last added to each token's residual stream. The tokens'
/// keys and values are in the engine's store, where Pass::blockAt finds them.
class CpuCanvasFeatures {
public:
    /// Everything passed must outlive this object. prompts, tokens: [sequence] the tokens of the prompt; those of
    /// prompt and canvas together.
    CpuCanvasFeatures(Kernels& kernels, const ModelConfig& config, const CanvasOptions& options,
                      std::span<const int> prompts, std::span<const int> tokens, const RopeTables& rope,
                      CpuLayerPasses& passes, StageClock& clock);

    /// The work of one layer for one sequence.
    struct Pass {
        LayerId layer{};
        RowId sequence{};
        int block = 0;                               // position of the first token of the block that is being written
        bool wholePrompt = true, wholeCanvas = true; // all tokens of these segments are computed
        float* x = nullptr;                          // [tokens, hidden]
        /// Where a block of the layer's store lies.
        std::function<float*(KvHeadId kvHead, BlockId block)> blockAt;
        /// Lets the passes' first n queries attend to all tokens.
        std::function<void(int n)> attend;
    };
    void run(const Pass& pass, const BlockLayout& layout, LayerRecord& times);

    /// The tokens that the layer computed in the last forward.
    const ComputedTokens& computed(LayerId layer, RowId sequence) const {
        return layers_[layerAt_.offset(sequence, layer)].computed;
    }
    /// [canvas] 1 minus the likeness of each token's values to those before, at least 0; empty where none were
    /// compared.
    std::span<const float> changes(LayerId layer, RowId sequence) const {
        return layers_[layerAt_.offset(sequence, layer)].changes;
    }
    /// Bytes that all layers keep, beyond keys and values.
    static std::int64_t bytes(const ModelConfig& config, const CanvasOptions& options, std::span<const int> prompts,
                              std::span<const int> tokens);

private:
    struct Layer {
        AlignedBuffer<float> attention, feedForward; // [tokens, hidden]
        AlignedBuffer<float> values; // [canvas, KV heads, dim] as they were when the tokens were last computed; only
                                     // where values are compared
        ComputedTokens computed;
        std::vector<float> changes;
    };
    int promptOf(RowId sequence) const { return prompts_[index(sequence)]; }
    int tokensOf(RowId sequence) const { return tokens_[index(sequence)]; }
    void addChanged(const Pass& pass, const BlockLayout& layout, Layer& layer, LayerRecord& times);
    void write(const Pass& pass, const BlockLayout& layout, Layer& layer);
    void gather(const Pass& pass, const Layer& layer);
    void scatter(const Layer& layer, AlignedBuffer<float>& to) const;
    void add(const Pass& pass, const AlignedBuffer<float>& what) const;

    Kernels& kernels_;
    const ModelConfig& config_;
    const CanvasOptions& options_;
    const std::vector<int> prompts_, tokens_;
    const RopeTables& rope_;
    CpuLayerPasses& passes_;
    StageClock& clock_;
    const Extents<RowId, LayerId> layerAt_;
    const Extents<int, int> streamAt_; // [tokens of the longest sequence, hidden]
    std::vector<Layer> layers_;        // layerAt_
    AlignedBuffer<float> rows_, made_; // streamAt_; of the computed tokens: the stream; what the layer adds to it
};

} // namespace kvscope

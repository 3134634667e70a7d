// dLLM-Cache's part of a forward over canvases on a GPU: each layer computes some tokens and adds to the others what it
// added to them before.
#pragma once

#include "core/cuda/diffusion/canvas_tokens.h"
#include "core/cuda/layer_passes.h"
#include "core/diffusion/computed_tokens.h"
#include "core/select/canvas.h"
#include "core/session/canvas_engine.h"
#include "kernels/cuda/diffusion/canvas_changes.h"

#include <functional>
#include <span>
#include <vector>

namespace kvscope {

/// Every layer keeps, for every token, what its attention and its feed-forward last added to the token's residual
/// stream; the tokens' keys and values are in the engine's blocks. The first layer computes all tokens. Every other
/// layer computes the tokens of its list, and then adds to all tokens what it keeps for them.
class CudaCanvasFeatures {
public:
    /// What the features use of the engine; everything outlives them.
    struct Parts {
        const DeviceModel& model;
        const CanvasOptions& options;
        const cuda::AttentionShape& shape;
        const StepBuffers& buffers;
        LayerPasses& passes;
        const cuda::Launch& launch;
        StageRanges& ranges;
    };
    /// prompts, tokens: [sequence] the tokens of the prompt; those of prompt and canvas together. @throws
    /// Error(Unsupported)
    CudaCanvasFeatures(const Parts& parts, const PerRow<int>& prompts, const PerRow<int>& tokens);
    void plan(DeviceArena& arena);
    /// Fills the tables that no forward changes, after the arena has been taken. headFirst: [sequence*kvHeads] first KV
    /// block of a head
    void open(const std::int64_t* headFirst);

    // A forward calls begin, add for every row, send, runLayer for every layer, collect, and, when the stream has been
    // waited for, finish.
    void begin(std::span<const CanvasRow> rows);
    /// Lists the tokens that the layers compute of a row. firstPlace, endPlace: the row's places in Pass::x, where all
    /// of its tokens lie.
    void add(const CanvasRow& row, int firstPlace, int endPlace);
    void send();
    /// Marks of a layer's stages; those of values and changes are written where layers compare values.
    struct Marks {
        std::uint64_t *values, *changes, *qkv, *rope, *attention, *output, *feedForward;
    };
    /// One layer of all rows.
    struct Pass {
        LayerId layer{};
        const CanvasTokens& all; // of the forward
        float* x;                // [places of `all`, hidden]
        __nv_bfloat16* blocks;   // of the layer
        Marks marks;
        /// place: rotates the projected queries and keys of these tokens and writes keys and values to the blocks.
        /// attend: lets these tokens attend.
        std::function<void(const CanvasTokens&)> place, attend;
    };
    void runLayer(const Pass& pass);
    /// Copies to the host which tokens were chosen and how much values changed, in the stream's order.
    void collect();
    /// After the forward has been waited for: notes which tokens the layers computed.
    void finish(std::span<const CanvasRow> rows);

    bool compares() const { return changing_ > 0; } // some row of this forward compares values
    bool computesAll() const { return all_; }       // in this forward every layer computes all tokens
    const ComputedTokens& computed(LayerId layer, RowId sequence) const { return computed_[layer][sequence]; }
    /// [canvas] how much each token's values changed, after finish(); empty where none were compared.
    NumberedSpan<const float> changes(LayerId layer, const CanvasRow& row) const;

private:
    int promptOf(RowId sequence) const { return prompts_[sequence]; }
    int canvasOf(RowId sequence) const { return tokens_[sequence] - promptOf(sequence); }
    int changedOf(RowId sequence) const { return int(canvasOf(sequence) * p_.options.updateRatio); }
    bool chooses(LayerId layer, const CanvasRow& row) const {
        return layer > LayerId{0} && !row.wholeCanvas && p_.options.updateRatio > 0;
    }
    int countOf(const CanvasRow& row) const;
    void list(const CanvasRow& row, int firstPlace, int from, int end);
    void listAll(const CanvasRow& row, int firstPlace, int endPlace);
    cuda::ChangeArgs changeArgs(const Pass& pass) const;
    void change(const Pass& pass);
    void compute(const Pass& pass, const CanvasTokens& tokens, const std::int32_t* sources,
                 const std::int32_t* targets);
    int reportRow(LayerId layer, RowId sequence) const { return int(layer) * tokens_.count() + int(sequence); }

    /// One layer's share of the device's memory.
    struct Layer {
        float *attention = nullptr, *feedForward = nullptr; // [tokens of all sequences, hidden]
        __nv_bfloat16* values = nullptr; // [canvas tokens of all, kvHeads*dim]; only where these are compared
    };

    struct Sizes {
        int allTokens = 0, allCanvas = 0;    // of all sequences: tokens; tokens of the canvases
        int mostCanvas = 0, mostChanged = 0; // of any sequence: tokens of the canvas; tokens chosen by their changes
    };
    /// As sources_ and targets_, for the first layer, which computes all tokens.
    struct Everything {
        ForwardArray<std::int32_t> sources, targets; // [places of Pass::all]
        int places = 0;
    };
    /// What layers say of tokens: how much their values changed, and which were chosen. `...Host`: the copy that the
    /// host reads.
    struct Report {
        float *changes = nullptr, *changesHost = nullptr;            // [layers, sequences, mostCanvas]
        std::int32_t *positions = nullptr, *positionsHost = nullptr; // [layers, sequences, mostChanged]
    };

    const Parts p_;
    const ModelConfig& config_;
    const std::int64_t* headFirst_ = nullptr;
    const PerRow<int> prompts_, tokens_;
    std::vector<std::int32_t> firstKept_,
        firstValue_; // [sequence] row of position 0 in the arrays of a Layer; in Layer::values
    Sizes sizes_;
    int width_ = 0; // of a row of queries, keys and values

    CanvasTokens chosen_; // the tokens that all layers but the first compute
    ForwardArray<std::int32_t> sources_,
        targets_; // [places of chosen_] the token's place in Pass::x; its row in the arrays of a Layer
    Everything everything_;
    ForwardArray<cuda::ChangeRow> changeRows_; // [sequences]
    int changing_ = 0, places_ = 0;
    bool all_ = false;

    PerLayer<Layer> layers_;
    float *rows_ = nullptr,
          *made_ = nullptr; // [places, hidden] of the computed tokens: the stream; what the layer adds to it
    Report report_;
    std::int32_t *promptDevice_ = nullptr, *firstValueDevice_ = nullptr; // [sequences], with Layer::values
    PerLayer<PerRow<ComputedTokens>> computed_;
};

} // namespace kvscope

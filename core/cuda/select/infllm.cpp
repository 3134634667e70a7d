#include "core/cuda/device_copy.h"
#include "core/cuda/device_selector.h"

#include "core/select/infllm_budget.h"
#include "kernels/cuda/methods/far_blocks.h"

#include <algorithm>

namespace kvscope {
namespace {

class DeviceInfLlm final : public DeviceSelector {
public:
    DeviceInfLlm(const ParameterValues& values, const DeviceSelectorContext& context)
        : context_(context), budget_(values), representatives_(values.integer("repr_topk")),
          shared_(values.text("groups") == "layer" ? context.shape.kvHeads : 1), layers_(context.config.layers) {}

    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override { return 16; } // the first word counts the replaced keys
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    void rankBlocks(const DeviceStep& step, const cuda::FarMergeArgs& merged) const;
    struct Layer {
        __nv_bfloat16 *plainKeys = nullptr, *blockKeys = nullptr;
        float* mass = nullptr;
    };
    int localBlocks() const {
        return std::min(budget_.localBlocks, context_.maxBlocks);
    } // most blocks of a local window
    cuda::FarMemory memoryOf(LayerId layer) const {
        const Layer& of = layers_[layer];
        return {context_.shape,
                budget_.localTokens,
                localBlocks() * context_.shape.blockSize,
                representatives_,
                of.plainKeys,
                of.mass,
                of.blockKeys,
                context_.tables.blockFirst};
    }

    const DeviceSelectorContext context_;
    const select::ContextBudget budget_;
    const int representatives_, shared_; // shared_: number of KV heads that share a block set
    PerLayer<Layer> layers_;
    // Used for one layer of a prompt.
    __nv_bfloat16* promptKeys_ = nullptr;
    float *promptMass_ = nullptr, *promptLogSums_ = nullptr;
    bool promptRead_ = false;
    // Used for one layer of a step.
    __nv_bfloat16 *farQ_ = nullptr, *farOut_ = nullptr;
    float *scores_ = nullptr, *chosenScores_ = nullptr, *nearLogSums_ = nullptr, *farLogSums_ = nullptr,
          *partial_ = nullptr;
    PackedBlock* chosen_ = nullptr;
    std::int32_t *chosenCount_ = nullptr, *farCount_ = nullptr, *maxTokens_ = nullptr;
};

void DeviceInfLlm::plan(DeviceArena& arena) {
    const cuda::AttentionShape& shape = context_.shape;
    const int rows = context_.rows(), heads = context_.heads(), ring = localBlocks() * shape.blockSize;
    const std::size_t blocks = context_.allBlocks();
    for (Layer& layer : layers_) {
        arena.plan(layer.plainKeys, {heads, ring, shape.dim}, {"plain_keys", "keys before rotation", Holds::Index});
        arena.plan(layer.mass, {rows, shape.queryHeads, ring}, {"mass", "attention received", Holds::Index});
        arena.plan(layer.blockKeys, {blocks, shape.group(), shape.dim},
                   {"representatives", "representative keys", Holds::Index});
    }
    const int longest = *std::max_element(context_.promptTokens.begin(), context_.promptTokens.end());
    arena.plan(promptKeys_, {shape.kvHeads, longest, shape.dim}, "prompt KV");
    arena.plan(promptMass_, {shape.queryHeads, longest}, "prompt activations");
    arena.plan(promptLogSums_, {shape.queryHeads, context_.pieceTokens}, "prompt activations");
    const Elements queries(rows, shape.queryHeads, shape.dim), lists(heads, context_.capacity);
    arena.plan(farQ_, queries, "activations");
    arena.plan(farOut_, queries, "activations");
    arena.plan(nearLogSums_, {rows, shape.queryHeads}, "activations");
    arena.plan(farLogSums_, {rows, shape.queryHeads}, "activations");
    arena.plan(scores_, {rows, shape.kvHeads / shared_, context_.maxBlocks}, "selections");
    arena.plan(chosen_, lists, "selections");
    arena.plan(chosenScores_, lists, "selections");
    arena.plan(chosenCount_, heads, "selections");
    arena.plan(farCount_, heads, "selections");
    arena.plan(maxTokens_, rows, "session state");
    std::size_t partial = 0;
    for (const int most : {localBlocks(), budget_.initBlocks + budget_.topk})
        partial = std::max(partial, cuda::attentionPartialFloats(context_.launch, shape, context_.rows(),
                                                                 std::min(most, context_.maxBlocks)));
    arena.plan(partial_, partial, "activations");
}

void DeviceInfLlm::begin() {
    cuda::check(cudaMemcpy(maxTokens_, context_.maxTokens.data(), context_.maxTokens.size() * sizeof(std::int32_t),
                           cudaMemcpyHostToDevice),
                "preparing the session");
}

void DeviceInfLlm::prompt(const DevicePromptPiece& piece) {
    const cuda::AttentionShape& shape = context_.shape;
    if (piece.first == 0)
        clearOnStream(promptMass_, {shape.queryHeads, piece.promptTokens}, context_.launch.stream,
                      "reading the prompt");
    cuda::FarPromptArgs args;
    args.memory = memoryOf(piece.layer);
    args.sequence = int(piece.sequence);
    args.first = piece.first;
    args.n = piece.n;
    args.qkv = piece.qkv;
    args.q = piece.q;
    args.blocks = piece.blocks;
    args.headStride = piece.headStride;
    args.tokenBias = piece.tokenScores;
    args.biasStride = piece.scoreStride;
    args.scale = context_.config.attentionScale();
    args.biasScale = context_.spec.bias.scale;
    args.promptTokens = piece.promptTokens;
    args.plainKeys = promptKeys_;
    args.mass = promptMass_;
    args.logSums = promptLogSums_;
    cuda::readFarPrompt(context_.launch, args);
    promptRead_ = true;
}

void DeviceInfLlm::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                              std::int64_t headStride) {
    cuda::FarSettleArgs args;
    args.memory = memoryOf(layer);
    args.sequence = int(sequence);
    args.tokens = tokens;
    args.plainKeys = promptRead_ ? promptKeys_ : nullptr; // a filled context has no keys before rotation
    args.mass = promptMass_;
    args.blocks =
        const_cast<__nv_bfloat16*>(blocks); // the resident store, or scratch that is then copied to the host store
    args.headStride = headStride;
    cuda::settleFarPrompt(context_.launch, args);
}

void DeviceInfLlm::append(const DeviceStep& step) {
    const DeviceLayerState& state = context_.layers[step.layer];
    cuda::FarAppendArgs args;
    args.memory = memoryOf(step.layer);
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.qkv = step.qkv;
    args.norms = context_.headNorms[step.layer];
    args.interleaved = context_.config.rope.interleaved;
    args.cos = context_.tables.ropeCos;
    args.sin = context_.tables.ropeSin;
    args.ropeFirst = context_.tables.ropeFirst;
    args.maxTokens = maxTokens_;
    args.blocks = state.blocks;
    if (state.offloaded) {
        args.storeOut = const_cast<__nv_bfloat16*>(state.store);
        args.slots = context_.slots;
        args.map = state.map;
        args.replaced = reinterpret_cast<std::uint32_t*>(step.report);
    }
    args.farQ = farQ_;
    cuda::appendToFarMemory(context_.launch, args);
}

void DeviceInfLlm::choose(const DeviceStep& step, cuda::SelectArgs& args) {
    cuda::FarChoiceArgs choice;
    choice.memory = memoryOf(step.layer);
    choice.rows = context_.rows();
    choice.shared = shared_;
    choice.initBlocks = budget_.initBlocks;
    choice.topk = budget_.topk;
    choice.maxBlocks = context_.maxBlocks;
    choice.capacity = context_.capacity;
    choice.position = step.position;
    choice.active = step.active;
    choice.farQ = farQ_;
    choice.scores = scores_;
    choice.chosen = chosen_;
    choice.chosenCount = chosenCount_;
    choice.farCount = farCount_;
    choice.chosenScores = chosenScores_;
    choice.scoreMark = step.stage1Mark;
    choice.chooseMark = step.poolingMark;
    cuda::chooseFarBlocks(context_.launch, choice);
    args.chosen = {chosen_, chosenCount_, chosenScores_};
}

/// Attends to the local window with true distances and to the far blocks with one fixed distance, and merges the two
/// outputs by their log-sum-exps.
bool DeviceInfLlm::attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) {
    args.scratch.partial = partial_;
    cuda::DecodeAttentionArgs far = args;
    far.mark = nullptr;
    far.q = farQ_;
    far.list.count = farCount_;
    far.maxBlocks = std::min(budget_.initBlocks + budget_.topk, context_.maxBlocks);
    far.out = farOut_;
    far.logSums = farLogSums_;
    args.list.first = farCount_;
    args.maxBlocks = localBlocks();
    args.logSums = nearLogSums_;
    cuda::decodeAttention(context_.launch, args);
    if (far.maxBlocks > 0) cuda::decodeAttention(context_.launch, far);
    cuda::FarMergeArgs merge;
    merge.memory = memoryOf(step.layer);
    merge.rows = context_.rows();
    merge.position = step.position;
    merge.active = step.active;
    merge.q = step.q;
    merge.blocks = args.blocks;
    merge.headFirst = args.headFirst;
    merge.listBlock = args.list.block;
    merge.listSlot = args.list.slot;
    merge.listCount = args.list.count;
    merge.farCount = farCount_;
    merge.capacity = context_.capacity;
    merge.localBlocks = args.maxBlocks;
    merge.tokenBias = args.bias.scores;
    merge.biasFirst = args.bias.first;
    merge.scale = args.scale;
    merge.biasScale = args.bias.scale;
    merge.nearLogSums = nearLogSums_;
    merge.farLogSums = farLogSums_;
    merge.farOut = farOut_;
    merge.out = args.out;
    cuda::mergeFarAttention(context_.launch, merge);
    if (context_.ranksBlocks && args.list.slot != nullptr) rankBlocks(step, merge);
    return true;
}

/// Ranks the resident blocks for the cache policy that goes by worth (rankFarBlocks).
void DeviceInfLlm::rankBlocks(const DeviceStep& step, const cuda::FarMergeArgs& merged) const {
    cuda::FarRankArgs args;
    args.merged = merged;
    args.shared = shared_;
    args.initBlocks = budget_.initBlocks;
    args.farQ = farQ_;
    args.usesPerDoubling = budget_.usesPerDoubling;
    args.slots = context_.slots;
    args.lastUse = context_.layers[step.layer].lastUse;
    cuda::rankFarBlocks(context_.launch, args);
}

void DeviceInfLlm::fill(LayerId layer, const char* report, std::span<const RowId>, LayerRecord& out, StepRecord&,
                        std::size_t) const {
    if (report == nullptr) return;
    if (!context_.layers[layer].offloaded) return;
    // The keys of blocks that left the local window were written to the host a second time.
    const auto replaced = std::int64_t(*reinterpret_cast<const std::uint32_t*>(report));
    out.d2hBytes += replaced * context_.shape.blockSize * context_.shape.dim * std::int64_t(sizeof(__nv_bfloat16));
}

} // namespace

std::unique_ptr<DeviceSelector> infllmOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<DeviceInfLlm>(values, context);
}

} // namespace kvscope

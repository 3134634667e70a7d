// Double Sparsity on the GPU (core/select/double_sparsity.cpp). The labels of all tokens are on the device. Keys and
// values lie token by token in pinned host memory, or on the device where nothing is offloaded; those of the chosen
// tokens are packed into blocks, which the step attends to.
#include "base/error.h"
#include "core/cuda/select/token_labels.h"
#include "core/cuda/select/token_report.h"
#include "core/cuda/select/token_store.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

class DoubleSparsity final : public DeviceSelector {
public:
    DoubleSparsity(const ParameterValues& values, const DeviceSelectorContext& context);

    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override { return report_.bytes(); }
    std::int64_t storedBytes(LayerId, RowId sequence) const override { return store_.storedBytes(sequence); }
    void prompt(const DevicePromptPiece& piece) override { labels_.prompt(piece); }
    void promptDone(LayerId layer, RowId sequence, int tokens, const Bf16* blocks, std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    struct Layer {
        std::int32_t *previous = nullptr, *previousCount = nullptr;
    };
    Layer& at(LayerId layer) { return layers_[layer]; }
    bool biased() const { return context_.spec.bias.scale != 0.f; }

    const DeviceSelectorContext context_;
    const int mostTokens_, heavy_, blocks_; // blocks_: number of blocks that hold the chosen tokens of a head
    const TokenReport report_;
    TokenLabels labels_;
    TokenStore store_;
    PerLayer<Layer> layers_;
    std::int32_t *tokens_ = nullptr, *count_ = nullptr; // the step's choice
    float *scores_ = nullptr, *packedBias_ = nullptr, *partial_ = nullptr;
    Bf16* packed_ = nullptr;
    std::int64_t *packedFirst_ = nullptr, *placeFirst_ = nullptr; // [heads] a head's first block and place
};

DoubleSparsity::DoubleSparsity(const ParameterValues& values, const DeviceSelectorContext& context)
    : context_(context), mostTokens_(*std::max_element(context.maxTokens.begin(), context.maxTokens.end())),
      heavy_(std::min(values.integer("heavy_tokens"), mostTokens_)),
      blocks_((heavy_ + context.shape.blockSize - 1) / context.shape.blockSize), report_(context, heavy_),
      labels_(context_, context.shape.dim / values.integer("group_factor"), std::stoi(values.text("label_bits")),
              select::ChannelRule::MeanProduct),
      store_(context_), layers_(context.config.layers) {
    if (const int most = cuda::mostLabelledTokens(context.launch); mostTokens_ > most)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("double-sparsity scores at most {} tokens on this GPU, and {} are asked for", most,
                                mostTokens_),
                    "use a shorter context, or --backend cpu");
}

void DoubleSparsity::plan(DeviceArena& arena) {
    const int heads = context_.heads();
    const Elements lists(heads, heavy_);
    labels_.plan(arena);
    store_.plan(arena);
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].ownTier) continue;
        Layer& layer = layers_[i];
        if (!context_.record) continue;
        arena.plan(layer.previous, lists, "recorder state");
        arena.plan(layer.previousCount, heads, "recorder state");
    }
    arena.plan(tokens_, lists, "selections");
    arena.plan(scores_, lists, "selections");
    arena.plan(count_, heads, "selections");
    arena.plan(packed_, {heads, blocks_, cuda::blockElements(context_.shape.blockSize, context_.shape.dim)},
               {"chosen_kv", "chosen tokens", Holds::Kv});
    if (biased()) arena.plan(packedBias_, {heads, blocks_, context_.shape.blockSize}, "scores of chosen tokens");
    arena.plan(packedFirst_, heads, "session state");
    arena.plan(placeFirst_, heads, "session state");
    arena.plan(partial_, cuda::attentionPartialFloats(context_.launch, context_.shape, context_.rows(), blocks_),
               "activations");
}

void DoubleSparsity::begin() {
    const auto upload = [](auto* to, const auto& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    std::vector<std::int64_t> blocks, places;
    for (std::int64_t head = 0; head < context_.heads(); ++head) {
        blocks.push_back(head * blocks_);
        places.push_back(head * blocks_ * context_.shape.blockSize);
    }
    upload(packedFirst_, blocks);
    upload(placeFirst_, places);
    labels_.begin();
    store_.begin();
}

void DoubleSparsity::promptDone(LayerId layer, RowId sequence, int tokens, const Bf16* blocks,
                                std::int64_t headStride) {
    if (!context_.layers[layer].ownTier) return;
    labels_.promptDone(layer, sequence, tokens, blocks, headStride);
    store_.promptDone(layer, sequence, tokens, blocks, headStride);
}

void DoubleSparsity::append(const DeviceStep& step) {
    if (!context_.layers[step.layer].ownTier) return;
    cuda::LabelTokenArgs args;
    args.shape = context_.shape;
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.newKey = step.newKey;
    args.newValue = step.newValue;
    args.labels = labels_.of(step.layer);
    args.store = store_.of(step.layer);
    args.first = context_.tables.tokenFirst;
    cuda::labelToken(context_.launch, args);
}

void DoubleSparsity::choose(const DeviceStep& step, cuda::SelectArgs&) {
    const Layer& layer = at(step.layer);
    const cuda::TokenChoiceRecord record = report_.at(step);
    cuda::LabelChoiceArgs choice;
    choice.shape = context_.shape;
    choice.rows = context_.rows();
    choice.position = step.position;
    choice.active = step.active;
    choice.q = step.q;
    choice.labels = labels_.of(step.layer);
    // A model that scales by 1/sqrt(dim) gets 1/sqrt(channels) here.
    choice.scale = context_.config.attentionScale() * std::sqrt(float(context_.shape.dim) / float(labels_.channels()));
    choice.maxTokens = mostTokens_;
    choice.wanted = choice.capacity = heavy_;
    choice.tokens = tokens_;
    choice.tokenScores = scores_;
    choice.count = count_;
    choice.marks[0] = record.marks[0];
    choice.marks[1] = record.marks[1];
    cuda::chooseByLabels(context_.launch, choice);

    report_.compare(context_, step, {tokens_, scores_, count_, layer.previous, layer.previousCount});

    cuda::PackArgs pack;
    pack.shape = context_.shape;
    pack.rows = context_.rows();
    pack.active = step.active;
    pack.tokens = tokens_;
    pack.count = count_;
    pack.capacity = heavy_;
    pack.store = store_.of(step.layer);
    pack.first = context_.tables.tokenFirst;
    pack.position = step.position;
    pack.newKey = step.newKey;
    pack.newValue = step.newValue;
    if (biased()) pack.bias = context_.layers[step.layer].index.tokenScores;
    pack.biasFirst = context_.tables.tokenFirst;
    pack.packed = packed_;
    pack.packedBias = packedBias_;
    pack.packedBlocks = blocks_;
    pack.mark = record.marks[2];
    cuda::packTokens(context_.launch, pack);
}

bool DoubleSparsity::attend(const DeviceStep&, cuda::DecodeAttentionArgs& args) {
    args.blocks = packed_;
    args.headFirst = packedFirst_;
    args.packedTokens = count_;
    args.maxBlocks = std::min(blocks_, context_.maxBlocks);
    args.bias.scores = packedBias_;
    args.bias.first = placeFirst_;
    args.scratch.partial = partial_;
    return false;
}

void DoubleSparsity::fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out,
                          StepRecord& record, std::size_t) const {
    report_.fill(layer, report, active, out, record, Origin::TokenLevel,
                 [](RowId, std::int32_t newest) { return newest + 1; });
    if (!context_.offload) return;
    out.h2dBlocks = out.misses;
    out.h2dBytes = out.misses * store_.tokenBytes();
    out.d2hBytes = std::int64_t(active.size()) * context_.shape.kvHeads * store_.tokenBytes();
    out.transferNs = out.exposedNs = out.stageNs[Stage::Offloading]; // the attention waits for the whole transfer
}

} // namespace

std::unique_ptr<DeviceSelector> doubleSparsityOnDevice(const ParameterValues& values,
                                                       const DeviceSelectorContext& context) {
    return std::make_unique<DoubleSparsity>(values, context);
}

} // namespace kvscope

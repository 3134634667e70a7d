// Double Sparsity on the GPU (core/select/double_sparsity.cpp). On the device: the labels. Keys and values lie token by
// token in pinned host memory, or on the device where nothing is offloaded, and the chosen ones are packed into blocks.
#include "core/cuda/select/token_report.h"
#include "core/select/channel_importance.h"
#include "kernels/base/error.h"
#include "kernels/cuda/labels.h"
#include "kernels/cuda/token_pack.h"

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
    std::size_t hostBytes() const override { return context_.offload ? storeBytes() : 0; }
    std::int64_t storedBytes(int, int sequence) const override {
        const auto tokens = std::int64_t(context_.promptTokens[std::size_t(sequence)]);
        return context_.offload ? tokens * context_.shape.kvHeads * tokenBytes() : 0;
    }
    bool keepsKeys() const override { return false; } // it does, but not in blocks
    void prompt(const DevicePromptChunk& chunk) override;
    void promptDone(int layer, int sequence, int tokens, const Bf16* blocks, std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(int layer, const char* report, std::span<const int> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    struct Layer {
        cuda::LabelStore labels;
        Bf16* store = nullptr; // [tokens of all heads, 2*dim], as the device sees it
        std::int32_t *previous = nullptr, *previousCount = nullptr;
    };
    Layer& at(int layer) { return layers_[std::size_t(layer)]; }
    std::int64_t tokenBytes() const { return std::int64_t(cuda::tokenBytes(context_.shape.dim)); }
    std::int64_t tokenStride(int sequence) const {
        return std::int64_t(context_.spec.grid.blocks(context_.maxTokens[std::size_t(sequence)])) *
               context_.shape.blockSize;
    }
    std::int64_t firstToken(int sequence) const { // of a layer's store and of the eviction scores
        std::int64_t first = 0;
        for (int s = 0; s < sequence; ++s) first += tokenStride(s) * context_.shape.kvHeads;
        return first;
    }
    std::size_t layerElements() const {
        return std::size_t(firstToken(context_.rows())) * cuda::tokenElements(context_.shape.dim);
    }
    std::size_t storeBytes() const {
        std::size_t own = 0;
        for (const DeviceLayerState& layer : context_.layers) own += layer.own ? 1 : 0;
        return own * layerElements() * sizeof(Bf16);
    }
    bool biased() const { return context_.spec.bias.scale != 0.f; }

    const DeviceSelectorContext context_;
    const int mostTokens_, heavy_, channels_, bits_, blocks_; // blocks_: that hold the chosen tokens of a head
    const TokenReport report_;
    std::optional<select::ChannelImportance> calibrated_;
    PinnedMemory store_;
    std::vector<Layer> layers_;
    double* sums_ = nullptr;                            // of the channels of the prompt being read
    std::int32_t *tokens_ = nullptr, *count_ = nullptr; // the step's choice
    float *scores_ = nullptr, *packedBias_ = nullptr, *partial_ = nullptr;
    Bf16* packed_ = nullptr;
    std::int64_t *packedFirst_ = nullptr, *placeFirst_ = nullptr; // [heads] a head's first block and place
};

DoubleSparsity::DoubleSparsity(const ParameterValues& values, const DeviceSelectorContext& context)
    : context_(context), mostTokens_(*std::max_element(context.maxTokens.begin(), context.maxTokens.end())),
      heavy_(std::min(values.integer("heavy_tokens"), mostTokens_)),
      channels_(std::clamp(context.shape.dim / values.integer("group_factor"), 1, context.shape.dim)),
      bits_(std::stoi(values.text("label_bits"))),
      blocks_((heavy_ + context.shape.blockSize - 1) / context.shape.blockSize), report_(context, heavy_),
      layers_(std::size_t(context.config.layers)) {
    if (const int most = cuda::mostLabelledTokens(context.launch); mostTokens_ > most)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("double-sparsity scores at most {} tokens on this GPU, and {} are asked for", most,
                                mostTokens_),
                    "use a shorter context, or --backend cpu");
    if (context.model != nullptr) calibrated_ = select::findChannelImportance(*context.model);
}

void DoubleSparsity::plan(DeviceArena& arena) {
    const auto heads = std::size_t(context_.heads()), kvHeads = std::size_t(context_.shape.kvHeads),
               lists = heads * std::size_t(heavy_), bs = std::size_t(context_.shape.blockSize);
    const std::size_t stride = (std::size_t(mostTokens_) + 31) / 32 * 32;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        if (!context_.layers[i].own) continue;
        Layer& layer = layers_[i];
        layer.labels.channels = channels_;
        layer.labels.bits = bits_;
        layer.labels.stride = std::int64_t(stride);
        arena.plan(layer.labels.codes, heads * std::size_t(layer.labels.words()) * stride, "label cache");
        if (bits_ == 4) {
            arena.plan(layer.labels.steps, heads * stride, "label cache");
            arena.plan(layer.labels.lowest, heads * stride, "label cache");
        }
        arena.plan(layer.labels.channel, heads * std::size_t(channels_), "label cache");
        if (!context_.offload) arena.plan(layer.store, layerElements(), "resident KV cache");
        if (!context_.record) continue;
        arena.plan(layer.previous, lists, "recorder state");
        arena.plan(layer.previousCount, heads, "recorder state");
    }
    arena.plan(sums_, kvHeads * cuda::kObservers * std::size_t(context_.shape.dim), "prompt scores");
    arena.plan(tokens_, lists, "selections");
    arena.plan(scores_, lists, "selections");
    arena.plan(count_, heads, "selections");
    arena.plan(packed_,
               heads * std::size_t(blocks_) * cuda::blockElements(context_.shape.blockSize, context_.shape.dim),
               "chosen tokens");
    if (biased()) arena.plan(packedBias_, heads * std::size_t(blocks_) * bs, "chosen tokens");
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
    if (context_.offload) {
        const bool borrowed = context_.store != nullptr && context_.store->bytes() >= storeBytes();
        if (!borrowed) store_ = PinnedMemory(storeBytes(), "the KV store");
        void* seen = nullptr;
        cuda::check(cudaHostGetDevicePointer(&seen, borrowed ? context_.store->data() : store_.data(), 0),
                    "mapping the KV store");
        Bf16* next = static_cast<Bf16*>(seen);
        for (std::size_t i = 0; i < layers_.size(); ++i)
            if (context_.layers[i].own) layers_[i].store = next, next += layerElements();
    }
    if (!calibrated_) return;
    for (int i = 0; i < context_.config.layers; ++i) {
        if (!context_.layers[std::size_t(i)].own) continue;
        std::vector<std::int32_t> channels;
        for (int head = 0; head < context_.heads(); ++head) {
            const auto best =
                select::bestChannels(calibrated_->of(calibrated_->mean, i, head % context_.shape.kvHeads), channels_);
            channels.insert(channels.end(), best.begin(), best.end());
        }
        upload(at(i).labels.channel, channels);
    }
}

void DoubleSparsity::prompt(const DevicePromptChunk& chunk) {
    if (calibrated_ || !context_.layers[std::size_t(chunk.layer)].own) return;
    cuda::ObserveArgs args;
    args.shape = context_.shape;
    args.n = chunk.n;
    args.first = chunk.first;
    args.q = chunk.q;
    args.blocks = chunk.blocks;
    args.headStride = chunk.headStride;
    args.sums = sums_;
    cuda::observeChannels(context_.launch, args);
}

void DoubleSparsity::promptDone(int layer, int sequence, int tokens, const Bf16* blocks, std::int64_t headStride) {
    if (!context_.layers[std::size_t(layer)].own) return;
    const auto dim = std::size_t(context_.shape.dim);
    if (!calibrated_) {
        cuda::pickChannels(context_.launch, sums_, tokens, context_.shape, sequence, at(layer).labels);
        cuda::check(cudaMemsetAsync(sums_, 0,
                                    std::size_t(context_.shape.kvHeads) * cuda::kObservers * dim * sizeof(double),
                                    context_.launch.stream),
                    "observing channels");
    }
    cuda::LabelPromptArgs label;
    label.shape = context_.shape;
    label.sequence = sequence;
    label.tokens = tokens;
    label.blocks = blocks;
    label.headStride = headStride;
    label.labels = at(layer).labels;
    cuda::labelPrompt(context_.launch, label);
    cuda::UnpackArgs unpack;
    unpack.shape = context_.shape;
    unpack.tokens = tokens;
    unpack.blocks = blocks;
    unpack.headStride = headStride;
    unpack.store = at(layer).store + std::size_t(firstToken(sequence)) * cuda::tokenElements(context_.shape.dim);
    unpack.storeStride = tokenStride(sequence);
    cuda::unpackPrompt(context_.launch, unpack);
}

void DoubleSparsity::append(const DeviceStep& step) {
    if (!context_.layers[std::size_t(step.layer)].own) return;
    cuda::LabelTokenArgs args;
    args.shape = context_.shape;
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.newKey = step.newKey;
    args.newValue = step.newValue;
    args.labels = at(step.layer).labels;
    args.store = at(step.layer).store;
    args.first = context_.tokenFirst;
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
    choice.labels = layer.labels;
    // 1/sqrt(channels) where the model scales by 1/sqrt(dim).
    choice.scale = context_.config.attentionScale() * std::sqrt(float(context_.shape.dim) / float(channels_));
    choice.maxTokens = mostTokens_;
    choice.wanted = choice.capacity = heavy_;
    choice.tokens = tokens_;
    choice.tokenScores = scores_;
    choice.count = count_;
    choice.marks[0] = record.marks[0];
    choice.marks[1] = record.marks[1];
    cuda::chooseByLabels(context_.launch, choice);

    cuda::RecordChoiceArgs compare;
    compare.rows = context_.rows();
    compare.kvHeads = context_.shape.kvHeads;
    compare.position = step.position;
    compare.active = step.active;
    compare.tokens = tokens_;
    compare.tokenScores = scores_;
    compare.count = count_;
    compare.capacity = heavy_;
    compare.loads = context_.offload;
    compare.previous = layer.previous;
    compare.previousCount = layer.previousCount;
    compare.record = record;
    cuda::recordChoice(context_.launch, compare);

    cuda::PackArgs pack;
    pack.shape = context_.shape;
    pack.rows = context_.rows();
    pack.active = step.active;
    pack.tokens = tokens_;
    pack.count = count_;
    pack.capacity = heavy_;
    pack.store = layer.store;
    pack.first = context_.tokenFirst;
    pack.position = step.position;
    pack.newKey = step.newKey;
    pack.newValue = step.newValue;
    if (biased()) pack.bias = context_.layers[std::size_t(step.layer)].index.tokenScores;
    pack.biasFirst = context_.tokenFirst;
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
    args.tokenBias = packedBias_;
    args.biasFirst = placeFirst_;
    args.partial = partial_;
    return false;
}

void DoubleSparsity::fill(int layer, const char* report, std::span<const int> active, LayerRecord& out,
                          StepRecord& record, std::size_t) const {
    report_.fill(layer, report, active, out, record, Origin::TokenLevel,
                 [](int, std::int32_t newest) { return newest + 1; });
    if (!context_.offload) return;
    out.h2dBlocks = out.misses;
    out.h2dBytes = out.misses * tokenBytes();
    out.d2hBytes = std::int64_t(active.size()) * context_.shape.kvHeads * tokenBytes();
    out.transferNs = out.exposedNs = out.stageNs[std::size_t(Stage::Offloading)]; // the attention waits for all of it
}

} // namespace

std::unique_ptr<DeviceSelector> doubleSparsityOnDevice(const ParameterValues& values,
                                                       const DeviceSelectorContext& context) {
    return std::make_unique<DoubleSparsity>(values, context);
}

} // namespace kvscope

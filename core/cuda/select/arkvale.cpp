#include "core/cuda/device_selector.h"

#include "core/select/arkvale_budget.h"
#include "kernels/cuda/pages.h"

#include <algorithm>

namespace kvscope {
namespace {

class DeviceArkVale final : public DeviceSelector {
public:
    DeviceArkVale(const ParameterValues& values, const DeviceSelectorContext& context)
        : context_(context), budget_(values), shared_(values.text("groups") == "layer" ? context.shape.kvHeads : 1),
          cuboidMean_(values.text("digest") != "bounds"), layers_(std::size_t(context.config.layers)) {}

    void plan(DeviceArena& arena) override;
    void prompt(const DevicePromptChunk& chunk) override;
    void promptDone(int layer, int sequence, int tokens, const __nv_bfloat16* blocks, std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override;

private:
    struct Layer {
        __half* digests = nullptr;         // [blocks, 2, dim]
        __nv_bfloat16* openPage = nullptr; // [rows*kvHeads, blockSize, dim]
        std::uint8_t* resident = nullptr;  // [rows, page sets, maxBlocks]
    };
    int sets() const { return context_.shape.kvHeads / shared_; }
    cuda::PageDigests digestsOf(int layer) const {
        const Layer& of = layers_[std::size_t(layer)];
        return {context_.shape, cuboidMean_, of.digests, of.openPage, context_.blockFirst};
    }
    cuda::PageChoiceArgs choiceOf(int layer, int firstRow) const;

    const DeviceSelectorContext context_;
    const select::PageBudget budget_;
    const int shared_; // KV heads with one page set
    const bool cuboidMean_;
    std::vector<Layer> layers_;
    __nv_bfloat16* lastQuery_ = nullptr; // of the prompt being read, [queryHeads*dim]
    float *scores_ = nullptr, *chosenScores_ = nullptr;
    std::uint32_t* chosen_ = nullptr;
    std::int32_t* chosenCount_ = nullptr;
};

void DeviceArkVale::plan(DeviceArena& arena) {
    const auto heads = std::size_t(context_.heads()), dim = std::size_t(context_.shape.dim),
               size = std::size_t(context_.shape.blockSize), rows = std::size_t(context_.rows());
    std::size_t blocks = 0;
    for (const int tokens : context_.maxTokens)
        blocks += std::size_t(context_.spec.grid.blocks(tokens)) * std::size_t(context_.shape.kvHeads);
    const std::size_t lists = rows * std::size_t(sets()) * std::size_t(context_.maxBlocks);
    for (std::size_t i = std::size_t(context_.spec.denseLayers); i < layers_.size(); ++i) {
        arena.plan(layers_[i].digests, blocks * 2 * dim, "page digests");
        arena.plan(layers_[i].openPage, heads * size * dim, "page digests");
        arena.plan(layers_[i].resident, lists, "selections");
    }
    arena.plan(lastQuery_, std::size_t(context_.shape.queryHeads) * dim, "activations");
    arena.plan(scores_, lists, "selections");
    arena.plan(chosen_, heads * std::size_t(context_.capacity), "selections");
    arena.plan(chosenScores_, heads * std::size_t(context_.capacity), "selections");
    arena.plan(chosenCount_, heads, "selections");
}

void DeviceArkVale::prompt(const DevicePromptChunk& chunk) {
    if (chunk.first + chunk.n < chunk.promptTokens) return;
    const auto width = std::size_t(context_.shape.queryHeads) * std::size_t(context_.shape.dim);
    cuda::check(cudaMemcpyAsync(lastQuery_, chunk.q + std::size_t(chunk.n - 1) * width, width * sizeof(__nv_bfloat16),
                                cudaMemcpyDeviceToDevice, context_.launch.stream),
                "keeping the last query");
}

cuda::PageChoiceArgs DeviceArkVale::choiceOf(int layer, int firstRow) const {
    cuda::PageChoiceArgs args;
    args.kvHeads = context_.shape.kvHeads;
    args.shared = shared_;
    args.maxPages = context_.maxBlocks;
    args.pageTokens = context_.shape.blockSize;
    args.scores = scores_;
    args.sink = budget_.sink;
    args.window = budget_.window;
    args.dynamic = budget_.dynamic;
    args.budget = budget_.resident;
    args.resident = layers_[std::size_t(layer)].resident + std::size_t(firstRow * sets() * context_.maxBlocks);
    args.capacity = context_.capacity;
    args.chosen = chosen_;
    args.chosenCount = chosenCount_;
    args.chosenScores = chosenScores_;
    return args;
}

/// Digests, and the pages the device begins with: the best of the last prompt token's query, the whole budget of them.
void DeviceArkVale::promptDone(int layer, int sequence, int tokens, const __nv_bfloat16* blocks,
                               std::int64_t headStride) {
    const DeviceLayerState& state = context_.layers[std::size_t(layer)];
    if (!state.sparse) return;
    cuda::digestPrompt(context_.launch, digestsOf(layer), sequence, tokens, blocks, headStride);
    cuda::PageScoreArgs score;
    score.pages = digestsOf(layer);
    score.rows = 1;
    score.firstSequence = sequence;
    score.shared = shared_;
    score.maxPages = context_.maxBlocks;
    score.at = tokens - 1;
    score.q = lastQuery_;
    score.scores = scores_;
    cuda::scorePages(context_.launch, score);
    cuda::PageChoiceArgs choice = choiceOf(layer, sequence);
    choice.rows = 1;
    choice.at = tokens - 1;
    const int pages = context_.spec.grid.blocks(tokens);
    for (int set = 0; set < sets(); ++set) // all of the prompt is resident now: the choice leaves the best
        cuda::check(cudaMemsetAsync(choice.resident + std::size_t(set * context_.maxBlocks), 1, std::size_t(pages),
                                    context_.launch.stream),
                    "choosing the first pages");
    cuda::choosePages(context_.launch, choice);
    if (!state.offloaded) return;
    cuda::PageSeedArgs seeds;
    seeds.shape = context_.shape;
    seeds.sequence = sequence;
    seeds.tokens = tokens;
    seeds.slots = context_.slots;
    seeds.capacity = context_.capacity;
    seeds.blocks = blocks;
    seeds.headStride = headStride;
    seeds.chosen = chosen_;
    seeds.chosenCount = chosenCount_;
    seeds.pool = state.blocks;
    seeds.map = state.map;
    seeds.lastUse = state.lastUse;
    cuda::seedSlots(context_.launch, seeds);
}

void DeviceArkVale::append(const DeviceStep& step) {
    const DeviceLayerState& state = context_.layers[std::size_t(step.layer)];
    cuda::PageAppendArgs args;
    args.pages = digestsOf(step.layer);
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.newKey = state.offloaded ? step.newKey : nullptr;
    args.blocks = state.blocks;
    cuda::appendToPages(context_.launch, args);
}

void DeviceArkVale::choose(const DeviceStep& step, cuda::SelectArgs& args) {
    cuda::PageScoreArgs score;
    score.pages = digestsOf(step.layer);
    score.rows = context_.rows();
    score.shared = shared_;
    score.maxPages = context_.maxBlocks;
    score.position = step.position;
    score.active = step.active;
    score.q = step.q;
    score.scores = scores_;
    score.mark = step.stage1Mark;
    cuda::scorePages(context_.launch, score);
    cuda::PageChoiceArgs choice = choiceOf(step.layer, 0);
    choice.rows = context_.rows();
    choice.position = step.position;
    choice.active = step.active;
    choice.mark = step.poolingMark;
    cuda::choosePages(context_.launch, choice);
    args.chosen = chosen_;
    args.chosenCount = chosenCount_;
    args.chosenScores = chosenScores_;
}

} // namespace

std::unique_ptr<DeviceSelector> arkvaleOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<DeviceArkVale>(values, context);
}

} // namespace kvscope

#include "core/cuda/device_selector.h"

#include "kernels/base/error.h"
#include "kernels/cuda/pages.h"

namespace kvscope {
namespace {

class DeviceQuest final : public DeviceSelector {
public:
    DeviceQuest(const DeviceSelectorContext& context, bool cuboidMean)
        : context_(context), cuboidMean_(cuboidMean), layers_(std::size_t(context.config.layers)) {}

    void plan(DeviceArena& arena) override {
        const auto dim = std::size_t(context_.shape.dim), heads = std::size_t(context_.heads());
        std::size_t blocks = 0;
        for (const int tokens : context_.maxTokens)
            blocks += std::size_t(context_.spec.grid.blocks(tokens)) * std::size_t(context_.shape.kvHeads);
        for (std::size_t i = std::size_t(context_.spec.denseLayers); i < layers_.size(); ++i) {
            arena.plan(layers_[i].digests, blocks * 2 * dim, "page digests");
            arena.plan(layers_[i].openPage, heads * std::size_t(context_.shape.blockSize) * dim, "page digests");
        }
        arena.plan(scores_, heads * std::size_t(context_.maxBlocks), "selections");
    }
    void promptDone(int layer, int sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override {
        if (!context_.layers[std::size_t(layer)].sparse) return;
        cuda::digestPrompt(context_.launch, digestsOf(layer), sequence, tokens, blocks, headStride);
    }
    void append(const DeviceStep& step) override {
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
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override {
        cuda::PageScoreArgs score;
        score.pages = digestsOf(step.layer);
        score.rows = context_.rows();
        score.mean = false;
        score.maxPages = context_.maxBlocks;
        score.position = step.position;
        score.active = step.active;
        score.q = step.q;
        score.scores = scores_;
        score.mark = step.stage1Mark;
        cuda::scorePages(context_.launch, score);
        args.score = cuda::SelectArgs::Score::Given;
        args.givenScores = scores_;
        args.marks[1] = step.poolingMark;
    }

private:
    struct Layer {
        __half* digests = nullptr;         // [blocks, 2, dim]
        __nv_bfloat16* openPage = nullptr; // [rows*kvHeads, blockSize, dim]
    };
    cuda::PageDigests digestsOf(int layer) const {
        const Layer& of = layers_[std::size_t(layer)];
        return {context_.shape, cuboidMean_, of.digests, of.openPage, context_.blockFirst};
    }

    const DeviceSelectorContext context_;
    const bool cuboidMean_;
    std::vector<Layer> layers_;
    float* scores_ = nullptr; // [rows, kvHeads, maxBlocks]
};

} // namespace

std::unique_ptr<DeviceSelector> questOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    const std::string& bound = values.text("bound");
    if (values.text("group") == "per_query_head")
        throw Error(ErrorKind::Unsupported, "the GPU backend chooses blocks for a whole group of query heads",
                    "use group=sum, or --backend cpu");
    if (bound == "max") return nullptr;
    if (context.spec.rangeReduce != GroupReduce::Sum)
        throw Error(ErrorKind::Unsupported, "the GPU backend has bound=" + bound + " with group=sum only",
                    "use group=sum, bound=max, or --backend cpu");
    return std::make_unique<DeviceQuest>(context, bound == "cuboid-mean");
}

} // namespace kvscope

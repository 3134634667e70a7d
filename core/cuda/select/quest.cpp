#include "core/cuda/select/scored_pages.h"

#include "kernels/base/error.h"

namespace kvscope {
namespace {

class DeviceQuest final : public DeviceSelector {
public:
    DeviceQuest(const DeviceSelectorContext& context, bool cuboidMean)
        : context_(context), pages_(context_, cuboidMean, 1, false) {}

    bool knowsWindows() const override { return true; } // it scores; the executor chooses
    void plan(DeviceArena& arena) override { pages_.plan(arena); }
    void promptDone(int layer, int sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override {
        if (context_.layers[std::size_t(layer)].sparse) pages_.promptDone(layer, sequence, tokens, blocks, headStride);
    }
    void append(const DeviceStep& step) override { pages_.append(step); }
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override {
        pages_.score(step);
        args.score = cuda::SelectArgs::Score::Given;
        args.givenScores = pages_.scores();
        args.marks[1] = step.poolingMark;
    }

private:
    const DeviceSelectorContext context_;
    ScoredPages pages_;
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

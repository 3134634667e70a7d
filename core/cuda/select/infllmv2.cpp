// InfLLM-V2 on the GPU with lse=compressed: scores the blocks. With lse=exact the method is data and needs no selector,
// unless ahead=forecast has the layer before choose.
#include "core/cuda/device_selector.h"
#include "core/cuda/select/forecast.h"
#include "core/select/forecast.h"

#include "kernels/cuda/methods/coarse_sums.h"

#include <algorithm>

namespace kvscope {
namespace {

class CompressedLse final : public DeviceSelector {
public:
    explicit CompressedLse(const DeviceSelectorContext& context)
        : context_(context),
          windows_(std::max(
              1, context.spec.grid.windows(*std::max_element(context.maxTokens.begin(), context.maxTokens.end())))) {}

    void plan(DeviceArena& arena) override {
        constexpr const char* kWhat = "selections";
        const Elements heads(context_.rows(), context_.shape.queryHeads);
        arena.plan(logits_, {heads, windows_}, kWhat);
        arena.plan(logSums_, heads, kWhat);
        arena.plan(scores_, {context_.heads(), context_.maxBlocks}, kWhat);
    }
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override {
        cuda::CoarseScoreArgs score;
        score.shape = context_.shape;
        score.rows = args.rows;
        score.maxBlocks = args.maxBlocks;
        score.maxWindows = windows_;
        score.position = args.position;
        score.active = args.active;
        score.q = args.q;
        score.index = args.index;
        score.scale = args.scale;
        score.logits = logits_;
        score.logSums = logSums_;
        score.scores = scores_;
        score.mark = step.stage1Mark;
        cuda::scoreByCoarseSums(context_.launch, score);
        args.score = cuda::SelectArgs::Score::Given;
        args.givenScores = scores_;
        args.marks.pooling = step.poolingMark;
    }

private:
    const DeviceSelectorContext context_;
    const int windows_; // pooling windows of the longest sequence
    float *logits_ = nullptr, *logSums_ = nullptr, *scores_ = nullptr;
};

} // namespace

std::unique_ptr<DeviceSelector> infllmV2OnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    if (select::choosesByForecast(values)) return forecastOnDevice(context);
    if (values.text("lse") == "exact") return nullptr;
    return std::make_unique<CompressedLse>(context);
}

} // namespace kvscope

// DMA by token on the GPU (core/select/dma_token.cpp). A token that is no longer among the best never becomes one of
// them again, so the device holds the best tokens alone.
#include "core/cuda/select/retained_tokens_selector.h"

#include <algorithm>

namespace kvscope {
namespace {

class DmaToken final : public RetainedTokensSelector {
public:
    DmaToken(const ParameterValues& values, const DeviceSelectorContext& context)
        : RetainedTokensSelector(context, budgetOf(values, context), false),
          exponential_(values.text("bias") == "dma") {}

    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override {
        cuda::copyScores(context_.launch, evictionScores(layer) + firstToken(sequence), tokenStride(sequence),
                         promptScores_, mostTokens_, context_.shape.kvHeads, tokens, exponential_);
        retainFromPrompt(tokens, capacity_);
        retain({layer, sequence, blocks, headStride}, &chosen_, true, 0, 0);
    }

private:
    static int budgetOf(const ParameterValues& values, const DeviceSelectorContext& context) {
        return std::min(values.integer("budget_tokens"),
                        *std::max_element(context.maxTokens.begin(), context.maxTokens.end()));
    }
    void comes(cuda::RetainTokenArgs& args) const override {
        args.scored = true;
        args.exponentiates = exponential_;
    }

    const bool exponential_;
};

} // namespace

std::unique_ptr<DeviceSelector> dmaTokenOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<DmaToken>(values, context);
}

} // namespace kvscope

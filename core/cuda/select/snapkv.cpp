// SnapKV on the GPU (core/select/snapkv.cpp). The queries of the observation window are kept until the whole prompt has
// been read; then they vote for tokens, with the log-sum-exps of the prompt's attention.
#include "core/cuda/device_copy.h"
#include "core/cuda/select/retained_tokens_selector.h"
#include "kernels/cuda/methods/token_mass.h"

#include <algorithm>

namespace kvscope {
namespace {

class SnapKv final : public RetainedTokensSelector {
public:
    SnapKv(const ParameterValues& values, const DeviceSelectorContext& context)
        : RetainedTokensSelector(context, mostRetained(values, context), false),
          promptCapacity_(values.integer("capacity_tokens")), window_(values.integer("window_tokens")),
          kernel_(values.integer("pooling_kernel")), average_(values.text("pooling") == "avg"),
          firstRecent_(context.rows(), 0) {}

    void plan(DeviceArena& arena) override {
        RetainedTokensSelector::plan(arena);
        arena.plan(queries_, {window_, context_.shape.queryHeads, context_.shape.dim}, "observation window");
        arena.plan(logSums_, {window_, context_.shape.queryHeads}, "observation window");
        arena.plan(votes_, {context_.shape.kvHeads, mostTokens_}, "prompt scores");
    }
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;

private:
    static int mostRetained(const ParameterValues& values, const DeviceSelectorContext& context) {
        int most = 1;
        for (const RowId s : context.maxTokens.ids()) {
            const int generated = context.maxTokens[s] - context.promptTokens[s];
            most = std::max(most, std::min(context.maxTokens[s], values.integer("capacity_tokens") + generated));
        }
        return most;
    }
    std::int32_t firstRecent(RowId sequence, std::int32_t) const override { return firstRecent_[sequence]; }

    const int promptCapacity_, window_, kernel_;
    const bool average_;
    PerRow<int> firstRecent_;
    __nv_bfloat16* queries_ = nullptr; // [window, queryHeads, dim] of the prompt that is being read
    float* logSums_ = nullptr;         // [window, queryHeads]
    double* votes_ = nullptr;          // [kvHeads, mostTokens_]
};

void SnapKv::prompt(const DevicePromptPiece& piece) {
    const int begin = piece.promptTokens - window_; // the window's first token; below 0 if the prompt is shorter
    const int from = std::max(piece.first, begin), n = piece.first + piece.n - from;
    if (n <= 0) return;
    const auto keep = [&](auto* of, const auto* source, Elements width) {
        copyOnStream(RowsOf(of, width)[from - begin], RowsOf(source, width)[from - piece.first], {width, n},
                     cudaMemcpyDeviceToDevice, context_.launch.stream, "keeping the observation window");
    };
    keep(queries_, piece.q, context_.queryWidth());
    keep(logSums_, piece.logSums, context_.shape.queryHeads);
}

void SnapKv::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                        std::int64_t headStride) {
    const int before = tokens - std::min(window_, tokens); // number of tokens that the window votes for
    firstRecent_[sequence] = before;
    const Prompt prompt{layer, sequence, blocks, headStride};
    if (tokens <= promptCapacity_) return retain(prompt, nullptr, false, 0, tokens);
    clearOnStream(votes_, {context_.shape.kvHeads, mostTokens_}, context_.launch.stream, "counting votes");
    cuda::TokenMassArgs vote;
    vote.shape = context_.shape;
    vote.rows = 1;
    vote.q = queries_;
    vote.logSums = logSums_;
    vote.queries = window_;
    vote.firstPosition = before;
    vote.blocks = blocks;
    vote.stride = headStride / std::int64_t(cuda::blockElements(context_.shape.blockSize, context_.shape.dim));
    vote.maxTokens = before;
    if (const float* scores = biases(layer)) vote.bias = scores + firstToken(sequence);
    vote.biasStride = tokenStride(sequence);
    vote.scale = context_.config.attentionScale();
    vote.biasScale = context_.spec.bias.scale;
    vote.mass = votes_;
    vote.massStride = mostTokens_;
    cuda::addTokenMass(context_.launch, vote);
    cuda::PoolArgs pool;
    pool.lists = context_.shape.kvHeads;
    pool.length = before;
    pool.mass = votes_;
    pool.massStride = mostTokens_;
    pool.kernel = kernel_;
    pool.average = average_;
    pool.scores = promptScores_;
    pool.scoreStride = mostTokens_;
    cuda::poolMass(context_.launch, pool);
    retainFromPrompt(before, promptCapacity_ - window_);
    retain(prompt, &chosen_, true, before, tokens);
}

} // namespace

std::unique_ptr<DeviceSelector> snapKvOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<SnapKv>(values, context);
}

} // namespace kvscope

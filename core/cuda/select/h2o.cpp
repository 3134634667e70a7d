// H2O on the GPU (core/select/h2o.cpp). The attention that tokens receive is added up in a separate pass over the keys,
// which uses the log-sum-exps of the attention.
#include "core/cuda/device_copy.h"
#include "core/cuda/select/retained_tokens_selector.h"
#include "kernels/cuda/methods/token_mass.h"

#include <algorithm>

namespace kvscope {
namespace {

class H2o final : public RetainedTokensSelector {
public:
    H2o(const ParameterValues& values, const DeviceSelectorContext& context)
        : RetainedTokensSelector(context, mostRetained(values, context), true) {
        for (const int tokens : context.promptTokens) {
            heavyHost_.push_back(heavyOf(values, tokens));
            recentHost_.push_back(recentOf(values, tokens));
        }
    }

    void plan(DeviceArena& arena) override {
        RetainedTokensSelector::plan(arena);
        const int rows = context_.rows();
        arena.plan(logSums_, {rows, context_.shape.queryHeads}, "activations");
        arena.plan(heavy_, rows, "session state");
        arena.plan(recent_, rows, "session state");
    }
    void begin() override {
        RetainedTokensSelector::begin();
        const auto upload = [](std::int32_t* to, const std::vector<std::int32_t>& from) {
            cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
                        "preparing the session");
        };
        upload(heavy_, heavyHost_);
        upload(recent_, recentHost_);
    }
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override {
        RetainedTokensSelector::attend(step, args);
        args.logSums = logSums_;
        return false;
    }
    void after(const DeviceStep& step) override;

private:
    static int share(int count, double ratio, int tokens) {
        return std::max(1, count > 0 ? count : int(ratio * tokens));
    }
    static int heavyOf(const ParameterValues& values, int tokens) {
        return share(values.integer("heavy_tokens"), values.number("heavy_ratio"), tokens);
    }
    static int recentOf(const ParameterValues& values, int tokens) {
        return share(values.integer("recent_tokens"), values.number("recent_ratio"), tokens);
    }
    static int mostRetained(const ParameterValues& values, const DeviceSelectorContext& context) {
        int most = 1;
        for (const RowId s : context.maxTokens.ids()) {
            const int prompt = context.promptTokens[s];
            most =
                std::max(most, std::min(context.maxTokens[s], heavyOf(values, prompt) + recentOf(values, prompt) + 1));
        }
        return most;
    }
    std::int32_t firstRecent(RowId sequence, std::int32_t newest) const override {
        return newest - recentHost_[sequence];
    }
    void clearMass() {
        clearOnStream(promptMass_, {context_.shape.kvHeads, mostTokens_}, context_.launch.stream, "counting attention");
    }

    PerRow<std::int32_t> heavyHost_, recentHost_;
    std::int32_t *heavy_ = nullptr, *recent_ = nullptr; // [sequence] on the device
    float* logSums_ = nullptr;                          // [rows, queryHeads] of the step's attention
};

void H2o::prompt(const DevicePromptPiece& piece) {
    if (!context_.layers[piece.layer].ownTier) return;
    if (piece.first == 0) clearMass();
    cuda::TokenMassArgs args;
    args.shape = context_.shape;
    args.rows = 1;
    args.q = piece.q;
    args.logSums = piece.logSums;
    args.queries = piece.n;
    args.firstPosition = piece.first;
    args.blocks = piece.blocks;
    args.stride = piece.headStride / std::int64_t(cuda::blockElements(context_.shape.blockSize, context_.shape.dim));
    args.maxTokens = piece.first + piece.n;
    if (const float* scores = biases(piece.layer)) args.bias = scores + firstToken(piece.sequence);
    args.biasStride = tokenStride(piece.sequence);
    args.scale = context_.config.attentionScale();
    args.biasScale = context_.spec.bias.scale;
    args.mass = promptMass_;
    args.massStride = mostTokens_;
    cuda::addTokenMass(context_.launch, args);
}

void H2o::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks, std::int64_t headStride) {
    const int heavy = heavyHost_[sequence], recent = recentHost_[sequence];
    const Prompt prompt{layer, sequence, blocks, headStride};
    if (tokens <= heavy + recent) {
        retain(prompt, nullptr, false, 0, tokens);
    } else {
        cuda::PoolArgs pool; // windows of one token: only converts the mass to float
        pool.lists = context_.shape.kvHeads;
        pool.length = tokens - recent;
        pool.mass = promptMass_;
        pool.massStride = mostTokens_;
        pool.scores = promptScores_;
        pool.scoreStride = mostTokens_;
        cuda::poolMass(context_.launch, pool);
        retainFromPrompt(tokens - recent, heavy);
        retain(prompt, &chosen_, false, tokens - recent, tokens);
    }
    clearMass(); // a filled context, which may come next, has no mass
}

void H2o::after(const DeviceStep& step) {
    const cuda::RetainedTokens& tokens = retained(step.layer);
    cuda::TokenMassArgs args;
    args.shape = context_.shape;
    args.rows = context_.rows();
    args.active = step.active;
    args.q = step.q;
    args.logSums = logSums_;
    args.blocks = tokens.packed;
    args.stride = tokens.blocks;
    args.count = tokens.count;
    args.maxTokens = tokens.capacity;
    args.bias = tokens.bias;
    args.biasStride = std::int64_t(tokens.blocks) * context_.shape.blockSize;
    args.scale = context_.config.attentionScale();
    args.biasScale = context_.spec.bias.scale;
    args.mass = tokens.mass;
    args.massStride = tokens.capacity;
    cuda::addTokenMass(context_.launch, args);
    cuda::EvictArgs evict;
    evict.rows = context_.rows();
    evict.kvHeads = context_.shape.kvHeads;
    evict.position = step.position;
    evict.active = step.active;
    evict.heavy = heavy_;
    evict.recent = recent_;
    evict.retained = tokens;
    cuda::evictLeastMass(context_.launch, evict);
}

} // namespace

std::unique_ptr<DeviceSelector> h2oOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<H2o>(values, context);
}

} // namespace kvscope

// What surrounds the attention of a layer, the same for a step and for a prompt: embedding, projections, feed-forward.
#include "core/cuda/cuda_engine.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/latent.h"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/project_heads.h"

#include <algorithm>

namespace kvscope {

void CudaEngine::embed(const std::int32_t* ids, int n, float* x, std::uint32_t* clear, int clearCount,
                       std::uint64_t* mark) {
    cuda::Launch how = launch_;
    how.joined = true; // it begins a step, after transfers of the one before, or a prompt, after a copy
    const cuda::DeviceMatrix& table = model_->embedding;
    const float scale = model_->config.streamEmbeddingScale();
    if (table.packed != nullptr)
        cuda::embedPacked(how, table.type, table.packed, table.cols, ids, n, x, scale, clear, clearCount, mark);
    else
        cuda::embedTokens(how, table.data, table.cols, ids, n, x, scale, clear, clearCount, mark);
}

void CudaEngine::projectHeads(const DeviceLayer& weights, const float* x, int n, std::uint64_t* mark) {
    const ModelConfig& config = model_->config;
    int width = 0, row = 0;
    for (const cuda::DeviceMatrix& part : weights.qkv) width += part.rows;
    for (const cuda::DeviceMatrix& part : weights.qkv) {
        const float* bias = weights.qkvBias != nullptr ? weights.qkvBias + row : nullptr;
        linear_->run(part, x, config.hidden, n, {weights.inputNorm, config.streamNormEps()},
                     {qkv_ + row, width, false, bias, nullptr}, row == 0 ? mark : nullptr);
        row += part.rows;
    }
    if (!config.latent) return;
    const LatentAttention& latent = *config.latent;
    latent_.nopeDim = latent.nopeDim;
    latent_.ropeDim = latent.ropeDim;
    latent_.norm = weights.latent.latentNorm;
    latent_.eps = latent.normEps;
    latent_.query = qkv_;
    latent_.queryStride = latent_.keyStride = width;
    latent_.key = qkv_ + width - layout_.dim;
    if (latent.queryRank > 0) {
        latent_.queryStride = config.queryHeads * config.queryDim();
        linear_->run(weights.latent.queryUp, qkv_, width, n, {weights.latent.queryNorm, latent.normEps},
                     {plainQ_, latent_.queryStride, false, nullptr, nullptr});
        latent_.query = plainQ_;
    }
    cuda::HeadProductArgs absorb; // queries [nope | rope] become [latent | rope]
    absorb.w = weights.latent.keyUp;
    absorb.n = n;
    absorb.heads = config.queryHeads;
    absorb.rows = latent.rank;
    absorb.cols = latent.nopeDim;
    absorb.x = latent_.query;
    absorb.xStride = latent_.queryStride;
    absorb.xHeadStride = config.queryDim();
    absorb.y = q_;
    absorb.yStride = config.queryHeads * layout_.dim;
    absorb.yHeadStride = layout_.dim;
    cuda::multiplyHeads(launch_, absorb);
}

void CudaEngine::appendTokens(const cuda::AppendArgs& args) {
    if (model_->config.latent)
        cuda::appendLatent(launch_, args, latent_);
    else
        cuda::rotateAndAppend(launch_, args);
}

/// A step's queries, keys and values into the cache: where the kernels can, in one launch.
void CudaEngine::projectAndAppend(int index, const StepReport& report) {
    const DeviceLayer& weights = model_->layers[std::size_t(index)];
    const cuda::AppendArgs append = appendArgs(index, report);
    std::uint64_t* const begins = report.mark(index, kQkv);
    stages_.at(index, Stage::QkvLinear);
    if (!model_->config.latent && weights.qkv.size() == 1 && cuda::canProjectAndAppend(weights.qkv.front(), append)) {
        float* plain = selector_ ? qkv_ : nullptr;
        return cuda::projectAndAppend(launch_,
                                      {weights.qkv.front(),
                                       x_,
                                       {weights.inputNorm, model_->config.streamNormEps()},
                                       weights.qkvBias,
                                       plain,
                                       begins},
                                      append);
    }
    projectHeads(weights, x_, layout_.rows, begins);
    stages_.at(index, Stage::Rope);
    appendTokens(append);
}

void CudaEngine::placePrompt(const cuda::PromptArgs& args) {
    if (model_->config.latent)
        cuda::placeLatentPrompt(launch_, args, latent_);
    else
        cuda::rotatePrompt(launch_, args);
}

/// What the heads attended to, as the output projection takes it.
const __nv_bfloat16* CudaEngine::leaveLatent(const DeviceLayer& weights, int n) {
    const ModelConfig& config = model_->config;
    if (!config.latent) return attended_;
    cuda::HeadProductArgs leave;
    leave.w = weights.latent.valueUp;
    leave.n = n;
    leave.heads = config.queryHeads;
    leave.rows = config.outputDim();
    leave.cols = config.valueDim();
    leave.xHalf = attended_;
    leave.xStride = config.queryHeads * config.valueDim();
    leave.xHeadStride = config.valueDim();
    leave.y = output_;
    leave.yStride = config.queryHeads * config.outputDim();
    leave.yHeadStride = config.outputDim();
    cuda::multiplyHeads(launch_, leave);
    return output_;
}

void CudaEngine::finishLayer(int index, float* x, int n, std::uint64_t* oMark, std::uint64_t* ffnMark) {
    const ModelConfig& config = model_->config;
    const DeviceLayer& weights = model_->layers[std::size_t(index)];
    stages_.at(index, Stage::OLinear);
    if (config.latent && oMark != nullptr) cuda::stampNow(launch_, oMark);
    linear_->run(weights.o, leaveLatent(weights, n), n, {x, config.hidden, true, weights.oBias, nullptr},
                 config.latent ? nullptr : oMark);
    stages_.at(index, Stage::Ffn);
    if (weights.experts.router == nullptr) {
        linear_->run(weights.mlp.gateUp, x, config.hidden, n, {weights.postNorm, config.streamNormEps()},
                     {nullptr, 0, false, nullptr, hidden_}, ffnMark);
        linear_->run(weights.mlp.down, hidden_, n, {x, config.hidden, true, nullptr, nullptr});
        return;
    }
    for (int first = 0; first < n; first += expertRows_)
        applyExperts(weights, x + std::size_t(first) * std::size_t(config.hidden), std::min(expertRows_, n - first),
                     first == 0 ? ffnMark : nullptr);
}

/// Every token's experts are found, run and added on the device. An expert's weights are read once for up to 16 tokens.
void CudaEngine::applyExperts(const DeviceLayer& weights, float* x, int n, std::uint64_t* mark) {
    const ModelConfig& config = model_->config;
    const ExpertConfig& e = *config.experts;
    const DeviceExperts& experts = weights.experts;
    const cuda::Norm norm{weights.postNorm, config.streamNormEps()};
    cuda::normalise(launch_, x, config.hidden, n, config.hidden, norm, expertInput_, mark);
    const int rows = e.count + (e.sharedGate ? 1 : 0);
    cuda::routeTokens(launch_, {x, n, config.hidden, norm, experts.router, rows, routerLogits_});
    cuda::ChooseArgs choose;
    choose.rule = {e.count,
                   e.used,
                   e.groups,
                   e.groupsUsed,
                   e.score == ExpertScore::Sigmoid,
                   e.groupScore == GroupScore::BestTwo,
                   e.normalise,
                   e.scale};
    choose.n = n;
    choose.stride = rows;
    choose.logits = routerLogits_;
    choose.choiceBias = experts.choiceBias;
    choose.chosen = expertChosen_;
    choose.weights = expertWeights_;
    choose.counts = expertCounts_;
    choose.pairs = expertPairs_;
    choose.capacity = expertRows_;
    cuda::chooseExpertsOnDevice(launch_, choose);

    const auto product = [&](const cuda::DeviceMatrix& w, std::size_t bytes, const __nv_bfloat16* input) {
        cuda::PackedProduct p;
        p.w = w.packed;
        p.type = w.type;
        p.rows = w.rows;
        p.cols = w.cols;
        p.xHalf = input;
        p.n = n;
        p.groups = {expertCounts_, expertPairs_, e.count, expertRows_, e.used, false, bytes};
        return p;
    };
    cuda::PackedProduct gateUp = product(experts.gateUp, experts.gateUpBytes, expertInput_);
    gateUp.hidden = expertHidden_;
    cuda::multiplyPacked(launch_, gateUp);
    cuda::PackedProduct down = product(experts.down, experts.downBytes, expertHidden_);
    down.groups.inputPerPair = true;
    down.y = expertResults_;
    down.stride = config.hidden;
    cuda::multiplyPacked(launch_, down);
    const bool shared = experts.shared.down.rows > 0;
    if (shared) {
        linear_->run(experts.shared.gateUp, expertInput_, n, {nullptr, 0, false, nullptr, hidden_});
        linear_->run(experts.shared.down, hidden_, n, {sharedResult_, config.hidden, false, nullptr, nullptr});
    }
    cuda::combineExperts(launch_,
                         {x, n, config.hidden, e.used, expertResults_, expertWeights_, shared ? sharedResult_ : nullptr,
                          e.sharedGate ? routerLogits_ + e.count : nullptr, rows});
}

void CudaEngine::planExperts() {
    if (!model_->config.experts) return;
    const ModelConfig& config = model_->config;
    const ExpertConfig& e = *config.experts;
    expertRows_ = std::max(layout_.rows, std::min(layout_.chunk, kExpertRows));
    const auto n = std::size_t(expertRows_), hidden = std::size_t(config.hidden), pairs = n * std::size_t(e.used);
    constexpr const char* kWhat = "the experts' activations";
    arena_.plan(expertInput_, n * hidden, kWhat);
    arena_.plan(routerLogits_, n * std::size_t(e.count + 1), kWhat);
    arena_.plan(expertChosen_, pairs, kWhat);
    arena_.plan(expertWeights_, pairs, kWhat);
    arena_.plan(expertCounts_, std::size_t(e.count), kWhat);
    arena_.plan(expertPairs_, std::size_t(e.count) * n, kWhat);
    arena_.plan(expertHidden_, pairs * std::size_t(e.width), kWhat);
    arena_.plan(expertResults_, pairs * hidden, kWhat);
    arena_.plan(sharedResult_, n * hidden, kWhat);
}

} // namespace kvscope

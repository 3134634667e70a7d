#include "core/cuda/layer_passes.h"

#include "core/cuda/device_products.h"
#include "kernels/cuda/linear/experts.h"
#include "kernels/cuda/linear/matrix_library.h"
#include "kernels/cuda/linear/packed.h"
#include "kernels/cuda/token/project_heads.h"

#include <algorithm>
#include <utility>

namespace kvscope {
namespace {

cuda::GateRule gateRule(const ModelConfig& config) {
    return config.boundedGate ? cuda::GateRule{config.boundedGate->slope, config.boundedGate->limit} : cuda::GateRule{};
}

} // namespace

LayerPasses::LayerPasses(const DeviceModel& model, const BatchLayout& layout, const StepBuffers& buffers,
                         const cuda::Launch& launch, StageRanges& stages)
    : model_(model), config_(model.config), layout_(layout), all_(buffers), buffers_(&buffers), launch_(launch),
      stages_(stages) {}
LayerPasses::~LayerPasses() = default; // MatrixLibrary is known here

/// Every matrix that this class, a selector or the output head multiplies with. A prompt's pieces have up to
/// BatchLayout::pieceTokens tokens, a step has BatchLayout::rows.
cuda::LinearNeeds LayerPasses::productNeeds() const {
    const int most = layout_.pieceTokens, rows = layout_.rows;
    cuda::LinearNeeds needs;
    for (const DeviceLayer& layer : model_.layers) {
        for (const cuda::DeviceMatrix& part : layer.qkv) needs.addNormalised(part, most);
        needs.addNormalised(layer.latent.queryUp, most);
        needs.addNormalised(layer.mlp.gateUp, most);
        needs.add(layer.mlp.gateUp, most, true);
        // prompts are multiplied by it too, with SelectionSpec::sparsePrefill
        needs.addNormalised(layer.forecast, most);
        needs.addNormalised(layer.ownForecast, most);
        needs.addNormalised(layer.blockIndexer.projection, most);
        needs.addNormalised(layer.indexer.query, most);
        needs.addNormalised(layer.indexer.key, most);
        needs.add(layer.o, most);
        needs.add(layer.mlp.down, most);
        needs.add(layer.experts.shared.gateUp, expertRows_, true);
        needs.add(layer.experts.shared.down, expertRows_);
    }
    needs.addNormalised(model_.lmHead, rows);
    return needs;
}

void LayerPasses::plan(DeviceArena& arena, bool useLibrary) {
    planExperts(arena);
    needs_ = productNeeds();
    constexpr const char* kWhat = "the products' work space";
    arena.plan(space_.normed, needs_.normed, kWhat);
    if (needs_.gated > 0) arena.plan(space_.gated, needs_.gated, kWhat);
    if (needs_.slab > 0) arena.plan(space_.slab, needs_.slab, kWhat);
    if (useLibrary) library_ = cuda::MatrixLibrary::load();
    if (library_) arena.plan(space_.library, cuda::MatrixLibrary::kWorkspaceBytes, "cuBLASLt's work space");
}

void LayerPasses::planExperts(DeviceArena& arena) {
    if (!config_.experts) return;
    const ExpertConfig& e = *config_.experts;
    expertRows_ = std::max(layout_.rows, std::min(layout_.pieceTokens, kExpertRows));
    const Elements inputs(expertRows_, config_.hidden), pairs(expertRows_, e.used);
    constexpr const char* kWhat = "the experts' activations";
    arena.plan(expertInput_, inputs, kWhat);
    arena.plan(routerLogits_, {expertRows_, e.count + 1}, kWhat);
    arena.plan(expertChosen_, pairs, kWhat);
    arena.plan(expertWeights_, pairs, kWhat);
    arena.plan(expertCounts_, e.count, kWhat);
    arena.plan(expertPairs_, {e.count, expertRows_}, kWhat);
    arena.plan(expertHidden_, {pairs, e.width}, kWhat);
    arena.plan(expertResults_, {pairs, config_.hidden}, kWhat);
    arena.plan(sharedResult_, inputs, kWhat);
}

void LayerPasses::open() {
    auto products = productsOf(productMachine(library_.get()));
    linear_ = std::make_unique<cuda::Linear>(launch_, needs_, space_, std::move(library_), std::move(products));
}

void LayerPasses::embed(const std::int32_t* ids, int n, float* x, std::uint32_t* clear, int clearCount,
                        std::uint64_t* mark) {
    cuda::Launch how = launch_;
    // This kernel begins a step after transfers of the step before, or a prompt after a copy, so it must not start
    // early.
    how.joined = true;
    const cuda::DeviceMatrix& table = model_.embedding;
    const float scale = config_.streamEmbeddingScale();
    if (table.packed != nullptr)
        cuda::embedPacked(how, table.type, table.packed, table.cols, ids, n, x, scale, clear, clearCount, mark);
    else
        cuda::embedTokens(how, table.data, table.cols, ids, n, x, scale, clear, clearCount, mark);
}

void LayerPasses::project(const DeviceLayer& weights, const float* x, int n, std::uint64_t* mark) {
    int width = 0, row = 0;
    for (const cuda::DeviceMatrix& part : weights.qkv) width += part.rows;
    for (const cuda::DeviceMatrix& part : weights.qkv) {
        const float* bias = weights.qkvBias != nullptr ? weights.qkvBias + row : nullptr;
        linear_->run(part, x, config_.hidden, n, norm(weights.inputNorm),
                     {buffers_->qkv + row, width, false, bias, nullptr}, row == 0 ? mark : nullptr);
        row += part.rows;
    }
    if (!config_.latent) return;
    const LatentAttention& latent = *config_.latent;
    latent_.nopeDim = latent.nopeDim;
    latent_.ropeDim = latent.ropeDim;
    latent_.norm = weights.latent.latentNorm;
    latent_.eps = latent.normEps;
    latent_.query = buffers_->qkv;
    latent_.queryStride = latent_.keyStride = width;
    latent_.key = buffers_->qkv + width - layout_.dim;
    if (latent.queryRank > 0) {
        latent_.queryStride = config_.queryHeads * config_.queryDim();
        linear_->run(weights.latent.queryUp, buffers_->qkv, width, n, {weights.latent.queryNorm, latent.normEps},
                     {buffers_->plainQ, latent_.queryStride, false, nullptr, nullptr});
        latent_.query = buffers_->plainQ;
    }
    cuda::HeadProductArgs absorb; // queries [nope | rope] become [latent | rope]
    absorb.w = weights.latent.keyUp;
    absorb.n = n;
    absorb.heads = config_.queryHeads;
    absorb.rows = latent.rank;
    absorb.cols = latent.nopeDim;
    absorb.x = latent_.query;
    absorb.xStride = latent_.queryStride;
    absorb.xHeadStride = config_.queryDim();
    absorb.y = buffers_->q;
    absorb.yStride = config_.queryHeads * layout_.dim;
    absorb.yHeadStride = layout_.dim;
    cuda::multiplyHeads(launch_, absorb);
}

/// Values are the last rows of the last matrix. Packed rows cannot be told apart, so that all of it is multiplied.
void LayerPasses::projectValues(const DeviceLayer& weights, const float* x, int n, float* qkv, std::uint64_t* mark) {
    const int width = (config_.queryHeads + 2 * config_.kvHeads) * config_.headDim;
    cuda::DeviceMatrix values = weights.qkv.back();
    if (values.packed == nullptr) {
        const int rows = config_.kvHeads * config_.headDim;
        values.data += std::ptrdiff_t(values.rows - rows) * values.cols;
        values.rows = rows;
    }
    const int row = width - values.rows;
    const float* bias = weights.qkvBias != nullptr ? weights.qkvBias + row : nullptr;
    linear_->run(values, x, config_.hidden, n, norm(weights.inputNorm), {qkv + row, width, false, bias, nullptr}, mark);
}

void LayerPasses::append(const cuda::AppendArgs& args, const cuda::LatentTokens& latent) {
    if (config_.latent)
        cuda::appendLatent(launch_, args, latent);
    else
        cuda::rotateAndAppend(launch_, args);
}

void LayerPasses::appendRow(const cuda::AppendArgs& args, int row) {
    cuda::LatentTokens latent = latent_;
    if (config_.latent) {
        latent.query += std::ptrdiff_t(row) * latent.queryStride;
        latent.key += std::ptrdiff_t(row) * latent.keyStride;
    }
    append(args, latent);
}

void LayerPasses::projectAndAppend(LayerId index, const cuda::AppendArgs& args, bool keepsPlain, std::uint64_t* mark) {
    const DeviceLayer& weights = model_.layers[index];
    stages_.at(index, Stage::QkvLinear);
    if (!config_.latent && weights.qkv.size() == 1 && cuda::canProjectAndAppend(weights.qkv.front(), args))
        return cuda::projectAndAppend(launch_,
                                      {weights.qkv.front(), buffers_->x, norm(weights.inputNorm), weights.qkvBias,
                                       keepsPlain ? buffers_->qkv : nullptr, mark},
                                      args);
    project(weights, buffers_->x, rows(), mark);
    stages_.at(index, Stage::Rope);
    append(args, latent_);
}

void LayerPasses::placePrompt(const cuda::PromptArgs& args) {
    if (config_.latent)
        cuda::placeLatentPrompt(launch_, args, latent_);
    else
        cuda::rotatePrompt(launch_, args);
}

/// The attention's output as the output projection reads it: with latent attention taken back from the latent space.
const __nv_bfloat16* LayerPasses::leaveLatent(const DeviceLayer& weights, int n) {
    if (!config_.latent) return buffers_->attended;
    cuda::HeadProductArgs leave;
    leave.w = weights.latent.valueUp;
    leave.n = n;
    leave.heads = config_.queryHeads;
    leave.rows = config_.outputDim();
    leave.cols = config_.valueDim();
    leave.xHalf = buffers_->attended;
    leave.xStride = config_.queryHeads * config_.valueDim();
    leave.xHeadStride = config_.valueDim();
    leave.y = buffers_->output;
    leave.yStride = config_.queryHeads * config_.outputDim();
    leave.yHeadStride = config_.outputDim();
    cuda::multiplyHeads(launch_, leave);
    return buffers_->output;
}

void LayerPasses::outputOf(LayerId index, float* x, int n, bool adds, std::uint64_t* mark) {
    const DeviceLayer& weights = model_.layers[index];
    stages_.at(index, Stage::OLinear);
    if (config_.latent && mark != nullptr) cuda::stampNow(launch_, mark);
    linear_->run(weights.o, leaveLatent(weights, n), n, {x, config_.hidden, adds, weights.oBias, nullptr},
                 config_.latent ? nullptr : mark);
}

void LayerPasses::feedForwardOf(LayerId index, const float* from, float* x, int n, bool adds, std::uint64_t* mark) {
    const DeviceLayer& weights = model_.layers[index];
    stages_.at(index, Stage::Ffn);
    linear_->run(weights.mlp.gateUp, from, config_.hidden, n, norm(weights.postNorm),
                 {nullptr, 0, false, nullptr, buffers_->hidden, gateRule(config_)}, mark);
    linear_->run(weights.mlp.down, buffers_->hidden, n, {x, config_.hidden, adds, nullptr, nullptr});
}

void LayerPasses::finish(LayerId index, float* x, int n, std::uint64_t* oMark, std::uint64_t* ffnMark) {
    outputOf(index, x, n, true, oMark);
    const DeviceLayer& weights = model_.layers[index];
    if (weights.experts.router == nullptr) return feedForwardOf(index, x, x, n, true, ffnMark);
    stages_.at(index, Stage::Ffn);
    for (int first = 0; first < n; first += expertRows_)
        applyExperts(weights, RowsOf(x, config_.hidden)[first], std::min(expertRows_, n - first),
                     first == 0 ? ffnMark : nullptr);
}

/// Finds every token's experts, runs them and adds the results, all on the device. The weights of an expert are read
/// once for up to 16 tokens.
void LayerPasses::applyExperts(const DeviceLayer& weights, float* x, int n, std::uint64_t* mark) {
    const ExpertConfig& e = *config_.experts;
    const DeviceExperts& experts = weights.experts;
    const cuda::Norm before = norm(weights.postNorm);
    cuda::normalise(launch_, x, config_.hidden, n, config_.hidden, before, expertInput_, mark);
    const int rows = e.count + (e.sharedGate ? 1 : 0);
    cuda::routeTokens(launch_, {x, n, config_.hidden, before, experts.router, rows, routerLogits_});
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
    gateUp.gate = gateRule(config_);
    cuda::multiplyPacked(launch_, gateUp);
    cuda::PackedProduct down = product(experts.down, experts.downBytes, expertHidden_);
    down.groups.inputPerPair = true;
    down.y = expertResults_;
    down.stride = config_.hidden;
    cuda::multiplyPacked(launch_, down);
    const bool shared = experts.shared.down.rows > 0;
    if (shared) {
        linear_->run(experts.shared.gateUp, expertInput_, n,
                     {nullptr, 0, false, nullptr, buffers_->hidden, gateRule(config_)});
        linear_->run(experts.shared.down, buffers_->hidden, n,
                     {sharedResult_, config_.hidden, false, nullptr, nullptr});
    }
    cuda::combineExperts(launch_,
                         {x, n, config_.hidden, e.used, expertResults_, expertWeights_,
                          shared ? sharedResult_ : nullptr, e.sharedGate ? routerLogits_ + e.count : nullptr, rows});
}

void LayerPasses::head(float* logits, int n, std::uint64_t* mark) {
    linear_->run(model_.lmHead, buffers_->x, config_.hidden, n, norm(model_.finalNorm),
                 {logits, config_.vocab, false, nullptr, nullptr}, mark);
}

} // namespace kvscope

#include "core/cuda/rehearsal.h"

#include "core/cuda/cuda_engine.h"
#include "core/select/method.h"
#include "core/session/stage_clock.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

namespace kvscope {
namespace {

using Clock = std::chrono::steady_clock;

double msSince(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// What decides which kernels multiply by a matrix.
using MatrixKind = std::tuple<int, int, DType, bool>;
MatrixKind kindOf(const cuda::DeviceMatrix& matrix) {
    return {matrix.rows, matrix.cols, matrix.type, matrix.rows > 0 && isQuantised(matrix.type)};
}

/// What decides which kernels a layer launches.
using LayerKind = std::tuple<bool, bool, bool, bool, Chosen, bool, std::vector<MatrixKind>>;
LayerKind kindOf(const DeviceLayer& layer, const LayerPlan& plan) {
    std::vector<MatrixKind> matrices;
    for (const cuda::DeviceMatrix& part : layer.qkv) matrices.push_back(kindOf(part));
    for (const cuda::DeviceMatrix* matrix :
         {&layer.o, &layer.latent.queryUp, &layer.mlp.gateUp, &layer.mlp.down, &layer.experts.gateUp,
          &layer.experts.down, &layer.experts.shared.gateUp, &layer.experts.shared.down})
        matrices.push_back(kindOf(*matrix));
    return {plan.sparse, plan.offloaded, plan.ownTier, plan.indexed, plan.chosen, plan.window > 0, std::move(matrices)};
}

void replaceSelector(CudaEngineOptions& options, const ModelConfig& config) {
    const MethodEntry& full = findMethod("full");
    ParameterValues values = resolveDefaults(full, config);
    values.set(full.parameters, "block_size", std::to_string(options.spec.blockSize));
    const AttentionBias bias = options.spec.bias;
    options.spec = full.make(values, config);
    options.spec.bias = bias;
    const MethodUse use{values, options.spec, config, Backend::Cuda, false};
    options.method = {nullptr, values, abilitiesOf(full, use)};
    options.offload = false;
    options.slots = 0;
    options.leastRecentlyUsed = options.ranksBlocks = false;
    options.quantised.reset();
}

} // namespace

std::vector<int> rehearsedLengths(const CudaEngineOptions& session) {
    constexpr std::size_t kMost = 4;
    const PerRow<int> prompts = session.promptTokens.empty() ? PerRow<int>{session.maxPrompt} : session.promptTokens;
    std::vector<int> lengths;
    const auto add = [&](int tokens) {
        if (tokens > 0 && lengths.size() < kMost && std::ranges::find(lengths, tokens) == lengths.end())
            lengths.push_back(tokens);
    };
    for (const int prompt : prompts) {
        const int tokens = std::min(prompt, session.maxPrompt);
        add(std::min(tokens, BatchLayout::kPieceTokens));
        if (tokens > BatchLayout::kPieceTokens) add(tokens % BatchLayout::kPieceTokens);
    }
    if (lengths.empty()) lengths.push_back(1);
    std::ranges::sort(lengths, std::greater{});
    return lengths;
}

CudaEngineOptions rehearsalOptions(const CudaEngineOptions& session, const DeviceModel& model) {
    CudaEngineOptions options = session;
    const int prompt = rehearsedLengths(session).front(), most = prompt + 1; // a token that would be decoded
    options.maxTokens.assign(session.maxTokens.size(), 2);
    options.maxTokens.front() = most;
    options.promptTokens.assign(session.maxTokens.size(), 1);
    options.promptTokens.front() = prompt;
    options.maxPrompt = prompt;
    // Random numbers are drawn for one length of the prompt, and the session's trial step launches what uses them.
    options.sampling = {};
    options.oracle = false;
    options.oracleObserver = nullptr;
    options.trace = nullptr;
    options.planted.clear();
    options.changes = nullptr;
    options.store = nullptr;
    if (options.method.makeSelector != nullptr) replaceSelector(options, model.config);
    // Windows are those of the session's lengths, so that its kernels are launched.
    const int longest = *std::ranges::max_element(session.maxTokens);
    const PlanChoices choices{options.offload, false, options.method.abilities.ahead, longest};
    ModelConfig config = model.config;
    options.plans = LayerPlans(config, options.spec, choices);
    config.layers = std::min(layersOfEveryKind(model, options.plans) + 1, config.layers); // one more: lookahead
    options.plans = LayerPlans(config, options.spec, choices);
    options.slots = 0;
    if (options.plans.offloaded() > 0) // a request that serves as an example may have fewer slots than a piece needs
        options.slots = std::min(std::max(session.slots, options.spec.neededSlots()), options.spec.grid.blocks(most));
    return options;
}

int layersOfEveryKind(const DeviceModel& model, const LayerPlans& plans) {
    std::set<LayerKind> kinds;
    int layers = 0;
    for (const LayerId i : model.layers.ids())
        if (kinds.insert(kindOf(model.layers[i], plans[i])).second) layers = int(next(i));
    return layers;
}

Rehearsal::Rehearsal(std::shared_ptr<const DeviceModel> model, CudaEngineOptions session)
    : model_(std::move(model)), session_(std::move(session)), thread_([this] { run(); }) {}

Rehearsal::~Rehearsal() {
    givenUp_.request_stop();
    if (thread_.joinable()) thread_.join();
}

void Rehearsal::finish() {
    if (thread_.joinable()) thread_.join();
}

void Rehearsal::run() noexcept {
    const auto begin = Clock::now();
    nvtxPush("rehearsal");
    try {
        read();
    } catch (const Error& error) {
        problem_ = oneLine(error);
    } catch (const std::exception& error) {
        problem_ = error.what();
    }
    nvtxPop();
    ms_ = msSince(begin);
}

void Rehearsal::read() {
    const CudaEngineOptions options = rehearsalOptions(session_, *model_);
    CudaEngine engine(DeviceModel::firstLayers(model_, options.plans.size()), options); // makes a step, too
    for (const int length : rehearsedLengths(session_)) {
        std::vector<std::vector<std::int32_t>> prompts(options.maxTokens.size(), {0});
        prompts.front().assign(Elements(length), 0);
        StepRecord record;
        engine.prefill(prompts, record, {}, givenUp_.get_token());
    }
}

std::shared_ptr<const DeviceModel> uploadRehearsing(const std::shared_ptr<const Model>& model,
                                                    const CudaEngineOptions& options, UploadTimes* times) {
    const auto begin = Clock::now();
    std::optional<Rehearsal> rehearsal;
    DeviceModel::Beside beside;
    if (std::getenv("KVSCOPE_NO_REHEARSAL") == nullptr)
        beside = [&](const std::shared_ptr<const DeviceModel>& taken) {
            try {
                rehearsal.emplace(taken, options);
            } catch (const std::system_error&) { // the system has no thread for it, and the session needs none
            }
        };
    auto uploaded = DeviceModel::of(model, {}, beside);
    UploadTimes took;
    took.upload = msSince(begin);
    if (rehearsal) {
        rehearsal->finish();
        took.waited = msSince(begin) - took.upload;
        took.rehearsal = rehearsal->ms();
        took.problem = rehearsal->problem();
        if (options.trace != nullptr) options.trace->endRun(); // before any run: drops what was recorded
    }
    if (times != nullptr) *times = took;
    return uploaded;
}

} // namespace kvscope

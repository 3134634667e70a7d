#include "core/cuda/cuda_engine.h"

#include "base/clock.h"
#include "core/cuda/gpu_device.h"
#include "core/session/stage_clock.h"
#include "kernels/cuda/attention/attention_latent.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

} // namespace

using enum StepReport::Mark;
using enum StepReport::StepMark;

cuda::Launch gpuLaunch(const cudaDeviceProp& gpu) {
    cuda::Launch launch;
    launch.multiprocessors = gpu.multiProcessorCount;
    launch.clusters = gpu.major >= 9;
    launch.blockShared = gpu.sharedMemPerBlockOptin;
    return launch;
}

CudaEngine::CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options)
    : CudaEngine(std::move(model), std::move(options), gpuLaunch(usableGpu())) {
    open();
}

MemoryPlan CudaEngine::memory(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options,
                              const cuda::Launch& launch) {
    return CudaEngine(std::move(model), std::move(options), launch).memory();
}

CudaEngine::CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options, const cuda::Launch& launch)
    : model_(std::move(model)), options_(std::move(options)), spec_(options_.spec), layout_(model_->config, options_),
      launch_(launch), ranges_(options_.trace), order_(layers_), rows_(model_->config, options_, layout_),
      choice_(model_->config, options_, layout_, layers_, order_, rows_, buffers_, selector_),
      passes_(*model_, layout_, buffers_, launch_, ranges_),
      reader_(model_->config, options_, layout_, layers_, order_, clock_, selector_),
      prompts_({*model_, options_, layout_, layers_, selector_, rows_, buffers_, choice_, transfers_, clock_, launch_,
                passes_, ranges_}),
      transfers_(options_, layout_, layers_, order_, choice_, launch_, ranges_),
      stages_({*model_, options_, layout_, layers_, selector_, order_, rows_, buffers_, choice_, launch_, passes_,
               transfers_, ranges_}),
      graphs_([this](int entry) { stepKernels(entry); }) {
    refuseUnsupported();
    for (const LayerPlan& plan : options_.plans) static_cast<LayerPlan&>(layers_.emplace_back()) = plan;
    if (options_.makeSelector != nullptr) makeSelector();
    if (selector_ && options_.abilities.ahead == Ahead::NextLayer) {
        order_.lookAhead();
        const bool offloads = options_.plans.offloaded() > 0;
        const bool wanted = options_.transferLoop || std::getenv("KVSCOPE_TRANSFER_LOOP") != nullptr;
        transfers_.planBeside(offloads && launch_.clusters && wanted);
        // Transfers occupy some multiprocessors. A kernel with a thread block for each multiprocessor would have thread
        // blocks that wait for those, so kernels count on fewer. They count on as few where nothing is transferred, so
        // that with and without offloading the same sums are made in the same order.
        launch_.multiprocessors -= std::min(transfers_.blocks(), launch_.multiprocessors / 2);
    }
    planMemory();
}

/// Takes all that was declared and makes the engine ready for prompts.
void CudaEngine::open() {
    graphs_.open();
    launch_.stream = graphs_.stream();
    transfers_.open();
    arena_.take();
    passes_.open();
    rows_.upload();
    openStore();
    prompts_.open();
    reports_.open();
    transfers_.upload(reports_);
    if (selector_) selector_->begin();
    rows_.setAll(true);
    clock_.calibrate(launch_, prompts_.marks());
    if (options_.trace != nullptr) options_.trace->timesBeginAt(clock_.originNs());
    prepareSteps();
}

void CudaEngine::refuseUnsupported() const {
    cuda::checkAttentionShape(layout_.shape);
    if (spec_.grid.kernel > 256 || spec_.grid.stride < 1)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("windows of {} tokens are too long for the GPU backend", spec_.grid.kernel),
                    "use --backend cpu, or windows of at most 256 tokens");
    if (model_->config.latent && launch_.blockShared < cuda::kLatentSharedBytes)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("latent attention needs {} KiB of a multiprocessor's shared memory; {} has {}",
                                cuda::kLatentSharedBytes >> 10, usableGpu().name, launch_.blockShared >> 10),
                    "use --backend cpu, or a data-centre GPU of the Hopper generation or later");
}

void CudaEngine::makeSelector() {
    const ModelConfig& config = model_->config;
    std::vector<cuda::HeadNorms> norms;
    for (const DeviceLayer& layer : model_->layers) norms.push_back(layer.headNorms);
    const RecordLevel level = // the oracle needs the chosen blocks of every step
        options_.oracle ? std::max(options_.level, RecordLevel::Selections) : options_.level;
    selector_ = options_.makeSelector(options_.parameters,
                                      {launch_,
                                       config,
                                       options_.model,
                                       spec_,
                                       layout_.shape,
                                       options_.maxTokens,
                                       options_.promptTokens.empty() ? options_.maxTokens : options_.promptTokens,
                                       norms,
                                       layout_.maxBlocks,
                                       layout_.capacity,
                                       layout_.chunk,
                                       options_.slots,
                                       options_.offload,
                                       options_.ranksBlocks,
                                       transfers_.blocks(),
                                       options_.record,
                                       options_.oracle,
                                       level,
                                       options_.store,
                                       layers_,
                                       rows_.blockFirst,
                                       rows_.windowFirst,
                                       rows_.tokenFirst,
                                       rows_.poolFirst,
                                       rows_.ropeCos,
                                       rows_.ropeSin,
                                       rows_.ropeFirst,
                                       *model_,
                                       passes_.linear()});
}

/// Runs one step outside a graph, because cuBLASLt's plans and the attributes of kernels must not be made during a
/// capture, and then captures the step graphs. In the first step no row is active, so that it changes nothing of the
/// session.
void CudaEngine::prepareSteps() {
    rows_.setAll(false);
    stepKernels(0);
    cuda::check(cudaStreamSynchronize(stream()), "trying a step");
    rows_.setAll(true);
    cuda::check(cudaDeviceSynchronize(), "preparing a step");
    graphs_.capture();
}

// ---- A step ---------------------------------------------------------------------------------------------------------

void CudaEngine::launch(int step) {
    if (options_.trace != nullptr) options_.trace->atStep(step);
    const int entry = int(launched_ % kEntries);
    nvtxPush(nameOf(Phase::Decode), step);
    transfers_.startLoop(entry);
    graphs_.launch(entry);
    nvtxPop();
    // The copy stream brings the report to the host while the next step runs.
    graphs_.follow(entry, transfers_.copyStream());
    transfers_.copyAfterLoop();
    reports_.copyOut(entry, transfers_.copyStream());
    ++launched_;
}

void CudaEngine::wait() {
    const int entry = int(waited_ % kEntries);
    reports_.wait(entry);
    ++waited_;
    rows_.advance(reports_.host(entry).tokens);
    logitsFetched_ = false;
}

/// Launches all kernels of a step. StepGraphs calls this while it captures a graph, or in every step where it uses
/// none.
void CudaEngine::stepKernels(int entry) {
    const StepReport& report = reports_.device(entry);
    float* const logits = buffers_.logits[entry];
    stages_.begin(report, logits);
    runStep(stages_, model_->config.layers);
    ranges_.at(StepStage::Sample);
    cuda::NextTokenArgs next = rows_.nextTokens(logits, report.tokens);
    next.mark = report.mark(kSample);
    next.endMark = report.mark(kEnd);
    cuda::nextTokens(launch_, next);
    transfers_.joinAll(storeBytes_ > 0);
    ranges_.leave();
}

// ---- Prompts --------------------------------------------------------------------------------------------------------

void CudaEngine::prefill(const std::vector<std::vector<std::int32_t>>& prompts, StepRecord& record,
                         const Progress& progress, const std::stop_token& stop) {
    record.layers.assign(layers_.size(), {});
    if (options_.trace != nullptr) options_.trace->atStep(0);
    const std::int64_t begin = steadyNowNs();
    nvtxPush(nameOf(Phase::Prefill), 0);
    struct EndOfRange { // a destructor, because reading a prompt may end with an exception
        StageRanges& ranges;
        ~EndOfRange() { ranges.leave(), nvtxPop(); }
    } const endOfRange{ranges_};
    record.startNs = begin - clock_.originNs();
    double total = 0, done = 0;
    for (const auto& prompt : prompts) total += double(prompt.size());
    for (int s = 0; s < layout_.rows; ++s) {
        const auto& prompt = prompts[std::size_t(s)];
        prompts_.read(s, prompt, record, progress, done / total, (done + double(prompt.size())) / total, stop);
        done += double(prompt.size());
    }
    std::vector<std::int32_t> last;
    for (const auto& prompt : prompts) last.push_back(int(prompt.size()) - 1);
    cuda::check(cudaMemcpyAsync(rows_.position, last.data(), last.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                stream()),
                "copying the positions");
    std::uint64_t* const marks = prompts_.marks();
    ranges_.at(StepStage::LmHead);
    cuda::stampNow(launch_, marks);
    passes_.head(buffers_.logits[0]);
    cuda::stampNow(launch_, marks + 1);
    ranges_.at(StepStage::Sample);
    cuda::NextTokenArgs next = rows_.nextTokens(buffers_.logits[0], reports_.device(0).tokens);
    next.endMark = marks + 2;
    cuda::nextTokens(launch_, next);
    cuda::check(cudaStreamSynchronize(stream()), "reading the prompt");
    cuda::check(cudaStreamSynchronize(transfers_.copyStream()), "copying KV blocks to the host");
    reports_.copyTokens(0);
    rows_.begin(reports_.host(0).tokens);
    record.stepStageNs[std::size_t(StepStage::LmHead)] = std::int64_t(marks[1] - marks[0]);
    record.stepStageNs[std::size_t(StepStage::Sample)] = std::int64_t(marks[2] - marks[1]);
    for (std::size_t i = 0; i < record.layers.size(); ++i) {
        LayerRecord& layer = record.layers[i];
        layer.d2hBytes = layer.d2hBlocks * std::int64_t(layout_.blockElements * sizeof(Bf16));
        for (int s = 0; s < layout_.rows && layers_[i].ownTier; ++s)
            layer.d2hBytes += selector_->storedBytes(int(i), s);
    }
    record.durationNs = steadyNowNs() - begin;
    launched_ = waited_ = 0;
    logitsFetched_ = false;
}

// ---- What came of it ------------------------------------------------------------------------------------------------

std::string CudaEngine::description() const {
    const cudaDeviceProp properties = usableGpu();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return fmt::format("{}, {} multiprocessors, CUDA {}.{}, {}", properties.name, properties.multiProcessorCount,
                       driver / 1000, driver % 1000 / 10, passes_.linear()->description());
}

std::int64_t CudaEngine::stepNs() const {
    const std::uint64_t* marks = reports_.host(lastEntry()).stepMarks;
    return std::int64_t(marks[kEnd] - marks[kEmbed]);
}

std::span<const std::int32_t> CudaEngine::tokens() const {
    return {reports_.host(lastEntry()).tokens, std::size_t(layout_.rows)};
}

const float* CudaEngine::logits(int sequence) {
    const auto vocab = std::size_t(model_->config.vocab);
    if (!logitsFetched_) {
        logitsHost_.resize(std::size_t(layout_.rows) * vocab);
        const cudaStream_t copy = transfers_.copyStream();
        cuda::check(cudaMemcpyAsync(logitsHost_.data(), buffers_.logits[lastEntry()],
                                    logitsHost_.size() * sizeof(float), cudaMemcpyDeviceToHost, copy),
                    "copying the logits");
        cuda::check(cudaStreamSynchronize(copy), "copying the logits");
        logitsFetched_ = true;
    }
    return logitsHost_.data() + std::size_t(sequence) * vocab;
}

void CudaEngine::settle() { cuda::check(cudaStreamSynchronize(stream()), "finishing"); }

} // namespace kvscope

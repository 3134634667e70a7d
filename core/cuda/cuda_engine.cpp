#include "core/cuda/cuda_engine.h"

#include "base/clock.h"
#include "base/extents.h"
#include "core/cuda/device_copy.h"
#include "core/cuda/gpu_device.h"
#include "core/session/stage_clock.h"

#include <algorithm>
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
    : model_(std::move(model)), options_(std::move(options)), layout_(model_->config, options_), launch_(launch),
      ranges_(options_.trace), passes_(*model_, layout_, buffers_, launch_, ranges_),
      sequences_({*model_, options_, layout_, buffers_, launch_, passes_, clock_, ranges_}),
      graphs_([this](int entry) { stepKernels(entry); }) {
    planSharedBuffers(arena_, buffers_, model_->config, layout_);
    planAttentionBuffers(arena_, buffers_, model_->config, layout_, launch_, options_.oracle);
    passes_.plan(arena_, options_.useLibrary);
    sequences_.plan(arena_, arena_);
    for (int half = 0; half < 2 && sequences_.order.isInHalves(); ++half)
        halves_.push_back(std::make_unique<HalfRows>(
            CudaSequencesParts{*model_, options_, layout_, buffers_, launch_, passes_, clock_, ranges_}, sequences_,
            half));
}

/// Takes all that was declared and makes the engine ready for prompts.
void CudaEngine::open() {
    graphs_.open();
    launch_.stream = graphs_.stream();
    sequences_.transfers.open();
    arena_.take();
    passes_.open();
    sequences_.open();
    for (const auto& half : halves_) half->open();
    sequences_.transfers.checkLoop();
    openHalves();
    clock_.calibrate(launch_, sequences_.prompts.marks());
    if (options_.trace != nullptr) options_.trace->timesBeginAt(clock_.originNs());
    prepareSteps();
}

void CudaEngine::openHalves() {
    for (const auto& half : halves_) half->begin();
    for (int entry = 0; entry < kEntries && !halves_.empty(); ++entry) {
        std::vector<cuda::GatherArgs> loads;
        for (const LayerId layer : sequences_.layers.ids())
            for (const auto& half : halves_) loads.push_back(half->loopArgs(layer, sequences_.reports.device(entry)));
        sequences_.transfers.uploadHalves(entry, loads);
    }
}

/// Runs one step outside a graph, because cuBLASLt's plans and the attributes of kernels must not be made during a
/// capture, and then captures the step graphs. In the first step no row is active, so that it changes nothing of the
/// session.
void CudaEngine::prepareSteps() {
    sequences_.rows.setAll(false);
    stepKernels(0);
    cuda::check(cudaStreamSynchronize(stream()), "trying a step");
    sequences_.rows.setAll(true);
    cuda::check(cudaDeviceSynchronize(), "preparing a step");
    graphs_.capture();
}

// ---- A step ---------------------------------------------------------------------------------------------------------

void CudaEngine::launch(int step) {
    if (options_.trace != nullptr) options_.trace->atStep(step);
    const int entry = int(launched_ % kEntries);
    nvtxPush(nameOf(Phase::Decode), step);
    sequences_.transfers.startLoop(entry);
    graphs_.launch(entry);
    nvtxPop();
    // The copy stream brings the report to the host while the next step runs.
    graphs_.follow(entry, sequences_.transfers.copyStream());
    sequences_.transfers.copyAfterLoop();
    sequences_.reports.copyOut(entry, sequences_.transfers.copyStream());
    ++launched_;
}

void CudaEngine::wait() {
    const int entry = int(waited_ % kEntries);
    sequences_.reports.wait(entry);
    ++waited_;
    sequences_.rows.advance(sequences_.reports.host(entry).tokens);
    logitsFetched_ = false;
}

/// Launches all kernels of a step. StepGraphs calls this while it captures a graph, or in every step where it uses
/// none.
void CudaEngine::stepKernels(int entry) {
    const StepReport& report = sequences_.reports.device(entry);
    float* const logits = buffers_.logits[entry];
    sequences_.stages.begin(report, logits);
    if (halves_.empty())
        runStep(sequences_.stages, model_->config.layers);
    else
        layersInHalves(report);
    ranges_.at(StepStage::Sample);
    cuda::NextTokenArgs next = sequences_.rows.nextTokens(logits, report.tokens);
    next.mark = report.mark(kSample);
    next.endMark = report.mark(kEnd);
    cuda::nextTokens(launch_, next);
    sequences_.transfers.joinAll(sequences_.storeBytes > 0);
    ranges_.leave();
}

/// The step of runStep with its layers in halves. Embeddings and logits are those of all rows.
void CudaEngine::layersInHalves(const StepReport& report) {
    const int layers = model_->config.layers;
    sequences_.stages.embed();
    for (const auto& half : halves_) half->begin(report);
    const auto choose = [&](int half, LayerId layer) {
        // The first half's choice is followed by the other's attention in the layer before, that of the second by the
        // first half's in this layer.
        const int awaited = int(layer) - (half == 0 ? 1 : 0);
        halves_[std::size_t(half)]->choose(layer, awaited < 0 ? nullptr : halves_[std::size_t(1 - half)].get(),
                                           LayerId{std::max(awaited, 0)});
    };
    inHalves(layers, choose, [&](int half, LayerId layer) { halves_[std::size_t(half)]->attend(layer); });
    passes_.workOnAll();
    sequences_.stages.head();
}

// ---- Prompts --------------------------------------------------------------------------------------------------------

void CudaEngine::prefill(const std::vector<std::vector<std::int32_t>>& prompts, StepRecord& record,
                         const Progress& progress, const std::stop_token& stop) {
    record.layers.assign(sequences_.layers.size(), {});
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
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        const auto& prompt = prompts[s];
        sequences_.prompts.read(RowId(int(s)), prompt, record, progress, done / total,
                                (done + double(prompt.size())) / total, stop);
        done += double(prompt.size());
    }
    std::vector<std::int32_t> last;
    for (const auto& prompt : prompts) last.push_back(int(prompt.size()) - 1);
    cuda::check(cudaMemcpyAsync(sequences_.rows.position, last.data(), last.size() * sizeof(std::int32_t),
                                cudaMemcpyHostToDevice, stream()),
                "copying the positions");
    std::uint64_t* const marks = sequences_.prompts.marks();
    ranges_.at(StepStage::LmHead);
    cuda::stampNow(launch_, marks);
    passes_.head(buffers_.logits[0]);
    cuda::stampNow(launch_, marks + 1);
    ranges_.at(StepStage::Sample);
    cuda::NextTokenArgs next = sequences_.rows.nextTokens(buffers_.logits[0], sequences_.reports.device(0).tokens);
    next.endMark = marks + 2;
    cuda::nextTokens(launch_, next);
    cuda::check(cudaStreamSynchronize(stream()), "reading the prompt");
    cuda::check(cudaStreamSynchronize(sequences_.transfers.copyStream()), "copying KV blocks to the host");
    sequences_.reports.copyTokens(0);
    sequences_.rows.begin(sequences_.reports.host(0).tokens);
    record.stepStageNs[StepStage::LmHead] = std::int64_t(marks[1] - marks[0]);
    record.stepStageNs[StepStage::Sample] = std::int64_t(marks[2] - marks[1]);
    for (const LayerId i : sequences_.layers.ids()) {
        LayerRecord& layer = record.layers[int(i)];
        layer.d2hBytes = layer.d2hBlocks * std::int64_t(layout_.blockElements * sizeof(Bf16));
        if (!sequences_.layers[i].ownTier) continue;
        for (const RowId s : idsUpTo<RowId>(layout_.rows)) layer.d2hBytes += sequences_.selector->storedBytes(i, s);
    }
    record.durationNs = steadyNowNs() - begin;
    launched_ = waited_ = 0;
    logitsFetched_ = false;
}

// ---- What came of it ------------------------------------------------------------------------------------------------

std::string CudaEngine::description() const { return describeGpuEngine(*passes_.linear()); }

std::string describeGpuEngine(const cuda::Linear& linear) {
    const cudaDeviceProp properties = usableGpu();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return fmt::format("{}, {} multiprocessors, CUDA {}.{}, {}", properties.name, properties.multiProcessorCount,
                       driver / 1000, driver % 1000 / 10, linear.description());
}

std::int64_t CudaEngine::stepNs() const {
    const std::uint64_t* marks = sequences_.reports.host(lastEntry()).stepMarks;
    return std::int64_t(marks[kEnd] - marks[kEmbed]);
}

NumberedSpan<const std::int32_t> CudaEngine::tokens() const {
    return {sequences_.reports.host(lastEntry()).tokens, layout_.rows};
}

const float* CudaEngine::logits(int sequence) {
    const Extents<int, int> at(layout_.rows, model_->config.vocab);
    if (!logitsFetched_) {
        logitsHost_.resize(at.size());
        const cudaStream_t copy = sequences_.transfers.copyStream();
        copyOnStream(logitsHost_.data(), buffers_.logits[lastEntry()], at.size(), cudaMemcpyDeviceToHost, copy,
                     "copying the logits");
        cuda::check(cudaStreamSynchronize(copy), "copying the logits");
        logitsFetched_ = true;
    }
    return logitsHost_.data() + at.first(sequence);
}

void CudaEngine::settle() { cuda::check(cudaStreamSynchronize(stream()), "finishing"); }

} // namespace kvscope

#include "core/cuda/cuda_engine.h"

#include "core/cuda/gpu_device.h"
#include "core/session/stage_clock.h"
#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/block_mass.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>

namespace kvscope {

CudaEngine::CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options)
    : model_(std::move(model)), options_(std::move(options)), spec_(options_.spec), layout_(model_->config, options_),
      oneByOne_(std::getenv("KVSCOPE_NO_GRAPH") != nullptr), stages_(options_.trace), order_(layers_),
      reader_(model_->config, options_, layout_, layers_, order_, clock_, selector_) {
    const ModelConfig& config = model_->config;
    cuda::checkAttentionShape(layout_.shape);
    for (const LayerPlan& plan : options_.plans) static_cast<LayerPlan&>(layers_.emplace_back()) = plan;
    if (spec_.grid.kernel > 256 || spec_.grid.stride < 1)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("windows of {} tokens are too long for the GPU backend", spec_.grid.kernel),
                    "use --backend cpu, or windows of at most 256 tokens");
    const cudaDeviceProp gpu = usableGpu();
    if (config.latent && gpu.sharedMemPerBlockOptin < cuda::kLatentSharedBytes)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("latent attention needs {} KiB of a multiprocessor's shared memory; {} has {}",
                                cuda::kLatentSharedBytes >> 10, gpu.name, gpu.sharedMemPerBlockOptin >> 10),
                    "use --backend cpu, or a data-centre GPU of the Hopper generation or later");
    launch_.multiprocessors = gpu.multiProcessorCount;
    launch_.clusters = gpu.major >= 9;
    launch_.blockShared = gpu.sharedMemPerBlockOptin;
    stream_ = cuda::Stream::make();
    copyStream_ = cuda::Stream::make();
    for (cuda::Event* event : {&done_[0], &done_[1], &copied_[0], &copied_[1], &computed_})
        *event = cuda::Event::make();
    launch_.stream = stream_.get();
    ropeTables_ = RopeTables(config.rope, options_.promptTokens.empty() ? options_.maxTokens : options_.promptTokens,
                             options_.maxTokens);
    const bool offloads = options_.plans.offloaded() > 0;
    if (options_.makeSelector != nullptr) {
        std::vector<cuda::HeadNorms> norms;
        for (const DeviceLayer& layer : model_->layers) norms.push_back(layer.headNorms);
        const RecordLevel level = // the oracle compares what was chosen
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
                                           besideBlocks(),
                                           options_.record,
                                           options_.oracle,
                                           level,
                                           options_.store,
                                           layers_,
                                           blockFirstDevice_,
                                           windowFirstDevice_,
                                           tokenFirstDevice_,
                                           poolFirstDevice_,
                                           ropeCos_,
                                           ropeSin_,
                                           ropeFirst_,
                                           *model_,
                                           linear_});
        if (selector_ && options_.abilities.ahead == Ahead::NextLayer) order_.lookAhead();
        const bool wanted = options_.transferLoop || std::getenv("KVSCOPE_TRANSFER_LOOP") != nullptr;
        transferLoop_ = order_.looksAhead() && offloads && launch_.clusters && wanted;
    }
    if (order_.looksAhead()) {
        aheadStream_ = cuda::Stream::make(cuda::StreamKind::Urgent);
        // Kernels of a thread block for each processor would have some wait for those that transfers hold. Without
        // transfers as well: the same sums in the same order.
        launch_.multiprocessors -= std::min(besideBlocks(), launch_.multiprocessors / 2);
        for (cuda::Event* event : {&chosen_, &loaded_[0], &loaded_[1]}) *event = cuda::Event::make();
    }
    planMemory();
    if (selector_) selector_->begin();
    nextHost_.assign(std::size_t(layout_.rows), 0);
    activeHost_.assign(std::size_t(layout_.rows), 1);
    cuda::check(cudaMemset(active_, 1, std::size_t(layout_.rows)), "preparing the session");
    clock_.calibrate(launch_, promptMarks_.front());
    capture();
}

cuda::SelectArgs CudaEngine::selectArgs(int index) const {
    const Layer& layer = layers_[std::size_t(index)];
    cuda::SelectArgs args;
    args.shape = layout_.shape;
    args.q = q_;
    args.index = layer.index;
    args.maxBlocks = layout_.maxBlocks;
    args.score = spec_.queryScore == QueryScore::PooledSoftmax ? cuda::SelectArgs::Score::PooledSoftmax
                 : spec_.queryScore == QueryScore::RangeBound  ? cuda::SelectArgs::Score::RangeBound
                                                               : cuda::SelectArgs::Score::None;
    args.agnostic = spec_.agnosticScore != AgnosticScore::None;
    args.rangeReduce = spec_.rangeReduce;
    args.budget = spec_.budget;
    args.denseBelowTokens = spec_.denseBelowTokens;
    args.slidingWindow = layer.window;
    args.scale = model_->config.attentionScale();
    args.planted = options_.planted;
    args.capacity = layout_.capacity;
    const Lists lists = listsOf(index);
    args.listBlock = lists.block;
    args.listCount = lists.count;
    return args;
}

cuda::NextTokenArgs CudaEngine::nextTokenArgs(const float* logits, std::int32_t* record) const {
    cuda::NextTokenArgs args;
    args.logits = logits;
    args.rows = layout_.rows;
    args.vocab = model_->config.vocab;
    args.next = next_;
    args.position = position_;
    args.active = active_;
    args.record = record;
    args.sampling = {options_.sampling.temperature,
                     options_.sampling.topP,
                     options_.sampling.topK,
                     draws_,
                     firstSampled_,
                     drawsPerRow_};
    return args;
}

cuda::AppendArgs CudaEngine::appendArgs(int index, const StepReport& report) const {
    const DeviceLayer& weights = model_->layers[std::size_t(index)];
    const Layer& layer = layers_[std::size_t(index)];
    cuda::AppendArgs append;
    append.shape = layout_.shape;
    append.qkv = qkv_;
    append.cos = ropeCos_;
    append.sin = ropeSin_;
    append.ropeFirst = ropeFirst_;
    append.interleaved = model_->config.rope.interleaved;
    append.eviction = weights.eviction;
    append.norms = weights.headNorms;
    append.q = q_;
    append.index = layer.index;
    append.rows = layout_.rows;
    append.position = position_;
    append.active = active_;
    if (layer.offloaded && order_.chosenAhead(index)) { // its slot is known
        const Lists lists = listsOf(index);
        append.blocks = layer.blocks;
        append.headFirst = poolFirstDevice_;
        append.listSlot = lists.slot;
        append.listCount = lists.count;
        append.capacity = layout_.capacity;
    } else if (!layer.offloaded && !layer.ownTier) {
        append.blocks = layer.blocks;
        append.headFirst = blockFirstDevice_;
    }
    append.valuesByToken = valuesByToken(index);
    if (append.blocks == nullptr || selector_) append.newKey = newKey_, append.newValue = newValue_;
    append.marks[0] = report.mark(index, kRope);
    if (layer.indexed) append.marks[1] = report.mark(index, kCompression);
    return append;
}

void CudaEngine::decodeLayer(int index, const StepReport& report) {
    const Layer& layer = layers_[std::size_t(index)];
    projectAndAppend(index, report);
    if (layer.allKeys != nullptr)
        cuda::keepKeys(launch_,
                       {layout_.shape, layout_.rows, position_, active_, newKey_, layer.allKeys, blockFirstDevice_});

    const bool own = layer.sparse && selector_ != nullptr;
    DeviceStep step;
    if (selector_) {
        step = deviceStep(index, report);
        if (layer.indexed) {
            stages_.at(index, Stage::Compression);
            selector_->append(step);
        }
    }
    cuda::DecodeAttentionArgs attend;
    attend.shape = layout_.shape;
    attend.rows = layout_.rows;
    attend.position = position_;
    attend.active = active_;
    attend.q = q_;
    attend.blocks = layer.blocks;
    attend.headFirst = layer.offloaded ? poolFirstDevice_ : blockFirstDevice_;
    attend.maxBlocks = layout_.blocksInSight(index);
    attend.window = layer.window;
    if (layer.sparse) chooseAndLoad(index, report, attend);
    lookAhead(index, report);
    attend.tokenBias = layer.index.tokenScores;
    attend.biasFirst = tokenFirstDevice_;
    attend.scale = model_->config.attentionScale();
    attend.biasScale = spec_.bias.scale;
    attend.out = attended_;
    attend.partial = partial_;
    attend.arrivals = arrivals_;
    attend.mark = report.mark(index, kAttention);
    stages_.at(index, layer.sparse ? Stage::Stage2 : Stage::Attention);
    const cuda::Launch how = join(index);
    if (!own || !selector_->attend(step, attend)) cuda::decodeAttention(how, attend);
    if (options_.oracle && layer.sparse) measureMass(index, report);
    if (own) {
        stages_.at(index, Stage::Offloading);
        selector_->after(step);
    }
    finishLayer(index, x_, layout_.rows, report.mark(index, kOLinear), report.mark(index, kFfn));
}

DeviceStep CudaEngine::deviceStep(int index, const StepReport& report) const {
    DeviceStep step;
    step.layer = index;
    step.position = position_;
    step.active = active_;
    step.x = x_;
    step.qkv = qkv_;
    step.q = q_;
    step.newKey = newKey_;
    step.newValue = newValue_;
    if (!options_.record) return step;
    step.blockLogSums = blockLogSums_;
    step.stage1Mark = report.mark(index, kStage1);
    step.poolingMark = report.mark(index, kPooling);
    step.offloadingMark = report.mark(index, kOffloading);
    step.report = report.ownOf(index);
    return step;
}

/// A decode step's choice in a layer, but for the marks.
cuda::SelectArgs CudaEngine::decodeSelectArgs(int index, const StepReport& report) const {
    const Layer& layer = layers_[std::size_t(index)];
    cuda::SelectArgs select = selectArgs(index);
    select.rows = layout_.rows;
    select.position = position_;
    select.active = active_;
    if (layer.offloaded) {
        select.slots = options_.slots;
        select.map = layer.map;
        select.lastUse = layer.lastUse;
        select.pool = layer.blocks;
        select.newKey = newKey_;
        select.newValue = newValue_;
        select.valuesByToken = valuesByToken(index);
        select.storeFirst = blockFirstDevice_;
        const Lists lists = listsOf(index);
        select.moves = {lists.loads, lists.writeBacks, layer.counts};
        select.listSlot = lists.slot;
    }
    if (options_.record) {
        select.previous = layer.previous;
        select.hasPrevious = layer.hasPrevious;
        select.recordHead = report.headsOf(index);
        select.recordBlocks = report.blocksOf(index);
        select.recordScores = report.scoresOf(index);
    }
    return select;
}

/// Selection, slots and transfers of a sparse layer that is not chosen ahead; what is attended goes to `attend`.
void CudaEngine::chooseAndLoad(int index, const StepReport& report, cuda::DecodeAttentionArgs& attend) {
    const Layer& layer = layers_[std::size_t(index)];
    if (!order_.chosenAhead(index)) {
        cuda::SelectArgs select = decodeSelectArgs(index, report);
        select.marks[2] = report.mark(index, kOffloading);
        stages_.at(index, Stage::Stage1); // and pooling, and the set difference: one kernel
        if (selector_) {                  // whose kernels have the other marks
            selector_->choose(deviceStep(index, report), select);
        } else {
            select.marks[0] = report.mark(index, kStage1);
            select.marks[1] = report.mark(index, kPooling);
        }
        // Resident blocks that the step before listed need nothing more of the executor.
        const bool listed = selector_ && layer.chosen == Chosen::StepAhead && !layer.offloaded;
        if (layer.ownTier || listed) return;
        cuda::selectBlocksOnDevice(launch_, select);
        if (layer.offloaded && transferLoop_) {
            handOver(index, -1, nullptr);
        } else if (layer.offloaded && order_.looksAhead()) {
            fork();
            moveBeside(index, report, cuda::GatherArgs::Part::Both);
        } else if (layer.offloaded) {
            cuda::GatherArgs gather = gatherArgs(index, report);
            gather.mark = report.mark(index, kGather);
            gather.endMark = report.mark(index, kLoaded);
            stages_.at(index, Stage::Offloading);
            cuda::gatherBlocks(launch_, gather);
        }
    }
    const Lists lists = listsOf(index);
    if (layer.offloaded) attend.listSlot = lists.slot;
    attend.listBlock = lists.block;
    attend.listCount = lists.count;
    attend.capacity = layout_.capacity;
    attend.maxBlocks = layout_.capacity;
}

void CudaEngine::measureMass(int index, const StepReport& report) {
    const Layer& layer = layers_[std::size_t(index)];
    cuda::BlockMassArgs args;
    args.shape = layout_.shape;
    args.rows = layout_.rows;
    args.position = position_;
    args.active = active_;
    args.q = q_;
    args.blocks = layer.allKeys != nullptr ? layer.allKeys : layer.offloaded ? layer.store : layer.blocks;
    args.headFirst = blockFirstDevice_;
    if (layer.offloaded && layer.allKeys == nullptr) { // the newest block's store copy comes when it is full
        args.slots = options_.slots;
        args.pool = layer.blocks;
        args.map = layer.map;
    }
    args.tokenBias = layer.index.tokenScores;
    args.biasFirst = tokenFirstDevice_;
    args.scale = model_->config.attentionScale();
    args.biasScale = spec_.bias.scale;
    args.maxBlocks = layout_.maxBlocks;
    args.window = layer.window;
    args.unit = spec_.unitTokens();
    args.logSums = blockLogSums_;
    args.mass = report.masses +
                std::size_t(index) * std::size_t(layout_.rows * layout_.kvHeads) * std::size_t(layout_.maxUnits);
    args.mark = report.mark(index, kOracle);
    cuda::measureBlockMass(launch_, args);
}

void CudaEngine::stepKernels(int which) {
    const ModelConfig& config = model_->config;
    const StepReport& report = reports_.device(which);
    stages_.at(StepStage::Embed);
    embed(next_, layout_.rows, x_, counters_, config.layers * 2, report.mark(kEmbed));
    for (int i = 0; i < config.layers; ++i) decodeLayer(i, report);
    stages_.at(StepStage::LmHead);
    linear_->run(model_->lmHead, x_, config.hidden, layout_.rows, {model_->finalNorm, config.streamNormEps()},
                 {logits_[which], config.vocab, false, nullptr, nullptr}, report.mark(kLmHead));
    stages_.at(StepStage::Sample);
    cuda::NextTokenArgs next = nextTokenArgs(logits_[which], report.tokens);
    next.mark = report.mark(kSample);
    next.endMark = report.mark(kEnd);
    cuda::nextTokens(launch_, next);
    joinAll();
    stages_.leave();
}

/// One graph per report entry: two steps may be in flight.
void CudaEngine::capture() {
    // Plans and attributes are made outside the capture; no row is active, so that nothing changes.
    cuda::check(cudaMemset(active_, 0, std::size_t(layout_.rows)), "preparing a step");
    stepKernels(0);
    cuda::check(cudaStreamSynchronize(stream_.get()), "trying a step");
    cuda::check(cudaMemset(active_, 1, std::size_t(layout_.rows)), "preparing a step");
    cuda::check(cudaDeviceSynchronize(), "preparing a step");
    for (int which = 0; which < kEntries && !oneByOne_; ++which) {
        graph_[which] = cuda::Executable::of(cuda::Graph::capture(stream_.get(), [&] { stepKernels(which); }));
        cuda::check(cudaGraphUpload(graph_[which].get(), stream_.get()), "preparing a step");
    }
    cuda::check(cudaStreamSynchronize(stream_.get()), "preparing a step");
}

std::string CudaEngine::description() const {
    const cudaDeviceProp properties = usableGpu();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return fmt::format("{}, {} multiprocessors, CUDA {}.{}, {}", properties.name, properties.multiProcessorCount,
                       driver / 1000, driver % 1000 / 10, linear_->description());
}

void CudaEngine::setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> active) {
    if (!std::equal(tokens.begin(), tokens.end(), nextHost_.begin(), nextHost_.end())) {
        nextHost_.assign(tokens.begin(), tokens.end());
        cuda::check(cudaMemcpyAsync(next_, nextHost_.data(), nextHost_.size() * sizeof(std::int32_t),
                                    cudaMemcpyHostToDevice, stream_.get()),
                    "copying the tokens");
    }
    if (!std::equal(active.begin(), active.end(), activeHost_.begin(), activeHost_.end())) {
        activeHost_.assign(active.begin(), active.end());
        cuda::check(
            cudaMemcpyAsync(active_, activeHost_.data(), activeHost_.size(), cudaMemcpyHostToDevice, stream_.get()),
            "copying the active sequences");
    }
}

std::vector<SpanRecord> CudaEngine::spans(bool all) {
    if (options_.trace == nullptr) return {};
    if (all) cuda::check(cudaStreamSynchronize(stream_.get()), "finishing");
    std::vector<SpanRecord> spans = options_.trace->collect(clock_.originNs(), all);
    for (SpanRecord& span : reader_.takeTransferSpans()) spans.push_back(std::move(span));
    return spans;
}

void CudaEngine::launch(int step) {
    if (options_.trace != nullptr) options_.trace->atStep(step);
    const int which = int(launched_ % kEntries);
    nvtxPush(nameOf(Phase::Decode), step);
    startTransferLoop(which);
    if (oneByOne_)
        stepKernels(which);
    else
        cuda::check(cudaGraphLaunch(graph_[which].get(), stream_.get()), "starting a step");
    nvtxPop();
    cuda::check(cudaEventRecord(done_[which].get(), stream_.get()), "starting a step");
    // The report goes to the host beside the next step.
    cuda::check(cudaStreamWaitEvent(copyStream_.get(), done_[which].get()), "starting a step");
    if (transferLoop_) cuda::check(cudaStreamWaitEvent(copyStream_.get(), chosen_.get()), "starting a step");
    reports_.copyOut(which, copyStream_.get());
    ++launched_;
}

void CudaEngine::wait() {
    const int which = int(waited_ % kEntries);
    reports_.wait(which);
    ++waited_;
    for (int row = 0; row < layout_.rows; ++row)
        if (activeHost_[std::size_t(row)]) nextHost_[std::size_t(row)] = reports_.host(which).tokens[row];
    logitsFetched_ = -1;
}

std::span<const std::int32_t> CudaEngine::tokens() const {
    return {reports_.host(waited_ == 0 ? 0 : int((waited_ - 1) % kEntries)).tokens, std::size_t(layout_.rows)};
}

const float* CudaEngine::logits(int sequence) {
    const auto vocab = std::size_t(model_->config.vocab);
    if (logitsFetched_ < 0) {
        logitsHost_.resize(std::size_t(layout_.rows) * vocab);
        const int which = waited_ == 0 ? 0 : int((waited_ - 1) % kEntries);
        cuda::check(cudaMemcpyAsync(logitsHost_.data(), logits_[which], logitsHost_.size() * sizeof(float),
                                    cudaMemcpyDeviceToHost, copyStream_.get()),
                    "copying the logits");
        cuda::check(cudaStreamSynchronize(copyStream_.get()), "copying the logits");
        logitsFetched_ = which;
    }
    return logitsHost_.data() + std::size_t(sequence) * vocab;
}

} // namespace kvscope

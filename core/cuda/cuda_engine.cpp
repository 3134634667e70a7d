#include "core/cuda/cuda_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <numeric>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kPrefillChunk = 2048;     // tokens projected together
constexpr int kSparsePrefillRows = 256; // query tokens selected and attended together

} // namespace

cudaDeviceProp usableGpu() {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
        cudaGetLastError();
        throw Error(ErrorKind::Device,
                    fmt::format("there is no NVIDIA GPU that KVScope can use ({})",
                                code == cudaSuccess ? "none was found" : cudaGetErrorString(code)),
                    "use --backend cpu, or install the NVIDIA driver");
    }
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU's properties");
    if (properties.major < 8)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{} has compute capability {}.{}; KVScope needs 8.0", properties.name, properties.major,
                                properties.minor),
                    "use --backend cpu, or a GPU of the Ampere generation or later");
    return properties;
}

CudaEngine::CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options)
    : model_(std::move(model)), options_(std::move(options)), spec_(options_.spec),
      rows_(int(options_.maxTokens.size())), kvHeads_(model_->config.kvHeads), dim_(model_->config.headDim) {
    const ModelConfig& config = model_->config;
    shape_ = {config.queryHeads, kvHeads_, dim_, spec_.blockSize};
    cuda::checkAttentionShape(shape_);
    for (int i = 0; i < config.layers; ++i)
        for (const int tokens : options_.maxTokens)
            if (const int window = config.windowOf(i); window > 0 && tokens > window)
                throw Error(ErrorKind::Unsupported,
                            fmt::format("the GPU backend has no sliding window: {} tokens are more than the window of "
                                        "{} tokens in layer {}",
                                        tokens, window, i),
                            "use --backend cpu, or a prompt that stays within the window");
    if (spec_.grid.kernel > 256 || spec_.grid.stride < 1)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("windows of {} tokens are too long for the GPU backend", spec_.grid.kernel),
                    "use --backend cpu, or windows of at most 256 tokens");
    const cudaDeviceProp gpu = usableGpu();
    launch_.multiprocessors = gpu.multiProcessorCount;
    launch_.clusters = gpu.major >= 9;
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "opening a stream");
    cuda::check(cudaStreamCreateWithFlags(&copyStream_, cudaStreamNonBlocking), "opening a stream");
    for (cudaEvent_t& event : done_)
        cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    for (cudaEvent_t& event : reported_)
        cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    for (cudaEvent_t& event : copied_)
        cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    cuda::check(cudaEventCreateWithFlags(&computed_, cudaEventDisableTiming), "making an event");
    launch_.stream = stream_;
    ropeTables_ = RopeTables(config.rope, options_.promptTokens.empty() ? options_.maxTokens : options_.promptTokens,
                             options_.maxTokens);
    blockElements_ = cuda::blockElements(spec_.blockSize, dim_);
    layOut();
    planMemory();
    nextHost_.assign(std::size_t(rows_), 0);
    activeHost_.assign(std::size_t(rows_), 1);
    cuda::check(cudaMemset(active_, 1, std::size_t(rows_)), "preparing the session");
    calibrateClock();
    capture();
}

CudaEngine::~CudaEngine() {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    if (copyStream_ != nullptr) cudaStreamSynchronize(copyStream_);
    for (cudaGraphExec_t graph : graph_)
        if (graph != nullptr) cudaGraphExecDestroy(graph);
    for (cudaEvent_t event : {done_[0], done_[1], reported_[0], reported_[1], copied_[0], copied_[1], computed_})
        if (event != nullptr) cudaEventDestroy(event);
    linear_.reset();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (copyStream_ != nullptr) cudaStreamDestroy(copyStream_);
}

/// Where each (sequence, KV head) begins in the store, among the windows and among the tokens.
void CudaEngine::layOut() {
    for (const int tokens : options_.maxTokens) {
        const int blocks = spec_.grid.blocks(tokens);
        maxBlocks_ = std::max(maxBlocks_, blocks);
        for (int g = 0; g < kvHeads_; ++g) {
            blockFirst_.push_back(blocksTotal_);
            windowFirst_.push_back(windowsTotal_);
            tokenFirst_.push_back(tokensTotal_);
            blocksTotal_ += blocks;
            windowsTotal_ += spec_.grid.windows(tokens);
            tokensTotal_ += std::int64_t(blocks) * spec_.blockSize;
        }
    }
    const int wanted = std::max(spec_.budgetBlocks(), spec_.grid.blocks(spec_.denseBelowTokens));
    capacity_ = spec_.dense ? 0 : std::min(wanted, maxBlocks_);
    chunk_ = std::max(rows_, std::min(options_.maxPrompt, kPrefillChunk));
    selectRows_ = spec_.sparsePrefill ? std::max(rows_, std::min(options_.maxPrompt, kSparsePrefillRows)) : rows_;
}

void CudaEngine::planMemory() {
    const ModelConfig& config = model_->config;
    const auto rows = std::size_t(rows_), chunk = std::size_t(chunk_), heads = rows * std::size_t(kvHeads_);
    const auto qWidth = std::size_t(config.queryHeads * dim_), kvWidth = std::size_t(kvHeads_ * dim_);
    const bool anyOffloaded = std::count(options_.offloaded.begin(), options_.offloaded.end(), true) > 0;
    const auto bitmapBytes = std::size_t(cuda::selectionBitmapBytes(maxBlocks_));

    layers_.resize(std::size_t(config.layers));
    for (int i = 0; i < config.layers; ++i) {
        Layer& layer = layers_[std::size_t(i)];
        layer.sparse = !spec_.dense && i >= spec_.denseLayers;
        layer.offloaded = options_.offloaded[std::size_t(i)];
        if (layer.offloaded) {
            arena_.plan(layer.blocks, heads * std::size_t(options_.slots) * blockElements_, "KV slots");
            arena_.plan(layer.map, heads * std::size_t(options_.slots), "slot maps");
            if (options_.leastRecentlyUsed)
                arena_.plan(layer.lastUse, heads * std::size_t(options_.slots), "slot maps");
        } else {
            arena_.plan(layer.blocks, std::size_t(blocksTotal_) * blockElements_, "resident KV cache");
        }
        cuda::DeviceIndex& index = layer.index;
        index.kernel = spec_.grid.kernel;
        index.stride = spec_.grid.stride;
        index.exponentiates = spec_.agnosticScore == AgnosticScore::ExpEviction;
        const bool indexed = options_.indexed[std::size_t(i)];
        if (indexed && spec_.queryScore == QueryScore::PooledSoftmax) {
            arena_.plan(index.recentKeys, heads * std::size_t(index.kernel) * std::size_t(dim_), "block index");
            arena_.plan(index.pooledKeys, std::size_t(windowsTotal_) * std::size_t(dim_), "block index");
        }
        if (indexed && spec_.agnosticScore != AgnosticScore::None) {
            arena_.plan(index.recentScores, heads * std::size_t(index.kernel), "block index");
            arena_.plan(index.pooledScores, std::size_t(windowsTotal_), "block index");
        }
        if (indexed && spec_.queryScore == QueryScore::RangeBound)
            arena_.plan(index.ranges, std::size_t(blocksTotal_) * 2 * std::size_t(dim_), "block index");
        if (model_->evictionHead) arena_.plan(index.tokenScores, std::size_t(tokensTotal_), "eviction scores");
        if (layer.sparse && options_.record) {
            arena_.plan(layer.previous, heads * bitmapBytes, "recorder state");
            arena_.plan(layer.hasPrevious, heads, "recorder state");
        }
    }
    arena_.plan(x_, rows * std::size_t(config.hidden), "activations");
    arena_.plan(promptX_, std::size_t(options_.maxPrompt) * std::size_t(config.hidden), "prompt activations");
    arena_.plan(promptIds_, std::size_t(options_.maxPrompt), "prompt activations");
    arena_.plan(promptPositions_, std::size_t(options_.maxPrompt), "prompt activations");
    arena_.plan(qkv_, chunk * (qWidth + 2 * kvWidth), "activations");
    arena_.plan(q_, chunk * qWidth, "activations");
    arena_.plan(attended_, chunk * qWidth, "activations");
    arena_.plan(hidden_, chunk * std::size_t(config.ffn), "activations");
    arena_.plan(newKey_, rows * kvWidth, "activations");
    arena_.plan(newValue_, rows * kvWidth, "activations");
    for (float*& logits : logits_) arena_.plan(logits, rows * std::size_t(config.vocab), "activations");
    if (anyOffloaded)
        for (Bf16*& scratch : scratch_)
            arena_.plan(scratch, std::size_t(kvHeads_) * std::size_t(maxBlocks_) * blockElements_, "prompt KV");
    arena_.plan(position_, rows, "session state");
    arena_.plan(ropeFirst_, rows, "session state");
    const std::size_t angles = std::size_t(ropeTables_.rows()) * std::size_t(dim_ / 2);
    arena_.plan(ropeCos_, angles, "rotary tables");
    arena_.plan(ropeSin_, angles, "rotary tables");
    arena_.plan(next_, rows, "session state");
    arena_.plan(active_, rows, "session state");
    const std::size_t lists = std::size_t(selectRows_) * std::size_t(kvHeads_);
    arena_.plan(listBlock_, lists * std::size_t(std::max(capacity_, 1)), "selections");
    arena_.plan(listSlot_, lists * std::size_t(std::max(capacity_, 1)), "selections");
    arena_.plan(listCount_, lists, "selections");
    arena_.plan(loads_, heads * std::size_t(std::max(capacity_, 1)), "selections");
    arena_.plan(writeBacks_, heads, "selections");
    arena_.plan(counters_, std::size_t(config.layers) * 2, "session state");
    std::size_t partial = 0;
    for (const int n : {rows_, selectRows_})
        for (const int blocks : {maxBlocks_, std::max(capacity_, 1)})
            partial = std::max(partial, cuda::attentionPartialFloats(launch_, shape_, n, blocks));
    arena_.plan(partial_, partial, "activations");
    arena_.plan(arrivals_, cuda::attentionArrivals(shape_, selectRows_), "session state");
    Entry sizes;
    reportBytes_ = placeEntry(sizes, nullptr);
    tokenBytes_ = rows * sizeof(std::int32_t);
    arena_.plan(reportDevice_, reportBytes_ * kEntries, "recorder's buffer");
    arena_.plan(blockFirstDevice_, heads, "session state");
    arena_.plan(windowFirstDevice_, heads, "session state");
    arena_.plan(tokenFirstDevice_, heads, "session state");
    arena_.plan(poolFirstDevice_, heads, "session state");
    linear_ = std::make_unique<cuda::Linear>(launch_, chunk_, std::max(config.hidden, 1), options_.useLibrary);
    linear_->prepare(layers_.empty() ? cuda::DeviceMatrix{} : model_->layers.front().gateUp, chunk_,
                     {nullptr, 0, false, nullptr, hidden_ == nullptr ? reinterpret_cast<Bf16*>(1) : hidden_});
    arena_.take();

    const auto copy = [](auto* to, const auto* from, std::size_t count) {
        cuda::check(cudaMemcpy(to, from, count * sizeof(*to), cudaMemcpyHostToDevice), "preparing the session");
    };
    copy(ropeCos_, ropeTables_.cos(), angles);
    copy(ropeSin_, ropeTables_.sin(), angles);
    std::vector<std::int32_t> ropeFirst;
    for (int s = 0; s < rows_; ++s) ropeFirst.push_back(ropeTables_.first(s));
    copy(ropeFirst_, ropeFirst.data(), rows);

    // The host store of the offloaded layers, in one piece.
    const std::size_t layerElements = std::size_t(blocksTotal_) * blockElements_;
    const auto offloadedLayers = std::size_t(std::count(options_.offloaded.begin(), options_.offloaded.end(), true));
    storeBytes_ = offloadedLayers * layerElements * sizeof(Bf16);
    const bool borrowed = options_.store != nullptr && options_.store->bytes() >= storeBytes_;
    if (!borrowed) store_ = PinnedMemory(storeBytes_, "the KV store");
    Bf16* const store = static_cast<Bf16*>(borrowed ? options_.store->data() : store_.data());
    std::size_t next = 0;
    for (int i = 0; i < config.layers; ++i) {
        Layer& layer = layers_[std::size_t(i)];
        layer.counts = counters_ + 2 * i;
        layer.index.windowFirst = windowFirstDevice_;
        layer.index.blockFirst = blockFirstDevice_;
        layer.index.tokenFirst = tokenFirstDevice_;
        if (!layer.offloaded) continue;
        layer.storeHost = store + next++ * layerElements;
        void* seen = nullptr;
        cuda::check(cudaHostGetDevicePointer(&seen, layer.storeHost, 0), "mapping the KV store");
        layer.store = static_cast<const Bf16*>(seen);
        cuda::check(cudaMemset(layer.map, 0xff, heads * std::size_t(options_.slots) * sizeof(std::int32_t)),
                    "preparing the slot maps");
        if (layer.lastUse != nullptr)
            cuda::check(cudaMemset(layer.lastUse, 0xff, heads * std::size_t(options_.slots) * sizeof(std::int32_t)),
                        "preparing the slot maps");
    }
    const auto upload = [&](std::int64_t* to, const std::vector<std::int64_t>& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    upload(blockFirstDevice_, blockFirst_);
    upload(windowFirstDevice_, windowFirst_);
    upload(tokenFirstDevice_, tokenFirst_);
    std::vector<std::int64_t> pool(heads);
    for (std::size_t i = 0; i < heads; ++i) pool[i] = std::int64_t(i) * options_.slots;
    upload(poolFirstDevice_, pool);
    std::vector<std::int32_t> counting(std::size_t(options_.maxPrompt));
    std::iota(counting.begin(), counting.end(), 0);
    cuda::check(
        cudaMemcpy(promptPositions_, counting.data(), counting.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
        "preparing the session");

    // The host's copy of what steps report, and the prompt's marks.
    report_ = PinnedMemory(reportBytes_ * kEntries, "the recorder's buffer");
    for (int i = 0; i < kEntries; ++i) {
        placeEntry(device_[i], reportDevice_ + reportBytes_ * std::size_t(i));
        placeEntry(host_[i], static_cast<char*>(report_.data()) + reportBytes_ * std::size_t(i));
    }
    const std::size_t chunks = std::size_t((options_.maxPrompt + kPrefillChunk - 1) / kPrefillChunk);
    promptReport_ =
        PinnedMemory(std::size_t(config.layers) * chunks * kMarks * sizeof(std::uint64_t), "the recorder's buffer");
    for (int i = 0; i < config.layers; ++i)
        promptMarks_.push_back(static_cast<std::uint64_t*>(promptReport_.data()) + std::size_t(i) * chunks * kMarks);
}

/// Lays an entry out from `base`. @return its bytes
std::size_t CudaEngine::placeEntry(Entry& entry, char* base) const {
    std::size_t at = 0;
    const auto take = [&](auto*& pointer, std::size_t count) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + at);
        at += (count * sizeof(*pointer) + 63) / 64 * 64;
    };
    const auto rows = std::size_t(rows_), layers = std::size_t(model_->config.layers),
               heads = rows * std::size_t(kvHeads_);
    take(entry.tokens, rows);
    take(entry.marks, layers * kMarks);
    take(entry.stepMarks, kStepMarks);
    take(entry.heads, layers * heads);
    take(entry.counts, layers * 2);
    const bool selections = options_.record && !spec_.dense && options_.level != RecordLevel::Counters;
    if (selections) take(entry.blocks, layers * heads * std::size_t(capacity_));
    if (selections && options_.level == RecordLevel::Full) take(entry.scores, layers * heads * std::size_t(capacity_));
    return at;
}

void CudaEngine::calibrateClock() {
    // The tightest of several brackets: host clock before, GPU timer, host clock after.
    std::uint64_t* mark = promptMarks_.front();
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 20; ++i) {
        cuda::check(cudaStreamSynchronize(stream_), "reading the GPU's clock");
        const std::int64_t before = steadyNowNs();
        cuda::stampNow(launch_, mark);
        cuda::check(cudaStreamSynchronize(stream_), "reading the GPU's clock");
        const std::int64_t after = steadyNowNs();
        if (after - before >= best) continue;
        best = after - before;
        clockOffset_ = before + (after - before) / 2 - std::int64_t(*mark);
    }
    originNs_ = steadyNowNs();
}

cuda::SelectArgs CudaEngine::selectArgs(int index) const {
    const Layer& layer = layers_[std::size_t(index)];
    cuda::SelectArgs args;
    args.shape = shape_;
    args.q = q_;
    args.index = layer.index;
    args.maxBlocks = maxBlocks_;
    args.score = spec_.queryScore == QueryScore::PooledSoftmax ? cuda::SelectArgs::Score::PooledSoftmax
                 : spec_.queryScore == QueryScore::RangeBound  ? cuda::SelectArgs::Score::RangeBound
                                                               : cuda::SelectArgs::Score::None;
    args.agnostic = spec_.agnosticScore != AgnosticScore::None;
    args.rangeReduce = spec_.rangeReduce;
    args.budget = spec_.budget;
    args.denseBelowTokens = spec_.denseBelowTokens;
    args.scale = model_->config.attentionScale();
    args.planted = options_.planted;
    args.capacity = capacity_;
    args.listBlock = listBlock_;
    args.listCount = listCount_;
    return args;
}

void CudaEngine::finishLayer(int index, float* x, int n, std::uint64_t* oMark, std::uint64_t* ffnMark) {
    const ModelConfig& config = model_->config;
    const DeviceLayer& weights = model_->layers[std::size_t(index)];
    atStage(index, nameOf(Stage::OLinear));
    linear_->run(weights.o, attended_, n, {x, config.hidden, true, weights.oBias, nullptr}, oMark);
    atStage(index, nameOf(Stage::Ffn));
    linear_->run(weights.gateUp, x, config.hidden, n, {weights.postNorm, config.streamNormEps()},
                 {nullptr, 0, false, nullptr, hidden_}, ffnMark);
    linear_->run(weights.down, hidden_, n, {x, config.hidden, true, nullptr, nullptr});
}

void CudaEngine::decodeLayer(int index, const Entry& entry) {
    const ModelConfig& config = model_->config;
    const DeviceLayer& weights = model_->layers[std::size_t(index)];
    const Layer& layer = layers_[std::size_t(index)];
    const int width = (config.queryHeads + 2 * kvHeads_) * dim_;
    atStage(index, nameOf(Stage::QkvLinear));
    linear_->run(weights.qkv, x_, config.hidden, rows_, {weights.inputNorm, config.streamNormEps()},
                 {qkv_, width, false, weights.qkvBias, nullptr}, mark(entry, index, kQkv));
    cuda::AppendArgs append;
    append.shape = shape_;
    append.qkv = qkv_;
    append.cos = ropeCos_;
    append.sin = ropeSin_;
    append.ropeFirst = ropeFirst_;
    append.eviction = weights.eviction;
    append.norms = weights.headNorms;
    append.q = q_;
    append.index = layer.index;
    append.rows = rows_;
    append.position = position_;
    append.active = active_;
    if (layer.offloaded) {
        append.newKey = newKey_;
        append.newValue = newValue_;
    } else {
        append.blocks = layer.blocks;
        append.headFirst = blockFirstDevice_;
    }
    append.marks[0] = mark(entry, index, kRope);
    if (options_.indexed[std::size_t(index)]) append.marks[1] = mark(entry, index, kCompression);
    atStage(index, nameOf(Stage::Rope));
    cuda::rotateAndAppend(launch_, append);

    cuda::DecodeAttentionArgs attend;
    attend.shape = shape_;
    attend.rows = rows_;
    attend.position = position_;
    attend.active = active_;
    attend.q = q_;
    attend.blocks = layer.blocks;
    attend.headFirst = layer.offloaded ? poolFirstDevice_ : blockFirstDevice_;
    attend.maxBlocks = maxBlocks_;
    if (layer.sparse) {
        cuda::SelectArgs select = selectArgs(index);
        const std::size_t heads = std::size_t(rows_) * std::size_t(kvHeads_);
        select.rows = rows_;
        select.position = position_;
        select.active = active_;
        if (layer.offloaded) {
            select.slots = options_.slots;
            select.map = layer.map;
            select.lastUse = layer.lastUse;
            select.pool = layer.blocks;
            select.newKey = newKey_;
            select.newValue = newValue_;
            select.storeFirst = blockFirstDevice_;
            select.moves = {loads_, writeBacks_, layer.counts};
            select.listSlot = listSlot_;
        }
        if (options_.record) {
            select.previous = layer.previous;
            select.hasPrevious = layer.hasPrevious;
            select.recordHead = entry.heads + std::size_t(index) * heads;
            if (entry.blocks != nullptr)
                select.recordBlocks = entry.blocks + std::size_t(index) * heads * std::size_t(capacity_);
            if (entry.scores != nullptr)
                select.recordScores = entry.scores + std::size_t(index) * heads * std::size_t(capacity_);
            select.marks[0] = mark(entry, index, kStage1);
            select.marks[1] = mark(entry, index, kPooling);
            select.marks[2] = mark(entry, index, kOffloading);
        }
        atStage(index, nameOf(Stage::Stage1)); // and pooling, and the set difference: one kernel
        cuda::selectBlocksOnDevice(launch_, select);
        if (layer.offloaded) {
            cuda::GatherArgs gather;
            gather.shape = shape_;
            gather.moves = select.moves;
            gather.store = layer.store;
            gather.storeOut = const_cast<Bf16*>(layer.store);
            gather.pool = layer.blocks;
            if (options_.record) gather.recordCounts = entry.counts + 2 * index;
            gather.mark = mark(entry, index, kGather);
            atStage(index, nameOf(Stage::Offloading));
            cuda::gatherBlocks(launch_, gather);
            attend.listSlot = listSlot_;
        }
        attend.listBlock = listBlock_;
        attend.listCount = listCount_;
        attend.capacity = capacity_;
        attend.maxBlocks = capacity_;
    }
    attend.tokenBias = layer.index.tokenScores;
    attend.biasFirst = tokenFirstDevice_;
    attend.scale = model_->config.attentionScale();
    attend.biasScale = spec_.bias.scale;
    attend.out = attended_;
    attend.partial = partial_;
    attend.arrivals = arrivals_;
    attend.mark = mark(entry, index, kAttention);
    atStage(index, nameOf(layer.sparse ? Stage::Stage2 : Stage::Attention));
    cuda::decodeAttention(launch_, attend);
    finishLayer(index, x_, rows_, mark(entry, index, kOLinear), mark(entry, index, kFfn));
}

void CudaEngine::stepKernels(int which) {
    const ModelConfig& config = model_->config;
    const Entry& entry = device_[which];
    atStage(-1, kStepStageNames[std::size_t(StepStage::Embed)]);
    cuda::embedTokens(launch_, model_->embedding.data, config.hidden, next_, rows_, x_, config.streamEmbeddingScale(),
                      counters_, config.layers * 2, mark(entry, kEmbed));
    for (int i = 0; i < config.layers; ++i) decodeLayer(i, entry);
    atStage(-1, kStepStageNames[std::size_t(StepStage::LmHead)]);
    linear_->run(model_->lmHead, x_, config.hidden, rows_, {model_->finalNorm, config.streamNormEps()},
                 {logits_[which], config.vocab, false, nullptr, nullptr}, mark(entry, kLmHead));
    atStage(-1, kStepStageNames[std::size_t(StepStage::Sample)]);
    cuda::nextTokens(launch_, {logits_[which], rows_, config.vocab, next_, position_, active_, entry.tokens,
                               mark(entry, kSample), mark(entry, kEnd)});
}

/// One graph per report entry: two steps may be in flight.
void CudaEngine::capture() {
    // Plans and attributes are made outside the capture; no row is active, so that nothing changes.
    cuda::check(cudaMemset(active_, 0, std::size_t(rows_)), "preparing a step");
    stepKernels(0);
    cuda::check(cudaStreamSynchronize(stream_), "trying a step");
    cuda::check(cudaMemset(active_, 1, std::size_t(rows_)), "preparing a step");
    cuda::check(cudaDeviceSynchronize(), "preparing a step");
    for (int which = 0; which < kEntries; ++which) {
        cudaGraph_t graph = nullptr;
        cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a step");
        try {
            stepKernels(which);
        } catch (...) {
            cudaStreamEndCapture(stream_, &graph);
            if (graph != nullptr) cudaGraphDestroy(graph);
            throw;
        }
        cuda::check(cudaStreamEndCapture(stream_, &graph), "recording a step");
        cuda::check(cudaGraphInstantiate(&graph_[which], graph, 0), "preparing a step");
        cudaGraphDestroy(graph);
        cuda::check(cudaGraphUpload(graph_[which], stream_), "preparing a step");
    }
    cuda::check(cudaStreamSynchronize(stream_), "preparing a step");
}

std::string CudaEngine::description() const {
    const cudaDeviceProp properties = usableGpu();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return fmt::format("{}, {} multiprocessors, CUDA {}.{}, {}", properties.name, properties.multiProcessorCount,
                       driver / 1000, driver % 1000 / 10, linear_->description());
}

void CudaEngine::prefillAttend(int index, int sequence, int first, int n, const Bf16* blocks, std::int64_t headStride) {
    const Layer& layer = layers_[std::size_t(index)];
    const std::size_t head = std::size_t(sequence) * std::size_t(kvHeads_);
    const std::int64_t biasStride = kvHeads_ > 1 ? tokenFirst_[head + 1] - tokenFirst_[head] : 0;
    if (!(spec_.sparsePrefill && layer.sparse)) {
        cuda::PrefillAttentionArgs args;
        args.shape = shape_;
        args.n = n;
        args.firstPosition = first;
        args.q = q_;
        args.blocks = blocks;
        args.headStride = headStride;
        if (layer.index.tokenScores != nullptr) args.tokenBias = layer.index.tokenScores + tokenFirst_[head];
        args.biasStride = biasStride;
        args.scale = model_->config.attentionScale();
        args.biasScale = spec_.bias.scale;
        args.out = attended_;
        cuda::prefillAttention(launch_, args);
        return;
    }
    // Lists of (token, KV head) over the blocks of this one sequence: head g begins at g*headStride.
    for (int start = 0; start < n; start += selectRows_) {
        const int count = std::min(selectRows_, n - start);
        const std::size_t width = std::size_t(shape_.queryHeads) * std::size_t(dim_);
        cuda::SelectArgs select = selectArgs(index);
        select.rows = count;
        select.position = promptPositions_ + first + start;
        select.q = q_ + std::size_t(start) * width;
        select.oneSequence = true;
        select.sequence = sequence;
        cuda::selectBlocksOnDevice(launch_, select);
        cuda::DecodeAttentionArgs attend;
        attend.shape = shape_;
        attend.rows = count;
        attend.position = select.position;
        attend.q = select.q;
        attend.oneSequence = true;
        attend.sequence = sequence;
        // headFirst counts from the store's begin: shift so that this sequence's blocks fall on the scratch.
        attend.blocks = blocks - std::size_t(blockFirst_[head]) * blockElements_;
        attend.headFirst = blockFirstDevice_;
        attend.listBlock = listBlock_;
        attend.listCount = listCount_;
        attend.capacity = capacity_;
        attend.maxBlocks = capacity_;
        attend.tokenBias = layer.index.tokenScores;
        attend.biasFirst = tokenFirstDevice_;
        attend.scale = select.scale;
        attend.biasScale = spec_.bias.scale;
        attend.out = attended_ + std::size_t(start) * width;
        attend.partial = partial_;
        attend.arrivals = arrivals_;
        cuda::decodeAttention(launch_, attend);
    }
}

void CudaEngine::prefillSequence(int sequence, const std::vector<std::int32_t>& prompt, StepRecord& record,
                                 const Progress& progress, double begin, double end, const std::stop_token& stop) {
    const ModelConfig& config = model_->config;
    const int length = int(prompt.size()), width = (config.queryHeads + 2 * kvHeads_) * dim_;
    const std::size_t head = std::size_t(sequence) * std::size_t(kvHeads_);
    const std::size_t angles = std::size_t(ropeTables_.first(sequence)) * std::size_t(dim_ / 2);
    const int sequenceBlocks = spec_.grid.blocks(options_.maxTokens[std::size_t(sequence)]);
    const std::int64_t headStride = std::int64_t(sequenceBlocks) * std::int64_t(blockElements_);
    cuda::check(cudaMemcpyAsync(promptIds_, prompt.data(), prompt.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                stream_),
                "copying the prompt");
    cuda::embedTokens(launch_, model_->embedding.data, config.hidden, promptIds_, length, promptX_,
                      config.streamEmbeddingScale());
    for (int i = 0; i < config.layers; ++i) {
        throwIfCancelled(stop);
        report(progress, begin + (end - begin) * i / config.layers, "reading the prompt");
        const DeviceLayer& weights = model_->layers[std::size_t(i)];
        const Layer& layer = layers_[std::size_t(i)];
        Bf16* blocks =
            layer.offloaded ? scratch_[i % 2] : layer.blocks + std::size_t(blockFirst_[head]) * blockElements_;
        if (layer.offloaded) cuda::check(cudaStreamWaitEvent(stream_, copied_[i % 2]), "waiting for a copy");
        for (int first = 0; first < length; first += kPrefillChunk) {
            const int n = std::min(kPrefillChunk, length - first);
            std::uint64_t* marks = promptMarks_[std::size_t(i)] + first / kPrefillChunk * kMarks;
            const auto stamp = [&](Mark which) { cuda::stampNow(launch_, marks + which); };
            float* x = promptX_ + std::size_t(first) * std::size_t(config.hidden);
            atStage(i, nameOf(Stage::QkvLinear));
            stamp(kQkv);
            linear_->run(weights.qkv, x, config.hidden, n, {weights.inputNorm, config.streamNormEps()},
                         {qkv_, width, false, weights.qkvBias, nullptr});
            cuda::PromptArgs rotate;
            rotate.shape = shape_;
            rotate.qkv = qkv_;
            rotate.cos = ropeCos_ + angles;
            rotate.sin = ropeSin_ + angles;
            rotate.eviction = weights.eviction;
            rotate.norms = weights.headNorms;
            rotate.q = q_;
            rotate.index = layer.index;
            rotate.n = n;
            rotate.firstPosition = first;
            rotate.sequence = sequence;
            rotate.blocks = blocks;
            rotate.headStride = headStride;
            atStage(i, nameOf(Stage::Rope));
            stamp(kRope);
            cuda::rotatePrompt(launch_, rotate);
            atStage(i, nameOf(Stage::Compression));
            stamp(kCompression);
            if (options_.indexed[std::size_t(i)]) cuda::indexPrompt(launch_, rotate);
            atStage(i, nameOf(Stage::Attention));
            stamp(kAttention);
            prefillAttend(i, sequence, first, n, blocks, headStride);
            stamp(kOLinear);
            finishLayer(i, x, n, nullptr, marks + kFfn);
            stamp(kGather); // the end of the layer's chunk
        }
        LayerRecord& out = record.layers[std::size_t(i)];
        if (layer.offloaded) {
            cuda::placeTail(launch_, shape_, blocks, headStride, sequence, length, layer.blocks, options_.slots,
                            layer.map, layer.lastUse);
            // Full blocks stream to the host while the next layer computes.
            cuda::check(cudaEventRecord(computed_, stream_), "marking a layer");
            cuda::check(cudaStreamWaitEvent(copyStream_, computed_), "waiting for a layer");
            const std::size_t full = std::size_t(length / spec_.blockSize);
            for (int g = 0; g < kvHeads_ && full > 0; ++g)
                cuda::check(
                    cudaMemcpyAsync(layer.storeHost + std::size_t(blockFirst_[head + std::size_t(g)]) * blockElements_,
                                    blocks + std::size_t(g) * std::size_t(headStride),
                                    full * blockElements_ * sizeof(Bf16), cudaMemcpyDeviceToHost, copyStream_),
                    "copying KV blocks to the host");
            cuda::check(cudaEventRecord(copied_[i % 2], copyStream_), "marking a copy");
            out.d2hBlocks += int(full) * kvHeads_;
        }
        cuda::check(cudaStreamSynchronize(stream_), "reading the prompt");
        for (int first = 0; first < length; first += kPrefillChunk) {
            const std::uint64_t* marks = promptMarks_[std::size_t(i)] + first / kPrefillChunk * kMarks;
            if (out.startNs == 0) out.startNs = hostTime(marks[kQkv]) - originNs_;
            const auto add = [&](Stage stage, Mark from, Mark to) {
                out.stageNs[std::size_t(stage)] += std::int64_t(marks[to] - marks[from]);
            };
            add(Stage::QkvLinear, kQkv, kRope);
            add(Stage::Rope, kRope, kCompression);
            add(Stage::Compression, kCompression, kAttention);
            add(Stage::Attention, kAttention, kOLinear);
            add(Stage::OLinear, kOLinear, kFfn);
            add(Stage::Ffn, kFfn, kGather);
        }
    }
    cuda::check(cudaMemcpyAsync(x_ + std::size_t(sequence) * std::size_t(config.hidden),
                                promptX_ + std::size_t(length - 1) * std::size_t(config.hidden),
                                std::size_t(config.hidden) * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
                "keeping the last token");
}

void CudaEngine::prefill(const std::vector<std::vector<std::int32_t>>& prompts, StepRecord& record,
                         const Progress& progress, const std::stop_token& stop) {
    const ModelConfig& config = model_->config;
    record.layers.assign(std::size_t(config.layers), {});
    if (options_.trace != nullptr) options_.trace->atStep(0);
    const std::int64_t begin = steadyNowNs();
    record.startNs = begin - originNs_;
    double total = 0, done = 0;
    for (const auto& prompt : prompts) total += double(prompt.size());
    for (int s = 0; s < rows_; ++s) {
        const auto& prompt = prompts[std::size_t(s)];
        prefillSequence(s, prompt, record, progress, done / total, (done + double(prompt.size())) / total, stop);
        done += double(prompt.size());
    }
    std::vector<std::int32_t> last;
    for (const auto& prompt : prompts) last.push_back(int(prompt.size()) - 1);
    cuda::check(
        cudaMemcpyAsync(position_, last.data(), last.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice, stream_),
        "copying the positions");
    const Entry& entry = device_[0];
    std::uint64_t* marks = promptMarks_.front();
    cuda::stampNow(launch_, marks);
    linear_->run(model_->lmHead, x_, config.hidden, rows_, {model_->finalNorm, config.streamNormEps()},
                 {logits_[0], config.vocab, false, nullptr, nullptr});
    cuda::stampNow(launch_, marks + 1);
    cuda::nextTokens(launch_,
                     {logits_[0], rows_, config.vocab, next_, position_, active_, entry.tokens, nullptr, marks + 2});
    cuda::check(cudaStreamSynchronize(stream_), "reading the prompt");
    cuda::check(cudaStreamSynchronize(copyStream_), "copying KV blocks to the host");
    cuda::check(cudaMemcpy(host_[0].tokens, entry.tokens, tokenBytes_, cudaMemcpyDeviceToHost),
                "reading the first tokens");
    std::copy_n(host_[0].tokens, rows_, nextHost_.begin());
    record.stepStageNs[std::size_t(StepStage::LmHead)] = std::int64_t(marks[1] - marks[0]);
    record.stepStageNs[std::size_t(StepStage::Sample)] = std::int64_t(marks[2] - marks[1]);
    for (LayerRecord& layer : record.layers)
        layer.d2hBytes = layer.d2hBlocks * std::int64_t(blockElements_ * sizeof(Bf16));
    record.durationNs = steadyNowNs() - begin;
    launched_ = waited_ = 0;
    logitsFetched_ = -1;
}

void CudaEngine::setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> active) {
    if (!std::equal(tokens.begin(), tokens.end(), nextHost_.begin(), nextHost_.end())) {
        nextHost_.assign(tokens.begin(), tokens.end());
        cuda::check(cudaMemcpyAsync(next_, nextHost_.data(), nextHost_.size() * sizeof(std::int32_t),
                                    cudaMemcpyHostToDevice, stream_),
                    "copying the tokens");
    }
    if (!std::equal(active.begin(), active.end(), activeHost_.begin(), activeHost_.end())) {
        activeHost_.assign(active.begin(), active.end());
        cuda::check(cudaMemcpyAsync(active_, activeHost_.data(), activeHost_.size(), cudaMemcpyHostToDevice, stream_),
                    "copying the active sequences");
    }
}

std::vector<SpanRecord> CudaEngine::spans(bool all) {
    if (options_.trace == nullptr) return {};
    if (all) cuda::check(cudaStreamSynchronize(stream_), "finishing");
    return options_.trace->collect(originNs_, all);
}

void CudaEngine::launch(int step) {
    if (options_.trace != nullptr) options_.trace->atStep(step);
    const int which = int(launched_ % kEntries);
    cuda::check(cudaGraphLaunch(graph_[which], stream_), "starting a step");
    cuda::check(cudaEventRecord(done_[which], stream_), "starting a step");
    // The report goes to the host beside the next step.
    cuda::check(cudaStreamWaitEvent(copyStream_, done_[which]), "starting a step");
    cuda::check(cudaMemcpyAsync(host_[which].tokens, device_[which].tokens,
                                options_.record ? reportBytes_ : tokenBytes_, cudaMemcpyDeviceToHost, copyStream_),
                "copying a step's report");
    cuda::check(cudaEventRecord(reported_[which], copyStream_), "starting a step");
    ++launched_;
}

void CudaEngine::wait() {
    const int which = int(waited_ % kEntries);
    cuda::check(cudaEventSynchronize(reported_[which]), "decoding");
    ++waited_;
    for (int row = 0; row < rows_; ++row)
        if (activeHost_[std::size_t(row)]) nextHost_[std::size_t(row)] = host_[which].tokens[row];
    logitsFetched_ = -1;
}

std::span<const std::int32_t> CudaEngine::tokens() const {
    return {host_[waited_ == 0 ? 0 : (waited_ - 1) % kEntries].tokens, std::size_t(rows_)};
}

const float* CudaEngine::logits(int sequence) {
    const auto vocab = std::size_t(model_->config.vocab);
    if (logitsFetched_ < 0) {
        logitsHost_.resize(std::size_t(rows_) * vocab);
        const int which = waited_ == 0 ? 0 : int((waited_ - 1) % kEntries);
        cuda::check(cudaMemcpyAsync(logitsHost_.data(), logits_[which], logitsHost_.size() * sizeof(float),
                                    cudaMemcpyDeviceToHost, copyStream_),
                    "copying the logits");
        cuda::check(cudaStreamSynchronize(copyStream_), "copying the logits");
        logitsFetched_ = which;
    }
    return logitsHost_.data() + std::size_t(sequence) * vocab;
}

std::int64_t CudaEngine::stepNs() const {
    const Entry& entry = host_[(waited_ - 1) % kEntries];
    return std::int64_t(entry.stepMarks[kEnd] - entry.stepMarks[kEmbed]);
}

void CudaEngine::fill(StepRecord& record, std::span<const ActiveSequence> active) const {
    const ModelConfig& config = model_->config;
    const Entry& entry = host_[(waited_ - 1) % kEntries];
    const std::uint64_t* step = entry.stepMarks;
    record.startNs = hostTime(step[kEmbed]) - originNs_;
    record.durationNs = std::int64_t(step[kEnd] - step[kEmbed]);
    record.stepStageNs[std::size_t(StepStage::Embed)] = std::int64_t(entry.marks[kQkv] - step[kEmbed]);
    record.stepStageNs[std::size_t(StepStage::LmHead)] = std::int64_t(step[kSample] - step[kLmHead]);
    record.stepStageNs[std::size_t(StepStage::Sample)] = std::int64_t(step[kEnd] - step[kSample]);
    record.layers.assign(std::size_t(config.layers), {});
    const auto blockBytes = std::int64_t(blockElements_ * sizeof(Bf16));
    const std::size_t heads = std::size_t(rows_) * std::size_t(kvHeads_);
    for (int i = 0; i < config.layers; ++i) {
        LayerRecord& out = record.layers[std::size_t(i)];
        const Layer& layer = layers_[std::size_t(i)];
        const std::uint64_t* marks = entry.marks + i * kMarks;
        out.startNs = hostTime(marks[kQkv]) - originNs_;
        // Stages follow each other: each ends where the next one begins.
        std::vector<std::pair<Stage, std::uint64_t>> order{{Stage::QkvLinear, marks[kQkv]},
                                                           {Stage::Rope, marks[kRope]}};
        if (options_.indexed[std::size_t(i)]) order.emplace_back(Stage::Compression, marks[kCompression]);
        if (layer.sparse) {
            order.emplace_back(Stage::Stage1, marks[kStage1]);
            order.emplace_back(Stage::Pooling, marks[kPooling]);
            order.emplace_back(Stage::Offloading, marks[kOffloading]);
            order.emplace_back(Stage::Stage2, marks[kAttention]);
        } else {
            order.emplace_back(Stage::Attention, marks[kAttention]);
        }
        order.emplace_back(Stage::OLinear, marks[kOLinear]);
        order.emplace_back(Stage::Ffn, marks[kFfn]);
        const std::uint64_t end = i + 1 < config.layers ? entry.marks[(i + 1) * kMarks + kQkv] : step[kLmHead];
        for (std::size_t s = 0; s < order.size(); ++s) {
            const std::uint64_t next = s + 1 < order.size() ? order[s + 1].second : end;
            out.stageNs[std::size_t(order[s].first)] += std::int64_t(next - order[s].second);
        }
        if (layer.offloaded) {
            out.h2dBlocks = std::int32_t(entry.counts[2 * i]);
            out.d2hBlocks = std::int32_t(entry.counts[2 * i + 1]);
            out.h2dBytes = out.h2dBlocks * blockBytes;
            out.d2hBytes = out.d2hBlocks * blockBytes;
            if (out.h2dBlocks + out.d2hBlocks > 0) // on demand: the attention waits for all of it
                out.transferNs = out.exposedNs = std::int64_t(marks[kAttention] - marks[kGather]);
        }
        if (!layer.sparse) continue;
        bool keptDefined = true, any = false;
        int kept = 0;
        for (const ActiveSequence& sequence : active)
            for (int g = 0; g < kvHeads_; ++g) {
                const std::size_t item = std::size_t(i) * heads + std::size_t(sequence.sequence * kvHeads_ + g);
                const cuda::SelectionHead& head = entry.heads[item];
                if (head.selected == 0) continue; // attended everything
                any = true;
                SelectionRecord selection;
                selection.layer = i;
                selection.sequence = sequence.sequence;
                selection.kvHead = g;
                selection.selected = head.selected;
                selection.kept = head.kept;
                selection.hits = head.hits;
                selection.misses = head.misses;
                selection.first = std::uint32_t(record.blocks.size());
                if (entry.blocks != nullptr) {
                    const std::uint32_t* blocks = entry.blocks + item * std::size_t(capacity_);
                    for (int b = 0; b < head.selected; ++b) {
                        record.blocks.push_back(std::int32_t(blocks[b] & 0xffffff));
                        record.origins.push_back(Origin(blocks[b] >> cuda::kOriginShift & 7));
                        record.hit.push_back(std::uint8_t(blocks[b] >> cuda::kHitShift & 1));
                    }
                    if (entry.scores != nullptr)
                        record.scores.insert(record.scores.end(), entry.scores + item * std::size_t(capacity_),
                                             entry.scores + item * std::size_t(capacity_) + head.selected);
                }
                out.selected += selection.selected;
                out.hits += selection.hits;
                out.misses += selection.misses;
                keptDefined &= selection.kept >= 0;
                kept += std::max(selection.kept, 0);
                record.selections.push_back(selection);
            }
        out.kept = any && keptDefined ? kept : -1;
    }
}

void CudaEngine::fillContext(int tokens, std::uint64_t seed) {
    const ModelConfig& config = model_->config;
    for (int s = 0; s < rows_; ++s)
        for (int i = 0; i < config.layers; ++i) {
            const Layer& layer = layers_[std::size_t(i)];
            const std::size_t head = std::size_t(s) * std::size_t(kvHeads_);
            const int sequenceBlocks = spec_.grid.blocks(options_.maxTokens[std::size_t(s)]);
            const std::int64_t headStride = std::int64_t(sequenceBlocks) * std::int64_t(blockElements_);
            Bf16* blocks =
                layer.offloaded ? scratch_[0] : layer.blocks + std::size_t(blockFirst_[head]) * blockElements_;
            cuda::fillNormal(blocks, std::size_t(kvHeads_) * std::size_t(headStride), 1.f,
                             seed + std::uint64_t(s * config.layers + i));
            if (layer.index.tokenScores != nullptr)
                cuda::fillScores(layer.index.tokenScores + tokenFirst_[head],
                                 std::size_t(kvHeads_) * std::size_t(sequenceBlocks) * std::size_t(spec_.blockSize),
                                 seed ^ std::uint64_t(s * config.layers + i));
            cuda::PromptArgs prompt;
            prompt.shape = shape_;
            prompt.index = layer.index;
            prompt.n = tokens;
            prompt.sequence = s;
            prompt.blocks = blocks;
            prompt.headStride = headStride;
            if (options_.indexed[std::size_t(i)]) cuda::indexPrompt(launch_, prompt);
            if (layer.offloaded) {
                cuda::placeTail(launch_, shape_, blocks, headStride, s, tokens, layer.blocks, options_.slots, layer.map,
                                layer.lastUse);
                for (int g = 0; g < kvHeads_; ++g)
                    cuda::check(cudaMemcpyAsync(layer.storeHost +
                                                    std::size_t(blockFirst_[head + std::size_t(g)]) * blockElements_,
                                                blocks + std::size_t(g) * std::size_t(headStride),
                                                std::size_t(tokens / spec_.blockSize) * blockElements_ * sizeof(Bf16),
                                                cudaMemcpyDeviceToHost, stream_),
                                "filling the store");
            }
            cuda::check(cudaStreamSynchronize(stream_), "filling the cache");
        }
    std::vector<std::int32_t> positions(std::size_t(rows_), tokens);
    cuda::check(
        cudaMemcpy(position_, positions.data(), positions.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
        "filling the cache");
    launched_ = waited_ = 0;
}

namespace {

/// A session's view of the engine: follows sequences, keeps one step ahead where the tokens are certain.
class CudaSessionEngine final : public DecodeEngine {
public:
    explicit CudaSessionEngine(const EngineSetup& setup)
        : model_(setup.model), prompts_(setup.prompts), options_(setup.options),
          engine_(DeviceModel::of(setup.model), optionsOf(setup)) {
        if (setup.options.oracle)
            throw Error(ErrorKind::Unsupported,
                        "the GPU backend does not measure the attention mass a selection captures",
                        "leave --oracle out, or use --backend cpu");
    }
    std::string description() const override { return engine_.description(); }
    Timing linkTiming() const override { return Timing::Measured; }

    void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) override {
        engine_.prefill(prompts_, record, progress, stop);
        rowSequence_.clear();
        for (int s = 0; s < int(prompts_.size()); ++s) rowSequence_.push_back(s);
    }

    void decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                StepRecord& record) override {
        if (engine_.inFlight() == 0) {
            std::vector<std::uint8_t> flags(prompts_.size(), 0);
            std::vector<std::int32_t> next(engine_.tokens().begin(), engine_.tokens().end());
            for (std::size_t i = 0; i < active.size(); ++i) {
                flags[std::size_t(active[i].sequence)] = 1;
                next[std::size_t(active[i].sequence)] = tokens[i];
            }
            engine_.setInputs(next, flags);
            engine_.launch(record.step);
        }
        engine_.wait();
        rowSequence_.clear();
        bool certain = options_.lookahead && options_.sampling.temperature <= 0;
        for (const ActiveSequence& sequence : active) {
            rowSequence_.push_back(sequence.sequence);
            certain &= !finishes(sequence, engine_.tokens()[std::size_t(sequence.sequence)]);
        }
        if (certain) engine_.launch(record.step + 1); // while the host looks at this one
        engine_.fill(record, active);
    }

    std::vector<SpanRecord> spans(bool all) override { return engine_.spans(all); }
    const float* logits(int row) override { return engine_.logits(rowSequence_[std::size_t(row)]); }
    std::int32_t greedyToken(int row) override { return engine_.tokens()[std::size_t(rowSequence_[std::size_t(row)])]; }

private:
    static CudaEngineOptions optionsOf(const EngineSetup& setup) {
        CudaEngineOptions options;
        options.spec = setup.spec;
        options.maxTokens = setup.maxTokens;
        for (const auto& prompt : setup.prompts) {
            options.maxPrompt = std::max(options.maxPrompt, int(prompt.size()));
            options.promptTokens.push_back(int(prompt.size()));
        }
        options.slots = setup.slots;
        options.offloaded = setup.offloaded;
        options.indexed = setup.indexed;
        options.leastRecentlyUsed = setup.cachePolicy == "lru";
        options.level = setup.level;
        options.trace = setup.options.gpuTrace;
        return options;
    }
    /// Whether this token ends the sequence, by the session's own rule.
    bool finishes(const ActiveSequence& sequence, std::int32_t token) const {
        const int generated = sequence.position + 2 - int(prompts_[std::size_t(sequence.sequence)].size());
        if (generated >= options_.maxNewTokens) return true;
        const auto& eos = model_->config().eosIds;
        return options_.stopAtEos && std::find(eos.begin(), eos.end(), token) != eos.end();
    }

    std::shared_ptr<const Model> model_;
    const std::vector<std::vector<std::int32_t>>& prompts_;
    const SessionOptions& options_;
    CudaEngine engine_;
    std::vector<int> rowSequence_;
};

} // namespace

std::int64_t cudaBlockBytes(const BlockFormat& format) {
    return std::int64_t(cuda::blockBytes(format.blockSize, format.dim));
}

void requireGpu() { usableGpu(); }

std::string describeGpu() {
    const cudaDeviceProp properties = usableGpu();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return fmt::format("{}, {:.0f} GiB, CUDA {}.{}", properties.name, double(properties.totalGlobalMem) / (1 << 30),
                       driver / 1000, driver % 1000 / 10);
}

std::unique_ptr<DecodeEngine> makeCudaEngine(const EngineSetup& setup) {
    requireGpu();
    return std::make_unique<CudaSessionEngine>(setup);
}

} // namespace kvscope

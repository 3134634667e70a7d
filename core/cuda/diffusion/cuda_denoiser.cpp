#include "core/cuda/diffusion/cuda_denoiser.h"

#include "base/clock.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/cuda_sequences.h"
#include "core/cuda/gpu_device.h"
#include "core/cuda/prompt_piece.h"
#include "core/diffusion/tile_mask.h"
#include "core/session/stage_clock.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;
using cuda::BlockRow;

constexpr const char* kActivations = "activations";
constexpr const char* kState = "session state";

CudaEngineOptions engineOptionsOf(const DenoiseSetup& setup) {
    CudaEngineOptions options;
    options.spec = setup.spec;
    options.maxTokens = setup.maxTokens;
    for (const auto& prompt : setup.prompts) {
        options.promptTokens.push_back(int(prompt.size()));
        options.maxPrompt = std::max(options.maxPrompt, int(prompt.size()));
    }
    options.plans = {setup.model->config().layers, setup.spec, {.offload = false}};
    options.trace = setup.gpuTrace;
    options.offload = false;
    return options;
}

/// Where every query head has a list of pages of its own, it is a KV head of its own to the attention.
cuda::AttentionShape shapeOfHeads(cuda::AttentionShape shape) {
    shape.kvHeads = shape.queryHeads;
    return shape;
}

int longestOf(const DenoiseSetup& setup) { return *std::max_element(setup.maxTokens.begin(), setup.maxTokens.end()); }

/// Most tiles that a row of a mask keeps, see tilesKept.
int tileCapacity(const DenoiseOptions& options, int tiles) {
    return std::min(tiles, options.budget / options.page + 2);
}

/// A row for each token of all sequences' blocks.
BatchLayout productLayout(BatchLayout layout, int block) {
    layout.rows *= block;
    layout.chunk = std::max(layout.chunk, layout.rows);
    return layout;
}

float fromBf16(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

} // namespace

using enum DenoiseReport::Mark;
using enum DenoiseReport::StepMark;

// ---- Memory ---------------------------------------------------------------------------------------------------------

CudaDenoiser::Inputs::Inputs(std::byte* base, int rows, int block, std::size_t& bytes) {
    const std::size_t masks = (std::size_t(rows) * sizeof(BlockRow) + 7) / 8 * 8,
                      tokens = masks + std::size_t(rows) * sizeof(std::uint64_t);
    bytes = tokens + std::size_t(rows) * std::size_t(block) * sizeof(std::int32_t);
    if (base == nullptr) return;
    table = reinterpret_cast<BlockRow*>(base);
    masked = reinterpret_cast<std::uint64_t*>(base + masks);
    ids = reinterpret_cast<std::int32_t*>(base + tokens);
}

CudaDenoiser::CudaDenoiser(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup)
    : CudaDenoiser(std::move(model), setup, gpuLaunch(usableGpu())) {
    open();
}

MemoryPlan CudaDenoiser::memory(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup,
                                const cuda::Launch& launch) {
    return CudaDenoiser(std::move(model), setup, launch).memory();
}

CudaDenoiser::CudaDenoiser(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup,
                           const cuda::Launch& launch)
    : owner_(setup.model), model_(std::move(model)), config_(model_->config), prompts_(setup.prompts),
      options_(setup.options), sampling_(setup.sampling),
      comparesAlways_(setup.level != RecordLevel::Counters || setup.observer != nullptr),
      recordsKv_(setup.level != RecordLevel::Counters && !options_.pages), observer_(setup.observer),
      allowedIds_(setup.allowed), engine_(engineOptionsOf(setup)), layout_(config_, engine_),
      products_(productLayout(layout_, options_.block)), rows_(layout_.rows), block_(options_.block),
      splits_(cuda::blockSplits(launch, {layout_.shape, rows_, block_}, longestOf(setup))),
      tileSplits_(
          std::min(splits_, cuda::blockSplits(launch, {shapeOfHeads(layout_.shape), rows_, block_}, longestOf(setup)))),
      launch_(launch), ranges_(setup.gpuTrace), trace_(setup.gpuTrace),
      passes_(*model_, products_, buffers_, launch_, ranges_), table_(config_, engine_, layout_),
      layers_(std::size_t(config_.layers)), reader_(options_, reportNeeds(), clock_) {
    cuda::checkAttentionShape(layout_.shape);
    if (config_.latent)
        throw Error(ErrorKind::Unsupported, "block diffusion with latent attention does not run on the GPU backend",
                    "use --backend cpu");
    if (options_.choosesPages()) cuda::checkPageUnion(launch_, layout_.maxBlocks);
    if (weighs()) cuda::checkTileMask(launch_, layout_.maxBlocks);
    plan();
}

DenoiseReportNeeds CudaDenoiser::reportNeeds() const {
    DenoiseReportNeeds needs;
    needs.rows = rows_;
    needs.block = block_;
    needs.layers = config_.layers;
    needs.kvHeads = config_.kvHeads;
    needs.sets = !comparesAlways_ && (!options_.pages || options_.everyToken) ? 0
                 : options_.activePerHead                                     ? config_.kvHeads
                                                                              : 1;
    needs.active = names();
    needs.words = options_.pages ? std::size_t(layout_.maxBlocks + 31) / 32 : 0;
    needs.agnostic = options_.agnosticPages > 0;
    needs.queryHeads = config_.queryHeads;
    needs.tileRows = options_.tiles && comparesAlways_ ? (block_ + options_.page - 1) / options_.page : 0;
    needs.kvChanges = recordsKv_;
    return needs;
}

void CudaDenoiser::plan() {
    const auto tokens = std::size_t(rows_) * std::size_t(block_), heads = std::size_t(config_.queryHeads),
               most = std::size_t(engine_.maxPrompt), dim = std::size_t(config_.headDim);
    planSharedBuffers(arena_, buffers_, config_, products_);
    passes_.plan(arena_, engine_.useLibrary);
    table_.plan(arena_);
    planLayers();
    if (options_.choosesPages()) planChoice();
    if (weighs()) planTiles();
    arena_.plan(changes_, reportNeeds().sets > 0 ? tokens * heads : 0, kActivations);
    arena_.plan(kvChanges_, recordsKv_ ? tokens * 2 * std::size_t(config_.kvHeads) : 0, kActivations);
    const std::size_t parts = std::size_t(splits_) * tokens * heads;
    arena_.plan(partial_, parts * dim, kActivations);
    arena_.plan(states_, parts, kActivations);
    arena_.plan(promptX_, most * std::size_t(config_.hidden), "prompt activations");
    arena_.plan(promptIds_, most, "prompt activations");
    arena_.plan(promptTable_, most / std::size_t(block_), "prompt activations");
    arena_.plan(allowed_, std::size_t(config_.vocab), kState);
    Inputs(nullptr, rows_, block_, inputBytes_);
    arena_.plan(inputRegion_, inputBytes_, kState);
    for (std::byte*& host : inputHost_) arena_.planHost(host, inputBytes_, "what the host says of forwards");
    DenoiseReport(reportNeeds(), nullptr, reportBytes_);
    arena_.plan(reportRegion_, reportBytes_, "reports");
    for (std::byte*& host : reportHost_) arena_.planHost(host, reportBytes_, "reports on the host");
    arena_.planHost(promptMarks_, kMarks, "the prompts' marks");
}

void CudaDenoiser::planLayers() {
    constexpr MemoryKind kMemory("block_memory", "queries and outputs of the blocks", Holds::Scratch);
    const auto queries = std::size_t(rows_) * std::size_t(block_) * std::size_t(config_.queryHeads),
               dim = std::size_t(config_.headDim), blocks = std::size_t(layout_.blocksTotal);
    for (Layer& layer : layers_) {
        arena_.plan(layer.blocks, blocks * layout_.blockElements, {"kv_resident", "resident KV cache", Holds::Kv});
        if (options_.choosesPages())
            arena_.plan(layer.ranges, blocks * 2 * dim, {"block_index", "block index", Holds::Index});
        if (reportNeeds().sets > 0) arena_.plan(layer.before, queries * dim, kMemory);
        if (options_.pages && !options_.everyToken) arena_.plan(layer.prefix, queries * dim, kMemory);
        arena_.plan(layer.prefixSums, queries, kMemory);
        if (recordsKv_)
            arena_.plan(layer.beforeKv, queries / std::size_t(config_.group()) * 2 * dim,
                        {"block_changes", "keys and values of the blocks' forwards before", Holds::Scratch});
    }
}

void CudaDenoiser::planTiles() {
    constexpr MemoryKind kMasks("tile_masks", "masks of tiles", Holds::Index);
    const cuda::TileMaskArgs args = maskOf(0);
    const auto heads = std::size_t(rows_) * std::size_t(config_.queryHeads);
    for (Layer& layer : layers_) {
        if (!options_.tiles) break;
        arena_.plan(layer.tiles, heads * std::size_t(args.tileRows()) * std::size_t(args.capacity), kMasks);
        arena_.plan(layer.tileCount, heads, kMasks);
    }
    arena_.plan(tileWeights_, heads * std::size_t(block_) * std::size_t(args.pieces()), kActivations);
    arena_.plan(tileHeadFirst_, options_.tiles ? heads : 0, kState);
}

void CudaDenoiser::uploadTileHeads() {
    std::vector<std::int64_t> first;
    for (int head = 0; head < rows_ * config_.queryHeads; ++head)
        first.push_back(layout_.blockFirst[std::size_t(head / config_.group())]);
    cuda::check(cudaMemcpy(tileHeadFirst_, first.data(), first.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice),
                "preparing the session");
}

void CudaDenoiser::planChoice() {
    const auto items = std::size_t(rows_) * std::size_t(config_.kvHeads), pages = std::size_t(layout_.maxBlocks);
    const cuda::PageUnionArgs args = unionOf(0);
    arena_.plan(scores_, items * std::size_t(args.rows.queries()) * std::size_t(args.scoreStride()), kActivations);
    arena_.plan(words_, items * std::size_t(args.wordsOf()), kState);
    arena_.plan(arrivals_, items, kState);
    arena_.plan(pages_, items * pages, kActivations);
    arena_.plan(count_, items, kActivations);
}

/// Takes all that was declared and makes the engine ready for prompts.
void CudaDenoiser::open() {
    stream_ = cuda::Stream::make();
    launch_.stream = stream_.get();
    arena_.take();
    passes_.open();
    table_.upload();
    std::vector<std::uint8_t> all(allowedIds_.begin(), allowedIds_.end());
    all.resize(std::size_t(config_.vocab), 1);
    cuda::check(cudaMemcpy(allowed_, all.data(), all.size(), cudaMemcpyHostToDevice), "preparing the session");
    if (options_.tiles) uploadTileHeads();
    cuda::check(cudaDeviceSynchronize(), "preparing the session");
    deviceInputs_ = Inputs(inputRegion_, rows_, block_, inputBytes_);
    for (int entry = 0; entry < kEntries; ++entry) {
        done_[entry] = cuda::Event::make();
        hostInputs_[entry] = Inputs(inputHost_[entry], rows_, block_, inputBytes_);
        hostReport_[entry] = DenoiseReport(reportNeeds(), reportHost_[entry], reportBytes_);
    }
    deviceReport_ = DenoiseReport(reportNeeds(), reportRegion_, reportBytes_);
    candidates_.resize(std::size_t(rows_) * std::size_t(block_));
    clock_.calibrate(launch_, promptMarks_);
    if (trace_ != nullptr) trace_->timesBeginAt(clock_.originNs());
    // One forward without rows outside a graph, because cuBLASLt's plans and the attributes of kernels must not be made
    // during a capture.
    forwardKernels({true, true, true, weighs()});
    cuda::check(cudaStreamSynchronize(stream_.get()), "trying a step");
}

std::string CudaDenoiser::description() const { return describeGpuEngine(*passes_.linear()); }

cuda::BlockRows CudaDenoiser::rowsOf(int layer) const {
    return {layout_.shape,    rows_, block_, deviceInputs_.table, names() ? deviceReport_.activeOf(layer) : nullptr,
            table_.blockFirst};
}

cuda::PageUnionArgs CudaDenoiser::unionOf(int layer) const {
    cuda::PageUnionArgs args;
    args.rows = rowsOf(layer);
    args.q = buffers_.q;
    args.ranges = layers_[std::size_t(layer)].ranges;
    args.maxPages = layout_.maxBlocks;
    args.pagesPerQuery = options_.pagesPerQuery;
    args.scores = scores_;
    args.words = words_;
    args.arrivals = arrivals_;
    args.pages = pages_;
    args.count = count_;
    args.always = deviceReport_.agnosticOf(layer);
    args.record = deviceReport_.pagesOf(layer);
    return args;
}

/// The sequences with a KV head for every query head, all of whose tokens attend.
cuda::BlockRows CudaDenoiser::tileHeads() const {
    return {shapeOfHeads(layout_.shape), rows_, block_, deviceInputs_.table, nullptr, tileHeadFirst_};
}

cuda::TileMaskArgs CudaDenoiser::maskOf(int layer) const {
    cuda::TileMaskArgs args;
    args.rows = rowsOf(layer);
    args.q = buffers_.q;
    args.blocks = layers_[std::size_t(layer)].blocks;
    args.scale = options_.scaledByHeads ? float(1 / std::sqrt(double(config_.queryHeads))) : config_.attentionScale();
    args.maxTiles = layout_.maxBlocks;
    args.capacity = tileCapacity(options_, layout_.maxBlocks);
    args.weights = tileWeights_;
    args.tiles = layers_[std::size_t(layer)].tiles;
    args.count = layers_[std::size_t(layer)].tileCount;
    // Stays there for the reports of the block's other forwards.
    args.united = options_.tiles ? deviceReport_.pagesOf(layer) : deviceReport_.agnosticOf(layer);
    args.densities = deviceReport_.densitiesOf(layer);
    return args;
}

// ---- Prompts --------------------------------------------------------------------------------------------------------

int CudaDenoiser::promptTokens(int sequence) const {
    return int(prompts_[std::size_t(sequence)].size()) / block_ * block_;
}

/// Whole blocks, and a multiple of 8, as the kernels of prompts want it.
int CudaDenoiser::pieceTokens() const {
    const int unit = std::lcm(block_, 8);
    return std::max(unit, BatchLayout::kPrefillChunk / unit * unit);
}

void CudaDenoiser::prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) {
    record.layers.assign(layers_.size(), {});
    if (trace_ != nullptr) trace_->atStep(0);
    const std::int64_t begin = steadyNowNs();
    nvtxPush(nameOf(Phase::Prefill), 0);
    struct EndOfRange { // a destructor, because reading a prompt may end with an exception
        StageRanges& ranges;
        ~EndOfRange() { ranges.leave(), nvtxPop(); }
    } const endOfRange{ranges_};
    record.startNs = begin - clock_.originNs();
    for (LayerRecord& layer : record.layers) layer.startNs = record.startNs;
    double all = 0, done = 0;
    for (int s = 0; s < rows_; ++s) all += double(promptTokens(s)) * config_.layers;
    for (int s = 0; s < rows_; ++s) readPrompt(s, record, done, all, progress, stop);
    record.durationNs = steadyNowNs() - begin;
}

/// Layer by layer, in each piece by piece.
void CudaDenoiser::readPrompt(int sequence, StepRecord& record, double& done, double all, const Progress& progress,
                              const std::stop_token& stop) {
    const int tokens = promptTokens(sequence);
    if (tokens == 0) return;
    std::vector<BlockRow> blocks;
    for (int first = 0; first < tokens; first += block_)
        blocks.push_back({sequence, first, first + block_, BlockRow::kTaken});
    const auto copy = [&](void* to, const void* from, std::size_t bytes) {
        cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()), "copying the prompt");
    };
    copy(promptTable_, blocks.data(), blocks.size() * sizeof(BlockRow));
    copy(promptIds_, prompts_[std::size_t(sequence)].data(), std::size_t(tokens) * sizeof(std::int32_t));
    ranges_.at(StepStage::Embed);
    passes_.embed(promptIds_, tokens, promptX_);
    for (int layer = 0; layer < config_.layers; ++layer) {
        LayerRecord& out = record.layers[std::size_t(layer)];
        for (int first = 0; first < tokens; first += pieceTokens()) {
            throwIfCancelled(stop);
            report(progress, done / all, "reading the prompt");
            const int n = std::min(pieceTokens(), tokens - first);
            readPiece(sequence, layer, first, n, out);
            done += n;
        }
    }
}

/// Every token sees its own block and the blocks before it. Waits.
void CudaDenoiser::readPiece(int sequence, int layer, int first, int n, LayerRecord& out) {
    const DeviceLayer& weights = model_->layers[std::size_t(layer)];
    const Layer& of = layers_[std::size_t(layer)];
    float* const x = promptX_ + std::size_t(first) * std::size_t(config_.hidden);
    std::uint64_t* const marks = promptMarks_;
    const auto stamp = [&](DenoiseReport::Mark which) { cuda::stampNow(launch_, marks + which); };
    PlacedPiece piece;
    piece.layer = layer, piece.sequence = sequence, piece.first = first, piece.n = n;
    piece.x = x;
    piece.blocks = of.blocks + layout_.firstElement(sequence);
    piece.headStride = layout_.headStride(sequence);
    piece.index.ranges = of.ranges;
    piece.index.blockFirst = table_.blockFirst;
    piece.indexed = of.ranges != nullptr;
    placePiece({config_, layout_, buffers_, table_, launch_, passes_, ranges_}, weights, piece,
               {marks + kQkv, marks + kRope, marks + kCompression, marks + kAttention});
    cuda::BlockAttentionArgs attention;
    attention.rows = {layout_.shape, n / block_, block_, promptTable_ + first / block_, nullptr, table_.blockFirst};
    attention.q = buffers_.q;
    attention.blocks = of.blocks;
    attention.scale = config_.attentionScale();
    attention.out = buffers_.attended;
    cuda::blockAttention(launch_, attention);
    stamp(kOLinear);
    passes_.finish(layer, x, n, nullptr, promptMarks_ + kFfn);
    stamp(kOffloading); // the end of the piece
    cuda::check(cudaStreamSynchronize(stream_.get()), "reading the prompt");
    addTimes(out);
}

void CudaDenoiser::addTimes(LayerRecord& out) const {
    const std::uint64_t* const m = promptMarks_;
    const auto add = [&](Stage stage, DenoiseReport::Mark from, DenoiseReport::Mark to) {
        out.stageNs[std::size_t(stage)] += std::int64_t(m[to] - m[from]);
    };
    add(Stage::QkvLinear, kQkv, kRope);
    add(Stage::Rope, kRope, kCompression);
    add(Stage::Compression, kCompression, kAttention);
    add(Stage::Attention, kAttention, kOLinear);
    add(Stage::OLinear, kOLinear, kFfn);
    add(Stage::Ffn, kFfn, kOffloading);
}

// ---- Forwards -------------------------------------------------------------------------------------------------------

bool CudaDenoiser::isSparse(const DenoiseRow& row) const {
    if (!options_.pages || row.first == 0) return false;
    return row.step >= options_.firstSparseStep() && (!row.clean || options_.finalSparse);
}

/// Whether the forward chooses for those of its block that follow: the last dense one.
bool CudaDenoiser::choosesOnce(const DenoiseRow& row) const {
    return weighs() && row.first > 0 && !row.clean && row.step == options_.firstSparseStep() - 1;
}

/// Tiles that a row of a mask keeps, or the query-agnostic pages.
int CudaDenoiser::keptOf(const FlightRow& of) const {
    if ((of.flags & BlockRow::kChoosesOnce) == 0) return 0;
    const int prefix = of.row.first, page = options_.page;
    return options_.tiles ? tilesKept((prefix + page - 1) / page, options_.budget, prefix)
                          : std::min(options_.agnosticPages, prefix / page);
}

std::uint32_t CudaDenoiser::flagsOf(const DenoiseRow& row) const {
    const bool sparse = isSparse(row);
    std::uint32_t flags = BlockRow::kTaken;
    if (sparse) flags |= BlockRow::kSparse;
    if (options_.everyToken || row.step == 0) flags |= BlockRow::kEveryToken;
    if (row.step > 0 && (comparesAlways_ || sparse) && reportNeeds().sets > 0) flags |= BlockRow::kCompares;
    if (row.clean) flags |= BlockRow::kClean;
    if (choosesOnce(row)) flags |= BlockRow::kChoosesOnce;
    return flags;
}

CudaDenoiser::FlightRow CudaDenoiser::flightOf(const DenoiseRow& row, int masks) const {
    FlightRow of{row, flagsOf(row), masks};
    of.row.ids = {};
    of.row.wanted = 0;
    return of;
}

/// Where a strategy counts what it writes, and the largest logit is the candidate, the device writes too, and the next
/// forward of a block needs nothing from the host.
bool CudaDenoiser::writesOnDevice() const {
    const bool counts =
        options_.strategy == Unmasking::Sequential || options_.strategy == Unmasking::LowConfidenceStatic;
    return counts && sampling_.temperature <= 0 && observer_ == nullptr;
}

int CudaDenoiser::writesOf(const FlightRow& of) const {
    return of.masks > 0 ? std::clamp(options_.tokensOf(of.row.step), 1, of.masks) : 0;
}

/// Starts a forward, without waiting. rows: with what the host uploads; empty: ids are on the device already.
void CudaDenoiser::start(Flight flight, std::span<const DenoiseRow> rows, int step) {
    const int entry = ahead_ ? 1 - entry_ : entry_;
    const Inputs& inputs = hostInputs_[entry];
    std::fill_n(inputs.table, rows_, BlockRow());
    for (const FlightRow& of : flight.rows) {
        const int sequence = int(of.row.sequence);
        inputs.table[sequence] = {sequence, of.row.first, of.row.first, of.flags, writesOf(of), keptOf(of)};
        flight.shape.choosesOnce |= (of.flags & BlockRow::kChoosesOnce) != 0;
        flight.shape.writes |= of.masks > 0 || observer_ != nullptr;
        flight.shape.sparse |= (of.flags & BlockRow::kSparse) != 0;
        flight.shape.cleans |= of.row.clean;
    }
    std::fill_n(inputs.masked, rows_, 0);
    for (const DenoiseRow& row : rows) {
        inputs.masked[index(row.sequence)] = row.wanted;
        std::copy(row.ids.begin(), row.ids.end(), inputs.ids + int(row.sequence) * block_);
    }
    const std::size_t bytes = rows.empty() ? std::size_t(rows_) * sizeof(BlockRow) : inputBytes_;
    if (trace_ != nullptr) trace_->atStep(step);
    nvtxPush(nameOf(Phase::Decode), step);
    cuda::check(cudaMemcpyAsync(inputRegion_, inputs.table, bytes, cudaMemcpyHostToDevice, stream_.get()),
                "copying the blocks");
    launchForward(flight.shape);
    cuda::check(cudaMemcpyAsync(reportHost_[entry], reportRegion_, reportBytes_, cudaMemcpyDeviceToHost, stream_.get()),
                "reading a forward's report");
    cuda::check(cudaEventRecord(done_[entry].get(), stream_.get()), "denoising");
    nvtxPop();
    flights_[entry] = std::move(flight);
}

/// Starts the forward that follows where it follows from the strategy alone: inside a block, whose masks are counted.
/// A block's end may be the end of its sequence, which its tokens decide. @return whether it was started
bool CudaDenoiser::startNext(int step) {
    const Flight& now = flights_[entry_];
    if (!writesOnDevice()) return false;
    Flight next;
    for (const FlightRow& of : now.rows) {
        if (of.row.clean) return false;
        DenoiseRow row = of.row;
        const int left = of.masks - writesOf(of);
        ++row.step;
        row.clean = left == 0;
        next.rows.push_back(flightOf(row, left));
    }
    ahead_ = true;
    start(std::move(next), {}, step);
    return true;
}

/// Whether the forward that was started ahead is the one that the session asks for.
bool CudaDenoiser::isAhead(std::span<const DenoiseRow> rows) const {
    const Flight& next = flights_[1 - entry_];
    const std::int32_t* const written = hostReport_[entry_].ids;
    return std::equal(
        rows.begin(), rows.end(), next.rows.begin(), next.rows.end(), [&](const DenoiseRow& row, const FlightRow& of) {
            return row.sequence == of.row.sequence && row.first == of.row.first && row.step == of.row.step &&
                   row.clean == of.row.clean && std::popcount(row.wanted) == of.masks &&
                   std::equal(row.ids.begin(), row.ids.end(), written + int(row.sequence) * block_);
        });
}

void CudaDenoiser::forward(std::span<const DenoiseRow> rows, StepRecord& record) {
    if (ahead_ && !isAhead(rows))
        throw Error(ErrorKind::BadInput, "a forward does not follow from the one before", "this is a bug in KVScope");
    if (ahead_) {
        entry_ = 1 - entry_;
        ahead_ = false;
    } else {
        Flight flight;
        for (const DenoiseRow& row : rows) flight.rows.push_back(flightOf(row, std::popcount(row.wanted)));
        sequenceOf_.clear(); // the observer asks for them while the forward runs
        for (const DenoiseRow& row : rows) sequenceOf_.push_back(int(row.sequence));
        start(std::move(flight), rows, record.step);
    }
    startNext(record.step + 1); // runs while the host reads this forward's report
    cuda::check(cudaEventSynchronize(done_[entry_].get()), "denoising");
    keepReport(hostReport_[entry_]);
    if (observer_ != nullptr) observeLogits();
    std::vector<std::uint32_t> flags;
    for (const FlightRow& of : flights_[entry_].rows) flags.push_back(of.flags);
    reader_.fill(hostReport_[entry_], flights_[entry_].shape, rows, flags, record);
}

void CudaDenoiser::keepReport(const DenoiseReport& report) {
    logitsHost_.clear();
    sequenceOf_.clear();
    for (const FlightRow& of : flights_[entry_].rows) sequenceOf_.push_back(int(of.row.sequence));
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        const cuda::BlockCandidate& from = report.candidates[i];
        candidates_[i] = {0, from.id, from.confidence, from.entropy};
    }
}

void CudaDenoiser::launchForward(ForwardShape shape) {
    static const bool oneByOne = std::getenv("KVSCOPE_NO_GRAPH") != nullptr;
    if (oneByOne || observer_ != nullptr) return forwardKernels(shape);
    cuda::Executable& graph = graphs_[shape.number()];
    if (!graph) {
        graph = cuda::Executable::of(cuda::Graph::capture(stream_.get(), [&] { forwardKernels(shape); }));
        cuda::check(cudaGraphUpload(graph.get(), stream_.get()), "preparing a step");
    }
    cuda::check(cudaGraphLaunch(graph.get(), stream_.get()), "starting a step");
}

/// Launches all kernels of a forward, or captures them.
void CudaDenoiser::forwardKernels(ForwardShape shape) {
    const int tokens = rows_ * block_;
    ranges_.at(StepStage::Embed);
    passes_.embed(deviceInputs_.ids, tokens, buffers_.x, nullptr, 0, deviceReport_.stepMarks + kEmbed);
    for (int layer = 0; layer < config_.layers; ++layer) layerKernels(layer, shape);
    ranges_.at(StepStage::LmHead);
    if (shape.writes) {
        passes_.head(buffers_.logits[0], deviceReport_.stepMarks + kLmHead);
        ranges_.at(StepStage::Sample);
        if (sampling_.temperature <= 0)
            cuda::chooseCandidates(launch_, {rows_, block_, config_.vocab, deviceInputs_.table, deviceInputs_.masked,
                                             buffers_.logits[0], allowed_, deviceReport_.candidates,
                                             deviceReport_.stepMarks + kSample});
        else
            cuda::stampNow(launch_, deviceReport_.stepMarks + kSample);
        if (writesOnDevice())
            cuda::writeCandidates(launch_, {rows_, block_, deviceInputs_.table, deviceReport_.candidates,
                                            options_.strategy == Unmasking::Sequential, deviceInputs_.masked,
                                            deviceInputs_.ids, deviceReport_.ids});
    } else {
        cuda::stampNow(launch_, deviceReport_.stepMarks + kLmHead);
    }
    cuda::stampNow(launch_, deviceReport_.stepMarks + kEnd);
    ranges_.leave();
}

void CudaDenoiser::layerKernels(int layer, ForwardShape shape) {
    const DeviceLayer& weights = model_->layers[std::size_t(layer)];
    const Layer& of = layers_[std::size_t(layer)];
    const DenoiseReport& report = deviceReport_;
    ranges_.at(layer, Stage::QkvLinear);
    passes_.project(weights, buffers_.x, rows_ * block_, report.mark(layer, kQkv));
    ranges_.at(layer, Stage::Rope);
    cuda::BlockPlaceArgs place;
    place.rows = rowsOf(layer);
    place.qkv = buffers_.qkv;
    place.cos = table_.ropeCos;
    place.sin = table_.ropeSin;
    place.ropeFirst = table_.ropeFirst;
    place.interleaved = config_.rope.interleaved;
    place.norms = weights.headNorms;
    place.q = buffers_.q;
    place.blocks = of.blocks;
    place.before = of.before;
    place.changes = changes_;
    place.beforeKv = of.beforeKv;
    place.kvChanges = kvChanges_;
    place.mark = report.mark(layer, kRope);
    cuda::placeBlocks(launch_, place);
    if (names()) {
        ranges_.at(layer, options_.pages ? Stage::Compression : Stage::Attention);
        cuda::nameActive(launch_,
                         {place.rows, of.before != nullptr ? changes_ : nullptr, options_.activePerHead,
                          options_.active, options_.activeThreshold.has_value(), options_.activeThreshold.value_or(0),
                          report.activeOf(layer), report.changesOf(layer), report.mark(layer, kCompression)});
    }
    if (recordsKv_) cuda::addKvChanges(launch_, {place.rows, kvChanges_, report.kvChangesOf(layer)});
    choose(layer, shape);
    attend(layer, shape);
    if (observer_ != nullptr) observe(layer);
    passes_.finish(layer, buffers_.x, rows_ * block_, report.mark(layer, kOLinear), report.mark(layer, kFfn));
}

/// What the last dense forward of a block chooses for those that follow, and what the queries of sparse rows choose.
void CudaDenoiser::choose(int layer, ForwardShape shape) {
    const bool byQuery = shape.sparse && options_.choosesPages();
    if (!shape.choosesOnce && !byQuery) return;
    cuda::TileMaskArgs mask = weighs() ? maskOf(layer) : cuda::TileMaskArgs();
    cuda::PageUnionArgs choice = byQuery ? unionOf(layer) : cuda::PageUnionArgs();
    (shape.choosesOnce ? mask.scoreMark : choice.scoreMark) = deviceReport_.mark(layer, kStage1);
    (shape.choosesOnce ? mask.chooseMark : choice.unionMark) = deviceReport_.mark(layer, kPooling);
    ranges_.at(layer, Stage::Stage1);
    if (shape.choosesOnce) cuda::weighTiles(launch_, mask);
    if (byQuery) cuda::scoreUnionPages(launch_, choice);
    ranges_.at(layer, Stage::Pooling);
    if (shape.choosesOnce) options_.tiles ? cuda::chooseTiles(launch_, mask) : cuda::chooseTilesOfGroups(launch_, mask);
    if (byQuery) cuda::unitePages(launch_, choice);
}

void CudaDenoiser::attend(int layer, ForwardShape shape) {
    const Layer& of = layers_[std::size_t(layer)];
    const DenoiseReport& report = deviceReport_;
    const bool underMasks = options_.tiles && shape.sparse;
    ranges_.at(layer, shape.sparse ? Stage::Stage2 : Stage::Attention);
    cuda::BlockAttentionArgs attention;
    attention.rows = underMasks ? tileHeads() : rowsOf(layer);
    attention.q = buffers_.q;
    attention.blocks = of.blocks;
    attention.pages = options_.tiles ? of.tiles : pages_;
    attention.pageCount = options_.tiles ? of.tileCount : count_;
    attention.capacity = options_.tiles ? maskOf(layer).capacity : layout_.maxBlocks;
    attention.listTokens = underMasks ? options_.page : 0;
    attention.scale = config_.attentionScale();
    attention.splits = underMasks ? tileSplits_ : splits_;
    attention.partial = partial_;
    attention.states = states_;
    attention.mark = report.mark(layer, kAttention);
    cuda::blockAttention(launch_, attention);
    cuda::BlockMergeArgs merge;
    merge.rows = attention.rows;
    merge.q = buffers_.q;
    merge.blocks = of.blocks;
    merge.pageCount = attention.pageCount;
    merge.scale = attention.scale;
    merge.splits = attention.splits;
    merge.partial = partial_;
    merge.states = states_;
    merge.prefix = of.prefix;
    merge.prefixSums = of.prefixSums;
    merge.out = buffers_.attended;
    cuda::mergeBlocks(launch_, merge);
    if (!options_.choosesPages() || !shape.cleans) return;
    ranges_.at(layer, Stage::Offloading);
    cuda::boundBlocks(launch_, {rowsOf(layer), of.blocks, of.ranges, report.mark(layer, kOffloading)});
}

// ---- What came of it ------------------------------------------------------------------------------------------------

/// Hands the layer's attention over. Waits.
void CudaDenoiser::observe(int layer) {
    if (sequenceOf_.empty()) return; // the forward that open() tries
    const std::size_t queries = std::size_t(block_) * std::size_t(config_.queryHeads),
                      numbers = queries * std::size_t(config_.headDim);
    merged_.resize(numbers);
    std::vector<float> merged(numbers), sums(queries);
    for (const int sequence : sequenceOf_) {
        const auto s = std::size_t(sequence);
        cuda::check(cudaStreamSynchronize(stream_.get()), "observing a layer");
        cuda::check(
            cudaMemcpy(merged_.data(), buffers_.attended + s * numbers, numbers * sizeof(Bf16), cudaMemcpyDeviceToHost),
            "observing a layer");
        cuda::check(cudaMemcpy(sums.data(), layers_[std::size_t(layer)].prefixSums + s * queries,
                               queries * sizeof(float), cudaMemcpyDeviceToHost),
                    "observing a layer");
        std::transform(merged_.begin(), merged_.end(), merged.begin(), fromBf16);
        observer_->attended(LayerId{layer}, RowId{sequence}, merged, sums);
    }
}

void CudaDenoiser::observeLogits() {
    const std::size_t numbers = std::size_t(block_) * std::size_t(config_.vocab);
    for (std::size_t row = 0; row < sequenceOf_.size(); ++row)
        observer_->logits(RowId{sequenceOf_[row]}, {logits(int(row), 0).data(), numbers});
}

std::span<const float> CudaDenoiser::logits(int row, int token) const {
    const auto vocab = std::size_t(config_.vocab);
    if (logitsHost_.empty()) {
        logitsHost_.resize(std::size_t(rows_) * std::size_t(block_) * vocab);
        cuda::check(cudaMemcpy(logitsHost_.data(), buffers_.logits[0], logitsHost_.size() * sizeof(float),
                               cudaMemcpyDeviceToHost),
                    "copying the logits");
    }
    const auto at = std::size_t(sequenceOf_[std::size_t(row)] * block_ + token);
    return std::span(logitsHost_).subspan(at * vocab, vocab);
}

const Candidate* CudaDenoiser::candidate(int row, int token) const {
    if (sampling_.temperature > 0) return nullptr;
    return &candidates_[std::size_t(sequenceOf_[std::size_t(row)] * block_ + token)];
}

std::unique_ptr<DenoiseEngine> makeCudaDenoiser(const DenoiseSetup& setup) {
    requireGpu();
    return std::make_unique<CudaDenoiser>(DeviceModel::of(setup.model), setup);
}

} // namespace kvscope

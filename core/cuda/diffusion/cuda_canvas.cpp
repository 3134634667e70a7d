#include "core/cuda/diffusion/cuda_canvas.h"

#include "core/cuda/cuda_engine.h"
#include "core/cuda/gpu_device.h"
#include "core/diffusion/locality.h"
#include "core/session/canvas_record.h"
#include "core/session/stage_clock.h"
#include "kernels/cuda/diffusion/block_attention.h"
#include "kernels/cuda/diffusion/block_place.h"
#include "kernels/cuda/diffusion/canvas_merge.h"
#include "kernels/cuda/diffusion/canvas_rows.h"
#include "kernels/cuda/diffusion/unmask.h"

#include <algorithm>
#include <utility>

namespace kvscope {
namespace {

using cuda::BlockRow;

constexpr const char* kCanvasActivations = "activations";
constexpr const char* kCanvasState = "session state";
constexpr int kPage = 64; // tokens of a KV block, among which nothing is chosen

CudaEngineOptions engineOptionsOf(const CanvasSetup& setup) {
    CudaEngineOptions options;
    options.spec.dense = true;
    options.spec.blockSize = options.spec.grid.blockSize = kPage;
    options.maxTokens = setup.maxTokens;
    options.promptTokens = setup.promptTokens;
    options.plans = {setup.model->config().layers, options.spec, {.offload = false}};
    options.trace = setup.gpuTrace;
    options.offload = false;
    return options;
}

/// A step's rows are the wanted positions, a prompt's piece all tokens of a forward.
BatchLayout productLayout(BatchLayout layout, const CanvasSetup& setup) {
    layout.rows = int(setup.mostWanted);
    layout.chunk = int(CanvasTokens::mostPlaces(setup.maxTokens));
    return layout;
}

void moveStage(LayerRecord& layer, Stage from, Stage to) {
    layer.stageNs[std::size_t(to)] += layer.stageNs[std::size_t(from)];
    layer.stageNs[std::size_t(from)] = 0;
}

template <class T> void fillDevice(T* to, const std::vector<T>& from) {
    cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "preparing the session");
}

} // namespace

using enum DenoiseReport::Mark;
using enum DenoiseReport::StepMark;

// ---- Memory ---------------------------------------------------------------------------------------------------------

CudaCanvas::CudaCanvas(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup)
    : CudaCanvas(std::move(model), setup, gpuLaunch(usableGpu())) {
    open();
}

MemoryPlan CudaCanvas::memory(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup,
                              const cuda::Launch& launch) {
    return CudaCanvas(std::move(model), setup, launch).memory();
}

CudaCanvas::CudaCanvas(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup, const cuda::Launch& launch)
    : owner_(setup.model), model_(std::move(model)), config_(model_->config), options_(setup.options),
      recordsRows_(setup.level != RecordLevel::Counters), sampling_(setup.sampling), allowedIds_(setup.allowed),
      prompts_(setup.promptTokens), tokens_(setup.maxTokens), engine_(engineOptionsOf(setup)),
      layout_(config_, engine_), products_(productLayout(layout_, setup)), sequences_(layout_.rows),
      mostWanted_(int(setup.mostWanted)), launch_(launch), ranges_(setup.gpuTrace), trace_(setup.gpuTrace),
      passes_(*model_, products_, buffers_, launch_, ranges_), table_(config_, engine_, layout_),
      blocks_(std::size_t(config_.layers), nullptr), reader_(noPages_, reportNeeds(), clock_),
      keptOf_(std::size_t(sequences_)) {
    cuda::checkAttentionShape(layout_.shape);
    mostTokens_ = *std::max_element(tokens_.begin(), tokens_.end());
    for (Kept& kept : keptOf_) kept.positions.resize(blocks_.size());
    if (options_.cache == CanvasCache::Features)
        features_.emplace(
            CudaCanvasFeatures::Parts{*model_, options_, layout_.shape, buffers_, passes_, launch_, ranges_}, prompts_,
            tokens_);
    plan();
}

DenoiseReportNeeds CudaCanvas::reportNeeds() const {
    DenoiseReportNeeds needs;
    needs.rows = mostWanted_;
    needs.block = 1;
    needs.layers = config_.layers;
    needs.kvHeads = 1;
    return needs;
}

/// Tokens outside a block that stay.
int CudaCanvas::keptOf(int sequence) const { return options_.keptOf(tokens_[std::size_t(sequence)] - options_.block); }

void CudaCanvas::plan() {
    const auto places = std::size_t(products_.chunk), wanted = std::size_t(mostWanted_),
               hidden = std::size_t(config_.hidden), queries = std::size_t(config_.queryHeads * config_.headDim),
               keys = std::size_t(config_.kvHeads * config_.headDim);
    headFirst_ = layout_.blockFirst;
    blocksTotal_ = layout_.blocksTotal;
    if (evicts()) planKept();
    if (features_) features_->plan(arena_);
    for (__nv_bfloat16*& blocks : blocks_)
        arena_.plan(blocks, std::size_t(blocksTotal_) * layout_.blockElements,
                    {"kv_resident", "resident KV cache", Holds::Kv});
    arena_.plan(x_, places * hidden, kCanvasActivations);
    arena_.plan(buffers_.qkv, places * (queries + 2 * keys), kCanvasActivations);
    arena_.plan(buffers_.q, places * queries, kCanvasActivations);
    arena_.plan(buffers_.attended, places * queries, kCanvasActivations);
    arena_.plan(buffers_.hidden, places * std::size_t(config_.ffn), kCanvasActivations);
    arena_.plan(partial_, shareRoom() * std::size_t(config_.headDim), kCanvasActivations);
    arena_.plan(states_, shareRoom(), kCanvasActivations);
    arena_.plan(buffers_.x, wanted * hidden, kCanvasActivations);
    arena_.plan(buffers_.logits[0], wanted * std::size_t(config_.vocab), kCanvasActivations);
    passes_.plan(arena_, engine_.useLibrary);
    table_.plan(arena_);
    computed_.plan(arena_, tokens_, config_.kvHeads);
    ids_.plan(arena_, places);
    wanted_.plan(arena_, wanted);
    ropeFirst_.plan(arena_, 2 * std::size_t(sequences_));
    arena_.plan(headFirstDevice_, headFirst_.size(), kCanvasState);
    arena_.plan(allowed_, std::size_t(config_.vocab), kCanvasState);
    arena_.plan(wantedRows_, wanted, kCanvasState);
    arena_.plan(wantedMasks_, wanted, kCanvasState);
    DenoiseReport(reportNeeds(), nullptr, reportBytes_);
    arena_.plan(reportRegion_, reportBytes_, "reports");
    arena_.planHost(reportHost_, reportBytes_, "reports on the host");
    arena_.planHost(clockMark_, 1, "the clock's mark");
}

/// The tokens that a sequence keeps, and behind them its block.
void CudaCanvas::planKept() {
    cuda::checkKeptTokens(launch_, mostTokens_);
    for (int s = 0; s < sequences_; ++s) {
        mostKept_ = std::max(mostKept_, keptOf(s));
        for (int g = 0; g < config_.kvHeads; ++g) {
            headFirst_.push_back(blocksTotal_);
            blocksTotal_ += (keptOf(s) + options_.block + kPage - 1) / kPage;
        }
    }
    const auto rows = std::size_t(sequences_), kept = blocks_.size() * rows * std::size_t(mostKept_);
    choosing_.plan(arena_, rows);
    arena_.plan(mean_, rows * std::size_t(config_.kvHeads * config_.headDim), kCanvasActivations);
    arena_.plan(importance_, rows * std::size_t(mostTokens_), kCanvasActivations);
    arena_.plan(kept_, kept, "reports");
    arena_.planHost(keptHost_, kept, "reports on the host");
}

/// Takes all that was declared and makes the engine ready for forwards.
void CudaCanvas::open() {
    stream_ = cuda::Stream::make();
    launch_.stream = stream_.get();
    arena_.take();
    passes_.open();
    table_.upload();
    std::vector<std::uint8_t> allowed(allowedIds_.begin(), allowedIds_.end());
    allowed.resize(std::size_t(config_.vocab), 1);
    fillDevice(allowed_, allowed);
    fillDevice(headFirstDevice_, headFirst_);
    fillDevice(wantedRows_, std::vector<BlockRow>(std::size_t(mostWanted_), {0, 0, 0, BlockRow::kTaken}));
    fillDevice(wantedMasks_, std::vector<std::uint64_t>(std::size_t(mostWanted_), 1));
    if (features_) features_->open(headFirstDevice_);
    cuda::check(cudaDeviceSynchronize(), "preparing the session");
    deviceReport_ = DenoiseReport(reportNeeds(), reportRegion_, reportBytes_);
    hostReport_ = DenoiseReport(reportNeeds(), reportHost_, reportBytes_);
    clock_.calibrate(launch_, clockMark_);
    if (trace_ != nullptr) trace_->timesBeginAt(clock_.originNs());
}

std::string CudaCanvas::description() const { return describeGpuEngine(*passes_.linear()); }

// ---- What a forward computes ----------------------------------------------------------------------------------------

void CudaCanvas::list(std::span<const CanvasRow> rows) {
    int longest = 0;
    for (const CanvasRow& row : rows) longest = std::max(longest, int(row.ids.size()));
    computed_.begin(CanvasTokens::tileOf(longest));
    wantedCount_ = choosingCount_ = 0;
    attendsToAll_ = false;
    firstWanted_.clear();
    if (features_) features_->begin(rows);
    for (int s = 0; s < sequences_; ++s) ropeFirst_.host()[s] = table_.rope.first(s);
    for (const CanvasRow& row : rows) listRow(row);
}

void CudaCanvas::listRow(const CanvasRow& row) {
    const int s = int(row.sequence), n = int(row.ids.size());
    int first = 0;
    if (row.keys == CanvasRow::Keys::Kept) { // the block lies behind the kept tokens, and is rotated as itself
        const int kept = keptOf(s);
        first = computed_.add(sequences_ + s, kept, n, kept + n);
        ropeFirst_.host()[sequences_ + s] = table_.rope.first(s) + row.first - kept;
    } else {
        first = computed_.add(s, row.first, n, tokens_[index(row.sequence)]);
        attendsToAll_ = true;
    }
    if (row.keys == CanvasRow::Keys::Computed) features_->add(row, first, computed_.places());
    if (row.keys == CanvasRow::Keys::AllAndChoose)
        choosing_.host()[choosingCount_++] = {s, first, n, row.block, keptOf(s)};
    std::fill(std::copy(row.ids.begin(), row.ids.end(), ids_.host() + first), ids_.host() + computed_.places(), 0);
    firstWanted_.push_back(wantedCount_);
    for (const std::int32_t position : row.wanted) wanted_.host()[wantedCount_++] = first + position - row.first;
}

void CudaCanvas::send() {
    computed_.send(stream_.get());
    ids_.send(std::size_t(computed_.places()), stream_.get());
    wanted_.send(std::size_t(wantedCount_), stream_.get());
    ropeFirst_.send(2 * std::size_t(sequences_), stream_.get());
    if (choosingCount_ > 0) choosing_.send(std::size_t(choosingCount_), stream_.get());
    if (features_) features_->send();
}

// ---- Forwards -------------------------------------------------------------------------------------------------------

void CudaCanvas::forward(std::span<const CanvasRow> rows, StepRecord& record) {
    list(rows);
    if (trace_ != nullptr) trace_->atStep(record.step);
    nvtxPush(nameOf(Phase::Decode), record.step);
    send();
    forwardKernels();
    cuda::check(cudaMemcpyAsync(reportHost_, reportRegion_, reportBytes_, cudaMemcpyDeviceToHost, stream_.get()),
                "reading a forward's report");
    if (choosingCount_ > 0 && mostKept_ > 0)
        cuda::check(
            cudaMemcpyAsync(keptHost_, kept_,
                            blocks_.size() * std::size_t(sequences_) * std::size_t(mostKept_) * sizeof(std::int32_t),
                            cudaMemcpyDeviceToHost, stream_.get()),
            "reading which tokens are kept");
    if (features_) features_->collect();
    nvtxPop();
    cuda::check(cudaStreamSynchronize(stream_.get()), "denoising");
    if (features_) features_->finish(rows);
    keepReport(rows);
    fill(rows, record);
}

/// Launches all kernels of a forward.
void CudaCanvas::forwardKernels() {
    ranges_.at(StepStage::Embed);
    passes_.embed(ids_.device(), computed_.places(), x_, nullptr, 0, deviceReport_.stepMarks + kEmbed);
    for (int layer = 0; layer < config_.layers; ++layer) features_ ? featureKernels(layer) : layerKernels(layer);
    ranges_.at(StepStage::LmHead);
    cuda::gatherRows(launch_, {wantedCount_, config_.hidden, x_, buffers_.x, wanted_.device()});
    if (wantedCount_ > 0) {
        passes_.head(buffers_.logits[0], wantedCount_, deviceReport_.stepMarks + kLmHead);
        chooseCandidates();
    } else {
        for (const auto mark : {kLmHead, kSample}) cuda::stampNow(launch_, deviceReport_.stepMarks + mark);
    }
    cuda::stampNow(launch_, deviceReport_.stepMarks + kEnd);
    ranges_.leave();
}

void CudaCanvas::layerKernels(int layer) {
    ranges_.at(layer, Stage::QkvLinear);
    passes_.project(model_->layers[std::size_t(layer)], x_, computed_.places(), deviceReport_.mark(layer, kQkv));
    place(layer, computed_);
    if (choosingCount_ > 0) chooseKept(layer);
    attend(layer, computed_);
    passes_.finish(layer, x_, computed_.places(), deviceReport_.mark(layer, kOLinear), deviceReport_.mark(layer, kFfn));
}

/// The marks of stages that these layers do not have are those of comparing values.
void CudaCanvas::featureKernels(int layer) {
    const auto mark = [&](DenoiseReport::Mark which) { return deviceReport_.mark(layer, which); };
    features_->runLayer(
        {layer,
         computed_,
         x_,
         blocks_[std::size_t(layer)],
         {mark(kStage1), mark(kPooling), mark(kQkv), mark(kRope), mark(kAttention), mark(kOLinear), mark(kFfn)},
         [&](const CanvasTokens& tokens) { place(layer, tokens); },
         [&](const CanvasTokens& tokens) { attend(layer, tokens); }});
}

/// Rotates queries and keys; keys and values of the tokens replace those before.
void CudaCanvas::place(int layer, const CanvasTokens& tokens) {
    ranges_.at(layer, Stage::Rope);
    cuda::BlockPlaceArgs args;
    args.rows = tokens.tokens(layout_.shape, headFirstDevice_);
    args.qkv = buffers_.qkv;
    args.cos = table_.ropeCos;
    args.sin = table_.ropeSin;
    args.ropeFirst = ropeFirst_.device();
    args.interleaved = config_.rope.interleaved;
    args.norms = model_->layers[std::size_t(layer)].headNorms;
    args.q = buffers_.q;
    args.blocks = blocks_[std::size_t(layer)];
    args.mark = deviceReport_.mark(layer, kRope);
    cuda::placeBlocks(launch_, args);
}

/// Whether the layer's tokens attend to everything and are all computed.
Stage CudaCanvas::attentionStage(int layer) const {
    const bool all = features_ ? layer == 0 || features_->computesAll() : attendsToAll_;
    return all ? Stage::Attention : Stage::Stage2;
}

void CudaCanvas::attend(int layer, const CanvasTokens& tokens) {
    ranges_.at(layer, attentionStage(layer));
    cuda::BlockAttentionArgs attention;
    attention.rows = tokens.tiles(layout_.shape, headFirstDevice_);
    attention.q = buffers_.q;
    attention.blocks = blocks_[std::size_t(layer)];
    attention.scale = config_.attentionScale();
    attention.out = buffers_.attended;
    attention.mark = deviceReport_.mark(layer, kAttention);
    attention.splits = splitsOf(tokens);
    if (attention.splits == 1) return cuda::blockAttention(launch_, attention);
    attention.partial = partial_;
    attention.states = states_;
    cuda::blockAttention(launch_, attention);
    cuda::mergeShares(launch_, {attention.rows, attention.splits, partial_, states_, buffers_.attended});
}

/// Queries of all shares together. Keys are shared among thread blocks only until there are two of them, of 64 queries
/// each, for every multiprocessor.
std::size_t CudaCanvas::shareRoom() const { return std::size_t(launch_.multiprocessors) * 2 * 64; }

/// Thread blocks that share the keys of a tile where the forward has too few tiles for all multiprocessors.
int CudaCanvas::splitsOf(const CanvasTokens& tokens) const {
    const cuda::BlockRows rows = tokens.tiles(layout_.shape, headFirstDevice_);
    const std::size_t queries = std::size_t(rows.items()) * std::size_t(rows.queries());
    const int room = int(std::min<std::size_t>(shareRoom() / std::max<std::size_t>(1, queries), 1024));
    return std::clamp(cuda::blockSplits(launch_, rows, tokens.fewestKeys()), 1, std::max(1, room));
}

cuda::KeepArgs CudaCanvas::keepArgs(int layer) const {
    cuda::KeepArgs args;
    args.shape = layout_.shape;
    args.rows = choosingCount_;
    args.blockTokens = options_.block;
    args.mostTokens = mostTokens_;
    args.mostKept = mostKept_;
    args.kernel = options_.kernel;
    args.table = choosing_.device();
    args.q = buffers_.q;
    args.blocks = blocks_[std::size_t(layer)];
    args.headFirst = headFirstDevice_;
    args.keptFirst = headFirstDevice_ + layout_.heads();
    args.mean = mean_;
    args.importance = importance_;
    args.kept = kept_ + std::size_t(layer) * std::size_t(sequences_) * std::size_t(mostKept_);
    args.scoreMark = deviceReport_.mark(layer, kStage1);
    args.keepMark = deviceReport_.mark(layer, kPooling);
    return args;
}

/// Chooses which tokens outside the blocks are kept, and copies their keys and values.
void CudaCanvas::chooseKept(int layer) {
    ranges_.at(layer, Stage::Stage1);
    cuda::scoreCanvasTokens(launch_, keepArgs(layer));
    ranges_.at(layer, Stage::Pooling);
    cuda::keepCanvasTokens(launch_, keepArgs(layer));
}

/// Where the largest logit is the candidate; otherwise the session draws from the logits.
void CudaCanvas::chooseCandidates() {
    ranges_.at(StepStage::Sample);
    if (sampling_.temperature > 0) return cuda::stampNow(launch_, deviceReport_.stepMarks + kSample);
    cuda::chooseCandidates(launch_, {wantedCount_, 1, config_.vocab, wantedRows_, wantedMasks_, buffers_.logits[0],
                                     allowed_, deviceReport_.candidates, deviceReport_.stepMarks + kSample});
}

// ---- What came of it ------------------------------------------------------------------------------------------------

void CudaCanvas::keepReport(std::span<const CanvasRow> rows) {
    logitsHost_.clear();
    candidates_.clear();
    for (int i = 0; i < wantedCount_; ++i) {
        const cuda::BlockCandidate& from = hostReport_.candidates[i];
        candidates_.push_back({0, from.id, from.confidence, from.entropy, from.second, from.confidence});
    }
    const Extents<int, int, int> keptAt(config_.layers, sequences_, mostKept_);
    for (const CanvasRow& row : rows) {
        if (row.keys != CanvasRow::Keys::AllAndChoose) continue;
        Kept& kept = keptOf_[index(row.sequence)];
        kept.used = false;
        for (int layer = 0; layer < config_.layers; ++layer) {
            const std::int32_t* const from = keptHost_ + keptAt.first(layer, int(row.sequence));
            kept.positions[std::size_t(layer)].assign(from, from + keptOf(int(row.sequence)));
        }
    }
}

void CudaCanvas::fill(std::span<const CanvasRow> rows, StepRecord& record) {
    reader_.fill(hostReport_, {true, choosingCount_ > 0, false}, {}, {}, record);
    fillTimes(record);
    for (int layer = 0; layer < config_.layers; ++layer)
        for (const CanvasRow& row : rows)
            for (int g = 0; g < config_.kvHeads; ++g) fillHead(layer, g, row, record);
    for (const CanvasRow& row : rows)
        if (row.keys == CanvasRow::Keys::Kept) keptOf_[index(row.sequence)].used = true;
}

/// Names the attention as the CPU does. Where layers compare values, that work comes before their projections, and the
/// reader has counted it to the feed-forward of the layer before.
void CudaCanvas::fillTimes(StepRecord& record) const {
    for (int layer = 0; layer < config_.layers; ++layer) {
        LayerRecord& times = record.layers[std::size_t(layer)];
        const Stage stage = attentionStage(layer);
        moveStage(times, stage == Stage::Attention ? Stage::Stage2 : Stage::Attention, stage);
        if (!features_ || !features_->compares() || layer == 0) continue;
        const std::uint64_t values = *hostReport_.mark(layer, kStage1), changes = *hostReport_.mark(layer, kPooling),
                            qkv = *hostReport_.mark(layer, kQkv);
        record.layers[std::size_t(layer) - 1].stageNs[std::size_t(Stage::Ffn)] -= std::int64_t(qkv - values);
        times.startNs = clock_.sinceOrigin(values);
        times.stageNs[std::size_t(Stage::QkvLinear)] += std::int64_t(changes - values);
        times.stageNs[std::size_t(Stage::Compression)] += std::int64_t(qkv - changes);
    }
}

/// The KV head's row of the trace, and its selection where something was chosen.
void CudaCanvas::fillHead(int layer, int kvHead, const CanvasRow& row, StepRecord& record) const {
    DenoiseLayer out;
    out.layer = layer, out.sequence = int(row.sequence), out.kvHead = kvHead;
    if (row.keys == CanvasRow::Keys::Kept)
        fillKept(row, out, record);
    else if (row.keys == CanvasRow::Keys::Computed)
        fillComputed(row, out, record);
    else
        record.denoise.layers.push_back(out);
}

void CudaCanvas::fillKept(const CanvasRow& row, const DenoiseLayer& out, StepRecord& record) const {
    const Kept& kept = keptOf_[index(row.sequence)];
    const auto& ids = kept.positions[std::size_t(out.layer)];
    const int others = tokens_[index(row.sequence)] - options_.block;
    recordChosen(out,
                 {ids, allTokens(options_.block), float(double(ids.size()) / others),
                  kept.used ? int(ids.size()) : -1}, // until the block is written they stay
                 record);
}

void CudaCanvas::fillComputed(const CanvasRow& row, DenoiseLayer out, StepRecord& record) const {
    const ComputedTokens& computed = features_->computed(out.layer, row.sequence);
    const auto changes = features_->changes(out.layer, row);
    if (!changes.empty() && recordsRows_ && out.kvHead == 0)
        recordChanges(
            changes.subspan(std::size_t(row.block - prompts_[index(row.sequence)]), std::size_t(options_.block)), out,
            record);
    const int tokens = tokens_[index(row.sequence)];
    if (int(computed.positions.size()) == tokens) {
        record.denoise.layers.push_back(out);
        return;
    }
    recordChosen(out,
                 {computed.positions, computed.among(row.block, options_.block),
                  float(double(computed.positions.size()) / tokens), computed.kept},
                 record);
}

std::span<const float> CudaCanvas::logits(int row, int index) const {
    const auto vocab = std::size_t(config_.vocab);
    if (logitsHost_.empty()) {
        logitsHost_.resize(std::size_t(wantedCount_) * vocab);
        cuda::check(cudaMemcpy(logitsHost_.data(), buffers_.logits[0], logitsHost_.size() * sizeof(float),
                               cudaMemcpyDeviceToHost),
                    "copying the logits");
    }
    return std::span(logitsHost_).subspan(std::size_t(firstWanted_[std::size_t(row)] + index) * vocab, vocab);
}

const Candidate* CudaCanvas::candidate(int row, int index) const {
    if (sampling_.temperature > 0) return nullptr;
    return &candidates_[std::size_t(firstWanted_[std::size_t(row)] + index)];
}

std::unique_ptr<CanvasEngine> makeCudaCanvas(const CanvasSetup& setup) {
    requireGpu();
    return std::make_unique<CudaCanvas>(DeviceModel::of(setup.model), setup);
}

} // namespace kvscope

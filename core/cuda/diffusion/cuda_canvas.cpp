#include "core/cuda/diffusion/cuda_canvas.h"

#include "base/extents.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/device_copy.h"
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
constexpr int kPage = 64; // tokens of a KV block where nothing is chosen among them

CudaEngineOptions engineOptionsOf(const CanvasSetup& setup) {
    CudaEngineOptions options;
    options.spec.dense = true;
    options.spec.blockSize = options.spec.grid.blockSize = setup.options.tiles() ? setup.options.tile : kPage;
    options.maxTokens = setup.maxTokens;
    options.promptTokens = setup.promptTokens;
    options.plans = {setup.model->config().layers, options.spec, {.offload = false}};
    options.trace = setup.gpuTrace;
    options.offload = false;
    return options;
}

/// The layout of what is projected together: where other engines have the rows of a step it has the wanted positions,
/// and where they have the piece of a prompt it has all tokens of a forward.
BatchLayout productLayout(BatchLayout layout, const CanvasSetup& setup) {
    layout.rows = int(setup.mostWanted);
    layout.pieceTokens = int(CanvasTokens::mostPlaces(setup.maxTokens));
    return layout;
}

void moveStage(LayerRecord& layer, Stage from, Stage to) {
    layer.stageNs[to] += layer.stageNs[from];
    layer.stageNs[from] = 0;
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
    : p_(
          setup.model, std::move(model), engineOptionsOf(setup),
          [&](const BatchLayout& layout) { return productLayout(layout, setup); }, setup.allowed, launch),
      options_(setup.options), recordsRows_(setup.level != RecordLevel::Counters), sampling_(setup.sampling),
      prompts_(setup.promptTokens), tokens_(setup.maxTokens), sequences_(p_.layout.rows),
      mostWanted_(int(setup.mostWanted)), reader_(noPages_, reportNeeds(), p_.clock, 0) {
    store_.blocks.resize(p_.config.layers, nullptr);
    keeping_.of.resize(sequences_);
    keeping_.mostTokens = *std::max_element(tokens_.begin(), tokens_.end());
    for (Kept& kept : keeping_.of) kept.positions.resize(p_.config.layers);
    if (options_.cache == CanvasCache::Features)
        features_.emplace(CudaCanvasFeatures::Parts{*p_.model, options_, p_.layout.shape, p_.buffers, p_.passes,
                                                    p_.launch, p_.ranges},
                          prompts_, tokens_);
    if (options_.tiles())
        tiles_.emplace(CudaCanvasTiles::Parts{options_, p_.config, p_.layout.shape, p_.buffers, p_.launch}, prompts_,
                       tokens_);
    plan();
}

DenoiseReportNeeds CudaCanvas::reportNeeds() const {
    DenoiseReportNeeds needs;
    needs.rows = mostWanted_;
    needs.block = 1;
    needs.layers = p_.config.layers;
    needs.kvHeads = 1;
    return needs;
}

/// How many tokens outside a block are kept.
int CudaCanvas::keptOf(RowId sequence) const { return options_.keptOf(tokens_[sequence] - options_.block); }

void CudaCanvas::plan() {
    const int places = p_.products.pieceTokens, wanted = mostWanted_, hidden = p_.config.hidden,
              dim = p_.config.headDim;
    const Elements queries(places, p_.config.queryHeads, dim);
    store_.headFirst = p_.layout.blockFirst;
    store_.blocksTotal = p_.layout.blocksTotal;
    if (evicts()) planKept();
    if (features_) features_->plan(p_.arena);
    if (tiles_) tiles_->plan(p_.arena);
    for (__nv_bfloat16*& blocks : store_.blocks)
        p_.arena.plan(blocks, {store_.blocksTotal, p_.layout.blockElements},
                      {"kv_resident", "resident KV cache", Holds::Kv});
    p_.arena.plan(x_, {places, hidden}, kCanvasActivations);
    p_.arena.plan(p_.buffers.qkv, {places, p_.config.queryHeads + 2 * p_.config.kvHeads, dim}, kCanvasActivations);
    p_.arena.plan(p_.buffers.q, queries, kCanvasActivations);
    p_.arena.plan(p_.buffers.attended, queries, kCanvasActivations);
    p_.arena.plan(p_.buffers.hidden, {places, p_.config.ffn}, kCanvasActivations);
    p_.arena.plan(partial_, {shareRoom(), dim}, kCanvasActivations);
    p_.arena.plan(states_, shareRoom(), kCanvasActivations);
    p_.arena.plan(p_.buffers.x, {wanted, hidden}, kCanvasActivations);
    p_.arena.plan(p_.buffers.logits[0], {wanted, p_.config.vocab}, kCanvasActivations);
    p_.plan();
    told_.computed.plan(p_.arena, tokens_, tiles_ ? p_.config.queryHeads : p_.config.kvHeads,
                        tiles_ ? CudaCanvasTiles::rowTokens(options_.tile) : 0);
    told_.ids.plan(p_.arena, places);
    told_.wanted.plan(p_.arena, wanted);
    told_.ropeFirst.plan(p_.arena, {2, sequences_});
    p_.arena.plan(store_.headFirstDevice, store_.headFirst.size(), kCanvasState);
    p_.arena.plan(wantedRows_, wanted, kCanvasState);
    p_.arena.plan(wantedMasks_, wanted, kCanvasState);
    DenoiseReport(reportNeeds(), nullptr, reports_.bytes);
    p_.arena.plan(reports_.deviceMemory, reports_.bytes, "reports");
    p_.arena.planHost(reports_.hostMemory, reports_.bytes, "reports on the host");
    p_.arena.planHost(clockMark_, 1, "the clock's mark");
}

/// Declares, for each sequence, KV blocks for the tokens that are kept and for its block behind them, and what the
/// choice of these tokens needs.
void CudaCanvas::planKept() {
    cuda::checkKeptTokens(p_.launch, keeping_.mostTokens);
    for (const RowId s : tokens_.ids()) {
        keeping_.most = std::max(keeping_.most, keptOf(s));
        for (int g = 0; g < p_.config.kvHeads; ++g) {
            store_.headFirst.push_back(store_.blocksTotal);
            store_.blocksTotal += (keptOf(s) + options_.block + kPage - 1) / kPage;
        }
    }
    const int rows = sequences_;
    const Elements kept(p_.config.layers, rows, keeping_.most);
    told_.choosing.plan(p_.arena, rows);
    p_.arena.plan(keeping_.mean, {rows, p_.config.kvHeads, p_.config.headDim}, kCanvasActivations);
    p_.arena.plan(keeping_.importance, {rows, keeping_.mostTokens}, kCanvasActivations);
    p_.arena.plan(keeping_.tokens, kept, "reports");
    p_.arena.planHost(keeping_.host, kept, "reports on the host");
}

/// Takes all that was declared and makes the engine ready for forwards.
void CudaCanvas::open() {
    stream_ = cuda::Stream::make();
    p_.open(stream_);
    fillDevice(store_.headFirstDevice, store_.headFirst);
    fillDevice(wantedRows_, Numbered<BlockRow>(mostWanted_, {0, 0, 0, BlockRow::kTaken}));
    fillDevice(wantedMasks_, Numbered<std::uint64_t>(mostWanted_, 1));
    if (features_) features_->open(store_.headFirstDevice);
    if (tiles_) tiles_->open(store_.headFirst, store_.headFirstDevice);
    cuda::check(cudaDeviceSynchronize(), "preparing the session");
    reports_.device = DenoiseReport(reportNeeds(), reports_.deviceMemory, reports_.bytes);
    reports_.host = DenoiseReport(reportNeeds(), reports_.hostMemory, reports_.bytes);
    p_.startClock(clockMark_);
}

std::string CudaCanvas::description() const { return describeGpuEngine(*p_.passes.linear()); }

// ---- What a forward computes ----------------------------------------------------------------------------------------

void CudaCanvas::list(std::span<const CanvasRow> rows) {
    int longest = 0;
    for (const CanvasRow& row : rows) longest = std::max(longest, int(row.ids.size()));
    told_.wantedCount = told_.choosingCount = 0;
    told_.attendsToAll = false;
    told_.firstWanted.clear();
    told_.choosesTiles = tiles_ && rows.front().keys == CanvasRow::Keys::AllAndChoose;
    told_.attendsByTiles = tiles_ && rows.front().keys == CanvasRow::Keys::Masked;
    told_.computed.begin(tiles_ ? CudaCanvasTiles::rowTokens(options_.tile) : CanvasTokens::tileOf(longest),
                         told_.attendsByTiles ? p_.config.queryHeads : p_.config.kvHeads);
    if (features_) features_->begin(rows);
    if (tiles_) tiles_->begin();
    for (int s = 0; s < sequences_; ++s) told_.ropeFirst.host()[s] = p_.table.rope.first(s);
    for (const CanvasRow& row : rows) listRow(row);
}

void CudaCanvas::listRow(const CanvasRow& row) {
    const int s = int(row.sequence), n = int(row.ids.size());
    int first = 0;
    if (row.keys ==
        CanvasRow::Keys::Kept) { // the block lies behind the kept tokens, and keeps its own positions' rotation
        const int kept = keptOf(row.sequence);
        first = told_.computed.add(sequences_ + s, kept, n, kept + n);
        told_.ropeFirst.host()[sequences_ + s] = p_.table.rope.first(s) + row.first - kept;
    } else {
        const int tile = told_.computed.tiles();
        first = told_.computed.add(s, row.first, n, tokens_[row.sequence],
                                   told_.attendsByTiles ? std::uint32_t(BlockRow::kSparse) : 0u);
        told_.attendsToAll |= !told_.attendsByTiles;
        if (tiles_) tiles_->add(row, first, tile);
    }
    if (row.keys == CanvasRow::Keys::Computed) features_->add(row, first, told_.computed.places());
    if (row.keys == CanvasRow::Keys::AllAndChoose && !tiles_)
        told_.choosing.host()[told_.choosingCount++] = {s, first, n, row.block, keptOf(row.sequence)};
    std::fill(std::copy(row.ids.begin(), row.ids.end(), told_.ids.host() + first),
              told_.ids.host() + told_.computed.places(), 0);
    told_.firstWanted.push_back(told_.wantedCount);
    for (const std::int32_t position : row.wanted)
        told_.wanted.host()[told_.wantedCount++] = first + position - row.first;
}

void CudaCanvas::send() {
    told_.computed.send(stream_.get());
    told_.ids.send(told_.computed.places(), stream_.get());
    told_.wanted.send(told_.wantedCount, stream_.get());
    told_.ropeFirst.send({2, sequences_}, stream_.get());
    if (told_.choosingCount > 0) told_.choosing.send(told_.choosingCount, stream_.get());
    if (features_) features_->send();
}

// ---- Forwards -------------------------------------------------------------------------------------------------------

void CudaCanvas::forward(std::span<const CanvasRow> rows, StepRecord& record) {
    list(rows);
    if (p_.trace != nullptr) p_.trace->atStep(record.step);
    nvtxPush(nameOf(Phase::Decode), record.step);
    send();
    forwardKernels();
    cuda::check(cudaMemcpyAsync(reports_.hostMemory, reports_.deviceMemory, reports_.bytes, cudaMemcpyDeviceToHost,
                                stream_.get()),
                "reading a forward's report");
    if (told_.choosingCount > 0 && keeping_.most > 0)
        copyOnStream(keeping_.host, keeping_.tokens, {p_.config.layers, sequences_, keeping_.most},
                     cudaMemcpyDeviceToHost, stream_.get(), "reading which tokens are kept");
    if (features_) features_->collect();
    if (told_.choosesTiles) tiles_->collect(stream_.get());
    nvtxPop();
    cuda::check(cudaStreamSynchronize(stream_.get()), "denoising");
    if (features_) features_->finish(rows);
    keepReport(rows);
    fill(rows, record);
}

/// Launches all kernels of a forward.
void CudaCanvas::forwardKernels() {
    p_.ranges.at(StepStage::Embed);
    p_.passes.embed(told_.ids.device(), told_.computed.places(), x_, nullptr, 0, reports_.device.stepMarks + kEmbed);
    for (const LayerId layer : store_.blocks.ids()) features_ ? featureKernels(layer) : layerKernels(layer);
    p_.ranges.at(StepStage::LmHead);
    cuda::gatherRows(p_.launch, {told_.wantedCount, p_.config.hidden, x_, p_.buffers.x, told_.wanted.device()});
    if (told_.wantedCount > 0) {
        p_.passes.head(p_.buffers.logits[0], told_.wantedCount, reports_.device.stepMarks + kLmHead);
        chooseCandidates();
    } else {
        for (const auto mark : {kLmHead, kSample}) cuda::stampNow(p_.launch, reports_.device.stepMarks + mark);
    }
    cuda::stampNow(p_.launch, reports_.device.stepMarks + kEnd);
    p_.ranges.leave();
}

void CudaCanvas::layerKernels(LayerId layer) {
    p_.ranges.at(layer, Stage::QkvLinear);
    p_.passes.project(p_.model->layers[layer], x_, told_.computed.places(), reports_.device.mark(layer, kQkv));
    place(layer, told_.computed);
    if (told_.choosingCount > 0) chooseKept(layer);
    if (told_.choosesTiles) {
        p_.ranges.at(layer, Stage::Stage1);
        tiles_->make(layer, told_.computed, store_.blocks[layer],
                     {reports_.device.mark(layer, kStage1), reports_.device.mark(layer, kPooling)}, stream_.get());
    }
    attend(layer, told_.computed);
    p_.passes.finish(layer, x_, told_.computed.places(), reports_.device.mark(layer, kOLinear),
                     reports_.device.mark(layer, kFfn));
}

/// Launches a layer's kernels where the layers keep features. Such a layer has no stages stage1 and pooling; their
/// marks take the times at which values are projected and compared.
void CudaCanvas::featureKernels(LayerId layer) {
    const auto mark = [&](DenoiseReport::Mark which) { return reports_.device.mark(layer, which); };
    features_->runLayer(
        {layer,
         told_.computed,
         x_,
         store_.blocks[layer],
         {mark(kStage1), mark(kPooling), mark(kQkv), mark(kRope), mark(kAttention), mark(kOLinear), mark(kFfn)},
         [&](const CanvasTokens& tokens) { place(layer, tokens); },
         [&](const CanvasTokens& tokens) { attend(layer, tokens); }});
}

/// Rotates the tokens' queries and keys, and writes their keys and values to their positions, where they replace those
/// of an earlier forward.
void CudaCanvas::place(LayerId layer, const CanvasTokens& tokens) {
    p_.ranges.at(layer, Stage::Rope);
    cuda::BlockPlaceArgs args;
    args.rows = tokens.tokens(p_.layout.shape, store_.headFirstDevice);
    args.qkv = p_.buffers.qkv;
    args.cos = p_.table.ropeCos;
    args.sin = p_.table.ropeSin;
    args.ropeFirst = told_.ropeFirst.device();
    args.interleaved = p_.config.rope.interleaved;
    args.norms = p_.model->layers[layer].headNorms;
    args.q = p_.buffers.q;
    args.blocks = store_.blocks[layer];
    args.mark = reports_.device.mark(layer, kRope);
    cuda::placeBlocks(p_.launch, args);
}

/// The stage for which the attention counts: `attention` if all of the layer's tokens are computed and attend to
/// everything, else stage2.
Stage CudaCanvas::attentionStage(LayerId layer) const {
    const bool all = features_ ? layer == LayerId{0} || features_->computesAll() : told_.attendsToAll;
    return all ? Stage::Attention : Stage::Stage2;
}

void CudaCanvas::attend(LayerId layer, const CanvasTokens& tokens) {
    p_.ranges.at(layer, attentionStage(layer));
    if (told_.attendsByTiles)
        return tiles_->attend(layer, tokens, store_.blocks[layer], reports_.device.mark(layer, kAttention));
    cuda::BlockAttentionArgs attention;
    attention.rows = tokens.tiles(p_.layout.shape, store_.headFirstDevice);
    attention.q = p_.buffers.q;
    attention.blocks = store_.blocks[layer];
    attention.scale = p_.config.attentionScale();
    attention.out = p_.buffers.attended;
    attention.mark = reports_.device.mark(layer, kAttention);
    attention.splits = splitsOf(tokens);
    if (attention.splits == 1) return cuda::blockAttention(p_.launch, attention);
    attention.partial = partial_;
    attention.states = states_;
    cuda::blockAttention(p_.launch, attention);
    cuda::mergeShares(p_.launch, {attention.rows, attention.splits, partial_, states_, p_.buffers.attended});
}

/// The most queries of all shares together. The keys of a tile are shared among more thread blocks only until there are
/// two thread blocks, of 64 queries each, for every multiprocessor.
std::size_t CudaCanvas::shareRoom() const { return Elements(p_.launch.multiprocessors, 2, 64); }

/// @return how many thread blocks share the keys of a tile: more than one where the forward has too few tiles for all
/// multiprocessors
int CudaCanvas::splitsOf(const CanvasTokens& tokens) const {
    const cuda::BlockRows rows = tokens.tiles(p_.layout.shape, store_.headFirstDevice);
    const std::size_t queries = Elements(rows.items(), rows.queries());
    const int room = int(std::min<std::size_t>(shareRoom() / std::max<std::size_t>(1, queries), 1024));
    return std::clamp(cuda::blockSplits(p_.launch, rows, tokens.fewestKeys()), 1, std::max(1, room));
}

cuda::KeepArgs CudaCanvas::keepArgs(LayerId layer) const {
    cuda::KeepArgs args;
    args.shape = p_.layout.shape;
    args.rows = told_.choosingCount;
    args.blockTokens = options_.block;
    args.mostTokens = keeping_.mostTokens;
    args.mostKept = keeping_.most;
    args.kernel = options_.kernel;
    args.table = told_.choosing.device();
    args.q = p_.buffers.q;
    args.blocks = store_.blocks[layer];
    args.headFirst = store_.headFirstDevice;
    args.keptFirst = store_.headFirstDevice + p_.layout.heads();
    args.mean = keeping_.mean;
    args.importance = keeping_.importance;
    args.kept = RowsOf(keeping_.tokens, {sequences_, keeping_.most})[int(layer)];
    args.scoreMark = reports_.device.mark(layer, kStage1);
    args.keepMark = reports_.device.mark(layer, kPooling);
    return args;
}

/// Chooses which tokens outside the blocks are kept, and copies their keys and values.
void CudaCanvas::chooseKept(LayerId layer) {
    p_.ranges.at(layer, Stage::Stage1);
    cuda::scoreCanvasTokens(p_.launch, keepArgs(layer));
    p_.ranges.at(layer, Stage::Pooling);
    cuda::keepCanvasTokens(p_.launch, keepArgs(layer));
}

/// Launches the choice of candidates, if they are the largest logits; otherwise the session draws from the logits.
void CudaCanvas::chooseCandidates() {
    p_.ranges.at(StepStage::Sample);
    if (sampling_.temperature > 0) return cuda::stampNow(p_.launch, reports_.device.stepMarks + kSample);
    cuda::chooseCandidates(p_.launch,
                           {told_.wantedCount, 1, p_.config.vocab, wantedRows_, wantedMasks_, p_.buffers.logits[0],
                            p_.allowed, reports_.device.candidates, reports_.device.stepMarks + kSample});
}

// ---- What came of it ------------------------------------------------------------------------------------------------

void CudaCanvas::keepReport(std::span<const CanvasRow> rows) {
    logitsHost_.clear();
    candidates_.clear();
    for (int i = 0; i < told_.wantedCount; ++i) {
        const cuda::BlockCandidate& from = reports_.host.candidates[i];
        candidates_.push_back(
            {0, from.id, from.confidence, from.entropy, from.confidence - from.second, from.confidence});
    }
    const Extents<LayerId, RowId, int> keptAt(p_.config.layers, sequences_, keeping_.most);
    for (const CanvasRow& row : rows) {
        if (row.keys != CanvasRow::Keys::AllAndChoose || tiles_) continue;
        Kept& kept = keeping_.of[row.sequence];
        kept.used = false;
        for (const LayerId layer : kept.positions.ids()) {
            const std::int32_t* const from = keeping_.host + keptAt.first(layer, row.sequence);
            kept.positions[layer].assign(from, from + keptOf(row.sequence));
        }
    }
}

void CudaCanvas::fill(std::span<const CanvasRow> rows, StepRecord& record) {
    reader_.fill(reports_.host, {true, told_.choosingCount > 0 || told_.choosesTiles, false}, {}, {}, record);
    fillTimes(record);
    for (const LayerId layer : store_.blocks.ids())
        for (const CanvasRow& row : rows)
            for (const KvHeadId g : idsUpTo<KvHeadId>(p_.config.kvHeads)) fillHead(layer, g, row, record);
    for (const CanvasRow& row : rows)
        if (row.keys == CanvasRow::Keys::Kept) keeping_.of[row.sequence].used = true;
}

/// Corrects the stage times that the reader has made. The attention counts for the stage for which the CPU counts it.
/// The time of comparing values, which the reader has added to the feed-forward of the layer before, goes to the layer
/// itself.
void CudaCanvas::fillTimes(StepRecord& record) const {
    for (const LayerId layer : store_.blocks.ids()) {
        LayerRecord& times = record.layers[int(layer)];
        const Stage stage = attentionStage(layer);
        moveStage(times, stage == Stage::Attention ? Stage::Stage2 : Stage::Attention, stage);
        if (!features_ || !features_->compares() || layer == LayerId{0}) continue;
        const std::uint64_t values = *reports_.host.mark(layer, kStage1),
                            changes = *reports_.host.mark(layer, kPooling), qkv = *reports_.host.mark(layer, kQkv);
        record.layers[int(layer) - 1].stageNs[Stage::Ffn] -= std::int64_t(qkv - values);
        times.startNs = p_.clock.sinceOrigin(values);
        times.stageNs[Stage::QkvLinear] += std::int64_t(changes - values);
        times.stageNs[Stage::Compression] += std::int64_t(qkv - changes);
    }
}

/// Adds the KV head's row of the trace to the record, and its selection where something was chosen.
void CudaCanvas::fillHead(LayerId layer, KvHeadId kvHead, const CanvasRow& row, StepRecord& record) const {
    DenoiseLayer out;
    out.layer = int(layer), out.sequence = int(row.sequence), out.kvHead = int(kvHead);
    if (row.keys == CanvasRow::Keys::Kept)
        fillKept(row, out, record);
    else if (row.keys == CanvasRow::Keys::Computed)
        fillComputed(row, out, record);
    else if (row.keys == CanvasRow::Keys::Masked)
        fillMasked(row, out, record);
    else
        record.denoise.layers.push_back(out);
}

void CudaCanvas::fillKept(const CanvasRow& row, const DenoiseLayer& out, StepRecord& record) const {
    const Kept& kept = keeping_.of[row.sequence];
    const auto& ids = kept.positions[LayerId{out.layer}];
    const int others = tokens_[row.sequence] - options_.block;
    recordChosen(out,
                 {ids, allTokens(options_.block), float(double(ids.size()) / others),
                  kept.used ? int(ids.size()) : -1}, // the kept tokens stay the same until the block is written
                 record);
}

void CudaCanvas::fillComputed(const CanvasRow& row, DenoiseLayer out, StepRecord& record) const {
    const ComputedTokens& computed = features_->computed(LayerId{out.layer}, row.sequence);
    const auto changes = features_->changes(LayerId{out.layer}, row);
    if (!changes.empty() && recordsRows_ && out.kvHead == 0)
        recordChanges(changes.part(row.block - prompts_[row.sequence], options_.block), out, record);
    const int tokens = tokens_[row.sequence];
    if (int(computed.positions.size()) == tokens) {
        record.denoise.layers.push_back(out);
        return;
    }
    recordChosen(out,
                 {computed.positions, computed.among(row.block, options_.block),
                  float(double(computed.positions.size()) / tokens), computed.kept},
                 record);
}

void CudaCanvas::fillMasked(const CanvasRow& row, DenoiseLayer out, StepRecord& record) const {
    const LayerId layer{out.layer};
    const KvHeadId kvHead{out.kvHead};
    if (recordsRows_) {
        const auto densities = tiles_->densities(layer, row.sequence, kvHead);
        out.firstRow = std::int64_t(record.denoise.rowDensities.size());
        out.rows = int(densities.size());
        record.denoise.rowDensities.insert(record.denoise.rowDensities.end(), densities.begin(), densities.end());
    }
    const auto ids = tiles_->united(layer, row.sequence, kvHead);
    const int tokens = tokens_[row.sequence];
    int kept = 0;
    for (const std::int32_t tile : ids) kept += std::min(options_.tile, tokens - tile * options_.tile);
    recordChosen(out,
                 {ids, allTokens(options_.block), float(double(kept) / tokens),
                  row.maskUsed ? int(ids.size()) : -1}, // the masks stay the same to the end of the run
                 record);
}

std::span<const float> CudaCanvas::logits(int row, int index) const {
    const Extents<int, int> at(told_.wantedCount, p_.config.vocab);
    if (logitsHost_.empty()) {
        logitsHost_.resize(at.size());
        cuda::check(cudaMemcpy(logitsHost_.data(), p_.buffers.logits[0], logitsHost_.size() * sizeof(float),
                               cudaMemcpyDeviceToHost),
                    "copying the logits");
    }
    return at.part(std::span<const float>(logitsHost_), told_.firstWanted[row] + index);
}

const Candidate* CudaCanvas::candidate(int row, int index) const {
    if (sampling_.temperature > 0) return nullptr;
    return &candidates_[told_.firstWanted[row] + index];
}

std::unique_ptr<CanvasEngine> makeCudaCanvas(const CanvasSetup& setup) {
    requireGpu();
    return std::make_unique<CudaCanvas>(DeviceModel::of(setup.model), setup);
}

} // namespace kvscope

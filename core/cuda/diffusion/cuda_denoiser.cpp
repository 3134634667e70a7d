#include "core/cuda/diffusion/cuda_denoiser.h"

#include "base/extents.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/cuda_sequences.h"
#include "core/cuda/gpu_device.h"
#include "core/session/stage_clock.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
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

/// The shape with which the attention runs where every query head has a list of tiles of its own: as if every query
/// head had a KV head of its own.
cuda::AttentionShape shapeOfHeads(cuda::AttentionShape shape) {
    shape.kvHeads = shape.queryHeads;
    return shape;
}

int longestOf(const DenoiseSetup& setup) { return *std::max_element(setup.maxTokens.begin(), setup.maxTokens.end()); }

/// How many tiles a row of a mask keeps at most, see tilesKept.
int tileCapacity(const DenoiseOptions& options, int tiles) {
    return std::min(tiles, options.budget / options.page + 2);
}

/// The layout of what is projected together: a row for each token of all sequences' blocks.
BatchLayout productLayout(BatchLayout layout, int block) {
    layout.rows *= block;
    layout.pieceTokens = std::max(layout.pieceTokens, layout.rows);
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
    : p_(
          setup.model, std::move(model), engineOptionsOf(setup),
          [&](const BatchLayout& layout) { return productLayout(layout, setup.options.block); }, setup.allowed, launch),
      options_(setup.options),
      sampling_(setup.sampling), recorded_{setup.level != RecordLevel::Counters || setup.observer != nullptr,
                                           setup.level != RecordLevel::Counters && !options_.pages, setup.observer},
      rules_(options_, recorded_.changes, recorded_.observer != nullptr,
             sampling_.temperature <= 0 && recorded_.observer == nullptr),
      rows_(p_.layout.rows), block_(options_.block), layers_(p_.config.layers),
      prefix_(setup.slots > 0
                  ? std::make_unique<CudaPrefix>(
                        CudaPrefix::Parts{p_.layout, p_.table, p_.launch, p_.ranges, device_.report, layers_, options_},
                        setup.slots, setup.cachePolicy)
                  : nullptr),
      prompts_({*p_.model,
                setup.prompts,
                block_,
                {p_.config, p_.layout, p_.buffers, p_.table, p_.launch, p_.passes, p_.ranges},
                layers_,
                prefix_.get(),
                p_.clock,
                p_.trace}),
      reader_(options_, reportNeeds(), p_.clock, std::int64_t(cuda::blockBytes(p_.layout.shape))) {
    if (p_.config.latent)
        throw Error(ErrorKind::Unsupported, "block diffusion with latent attention does not run on the GPU backend",
                    "use --backend cpu");
    if (options_.choosesPages()) cuda::checkPageUnion(p_.launch, p_.layout.maxBlocks);
    if (rules_.weighs()) cuda::checkTileMask(p_.launch, p_.layout.maxBlocks);
    const auto splitsOf = [&](const cuda::AttentionShape& shape) {
        return cuda::blockSplits(p_.launch, {shape, rows_, block_}, longestOf(setup));
    };
    shares_.count = splitsOf(p_.layout.shape);
    shares_.ofTiles = std::min(shares_.count, splitsOf(shapeOfHeads(p_.layout.shape)));
    plan();
}

DenoiseReportNeeds CudaDenoiser::reportNeeds() const {
    DenoiseReportNeeds needs;
    needs.rows = rows_;
    needs.block = block_;
    needs.layers = p_.config.layers;
    needs.kvHeads = p_.config.kvHeads;
    needs.sets = !rules_.compares() ? 0 : options_.activePerHead ? p_.config.kvHeads : 1;
    needs.active = namesActive();
    needs.words = options_.pages ? std::size_t(p_.layout.maxBlocks + 31) / 32 : 0;
    needs.agnostic = options_.agnosticPages > 0;
    needs.offloads = prefix_ != nullptr;
    needs.ahead = needs.offloads && options_.fetchAhead;
    needs.queryHeads = p_.config.queryHeads;
    needs.tileRows = options_.tiles && recorded_.changes ? (block_ + options_.page - 1) / options_.page : 0;
    needs.kvChanges = recorded_.kvChanges;
    return needs;
}

void CudaDenoiser::plan() {
    const Elements tokens(rows_, block_), queries(tokens, p_.config.queryHeads);
    planSharedBuffers(p_.arena, p_.buffers, p_.config, p_.products);
    p_.plan();
    planLayers();
    if (prefix_) prefix_->plan(p_.arena);
    if (options_.choosesPages()) planChoice();
    if (rules_.weighs()) planTiles();
    p_.arena.plan(changes_, rules_.compares() ? queries : Elements(0), kActivations);
    p_.arena.plan(kvChanges_, recorded_.kvChanges ? Elements(tokens, 2, p_.config.kvHeads) : Elements(0), kActivations);
    const Elements parts(shares_.count, queries);
    p_.arena.plan(shares_.partial, {parts, p_.config.headDim / 2},
                  kActivations); // numbers of 2 bytes, see attend(); dim is even
    p_.arena.plan(shares_.states, parts, kActivations);
    prompts_.plan(p_.arena, p_.engine.maxPrompt);
    FlightInputs(nullptr, rows_, block_, device_.inputBytes);
    p_.arena.plan(device_.inputMemory, device_.inputBytes, kState);
    DenoiseReport(reportNeeds(), nullptr, device_.reportBytes);
    p_.arena.plan(device_.reportMemory, device_.reportBytes, "reports");
    for (Entry& entry : entries_) {
        p_.arena.planHost(entry.inputMemory, device_.inputBytes, "what the host says of forwards");
        p_.arena.planHost(entry.reportMemory, device_.reportBytes, "reports on the host");
    }
}

void CudaDenoiser::planLayers() {
    constexpr MemoryKind kMemory("block_memory", "queries and outputs of the blocks", Holds::Scratch);
    const int dim = p_.config.headDim;
    const Elements queries(rows_, block_, p_.config.queryHeads), blocks(p_.layout.blocksTotal);
    for (DenoiserLayer& layer : layers_) {
        if (!prefix_)
            p_.arena.plan(layer.blocks, {blocks, p_.layout.blockElements},
                          {"kv_resident", "resident KV cache", Holds::Kv});
        if (options_.choosesPages())
            p_.arena.plan(layer.ranges, {blocks, 2, dim}, {"block_index", "block index", Holds::Index});
        if (rules_.compares()) p_.arena.plan(layer.before, {queries, dim}, kMemory);
        if (options_.pages && !options_.everyToken) p_.arena.plan(layer.prefix, {queries, dim}, kMemory);
        p_.arena.plan(layer.prefixSums, queries, kMemory);
        if (recorded_.kvChanges)
            p_.arena.plan(layer.beforeKv, {rows_, block_, p_.config.kvHeads, 2, dim},
                          {"block_changes", "keys and values of the blocks' forwards before", Holds::Scratch});
    }
}

void CudaDenoiser::planTiles() {
    constexpr MemoryKind kMasks("tile_masks", "masks of tiles", Holds::Index);
    const cuda::TileMaskArgs args = maskOf(LayerId{0});
    const Elements heads(rows_, p_.config.queryHeads);
    for (DenoiserLayer& layer : layers_) {
        if (!options_.tiles) break;
        p_.arena.plan(layer.tiles, {heads, args.tileRows(), args.capacity}, kMasks);
        p_.arena.plan(layer.tileCount, heads, kMasks);
    }
    p_.arena.plan(tiles_.weights, {heads, block_, args.pieces()}, kActivations);
    p_.arena.plan(tiles_.headFirst, options_.tiles ? heads : Elements(0), kState);
}

void CudaDenoiser::uploadTileHeads() {
    std::vector<std::int64_t> first;
    for (int head = 0; head < rows_ * p_.config.queryHeads; ++head)
        first.push_back(p_.layout.blockFirst[head / p_.config.group()]);
    cuda::check(cudaMemcpy(tiles_.headFirst, first.data(), first.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice),
                "preparing the session");
}

void CudaDenoiser::planChoice() {
    const Elements items(rows_, p_.config.kvHeads), pages(p_.layout.maxBlocks);
    const cuda::PageUnionArgs args = unionOf(LayerId{0});
    p_.arena.plan(choice_.scores, {items, args.rows.queries(), args.scoreStride()}, kActivations);
    p_.arena.plan(choice_.words, {items, args.wordsOf()}, kState);
    p_.arena.plan(choice_.arrivals, items, kState);
    p_.arena.plan(choice_.pages, items * pages, kActivations);
    p_.arena.plan(choice_.count, items, kActivations);
}

/// Takes all that was declared and makes the engine ready for prompts.
void CudaDenoiser::open() {
    stream_ = cuda::Stream::make();
    p_.open(stream_);
    if (prefix_) prefix_->open();
    if (options_.tiles) uploadTileHeads();
    cuda::check(cudaDeviceSynchronize(), "preparing the session");
    device_.inputs = FlightInputs(device_.inputMemory, rows_, block_, device_.inputBytes);
    device_.report = DenoiseReport(reportNeeds(), device_.reportMemory, device_.reportBytes);
    for (Entry& entry : entries_) {
        entry.done = cuda::Event::make();
        entry.inputs = FlightInputs(entry.inputMemory, rows_, block_, device_.inputBytes);
        entry.report = DenoiseReport(reportNeeds(), entry.reportMemory, device_.reportBytes);
    }
    candidates_.resize(rows_ * block_);
    p_.startClock(prompts_.marks());
    // One forward without rows outside a graph, because cuBLASLt's plans and the attributes of kernels must not be made
    // during a capture.
    forwardKernels({true, true, true, rules_.weighs()});
    cuda::check(cudaStreamSynchronize(stream_.get()), "trying a step");
}

std::string CudaDenoiser::description() const { return describeGpuEngine(*p_.passes.linear()); }

cuda::BlockRows CudaDenoiser::rowsOf(LayerId layer) const {
    return {p_.layout.shape,
            rows_,
            block_,
            device_.inputs.table,
            namesActive() ? device_.report.activeOf(layer) : nullptr,
            p_.table.blockFirst};
}

cuda::PageUnionArgs CudaDenoiser::unionOf(LayerId layer) const {
    cuda::PageUnionArgs args;
    args.rows = rowsOf(layer);
    args.q = p_.buffers.q;
    args.ranges = layers_[layer].ranges;
    args.maxPages = p_.layout.maxBlocks;
    args.pagesPerQuery = options_.pagesPerQuery;
    args.scores = choice_.scores;
    args.words = choice_.words;
    args.arrivals = choice_.arrivals;
    args.pages = choice_.pages;
    args.count = choice_.count;
    args.always = device_.report.agnosticOf(layer);
    args.record = device_.report.pagesOf(layer);
    return args;
}

/// The rows of the attention under masks: every query head has a KV head of its own, and all tokens attend.
cuda::BlockRows CudaDenoiser::tileHeads() const {
    return {shapeOfHeads(p_.layout.shape), rows_, block_, device_.inputs.table, nullptr, tiles_.headFirst};
}

cuda::TileMaskArgs CudaDenoiser::maskOf(LayerId layer) const {
    cuda::TileMaskArgs args;
    args.rows = rowsOf(layer);
    args.q = p_.buffers.q;
    args.blocks = layers_[layer].blocks;
    args.scale =
        options_.scaledByHeads ? float(1 / std::sqrt(double(p_.config.queryHeads))) : p_.config.attentionScale();
    args.maxTiles = p_.layout.maxBlocks;
    args.capacity = tileCapacity(options_, p_.layout.maxBlocks);
    args.weights = tiles_.weights;
    args.tiles = layers_[layer].tiles;
    args.count = layers_[layer].tileCount;
    // The choice stays in the report's memory, so that the reports of the block's later forwards have it too.
    args.united = options_.tiles ? device_.report.pagesOf(layer) : device_.report.agnosticOf(layer);
    args.densities = device_.report.densitiesOf(layer);
    return args;
}

// ---- Forwards -------------------------------------------------------------------------------------------------------

void CudaDenoiser::prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) {
    prompts_.read(record, progress, stop);
}

/// Starts a forward, without waiting. rows: their ids and masks are uploaded; empty: the forward before has left both
/// on the device.
void CudaDenoiser::start(Flight flight, std::span<const DenoiseRow> rows, int step) {
    Entry& entry = entries_[ahead_ ? 1 - entry_ : entry_];
    const FlightInputs& inputs = entry.inputs;
    std::fill_n(inputs.table, rows_, BlockRow());
    for (const FlightRow& of : flight.rows) inputs.table[index(of.row.sequence)] = rules_.tableRow(of);
    std::fill_n(inputs.masked, rows_, 0);
    for (const DenoiseRow& row : rows) {
        inputs.masked[index(row.sequence)] = row.wanted;
        std::copy(row.ids.begin(), row.ids.end(), inputs.ids + int(row.sequence) * block_);
    }
    const std::size_t bytes = rows.empty() ? Elements(rows_) * sizeof(BlockRow) : device_.inputBytes;
    if (p_.trace != nullptr) p_.trace->atStep(step);
    nvtxPush(nameOf(Phase::Decode), step);
    cuda::check(cudaMemcpyAsync(device_.inputMemory, inputs.table, bytes, cudaMemcpyHostToDevice, stream_.get()),
                "copying the blocks");
    if (prefix_) prefix_->begin();
    launchForward(flight.shape);
    cuda::check(cudaMemcpyAsync(entry.reportMemory, device_.reportMemory, device_.reportBytes, cudaMemcpyDeviceToHost,
                                stream_.get()),
                "reading a forward's report");
    cuda::check(cudaEventRecord(entry.done.get(), stream_.get()), "denoising");
    nvtxPop();
    entry.flight = std::move(flight);
}

void CudaDenoiser::forward(std::span<const DenoiseRow> rows, StepRecord& record) {
    if (ahead_) {
        if (!FlightRules::isOf(entries_[1 - entry_].flight, rows, entries_[entry_].report.ids, block_))
            throw Error(ErrorKind::BadInput, "a forward does not follow from the one before",
                        "this is a bug in KVScope");
        entry_ = 1 - entry_;
        ahead_ = false;
    } else {
        Flight flight;
        for (const DenoiseRow& row : rows) flight.rows.push_back(rules_.flightOf(row, std::popcount(row.wanted)));
        flight.shape = rules_.shapeOf(flight.rows);
        sequenceOf_.clear(); // the observer asks for them while the forward runs
        for (const DenoiseRow& row : rows) sequenceOf_.push_back(int(row.sequence));
        start(std::move(flight), rows, record.step);
    }
    const Entry& entry = entries_[entry_];
    if (std::optional<Flight> next = rules_.next(entry.flight)) { // runs while the host reads this forward's report
        ahead_ = true;
        start(std::move(*next), {}, record.step + 1);
    }
    cuda::check(cudaEventSynchronize(entry.done.get()), "denoising");
    keepReport(entry);
    if (recorded_.observer != nullptr) observeLogits();
    std::vector<std::uint32_t> flags;
    for (const FlightRow& of : entry.flight.rows) flags.push_back(of.flags);
    reader_.fill(entry.report, entry.flight.shape, rows, flags, record);
}

void CudaDenoiser::keepReport(const Entry& entry) {
    logitsHost_.clear();
    sequenceOf_.clear();
    for (const FlightRow& of : entry.flight.rows) sequenceOf_.push_back(int(of.row.sequence));
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        const cuda::BlockCandidate& from = entry.report.candidates[i];
        candidates_[i] = {0, from.id, from.confidence, from.entropy};
    }
}

void CudaDenoiser::launchForward(ForwardShape shape) {
    static const bool oneByOne = std::getenv("KVSCOPE_NO_GRAPH") != nullptr;
    if (oneByOne || recorded_.observer != nullptr) return forwardKernels(shape);
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
    p_.ranges.at(StepStage::Embed);
    p_.passes.embed(device_.inputs.ids, tokens, p_.buffers.x, nullptr, 0, device_.report.stepMarks + kEmbed);
    if (prefix_) prefix_->askAhead(device_.inputs.table, device_.inputs.ids);
    for (const LayerId layer : layers_.ids()) layerKernels(layer, shape);
    p_.ranges.at(StepStage::LmHead);
    if (shape.writes) {
        p_.passes.head(p_.buffers.logits[0], device_.report.stepMarks + kLmHead);
        p_.ranges.at(StepStage::Sample);
        if (sampling_.temperature <= 0)
            cuda::chooseCandidates(p_.launch, {rows_, block_, p_.config.vocab, device_.inputs.table,
                                               device_.inputs.masked, p_.buffers.logits[0], p_.allowed,
                                               device_.report.candidates, device_.report.stepMarks + kSample});
        else
            cuda::stampNow(p_.launch, device_.report.stepMarks + kSample);
        if (rules_.writesOnDevice())
            cuda::writeCandidates(p_.launch, {rows_, block_, device_.inputs.table, device_.report.candidates,
                                              options_.strategy == Unmasking::Sequential, device_.inputs.masked,
                                              device_.inputs.ids, device_.report.ids});
    } else {
        cuda::stampNow(p_.launch, device_.report.stepMarks + kLmHead);
    }
    cuda::stampNow(p_.launch, device_.report.stepMarks + kEnd);
    p_.ranges.leave();
}

void CudaDenoiser::layerKernels(LayerId layer, ForwardShape shape) {
    const DeviceLayer& weights = p_.model->layers[layer];
    const DenoiserLayer& of = layers_[layer];
    const DenoiseReport& report = device_.report;
    p_.ranges.at(layer, Stage::QkvLinear);
    p_.passes.project(weights, p_.buffers.x, rows_ * block_, report.mark(layer, kQkv));
    p_.ranges.at(layer, Stage::Rope);
    cuda::BlockPlaceArgs place;
    place.rows = rowsOf(layer);
    place.qkv = p_.buffers.qkv;
    place.cos = p_.table.ropeCos;
    place.sin = p_.table.ropeSin;
    place.ropeFirst = p_.table.ropeFirst;
    place.interleaved = p_.config.rope.interleaved;
    place.norms = weights.headNorms;
    place.q = p_.buffers.q;
    place.blocks = of.blocks;
    place.before = of.before;
    place.changes = changes_;
    place.beforeKv = of.beforeKv;
    place.kvChanges = kvChanges_;
    place.mark = report.mark(layer, kRope);
    cuda::placeBlocks(prefix_ ? prefix_->restore(layer, place.rows) : p_.launch, place);
    if (namesActive()) {
        p_.ranges.at(layer, options_.pages ? Stage::Compression : Stage::Attention);
        cuda::nameActive(p_.launch,
                         {place.rows, of.before != nullptr ? changes_ : nullptr, options_.activePerHead,
                          options_.active, options_.activeThreshold.has_value(), options_.activeThreshold.value_or(0),
                          report.activeOf(layer), report.changesOf(layer), report.mark(layer, kCompression)});
    }
    if (recorded_.kvChanges) cuda::addKvChanges(p_.launch, {place.rows, kvChanges_, report.kvChangesOf(layer)});
    prefix_ ? chooseAndLoad(layer, shape) : choose(layer, shape);
    attend(layer, shape);
    if (recorded_.observer != nullptr) observe(layer);
    p_.passes.finish(layer, p_.buffers.x, rows_ * block_, report.mark(layer, kOLinear), report.mark(layer, kFfn));
}

/// Launches the choices of a layer: in a block's last dense forward that of tiles or pages for the forwards after it,
/// and that of pages by the queries of sparse rows.
void CudaDenoiser::choose(LayerId layer, ForwardShape shape) {
    const bool byQuery = shape.sparse && options_.choosesPages();
    if (!shape.choosesOnce && !byQuery) return;
    cuda::TileMaskArgs mask = rules_.weighs() ? maskOf(layer) : cuda::TileMaskArgs();
    cuda::PageUnionArgs choice = byQuery ? unionOf(layer) : cuda::PageUnionArgs();
    (shape.choosesOnce ? mask.scoreMark : choice.scoreMark) = device_.report.mark(layer, kStage1);
    (shape.choosesOnce ? mask.chooseMark : choice.unionMark) = device_.report.mark(layer, kPooling);
    p_.ranges.at(layer, Stage::Stage1);
    if (shape.choosesOnce) cuda::weighTiles(p_.launch, mask);
    if (byQuery) cuda::scoreUnionPages(p_.launch, choice);
    p_.ranges.at(layer, Stage::Pooling);
    if (shape.choosesOnce)
        options_.tiles ? cuda::chooseTiles(p_.launch, mask) : cuda::chooseTilesOfGroups(p_.launch, mask);
    if (byQuery) cuda::unitePages(p_.launch, choice);
}

/// The same where the prefix waits on the host. Pages for the forwards after this one are chosen by their keys, once
/// these are there.
void CudaDenoiser::chooseAndLoad(LayerId layer, ForwardShape shape) {
    cuda::PageUnionArgs choice = unionOf(layer);
    if (shape.sparse) {
        choice.scoreMark = device_.report.mark(layer, kStage1);
        choice.unionMark = device_.report.mark(layer, kPooling);
        p_.ranges.at(layer, Stage::Stage1);
        cuda::scoreUnionPages(p_.launch, choice);
        p_.ranges.at(layer, Stage::Pooling);
        cuda::unitePages(p_.launch, choice);
    }
    p_.ranges.at(layer, Stage::Offloading);
    prefix_->load(layer, choice);
    if (!shape.choosesOnce) return;
    cuda::TileMaskArgs mask = maskOf(layer);
    mask.scoreMark = device_.report.mark(layer, kWeigh);
    mask.chooseMark = device_.report.mark(layer, kChooseOnce);
    p_.ranges.at(layer, Stage::Stage1);
    cuda::weighTiles(p_.launch, mask);
    p_.ranges.at(layer, Stage::Pooling);
    cuda::chooseTilesOfGroups(p_.launch, mask);
}

void CudaDenoiser::attend(LayerId layer, ForwardShape shape) {
    const DenoiserLayer& of = layers_[layer];
    const DenoiseReport& report = device_.report;
    const bool underMasks = options_.tiles && shape.sparse;
    p_.ranges.at(layer, shape.sparse ? Stage::Stage2 : Stage::Attention);
    cuda::BlockAttentionArgs attention;
    attention.rows = underMasks ? tileHeads() : rowsOf(layer);
    attention.q = p_.buffers.q;
    attention.blocks = of.blocks;
    attention.pages = options_.tiles ? of.tiles : choice_.pages;
    attention.pageCount = options_.tiles ? of.tileCount : choice_.count;
    attention.capacity = options_.tiles ? maskOf(layer).capacity : p_.layout.maxBlocks;
    attention.places = prefix_ ? prefix_->places() : nullptr;
    attention.listTokens = underMasks ? options_.page : 0;
    attention.scale = p_.config.attentionScale();
    attention.splits = underMasks ? shares_.ofTiles : shares_.count;
    attention.settled = !prefix_; // the block's own keys lie behind
    attention.partial = shares_.partial;
    attention.halves = true;
    attention.states = shares_.states;
    attention.mark = report.mark(layer, kAttention);
    cuda::blockAttention(p_.launch, attention);
    cuda::BlockMergeArgs merge;
    merge.rows = attention.rows;
    merge.q = p_.buffers.q;
    merge.blocks = of.blocks;
    merge.pageCount = attention.pageCount;
    merge.scale = attention.scale;
    merge.splits = attention.splits;
    merge.partial = shares_.partial;
    merge.halves = attention.halves;
    merge.states = shares_.states;
    merge.prefix = of.prefix;
    merge.prefixSums = of.prefixSums;
    merge.out = p_.buffers.attended;
    cuda::mergeBlocks(p_.launch, merge);
    if (!options_.choosesPages() || !shape.cleans) return;
    p_.ranges.at(layer, Stage::Offloading);
    cuda::boundBlocks(p_.launch, {rowsOf(layer), of.blocks, of.ranges, report.mark(layer, kOffloading)});
    if (prefix_) prefix_->keep(layer, rowsOf(layer));
}

// ---- What came of it ------------------------------------------------------------------------------------------------

/// Hands the layer's attention to the observer. Waits.
void CudaDenoiser::observe(LayerId layer) {
    if (sequenceOf_.empty()) return; // the forward without rows that open() runs
    const Elements queries(block_, p_.config.queryHeads), numbers(queries, p_.config.headDim);
    merged_.resize(numbers);
    std::vector<float> merged(numbers), sums(queries);
    for (const int sequence : sequenceOf_) {
        cuda::check(cudaStreamSynchronize(stream_.get()), "observing a layer");
        cuda::check(cudaMemcpy(merged_.data(), RowsOf(p_.buffers.attended, numbers)[sequence], numbers * sizeof(Bf16),
                               cudaMemcpyDeviceToHost),
                    "observing a layer");
        cuda::check(cudaMemcpy(sums.data(), RowsOf(layers_[layer].prefixSums, queries)[sequence],
                               queries * sizeof(float), cudaMemcpyDeviceToHost),
                    "observing a layer");
        std::transform(merged_.begin(), merged_.end(), merged.begin(), fromBf16);
        recorded_.observer->attended(layer, RowId{sequence}, merged, sums);
    }
}

void CudaDenoiser::observeLogits() {
    const Elements numbers(block_, p_.config.vocab);
    for (std::size_t row = 0; row < sequenceOf_.size(); ++row)
        recorded_.observer->logits(RowId{sequenceOf_[row]}, {logits(int(row), 0).data(), numbers});
}

std::span<const float> CudaDenoiser::logits(int row, int token) const {
    const Extents<int, int, int> at(rows_, block_, p_.config.vocab);
    if (logitsHost_.empty()) {
        logitsHost_.resize(at.size());
        cuda::check(cudaMemcpy(logitsHost_.data(), p_.buffers.logits[0], logitsHost_.size() * sizeof(float),
                               cudaMemcpyDeviceToHost),
                    "copying the logits");
    }
    return at.part(std::span<const float>(logitsHost_), sequenceOf_[row], token);
}

const Candidate* CudaDenoiser::candidate(int row, int token) const {
    if (sampling_.temperature > 0) return nullptr;
    return &candidates_[sequenceOf_[row] * block_ + token];
}

std::unique_ptr<DenoiseEngine> makeCudaDenoiser(const DenoiseSetup& setup) {
    requireGpu();
    return std::make_unique<CudaDenoiser>(DeviceModel::of(setup.model), setup);
}

} // namespace kvscope

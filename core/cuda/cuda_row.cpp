#include "core/cuda/cuda_row.h"

#include "core/cuda/device_copy.h"
#include "core/cuda/gpu_memory.h"
#include "core/engine/step_order.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

namespace kvscope {
namespace {

/// The driver hands out memory of a GPU in pages of 2 MiB.
std::int64_t wholePages(std::size_t bytes) {
    constexpr std::size_t kPage = std::size_t(2) << 20;
    return std::int64_t((bytes + kPage - 1) / kPage * kPage);
}

} // namespace

CudaEngineOptions CudaRowParts::rowOptions(CudaEngineOptions options) const {
    options.sharesSteps = true;
    options.transfers.plan = transfers;
    options.transfers.scatter = scatter;
    options.pooled = pool != nullptr && options.plans.offloaded() > 0;
    if (options.pooled) options.slots = 0, options.leastRecentlyUsed = false;
    return options;
}

CudaRow::CudaRow(const EngineSetup& setup, const CudaRowParts& parts)
    : CudaRow(setup.prompts.front(), gpuEngineOptions(setup), parts) {}

CudaRow::CudaRow(const std::vector<std::int32_t>& text, CudaEngineOptions options, const CudaRowParts& parts)
    : prompt(text), launch(parts.launch), p_(parts), options_(parts.rowOptions(std::move(options))),
      layout_(p_.model->config, options_), promptArena_(std::make_unique<DeviceArena>()),
      sequences({*p_.model, options_, layout_, buffers_, launch, p_.passes, p_.clock, p_.ranges}) {
    planAttentionBuffers(arena_, buffers_, p_.model->config, layout_, launch, options_.oracle);
    arena_.plan(logits, p_.model->config.vocab, "the row's logits");
    sequences.plan(arena_, *promptArena_);
    begin(Phase::Prefill);
}

RowMemory CudaRow::memory() const {
    RowMemory memory;
    memory.device = wholePages(arena_.bytes());
    if (options_.pooled) memory.device += p_.pool->newestBytes();
    memory.slots = arena_.declared().bytes("kv_slots");
    memory.prompt = wholePages(promptArena_->bytes());
    memory.host = std::int64_t(arena_.hostBytes() + promptArena_->hostBytes());
    return memory;
}

void CudaRow::open() {
    attended = cuda::Event::make();
    own = cuda::Stream::make();
    sequences.transfers.open();
    if (p_.stores != nullptr) {
        store_ = p_.stores->take(arena_.storeBytes());
        arena_.lend(store_.data());
    }
    arena_.take();
    promptArena_->take();
    sequences.open();
    takePlace(0);
}

void CudaRow::joinPool(int row) {
    number_ = row;
    if (options_.pooled) p_.pool->join(row, sequences.layers);
}

void CudaRow::leavePool() const {
    if (options_.pooled) p_.pool->release(p_.launch, sequences.layers, layout_.maxBlocks);
}

void CudaRow::putIntoPool(int at) const {
    for (const LayerId i : sequences.layers.ids()) {
        const DeviceLayerState& layer = sequences.layers[i];
        if (!layer.offloaded) continue;
        cuda::PoolRow& row = p_.pool->put(i, at, number_, layer, layout_.maxBlocks);
        const ChoiceLists lists = sequences.choice.listsOf(i);
        row.position = sequences.rows.position;
        row.capacity = layout_.capacity;
        row.listBlock = lists.block, row.listCount = lists.count, row.listSlot = lists.slot;
        row.storeFirst = sequences.rows.blockFirst;
        row.newKey = buffers_.newKey, row.newValue = buffers_.newValue;
        row.moves = sequences.choice.movesOf(i);
        row.recordHead = report().headsOf(i), row.recordBlocks = report().blocksOf(i);
    }
}

void CudaRow::begin(Phase phase) {
    record.clear();
    record.step = steps_++;
    record.phase = phase;
    record.layers.assign(p_.model->config.layers, {});
}

// ---- The prompt -----------------------------------------------------------------------------------------------------

void CudaRow::beginReading() {
    if (!promptArena_) throw std::logic_error("the prompt has been read already");
    takePlace(0);
}

bool CudaRow::readLayers(LayerId layer, int token, const std::stop_token& stop) {
    beginReading();
    return finishPrompt(sequences.prompts.readTo({layer, sequences.prompts.piecesOf(token)}, prompt, record, stop));
}

bool CudaRow::readChunk(int token, const std::stop_token& stop) {
    beginReading();
    return finishPrompt(sequences.prompts.readChunk(sequences.prompts.piecesOf(token), prompt, record, stop));
}

/// If the prompt is read: makes the logits of its last token, as a session does, and gives back what only the prompt
/// needed. @return whether it is read
bool CudaRow::finishPrompt(bool read) {
    if (!read) return false;
    const std::int32_t last = int(prompt.size()) - 1;
    copyOnStream(p_.shared.x, sequences.prompts.activationsOf(last), p_.model->config.hidden, cudaMemcpyDeviceToDevice,
                 launch.stream, "keeping the last token");
    cuda::check(cudaMemcpyAsync(sequences.rows.position, &last, sizeof last, cudaMemcpyHostToDevice, launch.stream),
                "copying the position");
    std::uint64_t* const marks = sequences.prompts.marks();
    p_.ranges.at(StepStage::LmHead);
    cuda::stampNow(launch, marks);
    p_.products.rows = 1;
    p_.passes.head(logits);
    cuda::stampNow(launch, marks + 1);
    launchSample(launch);
    cuda::stampNow(launch, marks + 2);
    p_.ranges.leave();
    cuda::check(cudaStreamSynchronize(launch.stream), "reading the prompt");
    cuda::check(cudaStreamSynchronize(sequences.transfers.copyStream()), "copying KV blocks to the host");
    sequences.reports.copyTokens(0);
    sequences.rows.begin(sequences.reports.host(0).tokens);
    record.stepStageNs[StepStage::LmHead] = std::int64_t(marks[1] - marks[0]);
    record.stepStageNs[StepStage::Sample] = std::int64_t(marks[2] - marks[1]);
    for (const LayerId i : sequences.layers.ids()) {
        LayerRecord& layer = record.layers[int(i)];
        layer.d2hBytes = layer.d2hBlocks * std::int64_t(layout_.blockElements * sizeof(__nv_bfloat16));
        if (sequences.layers[i].ownTier) layer.d2hBytes += sequences.selector->storedBytes(i, RowId{0});
    }
    position_ = int(prompt.size());
    logitsFetched_ = false;
    logitsAt_ = logits;
    promptArena_.reset();
    return true;
}

// ---- A step ---------------------------------------------------------------------------------------------------------

void CudaRow::beginStep(const RowToken& token) {
    if (token.position != position_ || promptArena_)
        throw std::logic_error(fmt::format("row {} is at position {} and is to feed a token at position {}",
                                           int(token.row), position_, token.position));
    begin(Phase::Decode);
    record.tokens = 1;
    record.opensBlock = token.position % options_.spec.blockSize == 0;
}

void CudaRow::takePosition(const RowToken& token) {
    if (!std::exchange(behind_, false)) return;
    cuda::check(cudaMemcpyAsync(sequences.rows.position, &token.position, sizeof token.position, cudaMemcpyHostToDevice,
                                p_.launch.stream),
                "copying the position");
}

void CudaRow::feed(const RowToken& token) {
    const std::uint8_t active = 1;
    sequences.rows.setInputs({&token.id, 1}, {&active, 1}, launch.stream);
}

void CudaRow::takePlace(int place) {
    const ModelConfig& config = p_.model->config;
    const StepBuffers& all = p_.shared;
    int products = 0; // numbers of a token that the first layer's projections make; all layers make as many
    for (const cuda::DeviceMatrix& part : p_.model->layers.front().qkv) products += part.rows;
    buffers_.x = RowsOf(all.x, config.hidden)[place];
    buffers_.qkv = RowsOf(all.qkv, products)[place];
    buffers_.q = RowsOf(all.q, {config.queryHeads, layout_.dim})[place];
    buffers_.newKey = RowsOf(all.newKey, {layout_.kvHeads, layout_.dim})[place];
    buffers_.newValue = RowsOf(all.newValue, {layout_.kvHeads, layout_.dim})[place];
    buffers_.attended = RowsOf(all.attended, {config.queryHeads, layout_.shape.valueDim()})[place];
    buffers_.plainQ = all.plainQ, buffers_.output = all.output, buffers_.hidden = all.hidden;
}

void CudaRow::launchStep() {
    takePlace(0);
    p_.products.rows = 1;
    sequences.stages.begin(report(), logits);
    runStep(sequences.stages, p_.model->config.layers);
    p_.ranges.at(StepStage::Sample);
    launchSample(launch);
    sequences.transfers.joinAll(sequences.storeBytes > 0);
    p_.ranges.leave();
}

void CudaRow::launchSample(const cuda::Launch& how) {
    cuda::NextTokenArgs next = sequences.rows.nextTokens(logits, report().tokens);
    next.mark = report().mark(StepReport::kSample);
    next.endMark = report().mark(StepReport::kEnd);
    cuda::nextTokens(how, next);
}

void CudaRow::finishStep(bool apart) {
    const StepReport& host = sequences.reports.host(0);
    const std::vector<ActiveSequence> one{{RowId{0}, position_++}};
    sequences.rows.advance(host.tokens);
    logitsFetched_ = false;
    logitsAt_ = logits;
    sequences.reader.fill(host, record, one);
    if (apart) return;
    // A step of several rows runs kernels of other rows between the marks of this row, so no times are recorded.
    record.startNs = 0, record.stepStageNs = {};
    for (LayerRecord& layer : record.layers) layer.stageNs = {}, layer.startNs = 0;
}

void CudaRow::finishStep(const StepReport& report, const ReportReader& reader, int place, bool alone,
                         const float* theirLogits) {
    sequences.reports.host(0).tokens[0] = report.tokens[place];
    reader.fillRow(report, {RowId{place}, position_++}, alone, record);
    logitsFetched_ = false;
    logitsAt_ = theirLogits;
    behind_ = true;
}

void CudaRow::keepLogits() {
    if (logitsAt_ == logits) return;
    copyOnStream(logits, logitsAt_, p_.model->config.vocab, cudaMemcpyDeviceToDevice, p_.launch.stream,
                 "keeping a row's logits");
    logitsAt_ = logits;
}

const float* CudaRow::hostLogits() {
    if (!logitsFetched_) {
        logitsHost_.resize(Elements(p_.model->config.vocab));
        cuda::check(
            cudaMemcpy(logitsHost_.data(), logitsAt_, logitsHost_.size() * sizeof(float), cudaMemcpyDeviceToHost),
            "copying the logits");
        logitsFetched_ = true;
    }
    return logitsHost_.data();
}

} // namespace kvscope

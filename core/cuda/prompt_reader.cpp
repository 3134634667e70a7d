#include "core/cuda/prompt_reader.h"

#include "kernels/cuda/methods/candidate_attention.h"

#include <algorithm>
#include <numeric>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

} // namespace

using enum StepReport::Mark;

PromptReader::PromptReader(const PromptReaderParts& parts)
    : p_(parts), config_(p_.model.config), spec_(p_.options.spec) {}

void PromptReader::plan(DeviceArena& arena) {
    const BatchLayout& layout = p_.layout;
    const auto most = std::size_t(p_.options.maxPrompt);
    arena.plan(x, most * std::size_t(config_.hidden), "prompt activations");
    arena.plan(ids, most, "prompt activations");
    arena.plan(positions, most, "prompt activations");
    if (p_.selector && p_.options.abilities.logSums)
        arena.plan(logSums, std::size_t(layout.chunk) * std::size_t(config_.queryHeads), "activations");
    if (p_.options.plans.offloaded() > 0 || spec_.ownDeviceTier)
        for (Bf16*& blocks : scratch)
            arena.plan(blocks, std::size_t(layout.kvHeads) * std::size_t(layout.maxBlocks) * layout.blockElements,
                       "prompt KV");
    arena.planHost(report_, std::size_t(config_.layers) * marksOfLayer(), "the prompts' marks");
}

void PromptReader::open() {
    for (cuda::Event* event : {&computed_, &copied_[0], &copied_[1]}) *event = cuda::Event::make();
    std::vector<std::int32_t> counting(std::size_t(p_.options.maxPrompt));
    std::iota(counting.begin(), counting.end(), 0);
    cuda::check(cudaMemcpy(positions, counting.data(), counting.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
                "preparing the session");
}

void PromptReader::read(int sequence, const std::vector<std::int32_t>& prompt, StepRecord& record,
                        const Progress& progress, double begin, double end, const std::stop_token& stop) {
    const int tokens = int(prompt.size());
    embed(prompt);
    for (int i = 0; i < config_.layers; ++i) {
        throwIfCancelled(stop);
        report(progress, begin + (end - begin) * i / config_.layers, "reading the prompt");
        readPieces(blocksOf(i, sequence, tokens), 0, piecesOf(tokens), record.layers[std::size_t(i)]);
    }
    const std::size_t hidden = std::size_t(config_.hidden);
    cuda::check(cudaMemcpyAsync(p_.buffers.x + std::size_t(sequence) * hidden, x + std::size_t(tokens - 1) * hidden,
                                hidden * sizeof(float), cudaMemcpyDeviceToDevice, p_.launch.stream),
                "keeping the last token");
}

bool PromptReader::readTo(PromptCursor until, const std::vector<std::int32_t>& prompt, StepRecord& record,
                          const std::stop_token& stop) {
    const int tokens = int(prompt.size()), pieces = piecesOf(tokens);
    const LayerId end{config_.layers};
    while (at_.layer < end && at_ < until) {
        throwIfCancelled(stop);
        if (at_ == PromptCursor{}) embed(prompt);
        const int to = at_.layer < until.layer ? pieces : std::min(until.piece, pieces);
        readPieces(blocksOf(int(at_.layer), 0, tokens), at_.piece, to, record.layers[index(at_.layer)]);
        at_ = to == pieces ? PromptCursor{next(at_.layer), 0} : PromptCursor{at_.layer, to};
    }
    return at_.layer == end;
}

void PromptReader::embed(const std::vector<std::int32_t>& prompt) const {
    cuda::check(cudaMemcpyAsync(ids, prompt.data(), prompt.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                p_.launch.stream),
                "copying the prompt");
    p_.passes.embed(ids, int(prompt.size()), x);
}

PromptReader::Blocks PromptReader::blocksOf(int index, int sequence, int tokens) const {
    const DeviceLayerState& layer = p_.layers[std::size_t(index)];
    const bool scratched = layer.offloaded || layer.ownTier;
    Bf16* const blocks = scratched ? scratch[index % 2] : layer.blocks + p_.layout.firstElement(sequence);
    return {index, sequence, tokens, blocks, p_.layout.headStride(sequence)};
}

/// Reads the pieces [from, to) of a layer, and waits until they are read.
void PromptReader::readPieces(const Blocks& blocks, int from, int to, LayerRecord& out) const {
    const int index = blocks.layer, tokens = blocks.tokens;
    const DeviceLayerState& layer = p_.layers[std::size_t(index)];
    if (from == 0 && (layer.offloaded || layer.ownTier))
        cuda::check(cudaStreamWaitEvent(p_.launch.stream, copied_[index % 2].get()), "waiting for a copy");
    for (int piece = from; piece < to; ++piece) {
        const int first = piece * kPiece;
        readPiece(blocks, {first, std::min(kPiece, tokens - first), tokens,
                           x + std::size_t(first) * std::size_t(config_.hidden), marksOf(index) + piece * kMarks});
    }
    if (to == piecesOf(tokens)) finishLayer(blocks, out);
    cuda::check(cudaStreamSynchronize(p_.launch.stream), "reading the prompt");
    addTimes(blocks, from, to, out);
}

void PromptReader::finishLayer(const Blocks& blocks, LayerRecord& out) const {
    const int index = blocks.layer;
    if (p_.selector) {
        p_.stages.at(index, Stage::Compression);
        handToSelector(blocks);
        cuda::stampNow(p_.launch, marksOf(index) + (piecesOf(blocks.tokens) - 1) * kMarks +
                                      kPooling); // ends the time of the selector's work
    }
    if (!p_.layers[std::size_t(index)].offloaded) return;
    placeTail(blocks);
    // The copy stream copies the full blocks to the host while the next layer computes.
    const cudaStream_t copy = p_.transfers.copyStream();
    cuda::check(cudaEventRecord(computed_.get(), p_.launch.stream), "marking a layer");
    cuda::check(cudaStreamWaitEvent(copy, computed_.get()), "waiting for a layer");
    store(blocks, copy);
    cuda::check(cudaEventRecord(copied_[index % 2].get(), copy), "marking a copy");
    out.d2hBlocks += blocks.tokens / spec_.blockSize * p_.layout.kvHeads;
}

void PromptReader::readPiece(const Blocks& blocks, const Piece& piece) const {
    const int index = blocks.layer, sequence = blocks.sequence;
    const DeviceLayer& weights = p_.model.layers[std::size_t(index)];
    const DeviceLayerState& layer = p_.layers[std::size_t(index)];
    const std::size_t angles = std::size_t(p_.rows.rope.first(sequence)) * std::size_t(config_.rope.dim / 2);
    const auto stamp = [&](StepReport::Mark which) { cuda::stampNow(p_.launch, piece.marks + which); };
    p_.stages.at(index, Stage::QkvLinear);
    stamp(kQkv);
    p_.passes.project(weights, piece.x, piece.n, nullptr);
    cuda::PromptArgs rotate;
    rotate.shape = p_.layout.shape;
    rotate.qkv = p_.buffers.qkv;
    rotate.cos = p_.rows.ropeCos + angles;
    rotate.sin = p_.rows.ropeSin + angles;
    rotate.interleaved = config_.rope.interleaved;
    rotate.eviction = weights.eviction;
    rotate.norms = weights.headNorms;
    rotate.q = p_.buffers.q;
    rotate.index = layer.index;
    rotate.n = piece.n;
    rotate.firstPosition = piece.first;
    rotate.sequence = sequence;
    rotate.blocks = blocks.blocks;
    rotate.headStride = blocks.headStride;
    p_.stages.at(index, Stage::Rope);
    stamp(kRope);
    p_.passes.placePrompt(rotate);
    p_.stages.at(index, Stage::Compression);
    stamp(kCompression);
    if (layer.indexed) cuda::indexPrompt(p_.launch, rotate);
    p_.stages.at(index, Stage::Attention);
    stamp(kAttention);
    const DevicePromptChunk chunk{index,
                                  sequence,
                                  piece.first,
                                  piece.n,
                                  piece.promptTokens,
                                  piece.x,
                                  p_.buffers.qkv,
                                  p_.buffers.q,
                                  blocks.blocks,
                                  blocks.headStride,
                                  logSums,
                                  layer.index.tokenScores != nullptr
                                      ? layer.index.tokenScores + p_.layout.tokenFirst[p_.layout.headOf(sequence)]
                                      : nullptr,
                                  std::int64_t(p_.layout.blocks[std::size_t(sequence)]) * spec_.blockSize};
    if (spec_.sparsePrefill && layer.sparse)
        attendSparsely(chunk);
    else
        attend(chunk);
    stamp(kStage1); // the selector's reading counts as compression too
    if (p_.selector) p_.selector->prompt(chunk);
    stamp(kOLinear);
    p_.passes.finish(index, piece.x, piece.n, nullptr, piece.marks + kFfn);
    stamp(kGather); // the end of the layer's piece
}

void PromptReader::attend(const DevicePromptChunk& chunk) const {
    const DeviceLayerState& layer = p_.layers[std::size_t(chunk.layer)];
    const std::size_t head = p_.layout.headOf(chunk.sequence);
    const auto& tokenFirst = p_.layout.tokenFirst;
    cuda::PrefillAttentionArgs args;
    args.shape = p_.layout.shape;
    args.n = chunk.n;
    args.firstPosition = chunk.first;
    args.window = layer.window;
    args.q = p_.buffers.q;
    args.blocks = chunk.blocks;
    args.headStride = chunk.headStride;
    if (layer.index.tokenScores != nullptr) args.tokenBias = layer.index.tokenScores + tokenFirst[head];
    args.biasStride = p_.layout.kvHeads > 1 ? tokenFirst[head + 1] - tokenFirst[head] : 0;
    args.scale = config_.attentionScale();
    args.biasScale = spec_.bias.scale;
    args.out = p_.buffers.attended;
    args.logSums = logSums;
    if (!p_.selector || !p_.selector->attendPrompt(chunk, args)) cuda::prefillAttention(p_.launch, args);
}

/// Every token of the chunk has its own list of blocks, all of this one sequence. The blocks of head g begin at
/// g*headStride.
void PromptReader::attendSparsely(const DevicePromptChunk& chunk) const {
    const BatchLayout& layout = p_.layout;
    const DeviceLayerState& layer = p_.layers[std::size_t(chunk.layer)];
    const std::size_t width = std::size_t(layout.shape.queryHeads) * std::size_t(layout.dim);
    for (int start = 0; start < chunk.n; start += layout.selectRows) {
        const int count = std::min(layout.selectRows, chunk.n - start);
        cuda::SelectArgs select = p_.choice.layerArgs(chunk.layer);
        select.rows = count;
        select.position = positions + chunk.first + start;
        select.q = p_.buffers.q + std::size_t(start) * width;
        select.oneSequence = true;
        select.sequence = chunk.sequence;
        if (p_.selector) {
            DevicePromptChunk piece = chunk;
            piece.first += start;
            piece.n = count;
            piece.x += std::size_t(start) * std::size_t(config_.hidden);
            piece.q = select.q;
            p_.selector->choosePrompt(piece, select);
        }
        cuda::selectBlocksOnDevice(p_.launch, select);
        cuda::DecodeAttentionArgs attend;
        attend.shape = layout.shape;
        attend.rows = count;
        attend.position = select.position;
        attend.q = p_.buffers.q + std::size_t(start) * width;
        attend.oneSequence = true;
        attend.sequence = chunk.sequence;
        // headFirst counts blocks from the beginning of a layer's store. The shift makes the first block of this
        // sequence fall on the first block of the chunk.
        attend.blocks = chunk.blocks - layout.firstElement(chunk.sequence);
        attend.headFirst = p_.rows.blockFirst;
        attend.listBlock = select.listBlock;
        attend.listCount = select.listCount;
        attend.capacity = layout.capacity;
        attend.maxBlocks = layout.capacity;
        attend.window = select.slidingWindow;
        attend.tokenBias = layer.index.tokenScores;
        attend.biasFirst = p_.rows.tokenFirst;
        attend.scale = select.scale;
        attend.biasScale = spec_.bias.scale;
        attend.out =
            p_.buffers.attended + std::size_t(start) * std::size_t(layout.shape.queryHeads * layout.shape.valueDim());
        attend.partial = p_.buffers.partial;
        attend.arrivals = p_.buffers.arrivals;
        cuda::decodeAttention(p_.launch, attend);
    }
}

void PromptReader::addTimes(const Blocks& blocks, int from, int to, LayerRecord& out) const {
    for (int piece = from; piece < to; ++piece) {
        const std::uint64_t* marks = marksOf(blocks.layer) + piece * kMarks;
        if (out.startNs == 0) out.startNs = p_.clock.sinceOrigin(marks[kQkv]);
        const auto add = [&](Stage stage, StepReport::Mark begin, StepReport::Mark end) {
            out.stageNs[std::size_t(stage)] += std::int64_t(marks[end] - marks[begin]);
        };
        add(Stage::QkvLinear, kQkv, kRope);
        add(Stage::Rope, kRope, kCompression);
        add(Stage::Compression, kCompression, kAttention);
        add(Stage::Attention, kAttention, kStage1);
        add(Stage::Compression, kStage1, kOLinear);
        add(Stage::OLinear, kOLinear, kFfn);
        add(Stage::Ffn, kFfn, kGather);
        if (p_.selector && piece + 1 == piecesOf(blocks.tokens)) add(Stage::Compression, kGather, kPooling);
    }
}

void PromptReader::finish(const Blocks& filled) const {
    handToSelector(filled);
    if (p_.layers[std::size_t(filled.layer)].offloaded) placeTail(filled);
}

/// The selector may overwrite keys, so the oracle's copy of the keys is made before.
void PromptReader::handToSelector(const Blocks& filled) const {
    if (!p_.selector) return;
    if (Bf16* const all = p_.layers[std::size_t(filled.layer)].allKeys)
        cuda::check(cudaMemcpyAsync(all + p_.layout.firstElement(filled.sequence), filled.blocks,
                                    std::size_t(p_.layout.kvHeads) * std::size_t(filled.headStride) * sizeof(Bf16),
                                    cudaMemcpyDeviceToDevice, p_.launch.stream),
                    "keeping keys for the oracle");
    if (p_.choice.valuesByToken(filled.layer))
        cuda::turnValues(p_.launch, {p_.layout.shape, filled.tokens, filled.blocks, filled.headStride});
    p_.selector->promptDone(filled.layer, filled.sequence, filled.tokens, filled.blocks, filled.headStride);
}

/// Puts the newest block of an offloaded layer into a slot.
void PromptReader::placeTail(const Blocks& filled) const {
    const DeviceLayerState& layer = p_.layers[std::size_t(filled.layer)];
    cuda::placeTail(p_.launch, p_.layout.shape, filled.blocks, filled.headStride, filled.sequence, filled.tokens,
                    layer.blocks, p_.options.slots, layer.map, layer.lastUse);
}

void PromptReader::store(const Blocks& filled, cudaStream_t stream) const {
    const BatchLayout& layout = p_.layout;
    const std::size_t head = layout.headOf(filled.sequence), full = std::size_t(filled.tokens / spec_.blockSize);
    Bf16* const to = p_.layers[std::size_t(filled.layer)].storeHost;
    for (int g = 0; g < layout.kvHeads && full > 0; ++g)
        cuda::check(cudaMemcpyAsync(to + std::size_t(layout.blockFirst[head + std::size_t(g)]) * layout.blockElements,
                                    filled.blocks + std::size_t(g) * std::size_t(filled.headStride),
                                    full * layout.blockElements * sizeof(Bf16), cudaMemcpyDeviceToHost, stream),
                    "copying KV blocks to the host");
}

} // namespace kvscope

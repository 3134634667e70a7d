#include "core/cuda/prompt_reader.h"

#include "core/cuda/device_copy.h"
#include "core/cuda/prompt_piece.h"
#include "core/cuda/scatter.h"
#include "kernels/cuda/methods/candidate_attention.h"
#include "kernels/cuda/transfer/quantised_blocks.h"
#include "kernels/cuda/transfer/store_blocks.h"

#include <algorithm>
#include <numeric>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

} // namespace

using enum StepReport::Mark;

PromptReader::PromptReader(const PromptReaderParts& parts)
    : p_(parts), config_(p_.model.config), spec_(p_.options.spec),
      piece_(pieceTokens(p_.options.transfers.plan.chunkTokens)) {}

void PromptReader::plan(DeviceArena& arena) {
    const BatchLayout& layout = p_.layout;
    const int most = p_.options.maxPrompt;
    const int activations = inChunks() ? std::min(most, p_.options.transfers.plan.chunkTokens) : most;
    arena.plan(x, {activations, config_.hidden}, "prompt activations");
    arena.plan(ids, most, "prompt activations");
    arena.plan(positions, most, "prompt activations");
    if (p_.selector && p_.options.method.abilities.logSums)
        arena.plan(logSums, {layout.pieceTokens, config_.queryHeads}, "activations");
    const Elements layerElements(layout.kvHeads, layout.maxBlocks, layout.blockElements);
    kept.assign(config_.layers, nullptr);
    if (inChunks()) {
        for (const LayerId i : kept.ids())
            if (p_.layers[i].offloaded) arena.plan(kept[i], layerElements, "prompt KV");
    } else if (p_.options.plans.offloaded() > 0 || spec_.ownDeviceTier) {
        for (Bf16*& blocks : scratch) arena.plan(blocks, layerElements, "prompt KV");
    }
    if (p_.options.transfers.plan.stores == StorePlan::Bounce && p_.options.plans.offloaded() > 0)
        arena.planHost(bounce, layerElements, "the prompts' buffer");
    arena.planHost(report_, {config_.layers, marksOfLayer()}, "the prompts' marks");
}

void PromptReader::open() {
    for (cuda::Event* event : {&computed_, &copied_[0], &copied_[1]}) *event = cuda::Event::make();
    Numbered<std::int32_t> counting(p_.options.maxPrompt);
    std::iota(counting.begin(), counting.end(), 0);
    cuda::check(cudaMemcpy(positions, counting.data(), counting.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
                "preparing the session");
}

void PromptReader::read(RowId sequence, const std::vector<std::int32_t>& prompt, StepRecord& record,
                        const Progress& progress, double begin, double end, const std::stop_token& stop) {
    const int tokens = int(prompt.size());
    embed(prompt, 0, tokens);
    for (const LayerId i : idsUpTo<LayerId>(config_.layers)) {
        throwIfCancelled(stop);
        report(progress, begin + (end - begin) * int(i) / config_.layers, "reading the prompt");
        readPieces(blocksOf(i, sequence, tokens), 0, piecesOf(tokens), record.layers[int(i)]);
    }
    copyOnStream(RowsOf(p_.buffers.x, config_.hidden)[int(sequence)], RowsOf(x, config_.hidden)[tokens - 1],
                 config_.hidden, cudaMemcpyDeviceToDevice, p_.launch.stream, "keeping the last token");
}

bool PromptReader::readTo(PromptCursor until, const std::vector<std::int32_t>& prompt, StepRecord& record,
                          const std::stop_token& stop) {
    const int tokens = int(prompt.size()), pieces = piecesOf(tokens);
    const LayerId end{config_.layers};
    while (at_.layer < end && at_ < until) {
        throwIfCancelled(stop);
        if (at_ == PromptCursor{}) embed(prompt, 0, tokens);
        const int to = at_.layer < until.layer ? pieces : std::min(until.piece, pieces);
        readPieces(blocksOf(at_.layer, RowId{0}, tokens), at_.piece, to, record.layers[int(at_.layer)]);
        at_ = to == pieces ? PromptCursor{next(at_.layer), 0} : PromptCursor{at_.layer, to};
    }
    return at_.layer == end;
}

bool PromptReader::readChunk(int until, const std::vector<std::int32_t>& prompt, StepRecord& record,
                             const std::stop_token& stop) {
    const int tokens = int(prompt.size()), pieces = piecesOf(tokens);
    const LayerId end{config_.layers};
    until = std::min(until, pieces);
    while (at_.piece < until) {
        throwIfCancelled(stop);
        if (at_.layer == LayerId{0}) { // else a chunk was given up between two layers, and goes on
            chunkEnd_ = std::min(until, at_.piece + p_.options.transfers.plan.chunkTokens / piece_);
            xFirst_ = at_.piece * piece_;
            embed(prompt, xFirst_, std::min(tokens, chunkEnd_ * piece_));
        }
        for (; at_.layer < end; at_.layer = next(at_.layer)) {
            throwIfCancelled(stop);
            readPieces(blocksOf(at_.layer, RowId{0}, tokens), at_.piece, chunkEnd_, record.layers[int(at_.layer)]);
        }
        at_ = {LayerId{0}, chunkEnd_};
    }
    return at_.piece == pieces;
}

/// Puts the embeddings of the tokens [first, end) at the beginning of x.
void PromptReader::embed(const std::vector<std::int32_t>& prompt, int first, int end) const {
    copyOnStream(ids, prompt.data() + first, end - first, cudaMemcpyHostToDevice, p_.launch.stream,
                 "copying the prompt");
    p_.passes.embed(ids, end - first, x);
}

PromptReader::Blocks PromptReader::blocksOf(LayerId index, RowId sequence, int tokens) const {
    const DeviceLayerState& layer = p_.layers[index];
    const bool scratched = layer.offloaded || layer.ownTier;
    Bf16* const ours = inChunks() ? kept[index] : scratch[int(index) % 2];
    Bf16* const blocks = scratched ? ours : layer.blocks + p_.layout.firstElement(sequence);
    return {index, sequence, tokens, blocks, p_.layout.headStride(sequence)};
}

/// Reads the pieces [from, to) of a layer, and waits until they are read.
void PromptReader::readPieces(const Blocks& blocks, int from, int to, LayerRecord& out) const {
    const LayerId index = blocks.layer;
    const int tokens = blocks.tokens;
    const DeviceLayerState& layer = p_.layers[index];
    if (from == 0 && !inChunks() && (layer.offloaded || layer.ownTier))
        cuda::check(cudaStreamWaitEvent(p_.launch.stream, copied_[int(index) % 2].get()), "waiting for a copy");
    for (int piece = from; piece < to; ++piece) {
        const int first = piece * piece_;
        readPiece(blocks, {first, std::min(piece_, tokens - first), tokens, RowsOf(x, config_.hidden)[first - xFirst_],
                           marksOf(index) + piece * kMarks});
    }
    if (to == piecesOf(tokens))
        finishLayer(blocks, from, out);
    else if (inChunks() && layer.offloaded)
        storePieces(blocks, from, to, out);
    cuda::check(cudaStreamSynchronize(p_.launch.stream), "reading the prompt");
    addTimes(blocks, from, to, out);
}

/// from: in chunks, the first piece whose blocks are not on their way to the host yet
void PromptReader::finishLayer(const Blocks& blocks, int from, LayerRecord& out) const {
    const LayerId index = blocks.layer;
    if (p_.selector) {
        p_.stages.at(index, Stage::Compression);
        handToSelector(blocks);
        cuda::stampNow(p_.launch, marksOf(index) + (piecesOf(blocks.tokens) - 1) * kMarks +
                                      kPooling); // ends the time of the selector's work
    }
    if (p_.options.quantised && !p_.layers[index].offloaded)
        cuda::roundBlocks(p_.launch, {*p_.options.quantised, blocks.blocks, blocks.headStride, p_.layout.kvHeads,
                                      blocks.tokens / spec_.blockSize});
    if (!p_.layers[index].offloaded) return;
    placeTail(blocks);
    storePieces(blocks, inChunks() ? from : 0, piecesOf(blocks.tokens), out);
    cuda::check(cudaEventRecord(copied_[int(index) % 2].get(), p_.transfers.copyStream()), "marking a copy");
}

/// Copies the full blocks of the pieces [from, to) to the host on the copy stream, while the next layer computes.
void PromptReader::storePieces(const Blocks& blocks, int from, int to, LayerRecord& out) const {
    const cudaStream_t copy = p_.transfers.copyStream();
    cuda::check(cudaEventRecord(computed_.get(), p_.launch.stream), "marking a layer");
    cuda::check(cudaStreamWaitEvent(copy, computed_.get()), "waiting for a layer");
    const int first = from * piece_ / spec_.blockSize, end = std::min(to * piece_, blocks.tokens) / spec_.blockSize;
    storeRange(blocks, first, end, copy);
    out.d2hBlocks += (end - first) * p_.layout.kvHeads;
}

void PromptReader::readPiece(const Blocks& blocks, const Piece& piece) const {
    const LayerId index = blocks.layer;
    const RowId sequence = blocks.sequence;
    const DeviceLayer& weights = p_.model.layers[index];
    const DeviceLayerState& layer = p_.layers[index];
    std::uint64_t* const marks = piece.marks;
    const auto stamp = [&](StepReport::Mark which) { cuda::stampNow(p_.launch, marks + which); };
    placePiece(
        {config_, p_.layout, p_.buffers, p_.rows, p_.launch, p_.passes, p_.stages}, weights,
        {index, sequence, piece.first, piece.n, piece.x, blocks.blocks, blocks.headStride, layer.index, layer.indexed},
        {marks + kQkv, marks + kRope, marks + kCompression, marks + kAttention});
    const DevicePromptPiece told{index,
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
                                 std::int64_t(p_.layout.blocks[sequence]) * spec_.blockSize};
    if (spec_.sparsePrefill && layer.sparse)
        attendSparsely(told);
    else
        attend(told);
    stamp(kStage1); // the selector's reading counts as compression too
    if (p_.selector) p_.selector->prompt(told);
    stamp(kOLinear);
    p_.passes.finish(index, piece.x, piece.n, nullptr, piece.marks + kFfn);
    stamp(kGather); // the end of the layer's piece
}

void PromptReader::attend(const DevicePromptPiece& piece) const {
    const DeviceLayerState& layer = p_.layers[piece.layer];
    const int head = p_.layout.headOf(piece.sequence);
    const auto& tokenFirst = p_.layout.tokenFirst;
    cuda::PrefillAttentionArgs args;
    args.shape = p_.layout.shape;
    args.n = piece.n;
    args.firstPosition = piece.first;
    args.window = layer.window;
    args.q = p_.buffers.q;
    args.blocks = piece.blocks;
    args.headStride = piece.headStride;
    if (layer.index.tokenScores != nullptr) args.tokenBias = layer.index.tokenScores + tokenFirst[head];
    args.biasStride = p_.layout.kvHeads > 1 ? tokenFirst[head + 1] - tokenFirst[head] : 0;
    args.scale = config_.attentionScale();
    args.biasScale = spec_.bias.scale;
    args.out = p_.buffers.attended;
    args.logSums = logSums;
    if (!p_.selector || !p_.selector->attendPrompt(piece, args)) cuda::prefillAttention(p_.launch, args);
}

/// Every token of the piece has its own list of blocks, all of this one sequence. The blocks of head g begin at
/// g*headStride.
void PromptReader::attendSparsely(const DevicePromptPiece& piece) const {
    const BatchLayout& layout = p_.layout;
    const DeviceLayerState& layer = p_.layers[piece.layer];
    const RowsOf queries(p_.buffers.q, {layout.shape.queryHeads, layout.dim});
    const RowsOf attended(p_.buffers.attended, {layout.shape.queryHeads, layout.shape.valueDim()});
    const RowsOf streams(piece.x, config_.hidden);
    for (int start = 0; start < piece.n; start += layout.selectRows) {
        const int count = std::min(layout.selectRows, piece.n - start);
        cuda::SelectArgs select = p_.choice.layerArgs(piece.layer);
        select.rows = count;
        select.position = positions + piece.first + start;
        select.q = queries[start];
        select.oneSequence = true;
        select.sequence = int(piece.sequence);
        if (p_.selector) {
            DevicePromptPiece part = piece;
            part.first += start;
            part.n = count;
            part.x = streams[start];
            part.q = select.q;
            p_.selector->choosePrompt(part, select);
        }
        cuda::selectBlocksOnDevice(p_.launch, select);
        cuda::DecodeAttentionArgs attend;
        attend.shape = layout.shape;
        attend.rows = count;
        attend.position = select.position;
        attend.q = queries[start];
        attend.oneSequence = true;
        attend.sequence = int(piece.sequence);
        // headFirst counts blocks from the beginning of a layer's store. The shift makes the first block of this
        // sequence fall on the first block of the piece.
        attend.blocks = piece.blocks - layout.firstElement(piece.sequence);
        attend.headFirst = p_.rows.blockFirst;
        attend.list.block = select.list.block;
        attend.list.count = select.list.count;
        attend.list.capacity = layout.capacity;
        attend.maxBlocks = layout.capacity;
        attend.window = select.slidingWindow;
        attend.bias.scores = layer.index.tokenScores;
        attend.bias.first = p_.rows.tokenFirst;
        attend.scale = select.scale;
        attend.bias.scale = spec_.bias.scale;
        attend.out = attended[start];
        attend.scratch.partial = p_.buffers.partial;
        attend.scratch.arrivals = p_.buffers.arrivals;
        cuda::decodeAttention(p_.launch, attend);
    }
}

void PromptReader::addTimes(const Blocks& blocks, int from, int to, LayerRecord& out) const {
    for (int piece = from; piece < to; ++piece) {
        const std::uint64_t* marks = marksOf(blocks.layer) + piece * kMarks;
        if (out.startNs == 0) out.startNs = p_.clock.sinceOrigin(marks[kQkv]);
        const auto add = [&](Stage stage, StepReport::Mark begin, StepReport::Mark end) {
            out.stageNs[stage] += std::int64_t(marks[end] - marks[begin]);
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
    if (p_.layers[filled.layer].offloaded) placeTail(filled);
}

/// The selector may overwrite keys, so the oracle's copy of the keys is made before.
void PromptReader::handToSelector(const Blocks& filled) const {
    if (!p_.selector) return;
    if (Bf16* const all = p_.layers[filled.layer].allKeys)
        copyOnStream(all + p_.layout.firstElement(filled.sequence), filled.blocks,
                     {p_.layout.kvHeads, filled.headStride}, cudaMemcpyDeviceToDevice, p_.launch.stream,
                     "keeping keys for the oracle");
    if (p_.choice.valuesByToken(filled.layer))
        cuda::turnValues(p_.launch, {p_.layout.shape, filled.tokens, filled.blocks, filled.headStride});
    p_.selector->promptDone(filled.layer, filled.sequence, filled.tokens, filled.blocks, filled.headStride);
}

/// Puts the newest block of an offloaded layer into a slot, or beside the slots.
void PromptReader::placeTail(const Blocks& filled) const {
    const DeviceLayerState& layer = p_.layers[filled.layer];
    if (p_.options.pooled)
        return cuda::placeTail(p_.launch, p_.layout.shape, filled.blocks, filled.headStride, int(filled.sequence),
                               filled.tokens, layer.newest, 1, nullptr, nullptr);
    cuda::placeTail(p_.launch, p_.layout.shape, filled.blocks, filled.headStride, int(filled.sequence), filled.tokens,
                    layer.blocks, p_.options.slots, layer.map, layer.lastUse, layer.newest);
}

void PromptReader::store(const Blocks& filled, cudaStream_t stream) const {
    storeRange(filled, 0, filled.tokens / spec_.blockSize, stream);
}

/// Stores the blocks [first, end) of every head in the host's format.
void PromptReader::storeQuantised(const Blocks& filled, int first, int end, cudaStream_t stream) const {
    const BatchLayout& layout = p_.layout;
    const std::int64_t blockBytes = p_.options.fullBlockBytes(layout.blockElements);
    const std::int64_t firstBlock = layout.blockFirst[layout.headOf(filled.sequence)] + first;
    const Bf16* const store = p_.layers[filled.layer].store;
    cuda::StoreQuantisedArgs args;
    args.format = *p_.options.quantised;
    args.from = RowsOf(filled.blocks, layout.blockElements)[first];
    args.to = reinterpret_cast<char*>(const_cast<Bf16*>(store)) + firstBlock * blockBytes;
    args.fromStride = filled.headStride;
    args.toStride = layout.blocks[filled.sequence] * blockBytes;
    args.heads = layout.kvHeads, args.blocks = end - first;
    cuda::Launch beside = p_.launch;
    beside.stream = stream, beside.joined = true;
    cuda::storeQuantised(beside, args);
}

/// Copies the blocks [first, end) of every head to the host store, in the way that the options ask for.
void PromptReader::storeRange(const Blocks& filled, int first, int end, cudaStream_t stream) const {
    if (end <= first) return;
    if (p_.options.quantised) return storeQuantised(filled, first, end, stream);
    const BatchLayout& layout = p_.layout;
    const DeviceLayerState& layer = p_.layers[filled.layer];
    const std::size_t elements = Elements(end - first, layout.blockElements),
                      blockBytes = layout.blockElements * sizeof(Bf16),
                      fromStride = Elements(filled.headStride) * sizeof(Bf16),
                      toStride = Elements(layout.blocks[filled.sequence], blockBytes);
    const std::int64_t at = layout.blockFirst[layout.headOf(filled.sequence)] + first; // in the store, in blocks
    const Bf16* const from = RowsOf(filled.blocks, layout.blockElements)[first];
    Bf16* const to = RowsOf(layer.storeHost, layout.blockElements)[at];
    const RowsOf sources(reinterpret_cast<const char*>(from), fromStride);
    const RowsOf targets(reinterpret_cast<char*>(to), toStride);
    const auto copy = [&](void* target, const void* source, std::size_t bytes) {
        cuda::check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream),
                    "copying KV blocks to the host");
    };
    switch (p_.options.transfers.plan.stores) {
    case StorePlan::Kernel: {
        cuda::Launch beside = p_.launch;
        beside.stream = stream, beside.joined = true;
        cuda::StoreBlocksArgs args;
        args.from = from, args.to = const_cast<Bf16*>(RowsOf(layer.store, layout.blockElements)[at]);
        args.bytes = elements * sizeof(Bf16), args.fromStride = fromStride, args.toStride = toStride;
        args.heads = layout.kvHeads;
        return cuda::storeBlocks(beside, args);
    }
    case StorePlan::Bounce: {
        const std::size_t span = Elements(layout.kvHeads - 1, fromStride) + elements * sizeof(Bf16);
        copy(bounce, from, span);
        return p_.options.transfers.scatter->after(stream,
                                                   {reinterpret_cast<const char*>(bounce), reinterpret_cast<char*>(to),
                                                    blockBytes, end - first, layout.kvHeads, fromStride, toStride});
    }
    case StorePlan::Calls:
        for (int g = 0; g < layout.kvHeads; ++g)
            for (int b = 0; b < end - first; ++b)
                copy(RowsOf(targets[g], blockBytes)[b], RowsOf(sources[g], blockBytes)[b], blockBytes);
        return;
    case StorePlan::Runs:
        for (int g = 0; g < layout.kvHeads; ++g) copy(targets[g], sources[g], elements * sizeof(Bf16));
        return;
    }
}

} // namespace kvscope

#include "core/cuda/diffusion/cuda_denoise_prompts.h"

#include "base/clock.h"
#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/session/stage_clock.h"
#include "kernels/cuda/diffusion/block_attention.h"

#include <algorithm>
#include <numeric>

namespace kvscope {

using cuda::BlockRow;
using enum DenoiseReport::Mark;

void CudaDenoisePrompts::plan(DeviceArena& arena, int longest) {
    arena.plan(x_, {longest, p_.placer.config.hidden}, "prompt activations");
    arena.plan(ids_, longest, "prompt activations");
    arena.plan(table_, longest / p_.block, "prompt activations");
    arena.planHost(marks_, int{kMarks}, "the prompts' marks");
}

/// How many tokens the whole blocks have that the prompt fills.
int CudaDenoisePrompts::tokensOf(RowId sequence) const {
    return int(p_.prompts[sequence].size()) / p_.block * p_.block;
}

/// Tokens of a piece: whole blocks, and a multiple of 8, as the kernels of prompts need it.
int CudaDenoisePrompts::pieceTokens() const {
    const int unit = std::lcm(p_.block, 8);
    return std::max(unit, BatchLayout::kPieceTokens / unit * unit);
}

void CudaDenoisePrompts::read(StepRecord& record, const Progress& progress, const std::stop_token& stop) {
    record.layers.assign(p_.layers.size(), {});
    if (p_.trace != nullptr) p_.trace->atStep(0);
    const std::int64_t begin = steadyNowNs();
    nvtxPush(nameOf(Phase::Prefill), 0);
    struct EndOfRange { // a destructor, because reading a prompt may end with an exception
        StageRanges& ranges;
        ~EndOfRange() { ranges.leave(), nvtxPop(); }
    } const endOfRange{p_.placer.stages};
    record.startNs = begin - p_.clock.originNs();
    for (LayerRecord& layer : record.layers) layer.startNs = record.startNs;
    double all = 0, done = 0;
    const auto sequences = idsUpTo<RowId>(p_.placer.layout.rows);
    for (const RowId s : sequences) all += double(tokensOf(s)) * p_.placer.config.layers;
    for (const RowId s : sequences) readPrompt(s, record, done, all, progress, stop);
    record.durationNs = steadyNowNs() - begin;
}

void CudaDenoisePrompts::readPrompt(RowId sequence, StepRecord& record, double& done, double all,
                                    const Progress& progress, const std::stop_token& stop) {
    const int tokens = tokensOf(sequence);
    if (tokens == 0) return;
    std::vector<BlockRow> blocks;
    for (int first = 0; first < tokens; first += p_.block)
        blocks.push_back({int(sequence), first, first + p_.block, BlockRow::kTaken});
    const auto copy = [&](void* to, const void* from, std::size_t bytes) {
        cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, p_.placer.launch.stream),
                    "copying the prompt");
    };
    copy(table_, blocks.data(), blocks.size() * sizeof(BlockRow));
    copy(ids_, p_.prompts[sequence].data(), Elements(tokens) * sizeof(std::int32_t));
    p_.placer.stages.at(StepStage::Embed);
    p_.placer.passes.embed(ids_, tokens, x_);
    for (const LayerId layer : p_.layers.ids()) {
        LayerRecord& out = record.layers[int(layer)];
        for (int first = 0; first < tokens; first += pieceTokens()) {
            throwIfCancelled(stop);
            report(progress, done / all, "reading the prompt");
            const int n = std::min(pieceTokens(), tokens - first);
            readPiece(sequence, layer, first, n, out);
            done += n;
        }
        if (p_.prefix != nullptr) storeLayer(sequence, layer, out);
    }
}

/// Sends a layer of the prompt, which has been read, to the host. Waits.
void CudaDenoisePrompts::storeLayer(RowId sequence, LayerId layer, LayerRecord& out) {
    p_.placer.stages.at(layer, Stage::Offloading);
    cuda::stampNow(p_.placer.launch, marks_ + kLoad);
    p_.prefix->storePrompt(layer, sequence, tokensOf(sequence));
    cuda::stampNow(p_.placer.launch, marks_ + kLoaded);
    cuda::check(cudaStreamSynchronize(p_.placer.launch.stream), "storing the prompt");
    const auto spent = std::int64_t(marks_[kLoaded] - marks_[kLoad]);
    const int pages = p_.prefix->pagesOf(tokensOf(sequence));
    out.stageNs[Stage::Offloading] += spent;
    if (pages == 0) return;
    out.transferNs += spent;
    out.exposedNs += spent; // the next layer waits
    out.d2hBlocks += pages;
    out.d2hBytes += pages * p_.prefix->pageBytes();
}

/// Reads the tokens [first, first + n) of a prompt in one layer. Waits.
void CudaDenoisePrompts::readPiece(RowId sequence, LayerId layer, int first, int n, LayerRecord& out) {
    const PiecePlacer& by = p_.placer;
    const DenoiserLayer& of = p_.layers[layer];
    float* const x = RowsOf(x_, by.config.hidden)[first];
    PlacedPiece piece;
    piece.layer = layer, piece.sequence = sequence, piece.first = first, piece.n = n;
    piece.x = x;
    piece.blocks = of.blocks + by.layout.firstElement(sequence);
    piece.headStride = by.layout.headStride(sequence);
    piece.index.ranges = of.ranges;
    piece.index.blockFirst = by.rows.blockFirst;
    piece.indexed = of.ranges != nullptr;
    placePiece(by, p_.model.layers[layer], piece,
               {marks_ + kQkv, marks_ + kRope, marks_ + kCompression, marks_ + kAttention});
    cuda::BlockAttentionArgs attention;
    attention.rows = {by.layout.shape, n / p_.block, p_.block, table_ + first / p_.block, nullptr, by.rows.blockFirst};
    attention.q = by.buffers.q;
    attention.blocks = of.blocks;
    attention.scale = by.config.attentionScale();
    attention.out = by.buffers.attended;
    cuda::blockAttention(by.launch, attention);
    cuda::stampNow(by.launch, marks_ + kOLinear);
    by.passes.finish(layer, x, n, nullptr, marks_ + kFfn);
    cuda::stampNow(by.launch, marks_ + kOffloading); // the end of the piece
    cuda::check(cudaStreamSynchronize(by.launch.stream), "reading the prompt");
    addTimes(out);
}

void CudaDenoisePrompts::addTimes(LayerRecord& out) const {
    const auto add = [&](Stage stage, DenoiseReport::Mark from, DenoiseReport::Mark to) {
        out.stageNs[stage] += std::int64_t(marks_[to] - marks_[from]);
    };
    add(Stage::QkvLinear, kQkv, kRope);
    add(Stage::Rope, kRope, kCompression);
    add(Stage::Compression, kCompression, kAttention);
    add(Stage::Attention, kAttention, kOLinear);
    add(Stage::OLinear, kOLinear, kFfn);
    add(Stage::Ffn, kFfn, kOffloading);
}

} // namespace kvscope

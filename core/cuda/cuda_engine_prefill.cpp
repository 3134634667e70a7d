// Reading the prompts: layer by layer, KV blocks streaming to the host while the next layer computes.
#include "core/cuda/cuda_engine.h"
#include "core/session/stage_clock.h"
#include "kernels/cuda/candidate_attention.h"

#include <algorithm>
#include <numeric>

namespace kvscope {

namespace {

using Bf16 = __nv_bfloat16;

} // namespace

void CudaEngine::prefillAttend(const DevicePromptChunk& chunk) {
    const int index = chunk.layer, sequence = chunk.sequence, first = chunk.first, n = chunk.n;
    const Bf16* blocks = chunk.blocks;
    const std::int64_t headStride = chunk.headStride;
    const Layer& layer = layers_[std::size_t(index)];
    const std::size_t head = layout_.headOf(sequence);
    const std::int64_t biasStride = layout_.kvHeads > 1 ? layout_.tokenFirst[head + 1] - layout_.tokenFirst[head] : 0;
    if (!(spec_.sparsePrefill && layer.sparse)) {
        cuda::PrefillAttentionArgs args;
        args.shape = layout_.shape;
        args.n = n;
        args.firstPosition = first;
        args.window = layer.window;
        args.q = q_;
        args.blocks = blocks;
        args.headStride = headStride;
        if (layer.index.tokenScores != nullptr) args.tokenBias = layer.index.tokenScores + layout_.tokenFirst[head];
        args.biasStride = biasStride;
        args.scale = model_->config.attentionScale();
        args.biasScale = spec_.bias.scale;
        args.out = attended_;
        args.logSums = promptLogSums_;
        if (!selector_ || !selector_->attendPrompt(chunk, args)) cuda::prefillAttention(launch_, args);
        return;
    }
    // Lists of (token, KV head) over the blocks of this one sequence: head g begins at g*headStride.
    for (int start = 0; start < n; start += layout_.selectRows) {
        const int count = std::min(layout_.selectRows, n - start);
        const std::size_t width = std::size_t(layout_.shape.queryHeads) * std::size_t(layout_.dim);
        cuda::SelectArgs select = selectArgs(index);
        select.rows = count;
        select.position = promptPositions_ + first + start;
        select.q = q_ + std::size_t(start) * width;
        select.oneSequence = true;
        select.sequence = sequence;
        if (selector_) {
            DevicePromptChunk piece = chunk;
            piece.first += start;
            piece.n = count;
            piece.x += std::size_t(start) * std::size_t(model_->config.hidden);
            piece.q = select.q;
            selector_->choosePrompt(piece, select);
        }
        cuda::selectBlocksOnDevice(launch_, select);
        cuda::DecodeAttentionArgs attend;
        attend.shape = layout_.shape;
        attend.rows = count;
        attend.position = select.position;
        attend.q = q_ + std::size_t(start) * width;
        attend.oneSequence = true;
        attend.sequence = sequence;
        // headFirst counts from the store's begin: shift so that this sequence's blocks fall on the scratch.
        attend.blocks = blocks - std::size_t(layout_.blockFirst[head]) * layout_.blockElements;
        attend.headFirst = blockFirstDevice_;
        attend.listBlock = select.listBlock;
        attend.listCount = select.listCount;
        attend.capacity = layout_.capacity;
        attend.maxBlocks = layout_.capacity;
        attend.window = select.slidingWindow;
        attend.tokenBias = layer.index.tokenScores;
        attend.biasFirst = tokenFirstDevice_;
        attend.scale = select.scale;
        attend.biasScale = spec_.bias.scale;
        attend.out = attended_ + std::size_t(start) * std::size_t(layout_.shape.queryHeads * layout_.shape.valueDim());
        attend.partial = partial_;
        attend.arrivals = arrivals_;
        cuda::decodeAttention(launch_, attend);
    }
}

/// The selector may write over keys: the oracle takes its copy before.
void CudaEngine::handToSelector(const PromptBlocks& prompt) {
    if (!selector_) return;
    const std::size_t head = std::size_t(prompt.sequence) * std::size_t(layout_.kvHeads);
    if (Bf16* const all = layers_[std::size_t(prompt.layer)].allKeys)
        cuda::check(cudaMemcpyAsync(all + std::size_t(layout_.blockFirst[head]) * layout_.blockElements, prompt.blocks,
                                    std::size_t(layout_.kvHeads) * std::size_t(prompt.headStride) * sizeof(Bf16),
                                    cudaMemcpyDeviceToDevice, stream_.get()),
                    "keeping keys for the oracle");
    if (valuesByToken(prompt.layer))
        cuda::turnValues(launch_, {layout_.shape, prompt.tokens, prompt.blocks, prompt.headStride});
    selector_->promptDone(prompt.layer, prompt.sequence, prompt.tokens, prompt.blocks, prompt.headStride);
}

/// The newest block of an offloaded layer stays on the device.
void CudaEngine::placeTail(const PromptBlocks& prompt) {
    const Layer& layer = layers_[std::size_t(prompt.layer)];
    cuda::placeTail(launch_, layout_.shape, prompt.blocks, prompt.headStride, prompt.sequence, prompt.tokens,
                    layer.blocks, options_.slots, layer.map, layer.lastUse);
}

/// And the full ones go to the host.
void CudaEngine::storeOnHost(const PromptBlocks& prompt, cudaStream_t stream) {
    const std::size_t head = std::size_t(prompt.sequence) * std::size_t(layout_.kvHeads),
                      full = std::size_t(prompt.tokens / spec_.blockSize);
    Bf16* const store = layers_[std::size_t(prompt.layer)].storeHost;
    for (int g = 0; g < layout_.kvHeads && full > 0; ++g)
        cuda::check(
            cudaMemcpyAsync(store + std::size_t(layout_.blockFirst[head + std::size_t(g)]) * layout_.blockElements,
                            prompt.blocks + std::size_t(g) * std::size_t(prompt.headStride),
                            full * layout_.blockElements * sizeof(Bf16), cudaMemcpyDeviceToHost, stream),
            "copying KV blocks to the host");
}

void CudaEngine::prefillSequence(int sequence, const std::vector<std::int32_t>& prompt, StepRecord& record,
                                 const Progress& progress, double begin, double end, const std::stop_token& stop) {
    const ModelConfig& config = model_->config;
    const int length = int(prompt.size());
    const std::size_t head = layout_.headOf(sequence);
    const std::size_t angles = std::size_t(ropeTables_.first(sequence)) * std::size_t(config.rope.dim / 2);
    const int sequenceBlocks = spec_.grid.blocks(options_.maxTokens[std::size_t(sequence)]);
    const std::int64_t headStride = std::int64_t(sequenceBlocks) * std::int64_t(layout_.blockElements);
    cuda::check(cudaMemcpyAsync(promptIds_, prompt.data(), prompt.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                stream_.get()),
                "copying the prompt");
    embed(promptIds_, length, promptX_);
    for (int i = 0; i < config.layers; ++i) {
        throwIfCancelled(stop);
        report(progress, begin + (end - begin) * i / config.layers, "reading the prompt");
        const DeviceLayer& weights = model_->layers[std::size_t(i)];
        const Layer& layer = layers_[std::size_t(i)];
        const bool scratched = layer.offloaded || layer.ownTier;
        Bf16* blocks =
            scratched ? scratch_[i % 2] : layer.blocks + std::size_t(layout_.blockFirst[head]) * layout_.blockElements;
        if (scratched) cuda::check(cudaStreamWaitEvent(stream_.get(), copied_[i % 2].get()), "waiting for a copy");
        for (int first = 0; first < length; first += BatchLayout::kPrefillChunk) {
            const int n = std::min(BatchLayout::kPrefillChunk, length - first);
            std::uint64_t* marks = promptMarks_[std::size_t(i)] + first / BatchLayout::kPrefillChunk * kMarks;
            const auto stamp = [&](StepReport::Mark which) { cuda::stampNow(launch_, marks + which); };
            float* x = promptX_ + std::size_t(first) * std::size_t(config.hidden);
            stages_.at(i, Stage::QkvLinear);
            stamp(kQkv);
            projectHeads(weights, x, n, nullptr);
            cuda::PromptArgs rotate;
            rotate.shape = layout_.shape;
            rotate.qkv = qkv_;
            rotate.cos = ropeCos_ + angles;
            rotate.sin = ropeSin_ + angles;
            rotate.interleaved = config.rope.interleaved;
            rotate.eviction = weights.eviction;
            rotate.norms = weights.headNorms;
            rotate.q = q_;
            rotate.index = layer.index;
            rotate.n = n;
            rotate.firstPosition = first;
            rotate.sequence = sequence;
            rotate.blocks = blocks;
            rotate.headStride = headStride;
            stages_.at(i, Stage::Rope);
            stamp(kRope);
            placePrompt(rotate);
            stages_.at(i, Stage::Compression);
            stamp(kCompression);
            if (layer.indexed) cuda::indexPrompt(launch_, rotate);
            stages_.at(i, Stage::Attention);
            stamp(kAttention);
            const DevicePromptChunk chunk{
                i,
                sequence,
                first,
                n,
                length,
                x,
                qkv_,
                q_,
                blocks,
                headStride,
                promptLogSums_,
                rotate.index.tokenScores != nullptr ? rotate.index.tokenScores + layout_.tokenFirst[head] : nullptr,
                std::int64_t(sequenceBlocks) * spec_.blockSize};
            prefillAttend(chunk);
            stamp(kStage1); // what the selector reads is compression again
            if (selector_) selector_->prompt(chunk);
            stamp(kOLinear);
            finishLayer(i, x, n, nullptr, marks + kFfn);
            stamp(kGather); // the end of the layer's chunk
        }
        LayerRecord& out = record.layers[std::size_t(i)];
        const PromptBlocks whole{i, sequence, length, blocks, headStride};
        if (selector_) {
            stages_.at(i, Stage::Compression);
            handToSelector(whole);
            cuda::stampNow(launch_,
                           promptMarks_[std::size_t(i)] + (length - 1) / BatchLayout::kPrefillChunk * kMarks +
                               kPooling); // its end
        }
        if (layer.offloaded) {
            placeTail(whole);
            // Full blocks stream to the host while the next layer computes.
            cuda::check(cudaEventRecord(computed_.get(), stream_.get()), "marking a layer");
            cuda::check(cudaStreamWaitEvent(copyStream_.get(), computed_.get()), "waiting for a layer");
            storeOnHost(whole, copyStream_.get());
            cuda::check(cudaEventRecord(copied_[i % 2].get(), copyStream_.get()), "marking a copy");
            out.d2hBlocks += length / spec_.blockSize * layout_.kvHeads;
        }
        cuda::check(cudaStreamSynchronize(stream_.get()), "reading the prompt");
        for (int first = 0; first < length; first += BatchLayout::kPrefillChunk) {
            const std::uint64_t* marks = promptMarks_[std::size_t(i)] + first / BatchLayout::kPrefillChunk * kMarks;
            if (out.startNs == 0) out.startNs = clock_.sinceOrigin(marks[kQkv]);
            const auto add = [&](Stage stage, StepReport::Mark from, StepReport::Mark to) {
                out.stageNs[std::size_t(stage)] += std::int64_t(marks[to] - marks[from]);
            };
            add(Stage::QkvLinear, kQkv, kRope);
            add(Stage::Rope, kRope, kCompression);
            add(Stage::Compression, kCompression, kAttention);
            add(Stage::Attention, kAttention, kStage1);
            add(Stage::Compression, kStage1, kOLinear);
            add(Stage::OLinear, kOLinear, kFfn);
            add(Stage::Ffn, kFfn, kGather);
            if (selector_ && first + BatchLayout::kPrefillChunk >= length) add(Stage::Compression, kGather, kPooling);
        }
    }
    cuda::check(cudaMemcpyAsync(x_ + std::size_t(sequence) * std::size_t(config.hidden),
                                promptX_ + std::size_t(length - 1) * std::size_t(config.hidden),
                                std::size_t(config.hidden) * sizeof(float), cudaMemcpyDeviceToDevice, stream_.get()),
                "keeping the last token");
}

void CudaEngine::prefill(const std::vector<std::vector<std::int32_t>>& prompts, StepRecord& record,
                         const Progress& progress, const std::stop_token& stop) {
    const ModelConfig& config = model_->config;
    record.layers.assign(std::size_t(config.layers), {});
    if (options_.trace != nullptr) options_.trace->atStep(0);
    const std::int64_t begin = steadyNowNs();
    nvtxPush(nameOf(Phase::Prefill), 0);
    struct EndOfRange { // also when it is cancelled
        CudaEngine& engine;
        ~EndOfRange() { engine.stages_.leave(), nvtxPop(); }
    } const endOfRange{*this};
    record.startNs = begin - clock_.originNs();
    double total = 0, done = 0;
    for (const auto& prompt : prompts) total += double(prompt.size());
    for (int s = 0; s < layout_.rows; ++s) {
        const auto& prompt = prompts[std::size_t(s)];
        prefillSequence(s, prompt, record, progress, done / total, (done + double(prompt.size())) / total, stop);
        done += double(prompt.size());
    }
    std::vector<std::int32_t> last;
    for (const auto& prompt : prompts) last.push_back(int(prompt.size()) - 1);
    cuda::check(cudaMemcpyAsync(position_, last.data(), last.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                stream_.get()),
                "copying the positions");
    const StepReport& report = reports_.device(0);
    std::uint64_t* marks = promptMarks_.front();
    stages_.at(StepStage::LmHead);
    cuda::stampNow(launch_, marks);
    linear_->run(model_->lmHead, x_, config.hidden, layout_.rows, {model_->finalNorm, config.streamNormEps()},
                 {logits_[0], config.vocab, false, nullptr, nullptr});
    cuda::stampNow(launch_, marks + 1);
    stages_.at(StepStage::Sample);
    cuda::NextTokenArgs next = nextTokenArgs(logits_[0], report.tokens);
    next.endMark = marks + 2;
    cuda::nextTokens(launch_, next);
    cuda::check(cudaStreamSynchronize(stream_.get()), "reading the prompt");
    cuda::check(cudaStreamSynchronize(copyStream_.get()), "copying KV blocks to the host");
    reports_.copyTokens(0);
    std::copy_n(reports_.host(0).tokens, layout_.rows, nextHost_.begin());
    record.stepStageNs[std::size_t(StepStage::LmHead)] = std::int64_t(marks[1] - marks[0]);
    record.stepStageNs[std::size_t(StepStage::Sample)] = std::int64_t(marks[2] - marks[1]);
    for (std::size_t i = 0; i < record.layers.size(); ++i) {
        LayerRecord& layer = record.layers[i];
        layer.d2hBytes = layer.d2hBlocks * std::int64_t(layout_.blockElements * sizeof(Bf16));
        for (int s = 0; s < layout_.rows && layers_[i].ownTier; ++s)
            layer.d2hBytes += selector_->storedBytes(int(i), s);
    }
    record.durationNs = steadyNowNs() - begin;
    launched_ = waited_ = 0;
    logitsFetched_ = -1;
}

void CudaEngine::fillContext(int tokens, std::uint64_t seed) {
    const ModelConfig& config = model_->config;
    for (int s = 0; s < layout_.rows; ++s)
        for (int i = 0; i < config.layers; ++i) {
            const Layer& layer = layers_[std::size_t(i)];
            const std::size_t head = std::size_t(s) * std::size_t(layout_.kvHeads);
            const int sequenceBlocks = spec_.grid.blocks(options_.maxTokens[std::size_t(s)]);
            const std::int64_t headStride = std::int64_t(sequenceBlocks) * std::int64_t(layout_.blockElements);
            Bf16* blocks = layer.offloaded || layer.ownTier
                               ? scratch_[0]
                               : layer.blocks + std::size_t(layout_.blockFirst[head]) * layout_.blockElements;
            cuda::fillNormal(blocks, std::size_t(layout_.kvHeads) * std::size_t(headStride), 1.f,
                             seed + std::uint64_t(s * config.layers + i));
            if (layer.index.tokenScores != nullptr)
                cuda::fillScores(layer.index.tokenScores + layout_.tokenFirst[head],
                                 std::size_t(layout_.kvHeads) * std::size_t(sequenceBlocks) *
                                     std::size_t(spec_.blockSize),
                                 seed ^ std::uint64_t(s * config.layers + i));
            cuda::PromptArgs prompt;
            prompt.shape = layout_.shape;
            prompt.index = layer.index;
            prompt.n = tokens;
            prompt.sequence = s;
            prompt.blocks = blocks;
            prompt.headStride = headStride;
            if (layer.indexed) cuda::indexPrompt(launch_, prompt);
            const PromptBlocks filled{i, s, tokens, blocks, headStride};
            handToSelector(filled);
            if (layer.offloaded) placeTail(filled);
            const bool borrows = options_.storedSequences > 0 && s >= options_.storedSequences;
            if (layer.offloaded && !borrows) storeOnHost(filled, stream_.get());
            cuda::check(cudaStreamSynchronize(stream_.get()), "filling the cache");
        }
    std::vector<std::int32_t> positions(std::size_t(layout_.rows), tokens);
    cuda::check(
        cudaMemcpy(position_, positions.data(), positions.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
        "filling the cache");
    launched_ = waited_ = 0;
}

} // namespace kvscope

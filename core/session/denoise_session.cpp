// A run that writes block by block: every step is one denoising forward of each unfinished sequence.
#include "base/indexed.h"
#include "core/diffusion/block_run.h"
#include "core/plan/kv_format.h"
#include "core/session/denoise_engine.h"
#include "core/session/diffusion_run.h"
#include "core/session/engine_setup.h"

#include "base/error.h"

#include <algorithm>

namespace kvscope {
namespace {

struct DenoiseRun final : DiffusionRun {
    DenoiseRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
               SessionOptions sessionOptions, TraceSink& traceSink);

    bool finished() const override {
        return std::all_of(runs.begin(), runs.end(), [](const BlockRun& run) { return run.finished(); });
    }
    void settle() override { engine->settle(); }

    void readPrompts(StepRecord& record, const Progress& progress, const std::stop_token& stop) override {
        engine->prefill(record, progress, stop);
    }
    int listRows() override;
    /// Pages of a KV head that the session's options leave room for on the device.
    int slotsOf(const std::vector<int>& maxTokens) const;
    void forward(StepRecord& record) override { engine->forward(rows, record); }
    void writeRow(int row, StepRecord& record) override;

    DenoiseOptions denoise;
    std::vector<BlockRun> runs;                  // [sequence]
    std::vector<std::vector<std::int32_t>> read; // [sequence] what the engine reads before the first forward
    std::unique_ptr<DenoiseEngine> engine;
    Numbered<DenoiseRow> rows;
    std::vector<Candidate> candidates;
};

DenoiseRun::DenoiseRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                       SessionOptions sessionOptions, TraceSink& traceSink)
    : DiffusionRun(std::move(loaded), std::move(ids), std::move(sessionOptions), traceSink) {
    denoise = select::denoiseOptions(parameters);
    parameters.assign("steps", std::to_string(denoise.steps)); // 0 stood for the block's length
    makeSpec();
    for (const auto& prompt : prompts) {
        runs.emplace_back(prompt, options.maxNewTokens, endIds(), denoise.block, model->config().diffusion->maskId,
                          BlockRunRules{denoise.promptMasks, denoise.trimEnd});
        const int end = runs.back().promptBlocksEnd();
        // An engine leaves out by itself what does not fill a block.
        read.push_back(int(prompt.size()) - end < denoise.block ? prompt
                                                                : std::vector(prompt.begin(), prompt.begin() + end));
    }
    DenoiseSetup setup{model,
                       read,
                       denoise,
                       spec,
                       {},
                       options.threads,
                       sink.level(),
                       options.denoiseObserver,
                       allowed,
                       candidateSampling(),
                       gpuTrace(),
                       0,
                       options.cachePolicy,
                       options.link};
    for (const auto& prompt : prompts)
        setup.maxTokens.push_back(BlockRun::reach(int(prompt.size()), options.maxNewTokens, denoise.block));
    if (options.offload) {
        setup.slots = slotsOf(setup.maxTokens);
        checkCachePolicy(options.cachePolicy, method, spec, model->config());
    }
    info.deviceSlots = setup.slots;
    engine = options.backend == Backend::Cuda ? makeCudaDenoiser(setup) : makeCpuDenoiser(setup);
    beginRun(engine->description(), engine->linkTiming(), denoise.block);
}

int DenoiseRun::slotsOf(const std::vector<int>& maxTokens) const {
    const ModelConfig& config = model->config();
    const int longest = *std::max_element(maxTokens.begin(), maxTokens.end());
    const std::int64_t heads = std::int64_t(maxTokens.size()) * config.layers * config.kvHeads;
    const std::int64_t slots =
        options.deviceKvBlocks
            ? *options.deviceKvBlocks
            : *options.deviceKvBytes / (heads * kvFormat(options.backend, config, spec).blockBytes());
    if (slots < 1)
        throw Error(ErrorKind::BadInput, "a device tier without a slot for one page of each KV head holds nothing",
                    "give at least --device-kv 1");
    return int(std::min<std::int64_t>(slots, spec.grid.blocks(longest)));
}

int DenoiseRun::listRows() {
    rows.clear();
    for (const RowId sequence : idsUpTo<RowId>(int(runs.size()))) {
        const BlockRun& run = runs[index(sequence)];
        if (run.finished()) continue;
        DenoiseRow row{sequence, run.first(), run.block(), run.step(), run.clean(), run.ids(), 0};
        for (int i = 0; i < denoise.block; ++i) row.wanted |= std::uint64_t(run.masked(i)) << i;
        rows.push_back(row);
    }
    return int(rows.size());
}

void DenoiseRun::writeRow(int row, StepRecord& record) {
    const DenoiseRow& from = rows[row];
    BlockRun& run = runs[index(from.sequence)];
    DenoiseForward forward = beginForward(from.sequence, run.first(), run.ids(), record);
    forward.block = from.block, forward.step = from.step, forward.final = from.clean;
    candidates.clear();
    for (int i = 0; i < denoise.block; ++i) {
        if (!run.masked(i)) continue;
        const Candidate* const chosen = engine->candidate(row, i);
        const int position = run.first() + i;
        Candidate candidate = chosen != nullptr ? placed(*chosen, from.sequence, position)
                                                : chooseAt(from.sequence, position, engine->logits(row, i));
        candidate.position = i; // the strategies count within the block
        noteCandidate(forward, i, candidate, record);
        candidates.push_back(candidate);
    }
    if (!candidates.empty())
        for (const std::int32_t i : chooseWritten(denoise, forward.step, candidates))
            run.write(i, noteWritten(forward, i, record));
    run.forwardDone();
    endForward(forward, run.generated(), record);
}

} // namespace

std::unique_ptr<SessionRun> makeDenoiseRun(std::shared_ptr<const Model> model,
                                           std::vector<std::vector<std::int32_t>> prompts, SessionOptions options,
                                           TraceSink& sink) {
    return std::make_unique<DenoiseRun>(std::move(model), std::move(prompts), std::move(options), sink);
}

} // namespace kvscope

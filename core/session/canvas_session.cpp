// A run of a masked-diffusion model: every step is one forward over each unfinished sequence's canvas, after which some
// masks become tokens.
#include "base/indexed.h"
#include "core/diffusion/canvas_choice.h"
#include "core/diffusion/canvas_run.h"
#include "core/session/canvas_row.h"
#include "core/session/diffusion_run.h"

#include <algorithm>

namespace kvscope {
namespace {

struct CanvasSession final : DiffusionRun {
    CanvasSession(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                  SessionOptions sessionOptions, TraceSink& traceSink);

    bool finished() const override {
        return std::all_of(runs.begin(), runs.end(), [](const CanvasRun& run) { return run.finished(); });
    }
    /// Does nothing: the first forward reads the prompt, as every other one does.
    void readPrompts(StepRecord& record, const Progress&, const std::stop_token&) override {
        record.layers.resize(model->config().layers);
    }
    void settle() override { engine->settle(); }
    int listRows() override;
    void forward(StepRecord& record) override { engine->forward(rows, record); }
    void writeRow(int row, StepRecord& record) override;

    Candidate candidateAt(int row, int index, std::int32_t position);

    CanvasOptions canvas;
    std::unique_ptr<CanvasEngine> engine;
    std::vector<CanvasRun> runs; // [sequence]
    Numbered<CanvasRow> rows;
};

CanvasSession::CanvasSession(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                             SessionOptions sessionOptions, TraceSink& traceSink)
    : DiffusionRun(std::move(loaded), std::move(ids), std::move(sessionOptions), traceSink) {
    canvas = select::canvasOptions(parameters, options.maxNewTokens);
    parameters.assign("steps", std::to_string(canvas.steps)); // 0 stood for the canvas's length
    if (parameters.has("block_length")) parameters.assign("block_length", std::to_string(canvas.block));
    makeSpec();
    if (canvas.cache == CanvasCache::Evicted)
        for (const auto& prompt : prompts)
            spec.traceBudget =
                std::max({1, spec.traceBudget, canvas.keptOf(int(prompt.size()) + canvas.length - canvas.block)});
    if (canvas.cache == CanvasCache::Features)
        for (const auto& prompt : prompts)
            spec.traceBudget = std::max(spec.traceBudget, int(prompt.size()) + canvas.length);
    CanvasSetup setup{model,
                      {},
                      {},
                      prompts.size() * std::size_t(canvas.block),
                      canvas,
                      options.threads,
                      sink.level(),
                      allowed,
                      candidateSampling(),
                      gpuTrace()};
    for (const auto& prompt : prompts) {
        setup.promptTokens.push_back(int(prompt.size()));
        setup.maxTokens.push_back(int(prompt.size()) + canvas.length);
        runs.emplace_back(prompt, canvas.length, endIds(), canvas.block, model->config().diffusion->maskId,
                          canvas.trimEnd);
    }
    engine = options.backend == Backend::Cuda ? makeCudaCanvas(setup) : makeCpuCanvas(setup);
    beginRun(engine->description(), engine->linkTiming(), canvas.block);
}

int CanvasSession::listRows() {
    rows.clear();
    for (const RowId sequence : idsUpTo<RowId>(int(runs.size())))
        if (!runs[index(sequence)].finished()) rows.push_back(canvasRow(canvas, sequence, runs[index(sequence)]));
    return int(rows.size());
}

Candidate CanvasSession::candidateAt(int row, int index, std::int32_t position) {
    const RowId sequence = rows[row].sequence;
    const Candidate* const chosen = engine->candidate(row, index);
    Candidate candidate = chosen != nullptr ? placed(*chosen, sequence, position)
                                            : chooseAt(sequence, position, engine->logits(row, index));
    if (!canvas.shifted)
        candidate.confidence =
            candidate.plain; // LLaDA ranks by the probability without temperature, Dream by that with it
    return candidate;
}

void CanvasSession::writeRow(int row, StepRecord& record) {
    const RowId sequence = rows[row].sequence;
    CanvasRun& run = runs[index(sequence)];
    const int first = run.first();
    DenoiseForward forward =
        beginForward(sequence, first, run.ids().subspan(std::size_t(first), std::size_t(canvas.block)), record);
    forward.block = run.block(), forward.step = run.step();
    const auto draw = [&] { return samplers[index(sequence)].draw(); };
    std::vector<Candidate> candidates;
    std::vector<double> ranks;
    for (const std::int32_t position : run.masks()) {
        candidates.push_back(candidateAt(row, int(candidates.size()), position));
        ranks.push_back(rankOf(canvas, candidates.back(), draw));
        noteCandidate(forward, position - first, candidates.back(), record);
    }
    for (const std::int32_t position :
         chooseOnCanvas(canvas, forward.step, run.masksAtBegin(), candidates, ranks, draw))
        run.write(position, noteWritten(forward, position - first, record));
    run.forwardDone();
    endForward(forward, run.generated(), record);
}

} // namespace

std::unique_ptr<SessionRun> makeCanvasRun(std::shared_ptr<const Model> model,
                                          std::vector<std::vector<std::int32_t>> prompts, SessionOptions options,
                                          TraceSink& sink) {
    return std::make_unique<CanvasSession>(std::move(model), std::move(prompts), std::move(options), sink);
}

} // namespace kvscope

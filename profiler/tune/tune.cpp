#include "profiler/tune/tune.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <ranges>

namespace kvscope {
namespace {

// Shares of the progress.
constexpr double kScaled = 0.08, kReferred = 0.2, kPredicted = 0.22;
// Rates of an ordinary processor, where nothing was measured. Full attention, timed here, then sets the scale.
constexpr double kOrdinaryGbps = 20, kOrdinaryTflops = 0.2;

GpuSpec machineFor(const TuneRequest& request) {
    if (request.machine) return *request.machine;
    const GpuTable table = GpuTable::load();
    if (request.backend == Backend::Cuda) {
        const std::string device = describeGpu(); // "NVIDIA H200, 140 GiB, ..."
        for (const GpuSpec& spec : table.all())
            if (device.starts_with(spec.title)) return spec;
        return table.preferred();
    }
    if (const GpuSpec* measured = table.find(kLocalCpu)) return *measured;
    GpuSpec ordinary;
    ordinary.name = "cpu";
    ordinary.title = "an ordinary processor";
    ordinary.readGbps = kOrdinaryGbps;
    ordinary.tflops = kOrdinaryTflops;
    ordinary.memoryGib = 1;
    ordinary.linkGbps = request.link.gigabytesPerSecond;
    return ordinary;
}

void checkRequest(const TuneRequest& request, const PromptSet& prompts, const Model& model) {
    if (model.config().diffusion)
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("{} denoises blocks, and tuning chooses for models that decode token by token", model.name()),
            "choose another model");
    if (request.measure == QualityMeasure::Answered && !prompts.hasAnswers())
        throw Error(ErrorKind::BadInput, fmt::format("the prompt set '{}' has no answers", prompts.name),
                    "judge by agreement with full attention, or use a set with answers such as needles");
    if (request.newTokens < 2)
        throw Error(ErrorKind::BadInput, fmt::format("{} generated tokens hold no decode step", request.newTokens),
                    "ask for at least 2");
}

double speedOf(const TuneRow& row) { return row.measured ? row.measured->sums.tokensPerSecond() : 0; }

/// Whether a row of the same family with at least this budget was run and missed the floor.
bool failedLarger(const TuneResult& result, const TuneCandidate& candidate) {
    return std::ranges::any_of(result.rows, [&](const TuneRow& row) {
        return row.measured && !row.reaches && row.candidate.sameFamily(candidate) &&
               row.candidate.budgetTokens >= candidate.budgetTokens;
    });
}

/// Of each family the largest budget that was not run and of which no larger one has missed the floor; the fastest
/// predicted of these. Where something is recommended already, only what is predicted to be faster than that was.
std::optional<std::size_t> worthATry(const TuneResult& result) {
    const auto open = [&](const TuneRow& row) {
        return !row.measured && !failedLarger(result, row.candidate) &&
               (!result.recommended || row.predicted.stepNs < result.rows[*result.recommended].measured->sums.stepNs());
    };
    for (std::size_t i = 0; i < result.rows.size(); ++i) {
        const TuneRow& row = result.rows[i];
        const bool largest = std::ranges::none_of(result.rows, [&](const TuneRow& other) {
            return open(other) && other.candidate.sameFamily(row.candidate) &&
                   other.candidate.budgetTokens > row.candidate.budgetTokens;
        });
        if (open(row) && largest) return i;
    }
    return std::nullopt;
}

/// Predicts all candidates and sorts them.
void predictAll(TuneResult& result, const std::shared_ptr<const Model>& model, const PromptSet& prompts,
                const MeasureOptions& options, const TuneLoad& load, const Progress& progress,
                const std::stop_token& stop) {
    const TuneRequest& request = result.request;
    for (TuneCandidate& candidate : candidatesOf(*model, request.grid, load, result.leftOut))
        result.rows.push_back({std::move(candidate), {}, {}});
    result.machine.gpu = machineFor(request);
    const auto part = [&](double from, double to) {
        return Progress([&progress, from, to](double f, std::string_view) {
            report(progress, from + (to - from) * f, "measuring this machine");
        });
    };
    scaleByFull(result.machine, model, prompts, options, part(0, kScaled / 2), stop);
    const auto chosenByQuery = std::ranges::find_if(result.rows, [](const TuneRow& row) {
        return row.candidate.travels && !row.candidate.spec.ownDeviceTier && queryShare(row.candidate.spec) > 0;
    });
    if (chosenByQuery != result.rows.end())
        learnChange(result.machine, model, chosenByQuery->candidate, prompts, options, part(kScaled / 2, kScaled),
                    stop);
    PredictionInput input{*model, result.machine, load, request.link, request.threads, {}};
    for (const std::string& trace : request.traces)
        for (RecordedRun& run : recordedRuns(trace)) input.recorded.push_back(std::move(run));
    for (TuneRow& row : result.rows) row.predicted = predict(row.candidate, input, stop);
    std::ranges::stable_sort(result.rows, {}, [](const TuneRow& row) { return row.predicted.stepNs; });
}

} // namespace

void judge(TuneResult& result) {
    result.recommended.reset();
    for (TuneRow& row : result.rows) {
        row.reaches = row.front = false;
        if (!row.measured) continue;
        const CountedShare& quality = row.measured->quality;
        row.reaches = (result.request.sure ? quality.interval().low : quality.value()) >= result.request.floor;
        row.front = std::ranges::none_of(result.rows, [&](const TuneRow& other) {
            if (!other.measured) return false;
            const double here = quality.value(), there = other.measured->quality.value();
            return there >= here && speedOf(other) >= speedOf(row) && (there > here || speedOf(other) > speedOf(row));
        });
    }
    for (std::size_t i = 0; i < result.rows.size(); ++i)
        if (result.rows[i].reaches &&
            (!result.recommended || speedOf(result.rows[i]) > speedOf(result.rows[*result.recommended])))
            result.recommended = i;
}

std::optional<std::size_t> nextRow(const TuneResult& result) {
    const TuneRequest& request = result.request;
    const std::size_t done = result.order.size(), best = std::size_t(request.runs);
    if (done < best) {
        const auto next = std::ranges::find_if(result.rows, [](const TuneRow& row) { return !row.measured; });
        if (next == result.rows.end()) return std::nullopt;
        return std::size_t(next - result.rows.begin());
    }
    if (done >= best + std::size_t(request.more)) return std::nullopt;
    // Where one of the best predicted is good enough, the question is answered.
    const bool amongBest = std::ranges::any_of(std::views::take(result.order, std::ptrdiff_t(best)),
                                               [&](std::size_t row) { return result.rows[row].reaches; });
    return amongBest ? std::nullopt : worthATry(result);
}

TuneResult tune(const std::shared_ptr<const Model>& model, const PromptSet& prompts, const TuneRequest& request,
                const TuneObserver& observer, const Progress& progress, const std::stop_token& stop) {
    checkRequest(request, prompts, *model);
    TuneResult result;
    result.request = request;
    result.model = model->name();
    result.modelPath = request.modelName.empty() ? model->path() : request.modelName;
    result.prompts = prompts.name;
    result.promptCount = int(prompts.prompts.size());
    result.context = prompts.longest();
    MeasureOptions options;
    options.measure = request.measure;
    options.batch = request.batch;
    options.session.backend = request.backend;
    options.session.link = request.link;
    options.session.threads = request.threads;
    options.session.maxNewTokens = request.newTokens;
    const TuneLoad load{prompts.longest(), request.newTokens, request.batch, request.deviceBytes, request.backend};
    predictAll(result, model, prompts, options, load, progress, stop);
    if (observer) observer(result);
    Reference reference;
    if (request.measure == QualityMeasure::Agreement)
        reference = referenceOf(
            model, prompts, options,
            [&](double f, std::string_view) {
                report(progress, kScaled + (kReferred - kScaled) * f, "reading with full attention");
            },
            stop);
    while (const std::optional<std::size_t> next = nextRow(result)) {
        const std::string name = result.rows[*next].candidate.name();
        const double done = double(result.order.size()),
                     all = double(
                         std::max(result.order.size() + 1, std::min(result.rows.size(), std::size_t(request.runs))));
        const Progress part = [&](double f, std::string_view) {
            report(progress, kPredicted + (1 - kPredicted) * (done + f) / all, "running " + name);
        };
        MeasureOptions now = options;
        if (result.order.size() >= std::size_t(request.runs)) now.giveUpBelow = request.floor;
        try {
            result.rows[*next].measured =
                measure(model, result.rows[*next].candidate, prompts, reference, now, part, stop);
            result.order.push_back(*next);
        } catch (const Error& error) {
            if (error.kind == ErrorKind::Cancelled) {
                if (result.order.empty()) throw;
                result.cancelled = true;
                break;
            }
            if (error.kind != ErrorKind::OutOfMemory && error.kind != ErrorKind::Unsupported) throw;
            result.leftOut.push_back({name, oneLine(error)}); // the candidate cannot run here after all
            result.rows.erase(result.rows.begin() + std::ptrdiff_t(*next));
            for (std::size_t& row : result.order) row -= std::size_t(row > *next);
        }
        judge(result);
        if (observer) observer(result);
    }
    judge(result);
    return result;
}

} // namespace kvscope

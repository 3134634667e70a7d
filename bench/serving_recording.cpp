// What does recording requests and iterations cost a server? Runs with and without it, in turns, in one process.
#include "bench/serving.h"

#include "base/error.h"
#include "base/text_file.h"
#include "core/prompt/prompts.h"
#include "core/serve/load.h"
#include "core/serve/random_draws.h"
#include "profiler/read/open_trace.h"
#include "profiler/run/run_recording.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve;

constexpr double kAim = 0.01; // of the P99 of the time between tokens

/// Three requests for every row, all there at the beginning. Answers have several lengths, so that prompts are read
/// while other requests decode.
Workload workloadOf(const ServingJob& job) {
    Workload workload;
    workload.name = "full server";
    Draws draws(1);
    for (int i = 0; i < 3 * job.streams; ++i) {
        WorkloadLine& line = workload.lines.emplace_back();
        line.promptTokens = job.prompt;
        line.outputTokens = job.tokens / 2 + int(draws.below(std::uint64_t(job.tokens / 2 + 1)));
        line.seed = std::uint64_t(i);
    }
    workload.spanUs = 1'000'000'000'000; // long enough that nothing arrives a second time
    return workload;
}

EngineOptions engineOf(const ServingJob& job) {
    EngineOptions options;
    options.session.method = job.method, options.session.backend = job.backend;
    options.session.threads = job.threads;
    ParameterValues knobs = schedulerDefaults();
    knobs.set(schedulerParameters(), "rows", fmt::format("{}", job.streams));
    knobs.set(schedulerParameters(), "max_waiting", "10000");
    options.scheduler = schedulerOptions(knobs);
    options.budget.host = job.hostMiB * kMi, options.budget.device = job.deviceMiB * kMi;
    options.budget.scratch = job.scratchMiB * kMi;
    return options;
}

class RecordingCost {
public:
    explicit RecordingCost(const ServingJob& job)
        : job_(job), model_(Model::load(job.model)), prompts_(*model_), workload_(workloadOf(job)),
          engine_(engineOf(job)) {
        engine_.costs = job.costs.empty() ? measureCosts(model_, engine_, loadOptions())
                                          : ServiceCosts::fromJson(readTextFile(job.costs, "the table of costs"));
    }

    /// Serves the workload once. @throws Error where not every request got its whole answer
    ServingResult serve(bool recorded) {
        RecordingRequest request;
        if (recorded) request.trace = folder_.path() + "/serving.kvtrace";
        request.overwrite = true;
        request.level = RecordLevel::Counters; // of steps, and none are recorded at the level `serving`
        request.kernels = false;
        RunRecording recording(request, job_.backend);
        recording.open();
        LoadOptions options = loadOptions();
        if (recorded) options.sink = &recording.sink();
        const LoadResult result = load(model_, workload_, engine_, options);
        if (recorded) dropped_ += recording.finish().droppedSteps;
        if (result.numbers.finished < result.numbers.counted)
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{} of {} requests have ended without their answers: {}{}",
                                    result.numbers.counted - result.numbers.finished, result.numbers.counted,
                                    result.refusal, result.failure),
                        "give more memory, or fewer streams");
        return result.numbers;
    }
    std::int64_t dropped() const { return dropped_; }

private:
    LoadOptions loadOptions() const {
        LoadOptions options;
        options.counted = int(workload_.lines.size()), options.warmUpRequests = 0, options.warmUpSeconds = 0;
        options.processorTime = job_.processorTime;
        options.prompt = [this](const WorkloadLine& line, std::int64_t request) {
            return prompts_.prompt(line.promptTokens, request, line.seed);
        };
        return options;
    }

    const ServingJob job_;
    const std::shared_ptr<const Model> model_;
    const SplicedPrompts prompts_;
    const Workload workload_;
    const TemporaryFolder folder_;
    EngineOptions engine_;
    std::int64_t dropped_ = 0; // records that the recorder could not take
};

/// Numbers of the pairs, in ascending order.
struct Samples {
    std::vector<double> values;
    void add(double value) { values.insert(std::upper_bound(values.begin(), values.end(), value), value); }
    double at(double p) const { return percentile(values, p); }
    Json spread() const {
        return {
            {"min", values.front()}, {"p25", at(0.25)}, {"p50", at(0.5)}, {"p75", at(0.75)}, {"max", values.back()}};
    }
};

} // namespace

Json servingRecording(const ServingJob& job, const Log& log) {
    RecordingCost runs(job);
    runs.serve(false); // loads kernels, and is not counted
    Samples plainP99, recordedP99, costs, medianCosts;
    double rows = 0;
    for (int pair = 0; pair < job.pairs; ++pair) {
        ServingResult plain, recorded;
        if (pair % 2 == 1) recorded = runs.serve(true);
        plain = runs.serve(false);
        if (pair % 2 == 0) recorded = runs.serve(true);
        plainP99.add(plain.tbt.p99), recordedP99.add(recorded.tbt.p99);
        costs.add(recorded.tbt.p99 / plain.tbt.p99 - 1);
        medianCosts.add(recorded.tbt.median / plain.tbt.median - 1);
        rows = plain.meanRows;
        log(fmt::format("time between tokens at P99: {:.3f} ms not recorded, {:.3f} ms recorded ({:+.2f} %); in the "
                        "median {:.3f} and {:.3f} ms",
                        plain.tbt.p99, recorded.tbt.p99, 100 * (recorded.tbt.p99 / plain.tbt.p99 - 1), plain.tbt.median,
                        recorded.tbt.median));
    }
    const Json cost = besideAim(recordedP99.at(0.5) / plainP99.at(0.5) - 1, kAim);
    log(fmt::format("the P99 of the time between tokens is {:.3f} ms without recording and {:.3f} ms with it, in the "
                    "median of {} runs each: recording costs a share of {} of it; the pairs' costs go from {:.3g} to "
                    "{:.3g}, half of them from {:.3g} to {:.3g}; {:.1f} rows decode",
                    plainP99.at(0.5), recordedP99.at(0.5), job.pairs, inWords(cost), costs.values.front(),
                    costs.values.back(), costs.at(0.25), costs.at(0.75), rows));
    return {{"clock", job.processorTime ? "processor time of one thread" : "wall"},
            {"pairs", job.pairs},
            {"requests_of_a_run", 3 * job.streams},
            {"mean_decode_rows", rows},
            {"cost_share_of_p99_tbt", cost},
            {"cost_share_of_p99_tbt_of_pairs", costs.spread()},
            {"cost_share_of_p50_tbt_of_pairs", medianCosts.spread()},
            {"p99_tbt_ms_not_recorded", plainP99.spread()},
            {"p99_tbt_ms_recorded", recordedP99.spread()},
            {"dropped_records", runs.dropped()}};
}

} // namespace kvscope::bench

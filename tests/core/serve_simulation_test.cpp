// The simulator against queues whose waits are known, and its numbers against plain references.
#include "tests/core/serve_server.h"

#include "base/error.h"
#include "core/serve/capacity.h"
#include "core/serve/random_draws.h"
#include "core/serve/simulation.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <numeric>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

/// A server for one request at a time: a prompt of n tokens takes n ms, and its first token is its last.
SimulationOptions oneServer() {
    SimulationOptions options;
    options.scheduler = small::optionsOf({{"rows", "1"},
                                          {"short_tokens", "0"},
                                          {"tbt_bound_ms", "1e7"},
                                          {"iteration_tokens", "16777216"},
                                          {"ttft_bound_ms", "1e7"},
                                          {"max_waiting", "1000000"}});
    options.costs = small::smallCosts();
    options.costs.shape.layers = 1;
    options.budget = small::plenty(options.scheduler);
    options.budget.host = options.budget.device = options.budget.scratch = std::int64_t(1) << 40;
    options.warmUpRequests = 0, options.warmUpSeconds = 0, options.keepGaps = false;
    return options;
}
/// Service times in ms of 100,000 requests that arrive at random with `load` of the server used; the mean is 1,000 ms.
Workload queueOf(double load, bool exponential, std::uint64_t seed) {
    Workload workload;
    workload.lines.resize(100000);
    Draws draws(seed);
    for (WorkloadLine& line : workload.lines)
        line.promptTokens = exponential ? std::max(1, int(std::lround(draws.exponential() * 1000))) : 1000;
    drawArrivals(workload, Arrivals::Poisson, 1, draws.bits());
    changeRate(workload, load);
    return workload;
}

TEST(Simulation, WaitsAreThoseOfMM1AndMD1) {
    for (const double load : {0.3, 0.5, 0.65}) {
        const SimulationOptions options = oneServer();
        const ServingResult markov = simulate(queueOf(load, true, 9), options);
        const ServingResult fixed = simulate(queueOf(load, false, 9), options);
        const double mm1 = 1000 * load / (1 - load), md1 = mm1 / 2;
        EXPECT_NEAR(markov.queue.mean, mm1, 0.03 * mm1) << load;
        EXPECT_NEAR(fixed.queue.mean, md1, 0.03 * md1) << load;
        EXPECT_NEAR(markov.utilisation, load, 0.01) << load;
        EXPECT_NEAR(markov.busy, load, 0.01) << load;
        EXPECT_NEAR(fixed.ttft.mean, 1000 + fixed.queue.mean, 1e-6);
        EXPECT_NEAR(markov.meanInSystem, markov.littleInSystem, 0.02 * markov.littleInSystem) << load;
        EXPECT_TRUE(markov.promisesTtft()) << load;
    }
}

TEST(Simulation, EveryWaitIsThatOfTheQueueWithTheSameArrivals) {
    // Lindley: a request waits for what was left when the one before it arrived, less the gap.
    const Workload workload = queueOf(0.8, true, 4);
    const ServingResult result = simulate(workload, oneServer());
    double free = 0, largest = 0;
    for (std::size_t i = 0; i < workload.lines.size(); ++i) {
        const double arrival = double(workload.lines[i].arrivalUs) / 1e3;
        const double begin = std::max(free, arrival);
        free = begin + workload.lines[i].promptTokens;
        largest = std::max(largest, std::abs(result.outcomes[i].queueMs() - (begin - arrival)));
    }
    EXPECT_LT(largest, 1e-3) << "a microsecond";
}

TEST(Simulation, SaysThatItPromisesNothingNearSaturation) {
    SimulationOptions options = oneServer();
    EXPECT_TRUE(simulate(queueOf(0.7, false, 1), options).promisesTtft());
    EXPECT_FALSE(simulate(queueOf(0.85, false, 1), options).promisesTtft());
    options.counted = 2000;
    const ServingResult over = simulate(queueOf(1.3, false, 1), options);
    EXPECT_TRUE(over.trend.grows());
    EXPECT_NEAR(over.trend.slope, 0.3, 0.05);
    EXPECT_FALSE(over.promisesTtft());
}

/// The 8B shape under longmix with short outputs, light enough to end in a moment.
SimulationOptions longmixOptions(const std::vector<std::pair<std::string, std::string>>& knobs = {}) {
    SimulationOptions options;
    options.scheduler = small::optionsOf(knobs);
    options.budget = {64, std::int64_t(64) << 30, std::int64_t(4) << 30, std::int64_t(2) << 30, true};
    return options;
}
Workload longmixAt(double rate, int count = 256) {
    Workload workload = longmix(count, 1);
    changeLengths(workload, {1, 1, 32768});
    changeRate(workload, rate / workload.rate());
    return workload;
}

TEST(Simulation, NumbersAgreeWithAPlainReference) {
    SimulationOptions options = longmixOptions();
    options.slo = {3000, 60, false};
    const Workload workload = longmixAt(0.4);
    std::int64_t tokens = 0;
    double rows = 0, ms = 0;
    int decodes = 0;
    const ServingResult r =
        simulate(workload, options, [&](const RequestTable&, const IterationPlan& plan, double took) {
            tokens += plan.decodeRows();
            for (const PrefillSegment& segment : plan.segments) tokens += segment.last ? 1 : 0;
            rows += plan.decodeRows(), ms += plan.decodeRows() > 0 ? took : 0, decodes += plan.decodeRows() > 0 ? 1 : 0;
        });
    ASSERT_EQ(r.outcomes.size(), workload.lines.size());
    std::vector<double> ttft, gaps;
    int good = 0;
    double inside = 0;
    for (const RequestOutcome& o : r.outcomes) {
        ASSERT_EQ(o.status, Status::Finished);
        EXPECT_LE(o.arrivalNs, o.firstScheduledNs);
        EXPECT_LT(o.firstScheduledNs, o.firstTokenNs);
        EXPECT_LE(o.firstTokenNs, o.endNs);
        EXPECT_EQ(o.gapsMs.size() + 1, std::size_t(o.tokens));
        const double sum = std::accumulate(o.gapsMs.begin(), o.gapsMs.end(), 0.0);
        EXPECT_NEAR(o.ttftMs() + sum, o.e2eMs(), 1e-3 * o.e2eMs());
        ttft.push_back(o.ttftMs());
        std::vector<double> own(o.gapsMs.begin(), o.gapsMs.end());
        gaps.insert(gaps.end(), own.begin(), own.end());
        std::sort(own.begin(), own.end());
        double p99 = 0; // of numpy: between the two neighbours of place 0.99 (n - 1)
        if (!own.empty()) {
            const double place = 0.99 * double(own.size() - 1);
            const auto at = std::size_t(place);
            p99 = at + 1 < own.size() ? own[at] + (place - double(at)) * (own[at + 1] - own[at]) : own[at];
        }
        good += o.ttftMs() <= 3000 && p99 <= 60 ? 1 : 0;
        inside += o.e2eMs() / 1000;
    }
    EXPECT_EQ(r.good, good);
    EXPECT_GT(good, 0);
    EXPECT_LT(good, int(workload.lines.size()));
    EXPECT_DOUBLE_EQ(r.attainment, double(good) / double(workload.lines.size()));
    EXPECT_NEAR(r.goodput, good / r.seconds, 1e-12);
    std::sort(ttft.begin(), ttft.end());
    std::sort(gaps.begin(), gaps.end());
    EXPECT_EQ(r.tbt.samples, gaps.size());
    EXPECT_NEAR(r.tbt.p99, percentile(gaps, 0.99), 1e-9);
    EXPECT_NEAR(r.ttft.mean, std::accumulate(ttft.begin(), ttft.end(), 0.0) / double(ttft.size()), 1e-9);
    EXPECT_DOUBLE_EQ(r.ttft.max, ttft.back());
    EXPECT_NEAR(r.littleInSystem, inside / r.seconds, 1e-9);
    EXPECT_NEAR(r.meanInSystem, r.littleInSystem, 0.1 * r.littleInSystem);
    EXPECT_GT(decodes, 0);
}

TEST(Simulation, TheWindowIsOneReadingUnderFullLoad) {
    const Workload workload = longmixAt(0.5, 64);
    SimulationOptions options = longmixOptions();
    const ServingResult r = simulate(workload, options);
    EXPECT_GE(r.warmUp, 100);
    EXPECT_GE(double(r.warmUp) / workload.rate(), 55) << "and 60 seconds";
    EXPECT_EQ(r.counted, 64);
    EXPECT_GT(r.after, 0) << "load goes on until the last one ends";
    std::vector<int> prompts, wanted;
    for (const RequestOutcome& o : r.outcomes) prompts.push_back(o.promptTokens);
    for (const WorkloadLine& line : workload.lines) wanted.push_back(line.promptTokens);
    EXPECT_THAT(prompts, ::testing::UnorderedElementsAreArray(wanted));
    const ServingResult again = simulate(workload, options);
    EXPECT_EQ(again.ttft.mean, r.ttft.mean) << "nothing in it is by chance";
    EXPECT_THROW(simulate(Workload{}, options), Error);
}

TEST(Simulation, ControlKeepsGlobalLruFromThrashing) {
    Workload workload = longmixAt(1, 256);
    changeLengths(workload, {1, 8, 0}); // decode-bound
    changeRate(workload, 0.9 / workload.rate());
    const auto run = [&](const char* control) {
        SimulationOptions options =
            longmixOptions({{"cache", "global-lru"}, {"working_set_control", control}, {"short_tokens", "0"}});
        options.budget.device = std::int64_t(2) << 30;
        options.counted = 128;
        return simulate(workload, options);
    };
    const ServingResult controlled = run("true"), free = run("false");
    EXPECT_GT(controlled.hitRate, 0.9);
    EXPECT_LT(free.hitRate, 0.3);
    EXPECT_GT(free.meanRows, controlled.meanRows);
}

TEST(Simulation, TheFirstStepBehindAPrefillLoadsAWholeSelection) {
    Workload workload;
    workload.lines = {{0, 16384, 3, "", 0}}; // two decode steps
    workload.spanUs = 60'000'000;
    SimulationOptions options = longmixOptions();
    options.warmUpRequests = 0, options.warmUpSeconds = 0;
    const ServingResult r = simulate(workload, options);
    const double selection = 128 << 20;
    EXPECT_NEAR(r.loadedBytes, selection * (1 + 1 - 0.956), 2);
    EXPECT_NEAR(r.tbt.max - r.tbt.median, selection * 0.956 / 51.3e6 / 2, 0.01)
        << "of two gaps the longer is the first";
    EXPECT_EQ(r.tbt.samples, 2u);
}

/// One request alone: its admission delays its first token, and its steps hold what the host and offloading cost.
TEST(Simulation, IterationsHoldAdmissionsAndWhatOffloadingCostsEveryStep) {
    Workload workload;
    workload.lines = {{0, 16384, 3, "", 0}}; // two decode steps
    workload.spanUs = 60'000'000;
    SimulationOptions options = longmixOptions();
    options.warmUpRequests = 0, options.warmUpSeconds = 0;
    const auto with = [&](const std::function<void(ServiceCosts&)>& change) {
        SimulationOptions changed = options;
        change(changed.costs);
        return simulate(workload, changed);
    };
    const ServingResult before = with([](ServiceCosts&) {});
    const ServingResult admitted = with([](ServiceCosts& c) { c.admitMs = 40, c.admitUsPerToken = 1000.0 / 16384; });
    EXPECT_NEAR(admitted.ttft.mean - before.ttft.mean, 41, 0.1) << "once; the prompt has one iteration more";
    EXPECT_NEAR(admitted.tbt.mean, before.tbt.mean, 1e-3);
    EXPECT_NEAR(admitted.utilisation - before.utilisation, 0.041 / 60, 1e-6);
    const ServingResult offload = with([](ServiceCosts& c) { c.offloadMs[2] = 3, c.offloadUsPerRow[2] = 2000; });
    EXPECT_NEAR(offload.ttft.mean, before.ttft.mean, 1e-3);
    EXPECT_NEAR(offload.tbt.mean - before.tbt.mean, 5, 1e-3);
    const ServingResult rows = with([](ServiceCosts& c) { c.gapUsPerRow = 7000; });
    EXPECT_NEAR(rows.ttft.mean, before.ttft.mean, 1e-3) << "no row makes a step while the prompt is read";
    EXPECT_NEAR(rows.tbt.mean - before.tbt.mean, 7, 1e-3);
}

/// Two requests at once: what the host does between iterations lies between their tokens, and in the first of them.
TEST(Simulation, TimeBetweenIterationsLiesBetweenTokens) {
    Workload workload;
    workload.lines = {{0, 256, 3, "", 0}, {0, 256, 3, "", 0}};
    workload.spanUs = 60'000'000;
    SimulationOptions options = longmixOptions();
    options.warmUpRequests = 0, options.warmUpSeconds = 0;
    const auto with = [&](double each, double row, double request) {
        SimulationOptions changed = options;
        changed.costs.betweenMs = each, changed.costs.betweenUsPerRow = row * 1e3, changed.costs.requestMs = request;
        return simulate(workload, changed);
    };
    const ServingResult before = with(0, 0, 0), each = with(5, 0, 0), row = with(0, 2, 0), request = with(0, 0, 3);
    ASSERT_EQ(before.tbt.samples, 4u);
    EXPECT_NEAR(each.tbt.mean - before.tbt.mean, 5, 1e-3);
    EXPECT_NEAR(each.ttft.mean, before.ttft.mean, 1e-3) << "both prompts are read in one iteration";
    EXPECT_NEAR(row.tbt.mean - before.tbt.mean, (0 + 4) / 2.0, 1e-3) << "nobody decoded beside the prompts";
    EXPECT_NEAR(request.ttft.mean - before.ttft.mean, 6, 1e-3) << "both are taken in before the first iteration";
    EXPECT_NEAR(request.tbt.mean, before.tbt.mean, 1e-3);
    EXPECT_GT(each.utilisation, before.utilisation);
    EXPECT_GT(row.utilisation, before.utilisation);
    EXPECT_NEAR(request.utilisation - before.utilisation, 2.0 / 60 * 2 * 0.003, 1e-6);
    EXPECT_THROW(with(1e14, 0, 0), Error);
    EXPECT_THROW(with(0, 0, 1e14), Error);
}

TEST(Simulation, ADriftingWorkingSetPausesSomebody) {
    SimulationOptions options = longmixOptions({{"cache", "global-lru"}});
    options.costs.drift = 0.5; // the union of 12 steps is 6.5 selections
    options.budget.device = std::int64_t(2) << 30;
    Workload workload = longmixAt(0.5, 128);
    const ServingResult r = simulate(workload, options);
    EXPECT_GT(r.pauses, 0);
    EXPECT_EQ(r.finished, 128);
    EXPECT_GT(r.limitedBy[std::size_t(Limit::WorkingSets)], 0);
    EXPECT_GT(simulate(workload, longmixOptions()).finished, 0);
}

TEST(Simulation, OneHugePromptAmongShortOnesStallsNobody) {
    // 131,072 tokens in the middle of short prompts, two each second: about 26 s of prefill by themselves.
    Workload workload;
    for (int i = 0; i < 100; ++i) workload.lines.push_back({i * 500'000, 500 + 10 * i, 40, "short", 0});
    workload.lines.insert(workload.lines.begin() + 20, {9'800'000, 131072, 20, "long", 0});
    workload.spanUs = 50'000'000;
    SimulationOptions options = longmixOptions();
    options.budget.scratch = std::int64_t(4) << 30;
    options.warmUpRequests = 0, options.warmUpSeconds = 0;
    const ServingResult r = simulate(workload, options);
    EXPECT_EQ(r.finished, 101);
    EXPECT_LE(r.tbt.p99, options.slo.tbtMs);
    EXPECT_LE(r.tbt.max, options.slo.tbtMs);
    for (const RequestOutcome& o : r.outcomes) {
        const double bound = o.promptTokens < 2000 ? 1000 : 60000;
        EXPECT_LT(o.ttftMs(), bound) << "request " << o.id;
    }
}

TEST(Simulation, FasterTransfersAndSegmentsCostNoCapacity) {
    const Workload workload = longmixAt(1, 64);
    const auto capacity = [&](const std::vector<std::pair<std::string, std::string>>& knobs) {
        SimulationOptions options = longmixOptions(knobs);
        options.slo.tbtMs = 150;
        options.counted = 64;
        return findCapacity(workload, options, {});
    };
    const Capacity kernel = capacity({}), calls = capacity({{"transfers", "calls"}});
    EXPECT_GT(kernel.rate, 0.1);
    EXPECT_GE(kernel.rate, 0.95 * calls.rate);
    EXPECT_FALSE(kernel.broken.empty());
    double least = 1e9, most = 0; // between the last that holds and the first that does not lie 2.5 %
    for (const CapacityPoint& point : kernel.points)
        (point.broken.empty() ? most : least) =
            point.broken.empty() ? std::max(most, point.rate) : std::min(least, point.rate);
    EXPECT_EQ(most, kernel.rate);
    EXPECT_LE(least, 1.0251 * most);
}

/// A step takes longer than the bound, however few requests there are. The search went on until a request came every
/// year, and then called the rate too low.
TEST(Capacity, IsNoneWhereASingleStepBreaksTheBound) {
    SimulationOptions options = longmixOptions();
    options.slo.tbtMs = 1;
    options.warmUpSeconds = 5;
    const Capacity none = findCapacity(longmixAt(1, 16), options, {});
    EXPECT_EQ(none.rate, 0);
    EXPECT_THAT(none.broken, HasSubstr("P99 between tokens"));
    EXPECT_LT(none.points.size(), 10u);
}

TEST(Capacity, OfOneServerIsWhereTheMeanWaitMeetsItsBound) {
    // M/D/1 with 1 s of service waits 2 s in the mean at a load of 0.8: rho / (2 (1 - rho)) = 2.
    SimulationOptions options = oneServer();
    const Capacity capacity = findCapacity(queueOf(0.5, false, 9), options, {CapacityRule::MeanQueue, 2000, 0.9, 0.01});
    EXPECT_NEAR(capacity.rate, 0.8, 0.02);
    EXPECT_THAT(capacity.broken, HasSubstr("mean queue delay"));
    options.slo = {3000, 1e6, false};
    const Capacity good = findCapacity(queueOf(0.5, false, 9), options, {CapacityRule::Attainment, 2000, 0.9, 0.01});
    EXPECT_THAT(good.broken, HasSubstr("attainment"));
}

/// The options of a server that offloads with these transfers.
SchedulerOptions offloadingBy(TransferPlan transfers) {
    SchedulerOptions options;
    options.transfers = transfers;
    return options;
}

TEST(Costs, AreReadAsTheyAreWrittenAndRefusedByName) {
    ServiceCosts costs;
    EXPECT_EQ(ServiceCosts::fromJson(costs.toJson()).toJson(), costs.toJson());
    costs.gapUsPerRow = 1, costs.admitMs = 2, costs.admitUsPerToken = 3;
    costs.betweenMs = 10, costs.betweenUsPerRow = 11, costs.requestMs = 12;
    for (int i = 0; i < 3; ++i) costs.offloadMs[i] = 4 + i, costs.offloadUsPerRow[i] = 7 + i;
    const ServiceCosts read = ServiceCosts::fromJson(costs.toJson());
    EXPECT_EQ(read.toJson(), costs.toJson());
    EXPECT_THAT(read.offloadMs, ::testing::ElementsAre(4, 5, 6));
    EXPECT_THAT(read.offloadUsPerRow, ::testing::ElementsAre(7, 8, 9));
    EXPECT_THAT((std::vector{read.gapUsPerRow, read.admitMs, read.admitUsPerToken}), ::testing::ElementsAre(1, 2, 3));
    EXPECT_THAT((std::vector{read.betweenMs, read.betweenUsPerRow, read.requestMs}),
                ::testing::ElementsAre(10, 11, 12));
    EXPECT_EQ(ServiceCosts::fromJson(R"({"plan_ms": 3, "shape": {"layers": 4}})").shape.layers, 4);
    EXPECT_EQ(ServiceCosts::fromJson(R"({"fitted": ["plan_ms"], "plan_ms": 3})").planMs, 3);
    EXPECT_EQ(ServiceCosts::fromJson(R"({"link_gbps": {"calls": 3}, "offload_ms": {"calls": 4}})").offloadMs[0], 4)
        << "two objects may have the same key";
    const std::vector<std::pair<std::string, std::string>> wrong{
        {"[]", "the costs are not a JSON object"},
        {"{", "the costs are not JSON"},
        {R"({"plan_ms": 1e400})", "a number in them is too large"},
        {R"({"plan_mss": 1})", "plan_mss"},
        {R"({"plan_ms": -1})", "plan_ms"},
        {R"({"decode_ms": []})", "decode_ms"},
        {R"({"decode_ms": [[2, 1], [1, 1]]})", "ascend"},
        {R"({"lru_hits": [[1, 1.5]]})", "above 1"},
        {R"({"shape": {"layers": 0}})", "layers"},
        {R"({"shape": {"layers": 1e300}})", "1e+300 is not a whole number from 1 to 1e9"},
        {R"({"shape": {"heads": 2}})", "heads"},
        {R"({"overlap": 1})", "overlap"},
        {R"({"offload_ms": 1})", "offload_ms"},
        {R"({"offload_ms": {"copies": 1}})", "copies"},
        {R"({"offload_us_per_row": {"calls": -1}})", "calls"},
        {R"({"admit_ms": "1"})", "admit_ms"},
        {R"({"version": 0})", "'version' of the costs: 0 is not a whole number from 1"},
        {R"({"version": 1.5})", "1.5 is not a whole number"},
        {R"({"version": "2"})", "version"},
        {R"({"link_gbps": {"calls": 0}})", "calls"},
        {R"({"plan_ms": 1, "plan_ms": 2})", "'plan_ms' of the costs: it is given twice"},
        {R"({"shape": {"layers": 4, "hidden": 64, "layers": 4}})", "'layers' of the costs: it is given twice"},
        {R"({"fitted": "plan_ms"})", "'fitted' of the costs: it is not a list"},
        {R"({"fitted": ["plan_ms", "plan"]})", "\"plan\" is not a key"},
        {R"({"fitted": [1]})", "1 is not a key"}};
    for (const auto& [text, says] : wrong) {
        try {
            ServiceCosts::fromJson(text);
            ADD_FAILURE() << text;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr(says));
        }
    }
}

/// As fitted on the H200 before there were terms for admissions and for what offloading costs every step.
TEST(Costs, OfTheFirstVersionAreReadAsTheyWereMeant) {
    const std::string first = R"({"decode_ms": [[1, 4.31], [14, 5.9]], "decode_us_per_ktoken": 1.9,
        "full_us_per_ktoken": 8.6, "prefill_us_per_token": 0.79, "prefill_ps_per_token2": 14.1,
        "link_gbps": {"calls": 5.1, "batched": 18.1, "kernel": 51.3}, "overlap": false, "plan_ms": 0, "gap_ms": 1.1,
        "drift": 0.083, "lru_hits": [[0.5, 0.917], [1, 0.917], [1.125, 0.104]], "partition_hits": [[1, 0.89]],
        "shape": {"layers": 32, "kv_heads": 2, "block_tokens": 64, "block_bytes": 32768, "index_bytes_per_token": 1024,
        "selected_blocks": 64, "hidden": 4096, "host_run_blocks": 1, "piece_tokens": 2048, "pauses_in_layer": true,
        "resident_layers": 0}})";
    const ServiceCosts costs = ServiceCosts::fromJson(first);
    EXPECT_DOUBLE_EQ(costs.overhead(12), 1.1) << "the mean of all iterations, those that admit too";
    EXPECT_EQ(costs.admission(32768), 0);
    EXPECT_DOUBLE_EQ(costs.decode(1, 0, 0, offloadingBy(TransferPlan::Kernel)), 4.31);
    EXPECT_EQ(ServiceCosts::fromJson(costs.toJson()).toJson(), costs.toJson()) << "written again as one of today";
    EXPECT_THAT(costs.toJson(), HasSubstr(R"("version": 2)"));
    EXPECT_EQ(ServiceCosts::fromJson(R"({"version": 1, "gap_ms": 1.1})").gapMs, 1.1);
}

TEST(Costs, OfALaterVersionAreRefusedWithBothNumbers) {
    try {
        ServiceCosts::fromJson(R"({"a_term_of_the_future": 1, "version": 3})", "mine.json");
        ADD_FAILURE() << "read";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("mine.json: cannot read 'version' of the costs: the table is of version 3, "
                                            "and this program knows versions up to 2"));
    }
}

TEST(Costs, OfALinkWithoutLimitAreNullAndLoadsTakeNoTime) {
    const SchedulerOptions kernel = offloadingBy(TransferPlan::Kernel), calls = offloadingBy(TransferPlan::Calls);
    // 1e9: written by versions that had no null
    for (const char* text : {R"({"link_gbps": {"kernel": null}})", R"({"link_gbps": {"kernel": 1e9}})"}) {
        const ServiceCosts costs = ServiceCosts::fromJson(text);
        EXPECT_EQ(costs.decode(1, 0, std::int64_t(1) << 50, kernel), 4.28);
        EXPECT_GT(costs.decode(1, 0, 1 << 30, calls), 4.28) << "another plan's rate stays";
        EXPECT_THAT(costs.toJson(), HasSubstr(R"("kernel": null)"));
        EXPECT_EQ(ServiceCosts::fromJson(costs.toJson()).toJson(), costs.toJson());
    }
}

TEST(Costs, FollowTheirClosedForms) {
    const ServiceCosts costs;
    const SchedulerOptions kernel = offloadingBy(TransferPlan::Kernel);
    EXPECT_DOUBLE_EQ(costs.decode(16, 0, 0, kernel), 5.77);
    EXPECT_NEAR(costs.decode(12, 0, 0, kernel), (4.96 + 5.77) / 2, 1e-12);
    EXPECT_NEAR(costs.decode(128, 0, 0, kernel), 7.73 + 64 * (7.73 - 5.77) / 48, 1e-12);
    EXPECT_NEAR(costs.decode(1, 0, 128 << 20, kernel) - 4.28, 2.616, 0.001) << "a whole selection";
    ServiceCosts ahead = costs;
    ahead.overlap = true;
    EXPECT_DOUBLE_EQ(ahead.decode(1, 0, 1000, kernel), 4.28);
    for (ServiceCosts offloading : {costs, ahead}) {
        offloading.offloadMs[int(TransferPlan::Kernel)] = 0.6;
        offloading.offloadUsPerRow[int(TransferPlan::Kernel)] = 20;
        EXPECT_NEAR(offloading.decode(16, 0, 0, kernel), 5.77 + 0.6 + 0.32, 1e-12) << "beside loads and computation";
        EXPECT_EQ(offloading.decode(16, 0, 0, offloadingBy(TransferPlan::Calls)), 5.77);
        EXPECT_EQ(offloading.decode(0, 0, 0, kernel), 0);
        SchedulerOptions resident = kernel;
        resident.offload = false;
        EXPECT_EQ(offloading.decode(16, 0, 0, resident), offloading.residentDecode(16, 0));
    }
    ServiceCosts host;
    host.planMs = 0.1, host.gapMs = 0.2, host.gapUsPerRow = 30, host.admitMs = 4, host.admitUsPerToken = 1.5;
    EXPECT_NEAR(host.overhead(0), 0.3, 1e-12);
    EXPECT_NEAR(host.overhead(10), 0.6, 1e-12);
    EXPECT_NEAR(host.admission(2000), 7, 1e-12);
    double pieces = 0;
    for (int from = 0; from < 16384; from += 2048) pieces += costs.prefillLayer(from, from + 2048);
    EXPECT_NEAR(pieces, costs.prefillLayer(0, 16384), 1e-9) << "pieces of a layer add up";
    const MemoryShape& shape = costs.shape;
    const SchedulerOptions options;
    EXPECT_EQ(shape.tokenBytes(), 32 << 10);
    EXPECT_EQ(shape.selectionBytes(16384), 128 << 20);
    EXPECT_EQ(shape.selectionBytes(64), 2 << 20) << "one block per head";
    const RequestNeeds needs = shape.needsOf(options, 16384 - 256, 256);
    EXPECT_EQ(needs.hostBytes, std::int64_t(16384) * (32 << 10));
    EXPECT_EQ(needs.deviceBytes, (16 << 20) + (2 << 20)) << "index and newest blocks";
    EXPECT_EQ(needs.hardBytes, 4 << 20);
    EXPECT_EQ(needs.scratchBytes, std::int64_t(16384 - 256) * (18 << 10)) << "18 KiB per prompt token";
    ServiceCosts withRows = costs;
    withRows.shape.rowBytesPerToken = 512, withRows.shape.rowBytes = 3 << 20;
    withRows = ServiceCosts::fromJson(withRows.toJson());
    EXPECT_EQ(withRows.shape.needsOf(options, 16384 - 256, 256).deviceBytes, needs.deviceBytes + (8 << 20) + (3 << 20));
    for (const char* key : {"row_bytes", "row_bytes_per_token"})
        EXPECT_THROW(ServiceCosts::fromJson(std::string(R"({"shape": {")") + key + "\": -1}}"), Error) << key;
    SchedulerOptions lru;
    lru.cache = CachePlan::GlobalLru;
    EXPECT_NEAR(double(costs.workingSet(lru, 12, 16384)), 1.66 * double(128 << 20), 1);
    EXPECT_EQ(costs.workingSet(lru, 100, 16384), costs.workingSet(lru, 12, 16384));
    EXPECT_LE(costs.workingSet(lru, 12, 64 * 65), 65 * 2 << 20) << "never more than there is";
    EXPECT_NEAR(costs.hitRate(lru, 1000, 1000), 0.94, 1e-12);
    EXPECT_NEAR(costs.hitRate(lru, 1125, 1000), 0.104, 1e-12);
    EXPECT_NEAR(costs.hitRate(options, 1 << 30, 1000), 0.956, 1e-12) << "a partition of twice a selection";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve

// The engine that serves gives every request the tokens and selections that it has alone, however requests join, leave,
// wait, pause and share iterations, and gives back all that they had.
#include "core/serve/engine.h"

#include "core/serve/cost_fit.h"
#include "core/serve/random_draws.h"
#include "core/session/engine_setup.h"
#include "core/trace/trace_sink.h"
#include "tests/core/small_budgets.h"
#include "tests/support/random_prompt.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <thread>

namespace kvscope::serve {
namespace {

using ::testing::HasSubstr;

const std::shared_ptr<const Model>& model() {
    static const auto model = Model::load(kDefaultModel);
    return model;
}

constexpr int kPartition = 20; // blocks; every method's step with small budgets fits

/// A request and what it gives alone.
struct Alone {
    Submission submission;
    std::vector<std::int32_t> tokens;
    std::vector<StepRecord> steps; // of the decode steps
};

std::vector<Submission> requests() {
    std::vector<Submission> all;
    int seed = 0;
    // Three, two and one pieces; one prompt ends four tokens into a piece, one is shorter than a block.
    for (const auto& [prompt, tokens] : {std::pair{1028, 9}, {530, 14}, {13, 20}, {560, 16}, {700, 1}, {600, 18}}) {
        Submission request;
        request.id = seed;
        request.prompt = test::randomPrompt(prompt, unsigned(++seed));
        request.maxTokens = tokens;
        request.stopAtEos = false;
        if (seed % 2 == 0) request.sampling = {0.9, 0.95, 40, std::uint64_t(seed)};
        all.push_back(std::move(request));
    }
    return all;
}

SessionOptions sessionOptions(const std::string& method) {
    SessionOptions options;
    options.method = method;
    options.threads = 1;
    options.settings = test::smallBudgets(resolveDefaults(findMethod(method), model()->config()));
    return options;
}

/// What kvscope-cli run gives.
Alone alone(const std::string& method, const Submission& request, bool moves) {
    SessionOptions options = sessionOptions(method);
    options.maxNewTokens = request.maxTokens;
    options.stopAtEos = request.stopAtEos;
    options.sampling = request.sampling;
    if (moves) options.deviceKvBlocks = kPartition, options.cachePolicy = "lru";
    CollectingSink sink(RecordLevel::Selections);
    DecodeSession session(model(), {request.prompt}, options, sink);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    Alone result{request, session.generated().front(), {}};
    for (StepRecord& step : sink.steps)
        if (step.phase == Phase::Decode) result.steps.push_back(std::move(step));
    return result;
}

bool moves(const std::string& method) {
    EngineOptions options;
    options.session = sessionOptions(method);
    options.budget = {0, 1 << 20, 1 << 20, 1 << 20, true};
    EngineObserver nobody;
    const Engine engine(model(), options, nobody);
    return engine.costs().shape.offloadedLayers() > 0 && !engine.ownDeviceTier();
}

/// Compares what it is told with what requests give alone, and counts what happened.
class Watcher final : public EngineObserver {
public:
    Watcher(const std::vector<Alone>& expected, bool comparesHits) : expected_(expected), comparesHits_(comparesHits) {}

    void token(RequestId id, std::int32_t token, int generated, std::int64_t, const StepRecord& record) override {
        const Alone& want = expected_[std::size_t(id)];
        std::vector<std::int32_t>& have = tokens[id];
        have.push_back(token);
        if (int(have.size()) != generated) return fault(id, "the count of its tokens is wrong");
        if (have.size() > want.tokens.size()) return fault(id, "it has too many tokens");
        if (token != want.tokens[have.size() - 1]) fault(id, fmt::format("token {} differs", generated));
        if (generated == 1) return;
        const StepRecord& step = want.steps[std::size_t(generated - 2)];
        if (record.step != step.step) fault(id, "the row's step has another number");
        if (record.blocks != step.blocks) fault(id, fmt::format("the selections of token {} differ", generated));
        if (record.selections.size() != step.selections.size()) fault(id, "it has selected in other layers");
        if (comparesHits_ && record.hit != step.hit) fault(id, fmt::format("the hits of token {} differ", generated));
        for (std::size_t layer = 0; comparesHits_ && layer < step.layers.size(); ++layer)
            if (record.layers[layer].h2dBytes != step.layers[layer].h2dBytes) fault(id, "it has loaded other bytes");
    }
    void paused(RequestId, std::int64_t) override { ++pauses; }
    void ended(RequestId id, Ending ending, std::int64_t, const Error* error) override {
        if (!endings.emplace(id, ending).second) fault(id, "it has ended twice");
        if (error) fault(id, oneLine(*error));
        if (ending == Ending::Length && tokens[id] != expected_[std::size_t(id)].tokens)
            fault(id, "it has ended early");
    }
    void iteration(const IterationReport& report) override {
        for (const PrefillSegment& segment : report.plan.segments) {
            cuts += segment.last ? 0 : 1;
            cutLayers += !segment.last && segment.to.layer > 0 ? 1 : 0;
            cutInLayer += segment.to.token != 0 ? 1 : 0;
        }
        mixed += !report.plan.segments.empty() && report.plan.decodeRows() > 0 ? 1 : 0;
        mostRows = std::max(mostRows, report.plan.decodeRows());
        hits += report.hits, misses += report.misses, missedBytes += report.missedBytes;
        if (report.endNs < report.beginNs) fault(-1, "an iteration ends before it begins");
    }
    void fault(RequestId id, const std::string& what) { faults.push_back(fmt::format("request {}: {}", id, what)); }

    std::vector<std::string> faults;
    std::map<RequestId, std::vector<std::int32_t>> tokens;
    std::map<RequestId, Ending> endings;
    int pauses = 0, cuts = 0, cutLayers = 0, cutInLayer = 0, mixed = 0, mostRows = 0;
    std::int64_t hits = 0, misses = 0, missedBytes = 0;

private:
    const std::vector<Alone>& expected_;
    const bool comparesHits_;
};

/// Budgets in which two or three requests run at once, so that working sets that grow pause some.
Budget tightBudget(const EngineOptions& options, const std::vector<Alone>& expected, Draws& draws) {
    EngineOptions probing = options;
    probing.scheduler.rows = 1;
    probing.budget = {1, std::int64_t(1) << 30, std::int64_t(1) << 30, std::int64_t(1) << 30, true};
    EngineObserver nobody;
    Engine probe(model(), probing, nobody);
    for (const Alone& request : expected) probe.submit(request.submission);
    probe.iterate();
    std::int64_t step = 0, largest = 0;
    std::vector<std::int64_t> fixed;
    for (const auto* list : {&probe.table().running(), &probe.table().waiting()})
        for (const ServeRequest& request : *list) {
            fixed.push_back(request.needs.deviceBytes);
            step = std::max(step, request.needs.stepBytes);
            largest = std::max(largest, request.needs.deviceBytes + request.aloneBytes(false));
        }
    std::sort(fixed.begin(), fixed.end());
    const double rows = 2.02 + 0.1 * draws.uniform();
    const auto two = std::int64_t(2 * double(fixed[fixed.size() / 2]) + rows * double(step));
    return {0, std::int64_t(1) << 30, std::max(largest + (1 << 16), two), std::int64_t(1) << 28, true};
}

struct Seen {
    int schedules = 0, pauses = 0, cutLayers = 0, cutInLayer = 0, chunks = 0, mixed = 0, cancelled = 0, mostRows = 0;
    std::int64_t tokens = 0, misses = 0;
};

/// Serves the requests in a random order under random knobs and a clock that jumps, and cancels some.
void serveRandomly(const std::string& method, const std::vector<Alone>& expected, bool moves, std::uint64_t seed,
                   Seen& seen) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Draws draws(seed);
    const auto one = [&](std::initializer_list<const char*> values) {
        return std::string(*(values.begin() + long(draws.below(values.size()))));
    };
    ParameterValues knobs = schedulerDefaults();
    const auto set = [&](const char* key, const std::string& value) { knobs.set(schedulerParameters(), key, value); };
    const bool pooled = moves && seed % 2 == 0;
    set("cache", pooled ? "global-lru" : "partition");
    set("partition_blocks", std::to_string(kPartition));
    set("rows", one({"3", "4", "6"}));
    set("window", one({"4", "8", "12"}));
    set("pause_after", "1");
    set("resume_tokens", one({"0", "2"}));
    set("prefill", seed % 8 == 2 || seed % 4 == 3 ? "chunks" : "layers");
    set("chunk_tokens", one({"512", "1024"}));
    set("iteration_ms", one({"1", "20"}));
    set("long_prefills", one({"1", "3"}));
    set("short_tokens", one({"0", "64", "600"}));
    if (seed % 8 == 1) set("token_layers", one({"512", "4000"}));
    EngineOptions options;
    options.session = sessionOptions(method);
    options.scheduler = schedulerOptions(knobs);
    options.costs.prefillUsPerToken = draws.uniform() < 0.5 ? 5 : 40; // a layer of a long prompt does or does not fit
    options.costs.prefillPsPerToken2 = 0;
    std::int64_t clock = 0;
    options.now = [&] { return clock += std::int64_t(draws.below(4'000'000)); };
    options.budget = {0, std::int64_t(1) << 30, std::int64_t(1) << 30, std::int64_t(1) << 28, true};
    if (pooled) options.budget = tightBudget(options, expected, draws);

    Watcher watcher(expected, moves && !pooled);
    Engine engine(model(), options, watcher);
    std::vector<std::size_t> order(expected.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    draws.shuffle(order);
    std::size_t next = 0;
    std::set<RequestId> cancelled;
    for (int iteration = 0; next < order.size() || engine.requests() > 0; ++iteration) {
        ASSERT_LT(iteration, 3000) << "the schedule does not end";
        while (next < order.size() && (engine.requests() == 0 || draws.uniform() < 0.4))
            engine.submit(expected[order[next++]].submission);
        if (draws.uniform() < 0.02) { // one that waits, runs or is paused
            std::vector<RequestId> ids;
            for (const auto* list : {&engine.table().running(), &engine.table().waiting(), &engine.table().paused()})
                for (const ServeRequest& request : *list) ids.push_back(request.id);
            if (!ids.empty()) {
                cancelled.insert(ids[std::size_t(draws.below(ids.size()))]);
                engine.cancel(*cancelled.rbegin());
                for (const RequestId id : cancelled) engine.cancel(id); // a second time, and of those that ended
            }
        }
        engine.iterate();
        ASSERT_EQ(engine.openRows(), int(engine.table().running().size() + engine.table().paused().size()));
    }
    EXPECT_THAT(watcher.faults, ::testing::IsEmpty());
    EXPECT_TRUE(engine.table().idle());
    EXPECT_EQ(engine.openRows(), 0);
    EXPECT_EQ(engine.table().ledger().used(), Amounts());
    EXPECT_EQ(engine.table().ledger().entries(), 0u);
    EXPECT_EQ(watcher.endings.size(), expected.size()) << "every request ends once";
    for (const auto& [id, ending] : watcher.endings) {
        seen.cancelled += ending == Ending::Cancelled ? 1 : 0;
        EXPECT_TRUE(ending == Ending::Length || cancelled.count(id) > 0) << nameOf(ending);
    }
    for (const auto& [id, tokens] : watcher.tokens) seen.tokens += std::int64_t(tokens.size());
    ++seen.schedules, seen.pauses += watcher.pauses, seen.mixed += watcher.mixed;
    (options.scheduler.prefill == PrefillPlan::Chunks ? seen.chunks : seen.cutLayers) +=
        options.scheduler.prefill == PrefillPlan::Chunks ? watcher.cuts : watcher.cutLayers;
    if (options.scheduler.prefill == PrefillPlan::Layers) seen.cutInLayer += watcher.cutInLayer;
    seen.mostRows = std::max(seen.mostRows, watcher.mostRows);
    seen.misses += watcher.misses;
}

class Serving : public ::testing::TestWithParam<std::string> {};

TEST_P(Serving, GivesEveryRequestWhatItHasAlone) {
    const bool offloads = moves(GetParam());
    std::vector<Alone> expected;
    for (const Submission& request : requests()) expected.push_back(alone(GetParam(), request, offloads));
    Seen seen;
    for (std::uint64_t seed = 0; seed < 8 && !HasFailure(); ++seed)
        serveRandomly(GetParam(), expected, offloads, seed, seen);
    // The schedules did what they are for.
    EXPECT_GE(seen.mostRows, 3);
    EXPECT_GT(seen.mixed, 10);
    EXPECT_GT(seen.cutLayers, 2);
    EXPECT_GT(seen.cutInLayer, 2);
    EXPECT_GT(seen.chunks, 2);
    EXPECT_GT(seen.cancelled, 0);
    if (offloads) {
        EXPECT_GT(seen.pauses, 0);
        EXPECT_GT(seen.misses, 0);
    }
    fmt::print(
        "{}: {} schedules, {} tokens, up to {} rows, {} pauses, {} cancelled, prompts cut {} times by layers, {} "
        "within one, {} by chunks\n",
        GetParam(), seen.schedules, seen.tokens, seen.mostRows, seen.pauses, seen.cancelled, seen.cutLayers,
        seen.cutInLayer, seen.chunks);
}

std::vector<std::string> served() {
    std::vector<std::string> names;
    for (const MethodEntry& method : methods())
        if (whyNotServed(method).empty() && hasWeightsFor(method, *model())) names.push_back(method.name);
    return names;
}

std::vector<std::string> allBut(const std::string& method) {
    std::vector<std::string> names = served();
    names.erase(std::remove(names.begin(), names.end(), method), names.end());
    return names;
}

std::string nameOfCase(const ::testing::TestParamInfo<std::string>& parameter) {
    std::string name = parameter.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

// One under sanitizers, all without.
INSTANTIATE_TEST_SUITE_P(One, Serving, ::testing::Values("nosa"), nameOfCase);
INSTANTIATE_TEST_SUITE_P(Methods, Serving, ::testing::ValuesIn(allBut("nosa")), nameOfCase);

TEST(ServingEngine, ServesTheMethodsThatMustServe) {
    for (const char* name : {"full", "streaming", "quest", "arkvale", "infllmv2", "dma", "nosa", "sparda",
                             "double-sparsity", "asynctls", "h2o", "snapkv"}) {
        EXPECT_EQ(whyNotServed(findMethod(name)), "") << name;
        EXPECT_THAT(served(), ::testing::Contains(name));
    }
    for (const Backend backend : {Backend::Cpu, Backend::Cuda}) {
        EXPECT_THAT(whyNotServed(findMethod("losa"), backend), HasSubstr("denoises"));
        EXPECT_EQ(whyNotServed(findMethod("quest"), backend), "");
    }
    MethodEntry onlyHere = findMethod("quest");
    onlyHere.onDevice = {};
    EXPECT_EQ(whyNotServed(onlyHere), "");
    EXPECT_THAT(whyNotServed(onlyHere, Backend::Cuda), onlyHere.makeSelector ? HasSubstr("no kernels") : HasSubstr(""));
}

/// Keeps the last error and the endings.
class Endings final : public EngineObserver {
public:
    void ended(RequestId id, Ending ending, std::int64_t, const Error* error) override {
        endings[id] = ending;
        if (error) errors[id] = oneLine(*error);
    }
    std::map<RequestId, Ending> endings;
    std::map<RequestId, std::string> errors;
};

EngineOptions plainOptions(const char* method = "nosa") {
    EngineOptions options;
    options.session = sessionOptions(method);
    options.budget = {0, 1 << 28, 1 << 28, 1 << 28, true};
    return options;
}

Submission requestOf(RequestId id, int prompt, int tokens) {
    Submission request;
    request.id = id, request.prompt = test::randomPrompt(prompt, unsigned(id) + 1), request.maxTokens = tokens;
    request.stopAtEos = false;
    return request;
}

TEST(ServingEngine, RefusesWhatCanNeverRunAndNamesTheKnob) {
    const auto refusal = [](Budget budget, Submission request, const char* knob = "") {
        EngineOptions options = plainOptions();
        options.budget = budget;
        if (*knob != 0) {
            ParameterValues knobs = schedulerDefaults();
            knobs.set(schedulerParameters(), knob, "1");
            options.scheduler = schedulerOptions(knobs);
        }
        Endings endings;
        Engine engine(model(), options, endings);
        engine.submit(requestOf(7, 40, 2)); // fits, and is not disturbed
        if (*knob != 0) engine.submit(requestOf(8, 40, 2));
        engine.submit(std::move(request));
        while (engine.requests() > 0 || endings.endings.empty()) engine.iterate();
        EXPECT_EQ(endings.endings[7], Ending::Length);
        EXPECT_EQ(endings.endings[1], Ending::Refused);
        EXPECT_EQ(engine.table().ledger().used(), Amounts());
        return endings.errors[1];
    };
    const std::int64_t much = 1 << 28;
    EXPECT_THAT(refusal({0, 1 << 20, much, much, true}, requestOf(1, 4000, 2)), HasSubstr("--host-kv at least"));
    EXPECT_THAT(refusal({0, much, 2 << 20, much, true}, requestOf(1, 9000, 2)), HasSubstr("--device-kv at least"));
    EXPECT_THAT(refusal({0, much, much, 1 << 20, true}, requestOf(1, 4000, 2)), HasSubstr("--scratch at least"));
    EXPECT_THAT(refusal({0, much, much, much, true}, requestOf(1, 20, 10'000'000)), HasSubstr("exceed the context"));
    EXPECT_THAT(refusal({0, much, much, much, true}, requestOf(1, 20, 0)), HasSubstr("at least 1 new token"));
    Submission strange = requestOf(1, 20, 2);
    strange.prompt[3] = 1 << 30;
    EXPECT_THAT(refusal({0, much, much, much, true}, strange), HasSubstr("outside the vocabulary"));
    Submission empty = requestOf(1, 20, 2);
    empty.prompt.clear();
    EXPECT_THAT(refusal({0, much, much, much, true}, empty), HasSubstr("is empty"));
    EXPECT_THAT(refusal({0, much, much, much, true}, requestOf(1, 20, 2), "max_waiting"), HasSubstr("max_waiting"));
}

TEST(ServingEngine, RefusesSettingsThatItCannotServe) {
    const auto refused = [](const EngineOptions& options) -> std::string {
        EngineObserver nobody;
        try {
            const Engine engine(model(), options, nobody);
        } catch (const Error& error) {
            return oneLine(error);
        }
        return "served";
    };
    const auto with = [](const char* method, std::vector<std::pair<const char*, const char*>> settings) {
        EngineOptions options = plainOptions(method);
        ParameterValues knobs = schedulerDefaults();
        for (const auto& [key, value] : settings) knobs.set(schedulerParameters(), key, value);
        options.scheduler = schedulerOptions(knobs);
        return options;
    };
    EXPECT_EQ(refused(with("nosa", {})), "served");
    EXPECT_THAT(refused(with("nosa", {{"prefill", "chunks"}, {"chunk_tokens", "700"}})),
                HasSubstr("use chunk_tokens=1024"));
    EXPECT_THAT(refused(with("double-sparsity", {{"cache", "global-lru"}})), HasSubstr("use cache=partition"));
    const auto onGpu = [&](const char* key, const char* value) {
        EngineOptions options = with("nosa", {{key, value}});
        options.session.backend = Backend::Cuda;
        return refused(options);
    };
    EXPECT_THAT(onGpu("prefill", "chunks"), HasSubstr("use prefill=layers"));
    EXPECT_THAT(onGpu("cache", "global-lru"), HasSubstr("use cache=partition"));
    EXPECT_THAT(onGpu("transfers", "calls"), HasSubstr("use transfers=kernel"));
    EXPECT_THAT(onGpu("transfers", "batched"), HasSubstr("use transfers=kernel"));
    EXPECT_THAT(onGpu("parking", "host"), HasSubstr("use parking=device"));
    EngineOptions large = plainOptions();
    large.budget.host = std::int64_t(1) << 55;
    EXPECT_THAT(refused(large), HasSubstr("lower --host-kv"));
    EngineOptions unknown = plainOptions();
    unknown.session.settings = {{"no_such", "1"}};
    EXPECT_THAT(refused(unknown), HasSubstr("no_such"));
}

TEST(ServingEngine, EndsWhereTheModelEnds) {
    // Alone the request meets an end-of-sequence token or not; served it is the same.
    for (int id = 0; id < 3; ++id) {
        Submission request = requestOf(id, 50 + id, 40);
        request.stopAtEos = true;
        request.sampling = {2.0, 1, 0, std::uint64_t(id)};
        const Alone want = alone("nosa", request, false);
        const std::vector<Alone> expected(std::size_t(id + 1), want);
        Watcher watcher(expected, false);
        Engine engine(model(), plainOptions(), watcher);
        engine.submit(request);
        while (engine.iterate()) {
        }
        EXPECT_EQ(watcher.tokens[id], want.tokens);
        EXPECT_EQ(watcher.endings[id], want.tokens.size() < 40 ? Ending::Stop : Ending::Length);
    }
}

TEST(ServingEngine, IsFlatOverManyCancellations) {
    Endings endings;
    EngineOptions options = plainOptions();
    options.scheduler.rows = 3;
    Engine engine(model(), options, endings);
    Draws draws(5);
    for (int id = 0; id < 1000; ++id) {
        engine.submit(requestOf(id, 1 + int(draws.below(20)), 1 + int(draws.below(4))));
        if (draws.uniform() < 0.3) engine.iterate();
        engine.cancel(id - int(draws.below(2)));
        if (draws.uniform() < 0.5) engine.iterate();
    }
    while (engine.iterate()) {
    }
    EXPECT_EQ(endings.endings.size(), 1000u);
    EXPECT_EQ(engine.requests(), 0);
    EXPECT_EQ(engine.openRows(), 0);
    EXPECT_EQ(engine.table().ledger().used(), Amounts());
}

TEST(ServingEngine, TakesRequestsAndCancellationsFromOtherThreads) {
    Endings endings;
    Engine engine(model(), plainOptions(), endings);
    std::thread client([&] {
        for (int id = 0; id < 60; ++id) {
            engine.submit(requestOf(id, 10, 3));
            if (id % 3 == 0) engine.cancel(id);
        }
    });
    while (endings.endings.size() < 60) engine.iterate();
    client.join();
    int cancelled = 0;
    for (const auto& [id, ending] : endings.endings) {
        EXPECT_TRUE(ending == Ending::Length || id % 3 == 0);
        cancelled += ending == Ending::Cancelled ? 1 : 0;
    }
    EXPECT_LE(cancelled, 20);
}

/// Rows of an engine have the logits of sessions, bit by bit.
TEST(RowEngine, HasTheBitsOfASessionAlone) {
    for (const char* name : {"nosa", "quest", "full"}) {
        const MethodEntry& method = findMethod(name);
        SCOPED_TRACE(name);
        EngineObserver nobody;
        const std::vector<Submission> all = requests();
        const std::size_t vocab = std::size_t(model()->config().vocab);
        // Logits of five steps of the first four requests, each alone.
        std::vector<std::vector<std::vector<float>>> expected(4);
        std::vector<std::vector<std::int32_t>> fed(4);
        SessionOptions options = sessionOptions(name);
        options.maxNewTokens = 6;
        options.stopAtEos = false;
        for (std::size_t r = 0; r < 4; ++r) {
            NullSink sink;
            DecodeSession session(model(), {all[r].prompt}, options, sink);
            session.prefill();
            do {
                expected[r].emplace_back(session.logits(0), session.logits(0) + vocab);
            } while (session.step());
            fed[r] = session.generated().front();
        }
        const ParameterValues values = [&] {
            ParameterValues result = resolveDefaults(method, model()->config());
            for (const auto& [key, value] : options.settings) result.set(method.parameters, key, value);
            return result;
        }();
        const SelectionSpec spec = methodSpec(method, values, *model());
        const auto engine = makeCpuRowEngine(
            {model(), abilitiesOf(method, {values, spec, model()->config(), Backend::Cpu, true, model().get()}), 4, 1});
        std::vector<std::vector<std::vector<std::int32_t>>> prompts(4);
        std::vector<SessionOptions> each(4, options);
        std::vector<int> steps(4, 0);
        const auto check = [&](std::size_t r) {
            EXPECT_EQ(
                std::memcmp(engine->logits(int(r)), expected[r][std::size_t(steps[r])].data(), vocab * sizeof(float)),
                0)
                << "request " << r << ", step " << steps[r];
        };
        // Requests join one by one; between them those that are there make a step together.
        for (std::size_t joined = 0; joined < 9; ++joined) {
            if (joined < 4) {
                prompts[joined] = {all[joined].prompt};
                engine->open(int(joined), engineSetup(model(), prompts[joined], each[joined], method, values, spec,
                                                      RecordLevel::Selections));
                EXPECT_TRUE(engine->readLayers(int(joined), model()->config().layers, 0, {}));
                check(joined);
            }
            std::vector<RowToken> rows;
            for (std::size_t r = 0; r < std::min<std::size_t>(joined + 1, 4); ++r)
                if (steps[r] < 5)
                    rows.push_back({int(r), fed[r][std::size_t(steps[r])], int(all[r].prompt.size()) + steps[r]});
            engine->decode(rows);
            for (const RowToken& row : rows) {
                ++steps[std::size_t(row.row)];
                check(std::size_t(row.row));
            }
        }
        for (int r = 0; r < 4; ++r) {
            EXPECT_EQ(steps[std::size_t(r)], 5);
            engine->close(r);
        }
    }
}

/// Iterations whose times follow a table of costs, but for one in twenty, which takes ten times as long.
TEST(CostFit, FindsTheCostsOfWhatItWasShown) {
    for (const bool chunks : {false, true}) {
        ServiceCosts truth;
        truth.shape.layers = 6;
        truth.decodeMs = {{{1, 2.0}, {2, 2.5}, {4, 4.0}}};
        truth.decodeUsPerKtoken = 900, truth.prefillUsPerToken = 40, truth.prefillPsPerToken2 = 9000;
        truth.gapMs = 0.5, truth.planMs = 0;
        Draws draws(chunks ? 2 : 1);
        CostFit fit;
        for (int turn = 0; turn < 400; ++turn) {
            IterationPlan plan;
            const int rows = 1 << draws.below(3), length = 512 * (1 + int(draws.below(6))) + int(draws.below(300));
            const auto context = std::int64_t(500 + draws.below(8000));
            for (int row = 0; row < rows; ++row) plan.decode.push_back({row, row});
            PrefillSegment segment;
            double ms = 0;
            if (chunks) {
                segment.from = {0, 512}, segment.to = {0, std::min(1024, length)};
                ms = truth.shape.layers * truth.prefillLayer(512, segment.to.token);
            } else { // the end of a layer, a whole one and the beginning of another
                segment.from = {1, 512}, segment.to = {3, 512};
                ms = truth.prefillLayer(512, length) + truth.prefillLayer(0, length) + truth.prefillLayer(0, 512);
            }
            plan.segments.push_back(segment);
            const double slow = draws.below(20) == 0 ? 10 : 1;
            IterationReport report{plan, 0, 0, 0, {}, context, 90, 10, 0, 0, 0};
            report.decodeNs = std::int64_t(slow * truth.decode(rows, context, 0, TransferPlan::Kernel) * 1e6);
            const std::int64_t read[] = {std::int64_t(ms * 1e6)};
            report.segmentNs = read;
            report.endNs = report.decodeNs + read[0] + 500'000;
            fit.add(report, truth.shape, chunks, {length});
        }
        const ServiceCosts found = fit.fit(truth, {});
        for (const auto& [rows, ms] : truth.decodeMs.points) EXPECT_NEAR(found.decodeMs.at(rows), ms, 0.05 * ms);
        EXPECT_NEAR(found.decodeUsPerKtoken, 900, 20);
        EXPECT_NEAR(found.gapMs, 0.5, 0.001);
        EXPECT_NEAR(found.partitionHits.at(2), 0.9, 1e-9);
        for (const int length : {600, 1024, 3000})
            EXPECT_NEAR(found.prefillLayer(0, length), truth.prefillLayer(0, length),
                        0.01 * truth.prefillLayer(0, length))
                << length;
    }
}

TEST(SlotPool, ForgetsTheLeastRecentlySelectedAndNeverThePresentLayer) {
    Draws draws(3);
    SlotPool pool;
    std::vector<PooledBlock> recent; // the last one is the oldest
    int missed = 0, expected = 0;
    for (int step = 0; step < 3000; ++step) {
        if (draws.below(50) == 0) {
            const int row = int(draws.below(3));
            pool.release(row);
            recent.erase(std::remove_if(recent.begin(), recent.end(), [&](const auto& b) { return b.row == row; }),
                         recent.end());
        }
        const int layer = int(draws.below(4));
        const std::int64_t slots = 20 + std::int64_t(draws.below(30));
        std::vector<PooledBlock> wanted;
        for (int row = 0; row < 3; ++row)
            for (int block = 0; block < 12; ++block)
                if (draws.below(3) == 0) wanted.push_back({row, layer, int(draws.below(2)), block});
        missed += int(pool.select(wanted, slots).size());
        std::vector<PooledBlock> hits, misses;
        for (const PooledBlock& block : wanted) {
            const auto found = std::find(recent.begin(), recent.end(), block);
            (found == recent.end() ? misses : hits).push_back(block);
            if (found != recent.end()) recent.erase(found);
        }
        expected += int(misses.size());
        for (const auto* list : {&hits, &misses})
            for (const PooledBlock& block : *list) recent.insert(recent.begin(), block);
        if (std::int64_t(recent.size()) > slots) recent.resize(std::size_t(slots));
        ASSERT_EQ(missed, expected) << step;
        ASSERT_EQ(pool.used(), std::int64_t(recent.size()));
        for (const PooledBlock& block : wanted) EXPECT_TRUE(std::int64_t(wanted.size()) > slots || pool.holds(block));
    }
    EXPECT_GT(missed, 1000);
}

} // namespace
} // namespace kvscope::serve

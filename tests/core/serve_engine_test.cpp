// The engine that serves gives every request the tokens and selections that it has alone, however requests join, leave,
// wait, pause and share iterations, and gives back all that they had.
#include "core/serve/engine.h"

#include "core/serve/load.h"
#include "core/serve/random_draws.h"
#include "core/serve/serving_trace.h"
#include "core/session/engine_setup.h"
#include "core/trace/trace_sink.h"
#include "tests/core/served_requests.h"
#include "tests/core/small_budgets.h"
#include "tests/support/random_prompt.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <thread>
#include <tuple>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::shared_ptr<const Model>& model() { return embedded(); }

constexpr int kPartition = 20; // blocks; every method's step with small budgets fits

std::vector<Submission> requests() {
    // Three, two and one pieces; one prompt ends four tokens into a piece, one is shorter than a block.
    return requestsOf({{1028, 9}, {530, 14}, {13, 20}, {560, 16}, {700, 1}, {600, 18}});
}

SessionOptions sessionOptions(const std::string& method) {
    SessionOptions options;
    options.method = method;
    options.threads = 1;
    options.settings = test::smallBudgets(resolveDefaults(findMethod(method), model()->config()));
    return options;
}

Alone alone(const std::string& method, const Submission& request, bool moves) {
    return aloneWith(sessionOptions(method), request, moves ? kPartition : 0);
}

bool moves(const std::string& method) {
    EngineOptions options;
    options.session = sessionOptions(method);
    options.budget = {0, 1 << 20, 1 << 20, 1 << 20, true};
    return movesBlocks(options);
}

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
    const auto one = [&](std::initializer_list<const char*> values) { return oneOf(draws, values); };
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
    const auto cancelled = serveInRandomOrder(engine, expected, draws, [&] {
        ASSERT_EQ(engine.openRows(), int(engine.table().running().size() + engine.table().paused().size()));
    });
    seen.cancelled += expectAllEnded(engine, watcher, expected, cancelled);
    for (const auto& [id, tokens] : watcher.tokens) seen.tokens += std::int64_t(tokens.size());
    ++seen.schedules, seen.pauses += watcher.pauses, seen.mixed += watcher.mixed;
    (options.scheduler.prefill == PrefillPlan::Chunks ? seen.chunks : seen.cutLayers) +=
        options.scheduler.prefill == PrefillPlan::Chunks ? watcher.cuts : watcher.cutLayers;
    if (options.scheduler.prefill == PrefillPlan::Layers) seen.cutInLayer += watcher.cutInLayer;
    seen.mostRows = std::max(seen.mostRows, watcher.mostRows);
    seen.misses += watcher.misses;
}

class Serving : public ::testing::TestWithParam<std::string> {
protected:
    void SetUp() override { KVSCOPE_NEEDS_NOSA_TINY(); }
};

TEST_P(Serving, GivesEveryRequestWhatItHasAlone) {
    const bool offloads = moves(GetParam());
    std::vector<Alone> expected;
    for (const Submission& request : requests()) expected.push_back(alone(GetParam(), request, offloads));
    Seen seen;
    // Four schedules are one of each kind: a pool or partitions, layers or chunks. A method whose working sets hardly
    // grow needs more of them until one pauses.
    constexpr int schedules = 4;
    const auto enough = [&](int seed) { return seed >= schedules && (!offloads || seen.pauses > 0); };
    for (int seed = 0; seed < 8 && !enough(seed) && !HasFailure(); ++seed)
        serveRandomly(GetParam(), expected, offloads, std::uint64_t(seed), seen);
    // The schedules shared iterations, cut prompts between and within layers, read chunks and cancelled requests.
    EXPECT_GE(seen.mostRows, 3);
    EXPECT_GT(seen.mixed, schedules);
    EXPECT_GE(seen.cutLayers, schedules / 4);
    EXPECT_GE(seen.cutInLayer, schedules / 4);
    EXPECT_GE(seen.chunks, schedules / 4);
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

std::vector<std::string> served() { return servedMethods(Backend::Cpu); }

std::vector<std::string> allBut(const std::string& method) {
    std::vector<std::string> names = served();
    names.erase(std::remove(names.begin(), names.end(), method), names.end());
    return names;
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

/// Asks the engine to stop as soon as it begins to read a prompt, and counts the tokens that come all the same.
class Impatient final : public EngineObserver {
public:
    void scheduled(RequestId, std::int64_t) override { stop.request_stop(); }
    void token(RequestId, std::int32_t, int, std::int64_t, const StepRecord&) override { ++tokens; }
    std::stop_source stop;
    int tokens = 0;
};

/// A whole prompt in one iteration took seconds to heed Ctrl-C.
TEST(ServingEngine, StopsWithinAPromptThatOneIterationReads) {
    for (const char* prefill : {"layers", "chunks"}) {
        SCOPED_TRACE(prefill);
        Impatient impatient;
        EngineOptions options = plainOptions();
        ParameterValues knobs = schedulerDefaults();
        knobs.set(schedulerParameters(), "prefill", prefill);
        options.scheduler = schedulerOptions(knobs);
        options.scheduler.iterationMs = 0, options.scheduler.tbtBoundMs = 1e7; // whole prompts at once
        options.stop = impatient.stop.get_token();
        Engine engine(model(), options, impatient);
        engine.submit(requestOf(1, 1500, 2));
        try {
            while (engine.iterate()) {
            }
            FAIL() << "the engine read the whole prompt";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::Cancelled);
        }
        EXPECT_EQ(impatient.tokens, 0);
    }
}

/// Lets the engine's clock go on by `each` when an iteration is told, and keeps what is told of the time between them.
class Gaps final : public EngineObserver {
public:
    struct Told {
        std::int64_t beginNs = 0, endNs = 0, gapNs = 0;
        int rows = 0, gapRows = 0, gapRequests = 0;
    };
    void iteration(const IterationReport& report) override {
        told.push_back(
            {report.beginNs, report.endNs, report.gapNs, report.plan.decodeRows(), report.gapRows, report.gapRequests});
        clock += each;
    }
    std::vector<Told> told;
    std::int64_t clock = 0, each = 1000;
};

TEST(ServingEngine, TellsTheTimeBetweenIterationsAndWhoCameOrWentInIt) {
    Gaps gaps;
    EngineOptions options = plainOptions();
    options.now = [&gaps] { return ++gaps.clock; };
    Engine engine(model(), options, gaps);
    engine.submit(requestOf(1, 20, 3));
    engine.submit(requestOf(2, 30, 5));
    while (engine.iterate()) {
    }
    const std::size_t first = gaps.told.size();
    ASSERT_GE(first, 5u);
    engine.submit(requestOf(3, 20, 2));
    engine.iterate();
    engine.submit(requestOf(4, 20, 1));
    engine.submit(requestOf(5, 20, 1));
    engine.cancel(5);
    while (engine.iterate()) {
    }
    int cameOrWent = 0;
    for (std::size_t i = 0; i < gaps.told.size(); ++i) {
        const Gaps::Told& now = gaps.told[i];
        cameOrWent += now.gapRequests;
        if (i == 0 || i == first) {
            EXPECT_EQ(now.gapNs, -1) << i << ": nothing was there before";
            continue;
        }
        EXPECT_EQ(now.gapNs, now.beginNs - gaps.told[i - 1].endNs) << i;
        EXPECT_GT(now.gapNs, gaps.each) << i;
        EXPECT_EQ(now.gapRows, gaps.told[i - 1].rows) << i;
    }
    EXPECT_EQ(gaps.told[0].gapRequests, 2) << "two arrived";
    EXPECT_EQ(gaps.told[first].gapRequests, 1) << "one arrived";
    EXPECT_GE(gaps.told[first + 1].gapRequests, 3) << "two arrived, of which one was cancelled at once";
    EXPECT_GE(cameOrWent, 5 + 1) << "five arrived, and request 1 ended before request 2";
}

/// The engine's clock counts a millionth of the processor's time, so that a second of work is a microsecond. Idle time
/// is not scaled.
TEST(ServingLoad, ItsClockRunsByTheSpeedOfTheProcessor) {
    EngineOptions options = plainOptions();
    Workload workload;
    workload.lines = {{0, 20, 3, "", 0}, {400'000, 20, 3, "", 1}};
    workload.spanUs = 1'000'000;
    LoadOptions load;
    load.warmUpRequests = 0, load.warmUpSeconds = 0;
    load.processorTime = true, load.processorSpeed = 1e-6;
    load.prompt = [](const WorkloadLine& line, std::int64_t id) {
        return test::randomPrompt(line.promptTokens, unsigned(id) + 1);
    };
    const ServingResult slow = serve::load(model(), workload, options, load).numbers;
    ASSERT_EQ(slow.finished, 2);
    EXPECT_GT(slow.e2e.max, 0);
    EXPECT_LT(slow.e2e.max, 1) << "ms";
    EXPECT_NEAR(double(slow.outcomes[1].firstScheduledNs), 400e6, 1e6);
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
        engine.submit(requestOf(7, 40, 2)); // fits, and ends as if the other request were not there
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
    EXPECT_THAT(refused(with("nosa", {{"d2h", "calls"}})), HasSubstr("use d2h=runs"));
    const auto onGpu = [&](const char* key, const char* value, const char* method = "nosa") {
        EngineOptions options = with(method, {{key, value}});
        options.session.backend = Backend::Cuda;
        return refused(options);
    };
    EXPECT_THAT(onGpu("prefill", "chunks", "h2o"), HasSubstr("use prefill=layers"));
    EngineOptions chunks = with("nosa", {{"prefill", "chunks"}, {"chunk_tokens", "768"}});
    chunks.session.backend = Backend::Cuda;
    EXPECT_THAT(refused(chunks), HasSubstr("use chunk_tokens=512, 1024, or a multiple of 2048"));
    EXPECT_THAT(onGpu("cache", "global-lru", "sparda"), HasSubstr("use cache=partition, or another method"));
    EngineOptions alone = with("nosa", {{"cache", "global-lru"}, {"batch_invariant", "true"}});
    alone.session.backend = Backend::Cuda;
    EXPECT_THAT(refused(alone), HasSubstr("use cache=partition, or batch_invariant=false"));
    EngineOptions planted = with("h2o", {});
    planted.planted = {0.9};
    EXPECT_THAT(refused(planted), HasSubstr("no selections can be planted"));
    for (const char* method : {"sparda", "double-sparsity"}) // one loads ahead, one moves tokens itself
        EXPECT_THAT(onGpu("transfers", "calls", method), HasSubstr("use transfers=kernel"));
    EXPECT_THAT(onGpu("parking", "host"), HasSubstr("use parking=device"));
    EngineOptions large = plainOptions();
    large.budget.host = std::int64_t(1) << 55;
    EXPECT_THAT(refused(large), HasSubstr("lower --host-kv"));
    for (const auto& [memory, option] :
         {std::pair{&Budget::host, "--host-kv"}, {&Budget::device, "--device-kv"}, {&Budget::scratch, "--scratch"}}) {
        EngineOptions small = plainOptions();
        small.budget.*memory = 1024;
        EXPECT_THAT(refused(small), AllOf(HasSubstr("no request can ever run"), HasSubstr(option)));
    }
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
            EXPECT_EQ(std::memcmp(engine->logits(RowId{int(r)}), expected[r][std::size_t(steps[r])].data(),
                                  vocab * sizeof(float)),
                      0)
                << "request " << r << ", step " << steps[r];
        };
        // Requests join one by one; between them those that are there make a step together.
        for (std::size_t joined = 0; joined < 9; ++joined) {
            if (joined < 4) {
                prompts[joined] = {all[joined].prompt};
                engine->open(RowId{int(joined)}, engineSetup(model(), prompts[joined], each[joined], method, values,
                                                             spec, RecordLevel::Selections));
                EXPECT_TRUE(engine->readLayers(RowId{int(joined)}, LayerId{model()->config().layers}, 0, {}));
                check(joined);
            }
            std::vector<RowToken> rows;
            for (std::size_t r = 0; r < std::min<std::size_t>(joined + 1, 4); ++r)
                if (steps[r] < 5)
                    rows.push_back(
                        {RowId{int(r)}, fed[r][std::size_t(steps[r])], int(all[r].prompt.size()) + steps[r]});
            engine->decode(rows);
            for (const RowToken& row : rows) {
                ++steps[index(row.row)];
                check(index(row.row));
            }
        }
        for (int r = 0; r < 4; ++r) {
            EXPECT_EQ(steps[std::size_t(r)], 5);
            engine->close(RowId{r});
        }
    }
}

TEST(ServingEngine, HasTheShapeOfOneThatOffloadsWhereItDoesNot) {
    for (const char* method : {"nosa", "quest", "full"}) {
        std::optional<int> resident;
        for (const bool offload : {true, false}) {
            EngineOptions options = plainOptions(method);
            options.scheduler.offload = offload;
            EngineObserver nobody;
            const Engine engine(model(), options, nobody);
            const int layers = engine.costs().shape.residentLayers;
            EXPECT_EQ(resident.value_or(layers), layers) << method;
            resident = layers;
        }
        EXPECT_EQ(*resident == model()->config().layers, std::string_view(method) == "full") << method;
    }
}

/// The selections of one row of a step, as (layer, KV head, kept, hits, misses, words of blocks with origin and hit).
using RowSelections = std::vector<std::tuple<int, int, int, int, int, std::vector<std::uint32_t>>>;
RowSelections selectionsOf(const StepRecord& step, int sequence) {
    RowSelections all;
    for (const SelectionRecord& selection : step.selections) {
        if (selection.sequence != sequence) continue;
        std::vector<std::uint32_t> words;
        for (const PackedBlock block : step.blocksOf(selection)) words.push_back(block.word());
        all.emplace_back(selection.layer, selection.kvHead, selection.kept, selection.hits, selection.misses, words);
    }
    return all;
}

/// Serves requests with three rows and one cancellation, and tells a sink of it.
void serveTraced(EngineOptions options, const std::vector<Alone>& expected, CollectingSink& sink) {
    std::int64_t clock = 0;
    options.now = [&] { return clock += 100'000; };
    options.scheduler.rows = 3;
    ServingTrace trace(sink, options.scheduler, 0, true);
    Engine engine(model(), options, trace);
    trace.watches(engine);
    for (const Alone& request : expected) {
        trace.submitted(request.submission.id, 0, int(request.submission.prompt.size()), request.submission.maxTokens,
                        "");
        engine.submit(request.submission);
    }
    for (int i = 0; engine.iterate(); ++i)
        if (i == 12) trace.cancelling(1, "client"), engine.cancel(1);
    trace.finish();
}

TEST(ServingEngine, TracesWhatARequestReservesFromItsAdmissionOn) {
    KVSCOPE_NEEDS_NOSA_TINY();
    EngineOptions options = plainOptions();
    options.scheduler.tbtBoundMs = 1e-6; // an iteration has time for a part of one prompt, which nothing runs beside
    CollectingSink sink(RecordLevel::Counters);
    ServingTrace trace(sink, options.scheduler, 0, false);
    Engine engine(model(), options, trace);
    trace.watches(engine);
    for (const Submission& request : requestsOf({{530, 9}, {280, 24}})) {
        trace.submitted(request.id, 0, int(request.prompt.size()), request.maxTokens, "");
        engine.submit(request);
    }
    ASSERT_TRUE(engine.iterate());
    ASSERT_EQ(engine.table().running().size(), 2u);
    trace.finish();
    std::map<std::int64_t, ServedRequest> last;
    for (const ServingRecord& record : sink.served)
        for (const ServedRequest& request : record.requests) last[request.number] = request;
    EXPECT_GE(last.at(0).firstScheduledNs, 0);
    EXPECT_LT(last.at(1).firstScheduledNs, 0) << "it is admitted, and nothing of it is read";
    for (const auto& [number, request] : last) {
        EXPECT_EQ(request.hostBytes, engine.table().find(number)->needs.hostBytes) << number;
        EXPECT_EQ(request.deviceBytes, engine.table().find(number)->needs.deviceBytes) << number;
    }
}

TEST(ServingEngine, TracesWhatEveryRowSelects) {
    KVSCOPE_NEEDS_NOSA_TINY();
    std::vector<Alone> expected; // two pieces, and one; one prompt is shorter than a block
    for (const Submission& request : requestsOf({{530, 9}, {280, 24}, {13, 20}, {300, 16}}))
        expected.push_back(alone("nosa", request, true));
    EngineOptions options = plainOptions();
    options.scheduler.partitionBlocks = kPartition;
    CollectingSink sink(RecordLevel::Selections);
    serveTraced(options, expected, sink);

    std::map<std::pair<int, int>, std::int64_t> requestOf; // by iteration and row that decodes
    for (const ServingRecord& record : sink.served)
        for (const ServingIteration& iteration : record.iterations)
            for (const IterationMember& member : iteration.members)
                if (!member.prefill) requestOf[{iteration.iteration, member.row}] = member.request;
    std::map<std::int64_t, std::size_t> made; // steps of a request so far
    int shared = 0;
    for (const StepRecord& step : sink.steps) {
        ASSERT_EQ(std::size_t(step.tokens), step.fed.size());
        shared += step.tokens > 1;
        std::size_t selections = 0;
        std::int64_t hits = 0, bytes = 0;
        for (const FedPosition& fed : step.fed) {
            const std::int64_t request = requestOf.at({step.step, fed.sequence});
            const Alone& alone = expected[std::size_t(request)];
            const StepRecord& want = alone.steps[made[request]++];
            EXPECT_EQ(fed.position, int(alone.submission.prompt.size() + made[request]) - 1);
            const RowSelections have = selectionsOf(step, fed.sequence);
            EXPECT_EQ(have, selectionsOf(want, 0)) << "step " << step.step << ", request " << request;
            selections += have.size();
            for (const LayerRecord& layer : want.layers) hits += layer.hits, bytes += layer.h2dBytes;
        }
        EXPECT_EQ(selections, step.selections.size());
        for (const LayerRecord& layer : step.layers) hits -= layer.hits, bytes -= layer.h2dBytes;
        EXPECT_EQ(hits, 0);
        EXPECT_EQ(bytes, 0);
    }
    EXPECT_GT(shared, 10);
    for (const Alone& request : expected)
        if (request.submission.id != 1) {
            EXPECT_EQ(made[request.submission.id], request.steps.size()) << request.submission.id;
        }

    // The row of a request is its own from its admission to its release.
    std::map<int, std::int64_t> tenant;
    std::map<std::int64_t, int> released; // the first iteration without it
    for (const ServingRecord& record : sink.served)
        for (const RowEvent& event : record.events) {
            if (event.kind == RowEventKind::Admitted) {
                EXPECT_EQ(tenant.count(event.row), 0u);
                tenant[event.row] = event.request;
            } else if (event.kind == RowEventKind::Released) {
                EXPECT_EQ(tenant[event.row], event.request);
                tenant.erase(event.row);
                released[event.request] = event.iteration;
            }
        }
    EXPECT_TRUE(tenant.empty());
    EXPECT_EQ(released.size(), expected.size());
    for (const auto& [place, request] : requestOf) EXPECT_LT(place.first, released.at(request));
}

TEST(ServingEngine, TracesWhatThePoolOfAllRowsMisses) {
    KVSCOPE_NEEDS_NOSA_TINY();
    std::vector<Alone> expected; // answers that are long enough for working sets to grow
    for (const Submission& request : requestsOf({{700, 70}, {900, 60}, {530, 90}, {620, 80}, {800, 70}}))
        expected.push_back(alone("nosa", request, true));
    Draws draws(3);
    EngineOptions options = plainOptions();
    options.scheduler.cache = CachePlan::GlobalLru;
    options.scheduler.pauseAfter = 1, options.scheduler.resumeTokens = 0;
    options.budget = tightBudget(options, expected, draws);
    CollectingSink sink(RecordLevel::Selections);
    serveTraced(options, expected, sink);
    std::map<std::pair<int, int>, std::pair<std::int64_t, std::int64_t>> memberOf; // hits and misses
    int pauses = 0, resumptions = 0;
    for (const ServingRecord& record : sink.served) {
        for (const ServingIteration& iteration : record.iterations)
            for (const IterationMember& member : iteration.members)
                if (!member.prefill) memberOf[{iteration.iteration, member.row}] = {member.hits, member.misses};
        for (const RowEvent& event : record.events)
            pauses += event.kind == RowEventKind::Paused, resumptions += event.kind == RowEventKind::Resumed;
    }
    std::int64_t misses = 0;
    for (const StepRecord& step : sink.steps)
        for (const FedPosition& fed : step.fed) {
            std::int64_t hits = 0, missed = 0, flags = 0;
            for (const SelectionRecord& selection : step.selections)
                if (selection.sequence == fed.sequence) {
                    hits += selection.hits, missed += selection.misses;
                    for (const PackedBlock block : step.blocksOf(selection)) flags += !block.hit();
                }
            EXPECT_EQ(std::pair(hits, missed), memberOf.at({step.step, fed.sequence}));
            EXPECT_EQ(flags, missed);
            misses += missed;
        }
    EXPECT_GT(misses, 0);
    EXPECT_EQ(pauses, resumptions);
    EXPECT_GT(pauses, 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve

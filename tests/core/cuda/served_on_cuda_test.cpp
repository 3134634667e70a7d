// Rows that come and go on a GPU: requests join, leave and share steps under random schedules and get what they have
// alone; a row takes what it declares and leaves nothing behind. Without a GPU: what rows declare.
#include "core/cuda/cuda_engine.h"
#include "core/cuda/cuda_row.h"
#include "core/cuda/gpu_device.h"
#include "core/cuda/gpu_memory.h"
#include "core/select/refusal.h"
#include "core/serve/engine.h"
#include "core/serve/random_draws.h"
#include "core/session/engine_setup.h"
#include "tests/core/small_session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <set>

namespace kvscope {
namespace {

using namespace serve;

const std::shared_ptr<const Model>& embedded() {
    static const auto model = Model::load(kDefaultModel);
    return model;
}

std::vector<std::string> served() {
    std::vector<std::string> names;
    for (const MethodEntry& method : methods())
        if (whyNotServed(method, Backend::Cuda).empty() && hasWeightsFor(method, *embedded()))
            names.push_back(method.name);
    return names;
}

std::string nameOfCase(const ::testing::TestParamInfo<std::string>& parameter) {
    std::string name = parameter.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

/// Settings with which the method has to choose in prompts of some hundred tokens.
std::vector<std::pair<std::string, std::string>> smallSettings(const MethodEntry& method) {
    const ParameterValues values = test::smallBudget(method, embedded()->config(), {});
    std::vector<std::pair<std::string, std::string>> settings;
    for (const Parameter& parameter : method.parameters)
        settings.emplace_back(parameter.key, values.text(parameter.key));
    return settings;
}

SessionOptions sessionOptions(const std::string& method) {
    SessionOptions options;
    options.method = method;
    options.backend = Backend::Cuda;
    options.settings = smallSettings(findMethod(method));
    options.stopAtEos = false;
    return options;
}

// ---- Without a GPU --------------------------------------------------------------------------------------------------

/// What a row shares with others, without memory.
struct SharedParts {
    SharedParts() {
        launch.multiprocessors = 132;
        launch.clusters = false; // only a GPU knows how many clusters run at once
        launch.blockShared = 232448;
        options.maxTokens.assign(4, 1);
        options.maxPrompt = PromptReader::kPiece;
    }
    CudaRowParts parts() { return {model, launch, buffers, products, passes, clock, ranges}; }

    std::shared_ptr<const DeviceModel> model = DeviceModel::shapesOf(*embedded());
    CudaEngineOptions options;
    cuda::Launch launch;
    StepBuffers buffers;
    BatchLayout products{model->config, options};
    StageRanges ranges{nullptr};
    LayerPasses passes{*model, products, buffers, launch, ranges};
    GpuClock clock;
};

class DeclaredRow : public ::testing::TestWithParam<std::string> {};

/// Two rows of one prompt each declare as much of both tiers and of the index as a session of both prompts does, and
/// the memory that the session has once for its longest prompt every row has for its own.
TEST_P(DeclaredRow, IsThatOfASessionWithThePromptAlone) {
    const MethodEntry& method = findMethod(GetParam());
    SharedParts shared;
    for (const bool offload : {true, false})
        for (const int tokens : {13, 300, 5000}) {
            const test::SmallSession alone(embedded(), method,
                                           {.backend = Backend::Cuda, .offload = offload, .promptTokens = {tokens}});
            if (findRefusal(method, alone.use(), alone.setup.maxTokens.front(), embedded().get())) continue;
            SCOPED_TRACE(fmt::format("{} tokens, offload {}", tokens, offload));
            const RowMemory row = CudaRow(alone.setup, shared.parts()).memory();
            const MemoryPlan session = gpuMemory(alone.setup, shared.launch);
            EXPECT_EQ(row.slots, session.bytes("kv_slots"));
            EXPECT_EQ(row.host, session.most(MemoryTier::Host));
            const std::int64_t activations = session.bytes("prompt activations"),
                               blocks = session.bytes("prompt KV"); // of infllm also blocks that stay
            constexpr std::int64_t kPage = 2 << 20;
            EXPECT_GE(row.prompt, activations);
            EXPECT_GE(row.prompt + row.device, activations + blocks);
            EXPECT_LE(row.prompt,
                      activations + blocks + 2 * kPage + std::int64_t(2048) * embedded()->config().queryHeads * 4);
            EXPECT_LT(row.device + row.prompt, session.most(MemoryTier::Device) + 3 * kPage);
            std::int64_t kept = 0; // keys, values and indices
            for (const MemoryPlan::Part& part : session.parts())
                if (part.need.tier == MemoryTier::Device && part.need.holds != Holds::Scratch) kept += part.bytes;
            EXPECT_GE(row.device, kept);
            EXPECT_EQ(row.device % kPage, 0) << "as the driver hands it out";
        }
}

INSTANTIATE_TEST_SUITE_P(Methods, DeclaredRow, ::testing::ValuesIn(served()), nameOfCase);

// ---- With a GPU -----------------------------------------------------------------------------------------------------

void skipWithoutGpu() {
    try {
        (void)usableGpu();
    } catch (const Error& error) {
        GTEST_SKIP() << oneLine(error);
    }
}

constexpr int kPartition = 24; // slots; less than the longest prompt has blocks

/// A request and what it gives alone.
struct Alone {
    Submission submission;
    std::vector<std::int32_t> tokens;
    std::vector<StepRecord> steps; // of the decode steps
};

std::vector<Submission> requests() {
    std::vector<Submission> all;
    int seed = 0;
    // Three pieces, two and one; the second piece of the second prompt has four tokens.
    for (const auto& [prompt, tokens] : {std::pair{4500, 9}, {2052, 14}, {13, 20}, {560, 16}, {700, 1}, {600, 18}}) {
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

Alone alone(const std::string& method, const Submission& request, bool moves) {
    SessionOptions options = sessionOptions(method);
    options.maxNewTokens = request.maxTokens;
    options.sampling = request.sampling;
    if (moves) options.deviceKvBlocks = kPartition, options.cachePolicy = "lru";
    CollectingSink sink(RecordLevel::Selections);
    DecodeSession session(embedded(), {request.prompt}, options, sink);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    Alone result{request, session.generated().front(), {}};
    for (StepRecord& step : sink.steps)
        if (step.phase == Phase::Decode) result.steps.push_back(std::move(step));
    return result;
}

EngineOptions engineOptions(const std::string& method, const ParameterValues& knobs) {
    EngineOptions options;
    options.session = sessionOptions(method);
    options.scheduler = schedulerOptions(knobs);
    options.budget = {0, std::int64_t(1) << 31, std::int64_t(1) << 31, std::int64_t(1) << 31, true};
    return options;
}

bool moves(const std::string& method) {
    EngineObserver nobody;
    const Engine engine(embedded(), engineOptions(method, schedulerDefaults()), nobody);
    return engine.costs().shape.offloadedLayers() > 0 && !engine.ownDeviceTier();
}

/// Compares what it is told with what requests give alone.
class Watcher final : public EngineObserver {
public:
    /// invariant: every token, selection, hit and byte is to be the same; else first tokens are, and others are
    /// counted.
    Watcher(const std::vector<Alone>& expected, bool comparesHits, bool invariant)
        : expected_(expected), comparesHits_(comparesHits), invariant_(invariant) {}

    void token(RequestId id, std::int32_t token, int generated, std::int64_t, const StepRecord& record) override {
        const Alone& want = expected_[std::size_t(id)];
        std::vector<std::int32_t>& have = tokens[id];
        have.push_back(token);
        if (int(have.size()) != generated) return fault(id, "the count of its tokens is wrong");
        if (have.size() > want.tokens.size()) return fault(id, "it has too many tokens");
        const bool same = token == want.tokens[have.size() - 1];
        ++compared;
        if (!same && diverged.insert(id).second && (invariant_ || generated == 1))
            fault(id, fmt::format("token {} differs", generated));
        if (generated == 1) return;
        const StepRecord& step = want.steps[std::size_t(generated - 2)];
        if (record.step != step.step) fault(id, "the row's step has another number");
        for (const SelectionRecord& selection : record.selections)
            if (selection.sequence != 0) fault(id, "a selection is another row's");
        if (diverged.count(id) > 0) return;
        if (record.selections.size() != step.selections.size()) fault(id, "it has selected in other layers");
        if (record.blocks != step.blocks) {
            if (invariant_) fault(id, fmt::format("the selections of token {} differ", generated));
            otherSelections.insert(id);
        }
        if (!invariant_ || !comparesHits_) return;
        if (record.hit != step.hit) fault(id, fmt::format("the hits of token {} differ", generated));
        for (std::size_t layer = 0; layer < step.layers.size(); ++layer)
            if (record.layers[layer].h2dBytes != step.layers[layer].h2dBytes ||
                record.layers[layer].d2hBytes != step.layers[layer].d2hBytes)
                fault(id, fmt::format("it has moved other bytes for token {} in layer {}", generated, layer));
    }
    void ended(RequestId id, Ending ending, std::int64_t, const Error* error) override {
        if (!endings.emplace(id, ending).second) fault(id, "it has ended twice");
        if (error) fault(id, oneLine(*error));
        if (ending == Ending::Length && tokens[id].size() != expected_[std::size_t(id)].tokens.size())
            fault(id, "it has ended early");
    }
    void iteration(const IterationReport& report) override {
        for (const PrefillSegment& segment : report.plan.segments) {
            cutLayers += !segment.last && segment.to.layer > 0 ? 1 : 0;
            cutInLayer += segment.to.token != 0 ? 1 : 0;
        }
        mixed += !report.plan.segments.empty() && report.plan.decodeRows() > 0 ? 1 : 0;
        mostRows = std::max(mostRows, report.plan.decodeRows());
        misses += report.misses;
    }
    void fault(RequestId id, const std::string& what) { faults.push_back(fmt::format("request {}: {}", id, what)); }

    std::vector<std::string> faults;
    std::map<RequestId, std::vector<std::int32_t>> tokens;
    std::map<RequestId, Ending> endings;
    std::set<RequestId> diverged, otherSelections;
    int compared = 0, cutLayers = 0, cutInLayer = 0, mixed = 0, mostRows = 0;
    std::int64_t misses = 0;

private:
    const std::vector<Alone>& expected_;
    const bool comparesHits_, invariant_;
};

struct Seen {
    int cutLayers = 0, cutInLayer = 0, mixed = 0, cancelled = 0, mostRows = 0;
    int requests = 0, diverged = 0, otherSelections = 0, compared = 0;
    std::int64_t misses = 0;
};

/// Serves the requests in a random order under random knobs and a clock that jumps, and cancels some.
void serveRandomly(const std::string& method, const std::vector<Alone>& expected, bool moves, bool invariant,
                   std::uint64_t seed, Seen& seen) {
    SCOPED_TRACE(fmt::format("seed {}, invariant {}", seed, invariant));
    Draws draws(seed);
    const auto one = [&](std::initializer_list<const char*> values) {
        return std::string(*(values.begin() + long(draws.below(values.size()))));
    };
    ParameterValues knobs = schedulerDefaults();
    const auto set = [&](const char* key, const std::string& value) { knobs.set(schedulerParameters(), key, value); };
    set("partition_blocks", std::to_string(kPartition));
    set("rows", one({"3", "4", "6"}));
    set("iteration_ms", one({"1", "20"}));
    set("long_prefills", one({"1", "3"}));
    set("short_tokens", one({"0", "64", "600"}));
    set("batch_invariant", invariant ? "true" : "false");
    if (seed % 4 == 1) set("token_layers", one({"2048", "9000"}));
    EngineOptions options = engineOptions(method, knobs);
    options.costs.prefillUsPerToken = draws.uniform() < 0.5 ? 5 : 40;
    options.costs.prefillPsPerToken2 = 0;
    std::int64_t clock = 0;
    options.now = [&] { return clock += std::int64_t(draws.below(4'000'000)); };

    Watcher watcher(expected, moves, invariant);
    Engine engine(embedded(), options, watcher);
    const cuda::Living before = cuda::living();
    std::vector<std::size_t> order(expected.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    draws.shuffle(order);
    std::size_t next = 0;
    std::set<RequestId> cancelled;
    for (int iteration = 0; next < order.size() || engine.requests() > 0; ++iteration) {
        ASSERT_LT(iteration, 3000) << "the schedule does not end";
        while (next < order.size() && (engine.requests() == 0 || draws.uniform() < 0.4))
            engine.submit(expected[order[next++]].submission);
        if (draws.uniform() < 0.02) { // one that waits or runs
            std::vector<RequestId> ids;
            for (const auto* list : {&engine.table().running(), &engine.table().waiting()})
                for (const ServeRequest& request : *list) ids.push_back(request.id);
            if (!ids.empty()) {
                cancelled.insert(ids[std::size_t(draws.below(ids.size()))]);
                engine.cancel(*cancelled.rbegin());
            }
        }
        engine.iterate();
        const cuda::Living now = cuda::living();
        const Amounts& used = engine.table().ledger().used();
        ASSERT_LE(now.deviceBytes - before.deviceBytes, used.device + used.scratch + used.workingSets);
        ASSERT_LE(now.hostBytes - before.hostBytes, used.host) << "a row takes no more than was reserved";
    }
    EXPECT_THAT(watcher.faults, ::testing::IsEmpty());
    EXPECT_TRUE(engine.table().idle());
    EXPECT_EQ(engine.openRows(), 0);
    EXPECT_EQ(engine.table().ledger().used(), Amounts());
    EXPECT_EQ(watcher.endings.size(), expected.size()) << "every request ends once";
    const cuda::Living after = cuda::living();
    EXPECT_EQ(after.deviceBytes, before.deviceBytes);
    EXPECT_EQ(after.hostBytes, before.hostBytes);
    EXPECT_EQ(after.streams, before.streams);
    EXPECT_EQ(after.events, before.events);
    EXPECT_EQ(after.executables, 0);
    for (const auto& [id, ending] : watcher.endings) {
        seen.cancelled += ending == Ending::Cancelled ? 1 : 0;
        EXPECT_TRUE(ending == Ending::Length || cancelled.count(id) > 0) << nameOf(ending);
    }
    seen.cutLayers += watcher.cutLayers, seen.cutInLayer += watcher.cutInLayer, seen.mixed += watcher.mixed;
    seen.mostRows = std::max(seen.mostRows, watcher.mostRows);
    seen.misses += watcher.misses;
    seen.requests += int(watcher.tokens.size()), seen.compared += watcher.compared;
    seen.diverged += int(watcher.diverged.size()), seen.otherSelections += int(watcher.otherSelections.size());
}

class ServedOnCuda : public ::testing::TestWithParam<std::string> {
protected:
    void SetUp() override { skipWithoutGpu(); }
};

TEST_P(ServedOnCuda, GivesEveryRequestWhatItHasAlone) {
    const bool offloads = moves(GetParam());
    std::vector<Alone> expected;
    for (const Submission& request : requests()) expected.push_back(alone(GetParam(), request, offloads));
    Seen same, fast;
    for (std::uint64_t seed = 0; seed < 4 && !HasFailure(); ++seed)
        serveRandomly(GetParam(), expected, offloads, true, seed, same);
    for (std::uint64_t seed = 0; seed < 4 && !HasFailure(); ++seed)
        serveRandomly(GetParam(), expected, offloads, false, seed, fast);
    EXPECT_EQ(same.diverged, 0);
    EXPECT_EQ(same.otherSelections, 0);
    // The schedules did what they are for.
    for (const Seen* seen : {&same, &fast}) {
        EXPECT_GE(seen->mostRows, 3);
        EXPECT_GT(seen->mixed, 5);
        EXPECT_GT(seen->cutLayers, 2);
        EXPECT_GT(seen->cutInLayer, 2);
        // ArkVale's pages on the device hold all of these prompts.
        EXPECT_TRUE(seen->misses > 0 || !offloads || GetParam() == "arkvale");
    }
    fmt::print(
        "{}: batch-invariant {} tokens all equal; fast {} of {} requests have another token somewhere, {} another "
        "selection before that\n",
        GetParam(), same.compared, fast.diverged, fast.requests, fast.otherSelections);
}

INSTANTIATE_TEST_SUITE_P(Methods, ServedOnCuda, ::testing::ValuesIn(served()), nameOfCase);

class RowsOnCuda : public ::testing::Test {
protected:
    void SetUp() override { skipWithoutGpu(); }

    /// An engine of rows, with what its requests need.
    struct Rows {
        Rows(const char* name, int rows, bool invariant, int newTokens = 8)
            : method(findMethod(name)), values(test::smallBudget(method, embedded()->config(), {})),
              spec(methodSpec(method, values, *embedded())), options(std::size_t(rows), sessionOptions(name)),
              prompts(std::size_t(rows)),
              engine(makeCudaRowEngine(
                  {embedded(),
                   abilitiesOf(method, {values, spec, embedded()->config(), Backend::Cuda, true, embedded().get()}),
                   rows, 1, invariant})) {
            for (SessionOptions& each : options) each.maxNewTokens = newTokens;
        }
        EngineSetup setup(int row, const std::vector<std::int32_t>& prompt) {
            prompts[std::size_t(row)] = {prompt};
            return engineSetup(embedded(), prompts[std::size_t(row)], options[std::size_t(row)], method, values, spec,
                               RecordLevel::Selections);
        }
        const MethodEntry& method;
        const ParameterValues values;
        const SelectionSpec spec;
        std::vector<SessionOptions> options;
        std::vector<std::vector<std::vector<std::int32_t>>> prompts;
        std::unique_ptr<RowEngine> engine;
    };
};

/// Logits of rows are those of sessions, bit by bit, with batch-invariant products; else they are near.
TEST_F(RowsOnCuda, HaveTheLogitsOfASessionAlone) {
    for (const char* name : {"nosa", "quest", "full", "sparda", "h2o"}) {
        const std::vector<Submission> all = requests();
        const std::size_t vocab = std::size_t(embedded()->config().vocab);
        std::vector<std::vector<std::vector<float>>> expected(4);
        std::vector<std::vector<std::int32_t>> fed(4);
        SessionOptions options = sessionOptions(name);
        options.maxNewTokens = 8;
        for (std::size_t r = 0; r < 4; ++r) {
            NullSink sink;
            DecodeSession session(embedded(), {all[r].prompt}, options, sink);
            session.prefill();
            do {
                expected[r].emplace_back(session.logits(0), session.logits(0) + vocab);
            } while (session.step());
            fed[r] = session.generated().front();
        }
        for (const bool invariant : {true, false}) {
            SCOPED_TRACE(fmt::format("{}, invariant {}", name, invariant));
            Rows rows(name, 4, invariant);
            std::vector<int> steps(4, 0);
            double farthest = 0;
            const auto check = [&](std::size_t r, bool exact) {
                const float* logits = rows.engine->logits(int(r));
                const std::vector<float>& want = expected[r][std::size_t(steps[r])];
                if (exact) {
                    EXPECT_EQ(std::memcmp(logits, want.data(), vocab * sizeof(float)), 0)
                        << "request " << r << ", step " << steps[r];
                }
                const float largest = *std::max_element(want.begin(), want.end());
                for (std::size_t i = 0; i < vocab; ++i)
                    farthest = std::max(farthest, std::abs(double(logits[i]) - double(want[i])) / std::abs(largest));
            };
            // Requests join one by one; between them those that are there make steps together.
            for (std::size_t joined = 0; joined < 12; ++joined) {
                if (joined < 4) {
                    rows.engine->open(int(joined), rows.setup(int(joined), all[joined].prompt));
                    for (int layer = 0; !rows.engine->readLayers(int(joined), layer, layer % 2 * 2048, {}); ++layer) {
                    }
                    check(joined, true);
                }
                std::vector<RowToken> step;
                for (std::size_t r = std::min<std::size_t>(joined + 1, 4); r-- > 0;)
                    if (steps[r] < 7)
                        step.push_back({int(r), fed[r][std::size_t(steps[r])], int(all[r].prompt.size()) + steps[r]});
                if (step.empty()) continue;
                rows.engine->decode(step);
                for (const RowToken& row : step) {
                    ++steps[std::size_t(row.row)];
                    check(std::size_t(row.row), invariant);
                }
            }
            fmt::print("{}, invariant {}: logits differ by {:.4f} of the largest at most\n", name, invariant, farthest);
            EXPECT_TRUE(farthest < 0.05 || std::string(name) != "full") << "nothing is selected";
            for (int r = 0; r < 4; ++r) rows.engine->close(r);
        }
    }
}

TEST_F(RowsOnCuda, TakeWhatTheyDeclareAndLeaveNothing) {
    for (const std::string& name : served()) {
        SCOPED_TRACE(name);
        Rows rows(name.c_str(), 2, false);
        const std::vector<std::int32_t> prompt = test::randomPrompt(3000, 3);
        rows.engine->open(1, rows.setup(1, test::randomPrompt(40, 5))); // is not disturbed
        rows.engine->readLayers(1, embedded()->config().layers, 0, {});
        const cuda::Living before = cuda::living();
        for (int turn = 0; turn < 4; ++turn) {
            const EngineSetup setup = rows.setup(0, prompt);
            const RowMemory memory = *rows.engine->memoryOf(setup);
            EXPECT_EQ(cuda::living(), before) << "to ask takes nothing";
            rows.engine->open(0, setup);
            cuda::Living now = cuda::living();
            EXPECT_LE(now.deviceBytes - before.deviceBytes, memory.device + memory.prompt);
            EXPECT_GT(now.deviceBytes - before.deviceBytes, memory.device + memory.prompt - (4 << 20));
            EXPECT_EQ(now.hostBytes - before.hostBytes, memory.host);
            if (turn > 0)
                rows.engine->readLayers(0, 2, turn == 1 ? 2048 : 0, {}); // leaves within a layer, or between two
            if (turn == 3) {
                rows.engine->readLayers(0, embedded()->config().layers, 0, {});
                now = cuda::living();
                EXPECT_LE(now.deviceBytes - before.deviceBytes, memory.device);
                const std::int32_t token = rows.engine->chosenToken(0);
                for (int step = 0; step < 3; ++step)
                    rows.engine->decode(std::vector<RowToken>{{1, 7, 40 + step}, {0, token, 3000 + step}});
            }
            rows.engine->close(0);
            cuda::Living after = cuda::living();
            EXPECT_EQ(after, before);
        }
        rows.engine->close(1);
    }
}

/// Small enough for a memory checker: rows of a method that is data and of one with a selector, eager and as a graph.
TEST_F(RowsOnCuda, ServeASmallWorkload) {
    for (const char* name : {"nosa", "sparda", "double-sparsity"}) {
        EngineObserver nobody;
        Engine engine(embedded(), engineOptions(name, schedulerDefaults()), nobody);
        for (int id = 0; id < 3; ++id) {
            Submission request;
            request.id = id;
            request.prompt = test::randomPrompt(500 + 40 * id, unsigned(id) + 1);
            request.maxTokens = 5 + id;
            request.stopAtEos = false;
            engine.submit(std::move(request));
        }
        while (engine.iterate()) {
        }
        EXPECT_EQ(engine.openRows(), 0) << name;
        EXPECT_EQ(engine.table().ledger().used(), Amounts()) << name;
    }
}

TEST_F(RowsOnCuda, RefuseAPromptInChunksAndAWrongPosition) {
    Rows rows("nosa", 1, false);
    rows.engine->open(0, rows.setup(0, test::randomPrompt(40, 5)));
    EXPECT_THROW(rows.engine->readChunk(0, 40, {}), Error);
    EXPECT_TRUE(rows.engine->readLayers(0, embedded()->config().layers, 0, {}));
    EXPECT_THROW(rows.engine->decode(std::vector<RowToken>{{0, 7, 41}}), std::logic_error);
    rows.engine->decode(std::vector<RowToken>{{0, 7, 40}});
    EXPECT_EQ(rows.engine->record(0).step, 1) << "the refused step counts nothing";
}

} // namespace
} // namespace kvscope

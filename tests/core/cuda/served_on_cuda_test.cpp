// Rows that come and go on a GPU: requests join, leave and share steps under random schedules and get what they have
// alone; a row takes what it declares and leaves nothing behind. Without a GPU: what rows declare.
#include "core/cuda/cuda_engine.h"
#include "core/cuda/cuda_row.h"
#include "core/cuda/gpu_device.h"
#include "core/cuda/gpu_memory.h"
#include "core/cuda/row_batch.h"
#include "core/cuda/scatter.h"
#include "core/select/refusal.h"
#include "core/serve/engine.h"
#include "core/serve/load.h"
#include "core/serve/random_draws.h"
#include "core/session/engine_setup.h"
#include "tests/core/served_requests.h"
#include "tests/core/small_session.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace serve;

std::vector<std::string> served() { return servedMethods(Backend::Cuda); }

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
    CudaRowParts parts(RowTransfers transfers = {}) {
        return {model, launch, buffers, products, passes, clock, ranges, transfers};
    }

    std::shared_ptr<const DeviceModel> model = DeviceModel::shapesOf(*embedded());
    CudaEngineOptions options;
    cuda::Launch launch;
    StepBuffers buffers;
    BatchLayout products{model->config, options};
    StageRanges ranges{nullptr};
    LayerPasses passes{*model, products, buffers, launch, ranges};
    GpuClock clock;
};

class DeclaredRow : public ::testing::TestWithParam<std::string> {
protected:
    void SetUp() override { KVSCOPE_NEEDS_NOSA_TINY(); }
};

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

/// In chunks a prompt keeps the keys and values of all offloaded layers on the device, and the activations of a chunk.
TEST(DeclaredRowInChunks, HoldsAllLayersAndOneChunk) {
    KVSCOPE_NEEDS_NOSA_TINY();
    SharedParts shared;
    constexpr int kTokens = 5000;
    const test::SmallSession alone(embedded(), findMethod("quest"),
                                   {.backend = Backend::Cuda, .offload = true, .promptTokens = {kTokens}});
    const auto memory = [&](RowTransfers transfers) { return CudaRow(alone.setup, shared.parts(transfers)).memory(); };
    const RowMemory layers = memory({}), chunks = memory({.chunkTokens = 1024});
    const ModelConfig& config = embedded()->config();
    const int block = alone.setup.spec.blockSize;
    const std::int64_t blocks = (alone.setup.maxTokens.front() + block - 1) / block,
                       layerBytes = blocks * block * std::int64_t(config.kvHeads) * config.headDim * 2 * 2,
                       wanted = alone.setup.plans.offloaded() * layerBytes + std::int64_t(1024) * config.hidden * 4;
    constexpr std::int64_t kPage = 2 << 20;
    EXPECT_GE(chunks.prompt, wanted);
    EXPECT_LE(chunks.prompt, wanted + 2 * kPage);
    EXPECT_EQ(chunks.device, layers.device);
    EXPECT_EQ(chunks.slots, layers.slots);
    // A buffer for one layer's blocks; lists of blocks for the host.
    EXPECT_EQ(memory({.stores = StorePlan::Bounce}).host, layers.host + layerBytes);
    EXPECT_GT(memory({.loads = TransferPlan::Calls}).host, layers.host);
    EXPECT_EQ(PromptReader::pieceTokens(512), 512);
    EXPECT_EQ(PromptReader::pieceTokens(4096), PromptReader::kPiece);
    EXPECT_EQ(PromptReader::pieceTokens(0), PromptReader::kPiece);
}

TEST(DeclaredRowInChunks, ScatteredBlocksAreWhereTheyBelong) {
    constexpr std::size_t kBytes = 48, kFromStride = 1000, kToStride = 777;
    constexpr int kBlocks = 13, kHeads = 3;
    std::vector<char> from(kHeads * kFromStride), to(kHeads * kToStride, 'x');
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = char(i * 7 + i / 251);
    Scatter().now({from.data(), to.data(), kBytes, kBlocks, kHeads, kFromStride, kToStride});
    for (std::size_t i = 0; i < to.size(); ++i) {
        const std::size_t head = i / kToStride, at = i % kToStride;
        ASSERT_EQ(to[i], at < kBlocks * kBytes ? from[head * kFromStride + at] : 'x') << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Methods, DeclaredRow, ::testing::ValuesIn(served()), nameOfCase);

// ---- With a GPU -----------------------------------------------------------------------------------------------------

void skipWithoutGpu() {
    KVSCOPE_NEEDS_NOSA_TINY();
    try {
        (void)usableGpu();
    } catch (const Error& error) {
        GTEST_SKIP() << oneLine(error);
    }
}

constexpr int kPartition = 24; // slots; less than the longest prompt has blocks

std::vector<Submission> requests() {
    // Three pieces, two and one; the second piece of the second prompt has four tokens.
    return requestsOf({{4500, 9}, {2052, 14}, {13, 20}, {560, 16}, {700, 1}, {600, 18}});
}

Alone alone(const std::string& method, const Submission& request, bool moves) {
    return aloneWith(sessionOptions(method), request, moves ? kPartition : 0);
}

EngineOptions engineOptions(const std::string& method, const ParameterValues& knobs) {
    EngineOptions options;
    options.session = sessionOptions(method);
    options.scheduler = schedulerOptions(knobs);
    options.budget = {0, std::int64_t(1) << 31, std::int64_t(1) << 31, std::int64_t(1) << 31, true};
    return options;
}

bool moves(const std::string& method) { return movesBlocks(engineOptions(method, schedulerDefaults())); }

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
    const auto one = [&](std::initializer_list<const char*> values) { return oneOf(draws, values); };
    ParameterValues knobs = schedulerDefaults();
    const auto set = [&](const char* key, const std::string& value) { knobs.set(schedulerParameters(), key, value); };
    set("partition_blocks", std::to_string(kPartition));
    set("rows", one({"3", "4", "6"}));
    set("iteration_ms", one({"1", "20"}));
    set("long_prefills", one({"1", "3"}));
    set("short_tokens", one({"0", "64", "600"}));
    set("batch_invariant", invariant ? "true" : "false");
    if (seed % 4 == 1) set("token_layers", one({"2048", "9000"}));
    set("d2h", one({"runs", "calls", "kernel", "bounce"}));
    const MethodEntry& entry = findMethod(method);
    const bool byData = !entry.hasSelector(resolveDefaults(entry, embedded()->config()));
    if ((byData || !findMethod(method).readsWholePrompts) && seed % 4 == 2)
        set("prefill", "chunks"), set("chunk_tokens", one({"2048", "4096"}));
    if (byData && moves && seed % 4 == 3) set("transfers", one({"calls", "batched"}));
    EngineOptions options = engineOptions(method, knobs);
    options.costs.prefillUsPerToken = draws.uniform() < 0.5 ? 5 : 40;
    options.costs.prefillPsPerToken2 = 0;
    std::int64_t clock = 0;
    options.now = [&] { return clock += std::int64_t(draws.below(4'000'000)); };

    Watcher watcher(expected, moves, invariant);
    Engine engine(embedded(), options, watcher);
    const cuda::Living before = cuda::living();
    const auto cancelled = serveInRandomOrder(engine, expected, draws, [&] {
        const cuda::Living now = cuda::living();
        const Amounts& used = engine.table().ledger().used();
        ASSERT_LE(now.deviceBytes - before.deviceBytes, used.device + used.scratch + used.workingSets);
        ASSERT_LE(now.hostBytes - before.hostBytes, options.budget.host) << "with what is kept for the next rows";
    });
    seen.cancelled += expectAllEnded(engine, watcher, expected, cancelled);
    const cuda::Living after = cuda::living();
    EXPECT_EQ(after.deviceBytes, before.deviceBytes);
    EXPECT_LE(after.hostBytes - before.hostBytes, options.budget.host);
    EXPECT_EQ(after.streams, before.streams);
    EXPECT_EQ(after.events, before.events);
    EXPECT_LE(after.executables, 25) << "graphs of steps outlive the rows";
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
    // The schedules shared iterations, cut prompts between and within layers, and missed blocks.
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
        /// like: what the rows are made with, apart from their prompts; shared: kernels may work on all rows at once
        Rows(const SessionOptions& like, int rows, bool invariant, bool shared)
            : method(findMethod(like.method)), values(test::smallBudget(method, embedded()->config(), {})),
              spec(methodSpec(method, values, *embedded())), options(std::size_t(rows), like),
              prompts(std::size_t(rows)) {
            SessionOptions any = like;
            const std::vector<std::vector<std::int32_t>> prompt{{0}};
            const EngineSetup usual =
                engineSetup(embedded(), prompt, any, method, values, spec, RecordLevel::Selections);
            engine = makeCudaRowEngine({embedded(),
                                        abilitiesOf(method, {values, spec, embedded()->config(), Backend::Cuda,
                                                             like.offload, embedded().get()}),
                                        rows, 1, invariant, shared ? &usual : nullptr});
        }
        Rows(const char* name, int rows, bool invariant, bool shared) : Rows(like(name), rows, invariant, shared) {}
        static SessionOptions like(const char* name) {
            SessionOptions options = sessionOptions(name);
            options.maxNewTokens = 8;
            return options;
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
        for (const auto& [invariant, shared] : {std::pair{true, false}, {false, false}, {false, true}}) {
            SCOPED_TRACE(fmt::format("{}, invariant {}, shared {}", name, invariant, shared));
            Rows rows(name, 4, invariant, shared);
            std::vector<int> steps(4, 0);
            double farthest = 0;
            const auto check = [&](std::size_t r, bool exact) {
                const float* logits = rows.engine->logits(RowId{int(r)});
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
                    rows.engine->open(RowId{int(joined)}, rows.setup(int(joined), all[joined].prompt));
                    for (int layer = 0;
                         !rows.engine->readLayers(RowId{int(joined)}, LayerId{layer}, layer % 2 * 2048, {}); ++layer) {
                    }
                    check(joined, true);
                }
                std::vector<RowToken> step;
                for (std::size_t r = std::min<std::size_t>(joined + 1, 4); r-- > 0;)
                    if (steps[r] < 7)
                        step.push_back(
                            {RowId{int(r)}, fed[r][std::size_t(steps[r])], int(all[r].prompt.size()) + steps[r]});
                if (step.empty()) continue;
                rows.engine->decode(step);
                for (const RowToken& row : step) {
                    ++steps[index(row.row)];
                    check(index(row.row), invariant);
                }
            }
            fmt::print("{}, invariant {}, shared {}: logits differ by {:.4f} of the largest at most\n", name, invariant,
                       shared, farthest);
            EXPECT_TRUE(farthest < 0.05 || std::string(name) != "full") << "nothing is selected";
            for (int r = 0; r < 4; ++r) rows.engine->close(RowId{r});
        }
    }
}

/// What a session of several sequences does and gives at one step, in a form that can be compared.
struct StepOfMany {
    std::vector<std::vector<float>> logits;                              // [row]
    std::map<std::array<int, 3>, std::vector<std::int32_t>> blocks, hit; // [layer, row, KV head]

    void add(const StepRecord& record, int row) {
        for (const SelectionRecord& selection : record.selections) {
            const std::array<int, 3> key{selection.layer, row < 0 ? selection.sequence : row, selection.kvHead};
            blocks[key] = test::idsOf(record, selection);
            const auto hits = test::hitsOf(record.blocksOf(selection));
            hit[key].assign(hits.begin(), hits.end());
        }
    }
};

/// The first difference, by layer, row and KV head, or an empty string.
std::string firstDifference(const std::map<std::array<int, 3>, std::vector<std::int32_t>>& have,
                            const std::map<std::array<int, 3>, std::vector<std::int32_t>>& want, const char* what) {
    for (const auto& [key, list] : want) {
        const auto found = have.find(key);
        const std::string at = fmt::format("{} of layer {}, row {}, KV head {}", what, key[0], key[1], key[2]);
        if (found == have.end()) return at + " is missing";
        if (found->second == list) continue;
        std::size_t i = 0;
        while (i < list.size() && i < found->second.size() && list[i] == found->second[i]) ++i;
        return fmt::format("{}: entry {} of {} ({} wanted) is {}, {} wanted", at, i, found->second.size(), list.size(),
                           i < found->second.size() ? found->second[i] : -1, i < list.size() ? list[i] : -1);
    }
    return have.size() == want.size() ? "" : fmt::format("{}: there are {}, {} wanted", what, have.size(), want.size());
}

/// Steps whose kernels work on all rows are those of a session with as many sequences, bit by bit: the kernels are the
/// same, and only find the rows' memory by tables. The longest row has as many blocks as the steps are launched for.
TEST_F(RowsOnCuda, ShareKernelsAsTheSequencesOfASessionDo) {
    constexpr int kRows = 4, kSteps = 70; // more than a block
    for (const std::string& name : served()) {
        const MethodEntry& method = findMethod(name);
        for (const bool offload : {false, true}) {
            SessionOptions options = sessionOptions(name);
            options.maxNewTokens = kSteps;
            options.offload = offload;
            if (offload && moves(name)) options.deviceKvBlocks = kPartition, options.cachePolicy = "lru";
            if (offload && !moves(name)) continue;
            const int blockSize = methodSpec(method, test::smallBudget(method, embedded()->config(), {}), *embedded())
                                      .blockSize,
                      longest = RowBatch::roomOf(2500 / blockSize) * blockSize - kSteps;
            std::vector<std::vector<std::int32_t>> prompts;
            for (const int tokens : {longest, 700, longest - 100, 1990})
                prompts.push_back(test::randomPrompt(tokens, unsigned(tokens)));
            SCOPED_TRACE(fmt::format("{}, offload {}", name, offload));
            Rows rows(options, kRows, false, true);
            SharedParts parts;
            if (!RowBatch::suits(CudaRow(rows.setup(0, prompts[0]), parts.parts()))) continue;

            const std::size_t vocab = std::size_t(embedded()->config().vocab);
            CollectingSink sink(RecordLevel::Selections);
            std::vector<StepOfMany> expected;
            DecodeSession session(embedded(), prompts, options, sink);
            session.prefill();
            std::vector<std::vector<std::int32_t>> fed = session.generated();
            while (session.step()) {
                StepOfMany& step = expected.emplace_back();
                for (int r = 0; r < kRows; ++r) step.logits.emplace_back(session.logits(r), session.logits(r) + vocab);
            }
            fed = session.generated();
            session.end(RunStatus::Finished);
            std::size_t at = 0;
            for (const StepRecord& record : sink.steps)
                if (record.phase == Phase::Decode) expected[at++].add(record, -1);

            for (int r = 0; r < kRows; ++r) {
                rows.engine->open(RowId{r}, rows.setup(r, prompts[std::size_t(r)]));
                rows.engine->readLayers(RowId{r}, LayerId{embedded()->config().layers}, 0, {});
                EXPECT_EQ(rows.engine->chosenToken(RowId{r}), fed[std::size_t(r)][0]);
            }
            for (std::size_t s = 0; s < expected.size() && !HasFailure(); ++s) {
                std::vector<RowToken> step;
                for (int r = 0; r < kRows; ++r)
                    step.push_back({RowId{r}, fed[std::size_t(r)][s], int(prompts[std::size_t(r)].size()) + int(s)});
                rows.engine->decode(step);
                StepOfMany have;
                for (int r = 0; r < kRows; ++r) have.add(rows.engine->record(RowId{r}), r);
                EXPECT_EQ(firstDifference(have.blocks, expected[s].blocks, "the selection"), "") << "step " << s;
                // The row of 700 tokens has fewer slots than a session gives it.
                if (blockSize * kPartition < 700 || !offload) {
                    EXPECT_EQ(firstDifference(have.hit, expected[s].hit, "the hits"), "") << "step " << s;
                }
                for (std::size_t r = 0; r < kRows; ++r) {
                    const float* logits = rows.engine->logits(RowId{int(r)});
                    const std::vector<float>& want = expected[s].logits[r];
                    const auto [have1, want1] = std::mismatch(logits, logits + vocab, want.begin());
                    EXPECT_EQ(want1 - want.begin(), long(vocab))
                        << "step " << s << ", row " << r << ": the first logit that differs is " << *have1 << ", "
                        << *want1 << " wanted";
                    EXPECT_EQ(rows.engine->chosenToken(RowId{int(r)}), fed[r][s + 1]) << "step " << s << ", row " << r;
                }
            }
            EXPECT_EQ(rows.engine->rowsApart(), 0);
            fmt::print("{}, offload {}: {} steps of {} rows compared\n", name, offload, expected.size(), kRows);
            for (int r = 0; r < kRows; ++r) rows.engine->close(RowId{r});
        }
    }
}

TEST_F(RowsOnCuda, TakeWhatTheyDeclareAndLeaveNothing) {
    for (const std::string& name : served()) {
        SCOPED_TRACE(name);
        Rows rows(name.c_str(), 2, false, false);
        const std::vector<std::int32_t> prompt = test::randomPrompt(3000, 3);
        rows.engine->open(RowId{1}, rows.setup(1, test::randomPrompt(40, 5))); // is not disturbed
        rows.engine->readLayers(RowId{1}, LayerId{embedded()->config().layers}, 0, {});
        const cuda::Living before = cuda::living();
        for (int turn = 0; turn < 4; ++turn) {
            const EngineSetup setup = rows.setup(0, prompt);
            const RowMemory memory = *rows.engine->memoryOf(setup);
            EXPECT_EQ(cuda::living(), before) << "to ask takes nothing";
            rows.engine->open(RowId{0}, setup);
            cuda::Living now = cuda::living();
            EXPECT_LE(now.deviceBytes - before.deviceBytes, memory.device + memory.prompt);
            EXPECT_GT(now.deviceBytes - before.deviceBytes, memory.device + memory.prompt - (4 << 20));
            EXPECT_EQ(now.hostBytes - before.hostBytes, memory.host);
            if (turn > 0)
                rows.engine->readLayers(RowId{0}, LayerId{2}, turn == 1 ? 2048 : 0,
                                        {}); // leaves within a layer, or between two
            if (turn == 3) {
                rows.engine->readLayers(RowId{0}, LayerId{embedded()->config().layers}, 0, {});
                now = cuda::living();
                EXPECT_LE(now.deviceBytes - before.deviceBytes, memory.device);
                const std::int32_t token = rows.engine->chosenToken(RowId{0});
                for (int step = 0; step < 3; ++step)
                    rows.engine->decode(
                        std::vector<RowToken>{{RowId{1}, 7, 40 + step}, {RowId{0}, token, 3000 + step}});
            }
            rows.engine->close(RowId{0});
            cuda::Living after = cuda::living();
            EXPECT_EQ(after, before);
        }
        rows.engine->close(RowId{1});
    }
}

/// A simulated server that reserved less would admit more requests than this one, and find a capacity that it has not.
TEST_F(RowsOnCuda, ReserveWhatASimulatedServerReserves) {
    constexpr int kPrompt = 9000, kAnswer = 5;
    for (const bool offload : {false, true}) {
        EngineObserver nobody;
        ParameterValues knobs = schedulerDefaults();
        knobs.set(schedulerParameters(), "offload", offload ? "true" : "false");
        const EngineOptions options = engineOptions("nosa", knobs);
        Engine engine(embedded(), options, nobody);
        const MemoryShape& shape = engine.costs().shape;
        EXPECT_GT(shape.rowBytes + shape.rowBytesPerToken, 0) << "a row has more than keys, values and an index";
        Submission request;
        request.prompt = test::randomPrompt(kPrompt, 3);
        request.maxTokens = kAnswer;
        engine.submit(std::move(request));
        ASSERT_TRUE(engine.iterate());
        const auto simulated = shape.needsOf(options.scheduler, kPrompt, kAnswer).deviceBytes;
        const auto reserved = engine.table().ledger().of(0).device;
        constexpr double kPages = 2 * (2 << 20); // of the driver, to which each of the three numbers was rounded up
        EXPECT_NEAR(double(simulated), double(reserved), kPages) << "offload " << offload;
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
        const bool hasSelector = name != std::string("nosa");
        EXPECT_EQ(engine.rowsApart(), hasSelector ? 3 : 0) << name << ": rows that launch kernels of their own";
    }
}

// Where this test is the first of its process, the libraries have not loaded their kernels yet.
TEST_F(RowsOnCuda, CostInAFreshProcessWhatTheyCostInAWarmOne) {
    EngineOptions options;
    options.session.method = "nosa";
    options.session.backend = Backend::Cuda;
    options.scheduler.offload = false;
    options.budget = {0, std::int64_t(1) << 30, std::int64_t(1) << 30, std::int64_t(1) << 30, true};
    LoadOptions load;
    load.prompt = [](const WorkloadLine& line, std::int64_t id) {
        return test::randomPrompt(line.promptTokens, unsigned(id) + 1);
    };
    const ServiceCosts fresh = measureCosts(embedded(), options, load), warm = measureCosts(embedded(), options, load);
    EXPECT_LT(fresh.prefillUsPerToken, 1.5 * warm.prefillUsPerToken);
    EXPECT_LT(warm.prefillUsPerToken, 1.5 * fresh.prefillUsPerToken);
    EXPECT_GE(warm.decodeMs.points.back().first, 12) << "rows of a step";
}

TEST_F(RowsOnCuda, RefuseAPromptInChunksAndAWrongPosition) {
    Rows rows("nosa", 1, false, true);
    rows.engine->open(RowId{0}, rows.setup(0, test::randomPrompt(40, 5)));
    EXPECT_THROW(rows.engine->readChunk(RowId{0}, 40, {}), Error);
    EXPECT_TRUE(rows.engine->readLayers(RowId{0}, LayerId{embedded()->config().layers}, 0, {}));
    EXPECT_THROW(rows.engine->decode(std::vector<RowToken>{{RowId{0}, 7, 41}}), std::logic_error);
    rows.engine->decode(std::vector<RowToken>{{RowId{0}, 7, 40}});
    EXPECT_EQ(rows.engine->record(RowId{0}).step, 1) << "the refused step counts nothing";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

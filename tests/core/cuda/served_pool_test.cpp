// cache=global-lru and planted selections on a GPU: the pool's hits are a SlotPool's, blocks are what they are in slots
// of a row's own, and the GPU selects what the CPU selects where both draw the scores.
#include "core/cuda/gpu_device.h"
#include "core/serve/engine.h"
#include "core/session/engine_setup.h"
#include "core/session/row_engine.h"
#include "core/session/session_checks.h"
#include "tests/core/served_requests.h"
#include "tests/core/small_session.h"

#include <array>
#include <cstring>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace serve;

void skipWithoutGpu() {
    KVSCOPE_NEEDS_NOSA_TINY();
    try {
        (void)usableGpu();
    } catch (const Error& error) {
        GTEST_SKIP() << oneLine(error);
    }
}

/// Settings with which the method has to choose in prompts of some hundred tokens.
Settings smallSettings(const std::string& name) {
    const MethodEntry& method = findMethod(name);
    const ParameterValues values = test::smallBudget(method, embedded()->config(), {});
    Settings settings;
    for (const Parameter& parameter : method.parameters)
        settings.emplace_back(parameter.key, values.text(parameter.key));
    return settings;
}

EngineOptions optionsOf(const std::string& method, const Settings& more, Backend backend, const Settings& knobs) {
    EngineOptions options;
    options.session.method = method;
    options.session.backend = backend;
    options.session.settings = smallSettings(method);
    options.session.settings.insert(options.session.settings.end(), more.begin(), more.end());
    ParameterValues values = schedulerDefaults();
    for (const auto& [key, value] : knobs) values.set(schedulerParameters(), key, value);
    options.scheduler = schedulerOptions(values);
    options.budget = {0, std::int64_t(1) << 31, std::int64_t(1) << 31, std::int64_t(1) << 31, true};
    return options;
}

/// Follows the engine with a SlotPool: what every row selected, in the order of the iteration.
class PoolFollower final : public EngineObserver {
public:
    void watches(const Engine& engine, int blockTokens) { engine_ = &engine, blockTokens_ = blockTokens; }
    void admitted(RequestId id, int row, std::int64_t) override { rowOf_[id] = row; }
    void released(RequestId, int row, bool atEnd, std::int64_t) override {
        if (atEnd)
            leaving_.push_back(row);
        else
            pool_.release(row);
    }
    void paused(RequestId id, std::int64_t) override {
        pool_.release(rowOf_.at(id));
        ++pauses;
    }
    void token(RequestId id, std::int32_t, int generated, std::int64_t, const StepRecord& record) override {
        ++tokens;
        if (generated > 1) steps_[id] = {record, prompts.at(id) + generated - 2};
    }
    void ended(RequestId, Ending ending, std::int64_t, const Error* error) override {
        if (ending != Ending::Length) faults.push_back(error ? oneLine(*error) : nameOf(ending));
    }
    void iteration(const IterationReport& report) override {
        if (!steps_.empty()) follow(report);
        steps_.clear();
        for (const int row : leaving_) pool_.release(row); // a row leaves behind the step that was its last
        leaving_.clear();
    }

    std::map<RequestId, int> prompts; // lengths
    std::vector<std::string> faults;
    std::int64_t hits = 0, misses = 0, tokens = 0;
    int pauses = 0, mostRows = 0;

private:
    struct Step {
        StepRecord record;
        int position = 0;
    };

    void follow(const IterationReport& report) {
        const MemoryShape& shape = engine_->costs().shape;
        const std::int64_t slots = engine_->table().ledger().budget().available(report.reserved) / shape.blockBytes;
        int rows = 0;
        for (const MemberReport& member : report.members) rows += member.prefill ? 0 : 1;
        mostRows = std::max(mostRows, rows);
        for (int layer = 0; layer < shape.layers; ++layer) {
            std::vector<PooledBlock> wanted, missed, filled;
            for (const MemberReport& member : report.members) {
                const auto found = steps_.find(member.id);
                if (member.prefill || found == steps_.end()) continue;
                const auto& [record, position] = found->second;
                const int newest = position / blockTokens_;
                for (const SelectionRecord& selection : record.selections) {
                    if (selection.layer != layer) continue;
                    for (const PackedBlock block : record.blocksOf(selection)) {
                        const PooledBlock one{member.row, layer, selection.kvHead, block.id()};
                        if (block.id() != newest) wanted.push_back(one);
                        if (!block.hit()) missed.push_back(one);
                    }
                    if ((position + 1) % blockTokens_ == 0)
                        filled.push_back({member.row, layer, selection.kvHead, newest});
                }
            }
            const auto want = pool_.select(wanted, slots);
            if (!std::equal(want.begin(), want.end(), missed.begin(), missed.end()))
                faults.push_back(fmt::format("layer {}: {} misses, a pool has {}", layer, missed.size(), want.size()));
            misses += std::int64_t(want.size()), hits += std::int64_t(wanted.size() - want.size());
            for (const PooledBlock& block : filled) pool_.keep(block);
        }
    }

    const Engine* engine_ = nullptr;
    int blockTokens_ = 0;
    SlotPool pool_;
    std::map<RequestId, int> rowOf_;
    std::map<RequestId, Step> steps_;
    std::vector<int> leaving_;
};

class PooledRowsOnCuda : public ::testing::Test {
protected:
    void SetUp() override { skipWithoutGpu(); }
};

/// Budgets with room for two or three rows, so that blocks leave the pool and rows are paused.
std::int64_t tightDevice(EngineOptions options, const std::vector<Submission>& requests, double rows) {
    EngineObserver nobody;
    options.scheduler.rows = 1;
    Engine probe(embedded(), options, nobody);
    for (const Submission& request : requests) probe.submit(request);
    probe.iterate();
    std::int64_t fixed = 0, step = 0;
    for (const auto* list : {&probe.table().running(), &probe.table().waiting()})
        for (const ServeRequest& request : *list) {
            fixed = std::max(fixed, request.needs.deviceBytes);
            step = std::max(step, request.needs.stepBytes);
        }
    return std::int64_t(rows * double(fixed) + (rows - 0.6) * double(step));
}

TEST_F(PooledRowsOnCuda, CountWhatASlotPoolCounts) {
    const std::vector<Submission> requests =
        requestsOf({{4500, 60}, {2052, 80}, {513, 70}, {560, 90}, {700, 40}, {600, 75}, {1300, 66}});
    const Settings sparseServe{{"bound", "cuboid-mean"}};
    for (const auto& [method, more] : {std::pair<std::string, Settings>{"nosa", {}}, {"quest", sparseServe}})
        for (const char* transfers : {"kernel", "calls"})
            for (const char* control : {"false", "true"}) {
                SCOPED_TRACE(fmt::format("{}, transfers {}, control {}", method, transfers, control));
                EngineOptions options = optionsOf(method, more, Backend::Cuda,
                                                  {{"cache", "global-lru"},
                                                   {"transfers", transfers},
                                                   {"working_set_control", control},
                                                   {"rows", "6"},
                                                   {"pause_after", "1"},
                                                   {"resume_tokens", "2"}});
                options.budget.device = tightDevice(options, requests, 3);
                std::int64_t clock = 0;
                Draws draws(7);
                options.now = [&] { return clock += std::int64_t(draws.below(4'000'000)); };
                PoolFollower follower;
                for (const Submission& request : requests) follower.prompts[request.id] = int(request.prompt.size());
                Engine engine(embedded(), options, follower);
                follower.watches(engine, engine.costs().shape.blockTokens);
                std::size_t next = 0;
                for (int iteration = 0; next < requests.size() || engine.requests() > 0; ++iteration) {
                    ASSERT_LT(iteration, 5000) << "the schedule does not end";
                    if (next < requests.size() && (engine.requests() == 0 || draws.uniform() < 0.3))
                        engine.submit(requests[next++]);
                    engine.iterate();
                }
                EXPECT_THAT(follower.faults, ::testing::IsEmpty());
                EXPECT_GE(follower.mostRows, 2);
                EXPECT_GT(follower.hits, 0);
                EXPECT_GT(follower.misses, 0);
                EXPECT_EQ(engine.openRows(), 0);
                fmt::print("{}, {}, control {}: {} hits, {} misses, {} pauses, {} rows at most\n", method, transfers,
                           control, follower.hits, follower.misses, follower.pauses, follower.mostRows);
            }
}

/// Rows in lockstep, with slots of their own or with a pool that holds less than they select in a step.
std::vector<std::vector<float>> logitsOf(const std::string& name, const Settings& more, bool pooled,
                                         TransferPlan loads) {
    const std::vector<Submission> requests = requestsOf({{700, 80}, {1300, 80}, {560, 80}});
    constexpr int kSteps = 70; // every row fills a block
    const MethodEntry& method = findMethod(name);
    SessionOptions like;
    like.method = name, like.backend = Backend::Cuda, like.stopAtEos = false, like.maxNewTokens = 80;
    like.settings = smallSettings(name);
    like.settings.insert(like.settings.end(), more.begin(), more.end());
    const ParameterValues values = methodParameters(method, *embedded(), like.settings);
    const SelectionSpec spec = methodSpec(method, values, *embedded());
    std::vector<std::vector<std::vector<std::int32_t>>> prompts;
    for (const Submission& request : requests) prompts.push_back({request.prompt});
    std::vector<SessionOptions> options(requests.size(), like);
    SessionOptions any = like;
    const std::vector<std::vector<std::int32_t>> anyPrompt{{0}};
    const EngineSetup usual = engineSetup(embedded(), anyPrompt, any, method, values, spec, RecordLevel::Selections);
    RowEngineSetup setup{
        embedded(),
        abilitiesOf(method, {values, spec, embedded()->config(), Backend::Cuda, true, embedded().get()}),
        4,
        1,
        false,
        &usual,
        {.loads = loads}};
    const int ofLayer = int(requests.size()) * embedded()->config().kvHeads * spec.budgetBlocks();
    if (pooled) setup.poolSlots = ofLayer + 5;
    const auto engine = makeCudaRowEngine(setup);
    engine->setPoolSlots(ofLayer + 5);
    const auto vocab = std::size_t(embedded()->config().vocab);
    std::vector<RowToken> step;
    for (std::size_t r = 0; r < requests.size(); ++r) {
        const RowId row{int(r)};
        engine->open(row,
                     engineSetup(embedded(), prompts[r], options[r], method, values, spec, RecordLevel::Selections));
        EXPECT_TRUE(engine->readLayers(row, LayerId{embedded()->config().layers}, 0, {}));
        step.push_back({row, 5, int(requests[r].prompt.size())});
    }
    std::vector<std::vector<float>> all;
    for (int n = 0; n < kSteps; ++n) {
        if (n == 40) engine->leavePool(RowId{1}); // as a pause does
        engine->decode(step);
        for (RowToken& token : step) {
            const float* logits = engine->logits(token.row);
            all.emplace_back(logits, logits + vocab);
            token.id = (token.id * 31 + n) % 1000, ++token.position;
        }
    }
    for (std::size_t r = 0; r < requests.size(); ++r) engine->close(RowId{int(r)});
    return all;
}

TEST_F(PooledRowsOnCuda, HaveTheLogitsThatRowsWithOwnSlotsHave) {
    const Settings sparseServe{{"bound", "cuboid-mean"}};
    for (const auto& [method, more] : {std::pair<std::string, Settings>{"nosa", {}}, {"quest", sparseServe}})
        for (const TransferPlan loads : {TransferPlan::Kernel, TransferPlan::Calls}) {
            SCOPED_TRACE(fmt::format("{}, {} transfers", method, loads == TransferPlan::Kernel ? "kernel" : "calls"));
            const auto own = logitsOf(method, more, false, loads), pooled = logitsOf(method, more, true, loads);
            ASSERT_EQ(own.size(), pooled.size());
            for (std::size_t i = 0; i < own.size(); ++i)
                ASSERT_EQ(std::memcmp(own[i].data(), pooled[i].data(), own[i].size() * sizeof(float)), 0)
                    << "step " << i / 3 << ", row " << i % 3;
        }
}

// ---- Planted selections ---------------------------------------------------------------------------------------------

/// What an engine with planted selections selects: [request][token, layer, KV head].
std::map<RequestId, std::map<std::array<int, 3>, std::vector<std::int32_t>>> plantedOn(Backend backend,
                                                                                       const std::string& method) {
    class Keeper final : public EngineObserver {
    public:
        void token(RequestId id, std::int32_t, int generated, std::int64_t, const StepRecord& record) override {
            if (generated == 1) return;
            for (const SelectionRecord& selection : record.selections)
                of[id][{generated, selection.layer, selection.kvHead}] = test::idsOf(record, selection);
        }
        std::map<RequestId, std::map<std::array<int, 3>, std::vector<std::int32_t>>> of;
    };
    EngineOptions options = optionsOf(method, {}, backend, {{"rows", "3"}});
    options.session.threads = 1;
    options.planted = {0.8, 0.95};
    Keeper keeper;
    Engine engine(embedded(), options, keeper);
    for (const Submission& request : requestsOf({{700, 12}, {1300, 9}, {560, 70}})) engine.submit(request);
    while (engine.iterate()) {
    }
    return keeper.of;
}

TEST(PlantedOnCuda, SelectsWhatTheCpuSelects) {
    skipWithoutGpu();
    if (::testing::Test::IsSkipped()) return;
    for (const char* method : {"nosa", "quest"}) {
        SCOPED_TRACE(method);
        const auto cpu = plantedOn(Backend::Cpu, method), cuda = plantedOn(Backend::Cuda, method);
        ASSERT_EQ(cpu.size(), 3u);
        EXPECT_EQ(cpu, cuda);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

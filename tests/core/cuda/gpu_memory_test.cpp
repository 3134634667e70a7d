// What a session on a GPU declares of its memory, beside what it takes. Without a GPU: what the engine's parts plan,
// against the declarations that estimates add up, and against bytes counted by hand. With a GPU: what owners hold and
// what the driver says is free, before and during a session.
#include "core/cuda/gpu_memory.h"

#include "base/error.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/gpu_device.h"
#include "core/select/refusal.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/matrix_library.h"
#include "tests/core/block_indexer_config.h"
#include "tests/core/latent_experts.h"
#include "tests/core/lightning_config.h"
#include "tests/core/random_checkpoint.h"
#include "tests/core/small_session.h"
#include "tests/kernels/cuda/counting_calls.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <tuple>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::SmallSession;
using test::SmallSessionChoices;

const std::shared_ptr<const Model>& embedded() {
    static const std::shared_ptr<const Model> loaded = Model::load(kDefaultModel);
    return loaded;
}

/// The embedded model, or one with the indexer that the method needs.
const std::shared_ptr<const Model>& modelFor(const MethodEntry& method) {
    const auto written = [](const nlohmann::json& config) {
        const test::Folder folder;
        return Model::load(test::writeCheckpoint((folder / "model").string(), config, 5));
    };
    static const std::shared_ptr<const Model> blocks = written(test::blockIndexerConfig()),
                                              tokens = written(test::lightningConfig("glm-dsa-shared"));
    if (method.hasIndexer == nullptr) return embedded();
    return method.hasIndexer(blocks->config()) ? blocks : tokens;
}

struct Case {
    std::string method;
    test::Settings settings = {};
};

std::string nameOf(const ::testing::TestParamInfo<Case>& tested) {
    std::string name = tested.param.method;
    for (const auto& [key, value] : tested.param.settings) name += std::string("_") + key + "_" + value;
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
}

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const MethodEntry& method : methods())
        if (method.decodesTokens && method.runsOnCuda()) all.push_back({method.name, {}});
    all.push_back({"quest", {{"bound", "product"}}});
    all.push_back({"quest", {{"group", "per_query_head"}}});
    all.push_back({"quest", {{"group", "per_query_head"}, {"bound", "product"}}});
    all.push_back({"infllmv2", {{"lse", "compressed"}}});
    all.push_back({"sparda", {{"prefill", "sparse"}}});
    all.push_back({"nosa", {{"ahead", "forecast"}}});
    all.push_back({"infllmv2", {{"ahead", "forecast"}}});
    all.push_back({"nosa", {{"overlap", "halves"}}});
    all.push_back({"infllmv2", {{"overlap", "halves"}}});
    all.push_back({"arkvale", {{"prefetch_layers", "1"}}});
    all.push_back({"arkvale", {{"groups", "layer"}}});
    all.push_back({"asynctls", {{"lag", "0"}}});
    all.push_back({"asynctls", {{"label_bits", "16"}}});
    all.push_back({"double-sparsity", {{"label_bits", "16"}}});
    return all;
}

// ---- Without a GPU --------------------------------------------------------------------------------------------------

/// An H200, or a GPU without clusters: how many clusters run at once is a question that only a GPU answers, and the
/// attention of asynctls asks it.
cuda::Launch someGpu(const std::string& method) {
    cuda::Launch launch;
    launch.multiprocessors = 132;
    launch.clusters = method != "asynctls";
    launch.blockShared = 232448;
    return launch;
}

class GpuMemory : public ::testing::TestWithParam<Case> {
protected:
    /// Every key of keys and values or of an index is planned as it is declared, and no other one is. @return whether
    /// the method can run like this
    static bool expectDeclared(const SmallSessionChoices& choices) {
        const MethodEntry& method = findMethod(GetParam().method);
        const std::shared_ptr<const Model>& model = modelFor(method);
        const SmallSession session(model, method, choices);
        if (findRefusal(method, session.use(), session.setup.maxTokens.front(), model.get())) return false;
        const MemoryPlan planned = gpuMemory(session.setup, someGpu(method.name)), declared = session.declared();
        MemoryPlan tiers; // what is planned, without scratch memory
        for (const MemoryPlan::Part& part : planned.parts())
            if (part.need.holds != Holds::Scratch || declared.bytes(part.need.key) > 0) {
                MemoryNeed need = part.need;
                need.bytes = part.bytes;
                tiers.add(need);
            }
        std::string lengths;
        for (const int tokens : choices.promptTokens) lengths += " " + std::to_string(tokens);
        EXPECT_EQ(test::differences(tiers, "planned", declared, "declared"), "")
            << "prompts of" << lengths << " tokens, " << choices.newTokens << " new ones, offload " << choices.offload
            << ", oracle " << choices.oracle;
        for (const MemoryPlan::Part& part : declared.parts())
            for (const MemoryPlan::Part& same : tiers.parts())
                if (std::string_view(part.need.key) == same.need.key) {
                    EXPECT_EQ(part.need.tier, same.need.tier) << part.need.key;
                    EXPECT_EQ(part.need.holds, same.need.holds) << part.need.key;
                }
        return true;
    }
};

TEST_P(GpuMemory, IsPlannedAsTheMethodAndTheTiersDeclareIt) {
    std::mt19937 random(7);
    const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
    int compared = 0;
    for (int shape = 0; shape < 24; ++shape) {
        SmallSessionChoices choices{.settings = GetParam().settings, .backend = Backend::Cuda};
        choices.offload = shape % 2 == 0;
        choices.oracle = shape % 3 == 0;
        choices.cachePolicy = shape % 4 < 2 ? "lru" : "keep-selected";
        choices.level = RecordLevel(shape % 3);
        choices.promptTokens.assign(std::size_t(draw(1, 4)), 0);
        for (int& tokens : choices.promptTokens) tokens = draw(1, shape < 12 ? 700 : 5000);
        choices.newTokens = draw(1, 300);
        compared += expectDeclared(choices) ? 1 : 0;
    }
    EXPECT_GE(compared, 20);
}

/// Every type of KV blocks that the method takes on a GPU.
TEST_P(GpuMemory, OfEveryKvTypeIsPlannedAsDeclared) {
    for (const KvType type : kvTypesOf(findMethod(GetParam().method), Backend::Cuda))
        for (const bool offload : {true, false}) {
            SmallSessionChoices choices{.settings = GetParam().settings, .backend = Backend::Cuda, .offload = offload};
            choices.kvType = type;
            choices.promptTokens = {1000, 37, 200};
            expectDeclared(choices);
        }
}

/// Recorded or not, the session is told of all memory at once: the plan of a level differs in the reports alone.
TEST_P(GpuMemory, OfReportsGrowsWithWhatIsRecorded) {
    const MethodEntry& method = findMethod(GetParam().method);
    const SmallSession session(modelFor(method), method, {.settings = GetParam().settings, .backend = Backend::Cuda});
    const auto model = DeviceModel::shapesOf(*modelFor(method));
    CudaEngineOptions options = gpuEngineOptions(session.setup);
    const auto planned = [&](bool record, RecordLevel level) {
        options.record = record;
        options.level = level;
        return CudaEngine::memory(model, options, someGpu(method.name));
    };
    const MemoryPlan full = planned(true, RecordLevel::Full), counters = planned(true, RecordLevel::Counters),
                     none = planned(false, RecordLevel::Counters);
    const auto reports = [](const MemoryPlan& plan) { return plan.bytes("the recorder's buffer"); };
    for (const MemoryPlan* plan : {&full, &counters, &none})
        EXPECT_EQ(reports(*plan), plan->bytes("recorder's buffer")) << "what the GPU writes is copied as it is";
    if (!session.setup.spec.dense) {
        EXPECT_GE(reports(full), reports(counters));
    }
    EXPECT_GE(reports(counters), reports(none));
    const std::string changed = test::differences(full, "full", counters, "counters");
    for (const MemoryPlan::Part& part : full.parts()) {
        const std::string key = part.need.key;
        if (part.need.holds != Holds::Scratch) {
            EXPECT_EQ(changed.find(key + ":"), changed.npos) << changed;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Methods, GpuMemory, ::testing::ValuesIn(cases()), nameOf);

/// The embedded model: 8 layers, 6 query heads on 2 KV heads of 64 channels, an eviction head. Prompts of 300 and 150
/// tokens and 24 new ones fill 6 and 3 blocks of 64 tokens.
class GpuMemoryByHand : public ::testing::Test {
protected:
    static MemoryPlan plan(const char* method, SmallSessionChoices choices) {
        choices.backend = Backend::Cuda;
        const SmallSession session(embedded(), findMethod(method), choices);
        return gpuMemory(session.setup, someGpu(method));
    }
    static constexpr std::int64_t kBlock = 64 * 2 * 64 * 2; // 64 keys and values of 64 channels in bf16
    const ModelConfig& config_ = embedded()->config();
};

TEST_F(GpuMemoryByHand, OfFullAttention) {
    const MemoryPlan full = plan("full", {});
    const std::int64_t hidden = config_.hidden, vocab = config_.vocab, ffn = config_.ffn;
    EXPECT_EQ(full.bytes("kv_resident"), 8 * 2 * (6 + 3) * kBlock);
    EXPECT_EQ(full.bytes("kv_store"), 0);
    EXPECT_EQ(full.bytes("kv_slots"), 0);
    EXPECT_EQ(full.bytes("token_scores"), 8 * 2 * (6 + 3) * 64 * 4);
    EXPECT_EQ(full.bytes("prompt activations"), 300 * (hidden + 1 + 1) * 4) << "residual stream, ids and positions";
    EXPECT_EQ(full.bytes("prompt KV"), 0) << "a prompt's blocks are written where they stay";
    EXPECT_EQ(full.bytes("rotary tables"), 2 * 324 * 32 * 4) << "sines and cosines of 32 pairs of channels";
    EXPECT_EQ(full.bytes("the products' work space"),
              300 * hidden * 2 + 300 * 2 * ffn * 2) // normalised inputs, gates beside ups before silu
        << "of the longest prompt, which is one piece";
    EXPECT_EQ(full.bytes("the prompts' marks"), 8 * StepReport::kMarks * 8);
    const std::int64_t q = 6 * 64, kv = 2 * 64, report = full.bytes("recorder's buffer") / 2;
    EXPECT_EQ(report, 64 /* 2 tokens */ + (8 * StepReport::kMarks * 8 + 63) / 64 * 64 + 64 /* 4 marks */ +
                          (8 * 2 * 2 * std::int64_t(sizeof(cuda::SelectionHead)) + 63) / 64 * 64 + 64 /* counters */);
    EXPECT_GE(full.bytes("activations"), 2 * hidden * 4 + 300 * (q + 2 * kv) * 4 + 300 * q * 2 + 300 * q * 2 +
                                             300 * ffn * 2 + 2 * 2 * kv * 2 + 2 * 2 * vocab * 4)
        << "all but parts of attention";
    for (const char* library : {"cuBLASLt's work space"})
        EXPECT_TRUE(full.bytes(library) == 0 || full.bytes(library) == 32 << 20) << "where it is installed";
}

TEST_F(GpuMemoryByHand, OfQuestWithSlots) {
    const SmallSession session(embedded(), findMethod("quest"), {.backend = Backend::Cuda});
    const std::int64_t slots = session.setup.slots, sparse = session.setup.plans.sparse(), dense = 8 - sparse,
                       size = session.setup.spec.blockSize, number = 2;
    ASSERT_GT(slots, 0);
    ASSERT_EQ(session.setup.plans.offloaded(), sparse);
    const std::int64_t blocks = (324 + size - 1) / size + (174 + size - 1) / size, block = size * 2 * 64 * number;
    const MemoryPlan quest = gpuMemory(session.setup, someGpu("quest"));
    EXPECT_EQ(quest.bytes("kv_store"), sparse * 2 * blocks * block);
    EXPECT_EQ(quest.bytes("kv_slots"), sparse * 2 * 2 * slots * block);
    EXPECT_EQ(quest.bytes("kv_resident"), dense * 2 * blocks * block);
    EXPECT_EQ(quest.bytes("block_index"), sparse * 2 * blocks * 2 * 64 * number) << "two vectors for each block";
    EXPECT_EQ(quest.bytes("slot maps"), sparse * 2 * 2 * slots * (4 + 4)) << "blocks, and when they were last used";
    EXPECT_EQ(quest.bytes("prompt KV"), 2 * 2 * ((324 + size - 1) / size) * block) << "two layers of the longest";
    EXPECT_EQ(quest.most(MemoryTier::Host),
              quest.bytes("kv_store") + quest.bytes("the recorder's buffer") + quest.bytes("the prompts' marks"));
}

/// Slots hold blocks as the host does, and the block that is being written lies beside them.
TEST_F(GpuMemoryByHand, OfNosaWithCodesInItsSlots) {
    for (const auto& [type, bytes] : {std::pair{KvType::INT8, 8448}, {KvType::FP8, 8448}, {KvType::INT4, 4864}}) {
        const SmallSession session(embedded(), findMethod("nosa"), {.backend = Backend::Cuda, .kvType = type});
        const std::int64_t slots = session.setup.slots, sparse = session.setup.plans.offloaded();
        ASSERT_GT(slots, 0);
        ASSERT_EQ(session.setup.spec.blockSize, 64);
        const MemoryPlan nosa = gpuMemory(session.setup, someGpu("nosa"));
        EXPECT_EQ(nosa.bytes("kv_slots"), sparse * 2 * 2 * slots * bytes);
        EXPECT_EQ(nosa.bytes("kv_tails"), sparse * 2 * 2 * kBlock);
        EXPECT_EQ(nosa.bytes("kv_store"), sparse * 2 * (6 + 3) * bytes);
    }
    EXPECT_EQ(plan("nosa", {}).bytes("kv_tails"), 0) << "bf16 blocks are written in their slots";
}

TEST_F(GpuMemoryByHand, OfH2oWhosePlacesAreThoseOfTheLongestSequence) {
    const MemoryPlan h2o = plan("h2o", {}); // 100 heavy, 60 recent and the newest token: 161 in 3 blocks
    EXPECT_EQ(h2o.bytes("retained_kv"), 8 * 2 * 2 * 3 * kBlock);
    EXPECT_EQ(h2o.bytes("kv_resident"), 0);
    EXPECT_EQ(h2o.bytes("prompt KV"), 2 * 2 * 6 * kBlock);
    const MemoryPlan watched = plan("h2o", {.oracle = true});
    EXPECT_EQ(watched.bytes("oracle_keys"), 8 * 2 * (6 + 3) * kBlock);
}

TEST_F(GpuMemoryByHand, OfTokensThatWaitOnTheHost) {
    for (const bool offload : {true, false}) {
        const MemoryPlan tokens = plan("double-sparsity", {.offload = offload});
        EXPECT_EQ(tokens.bytes("token_store"), 8 * 2 * (6 + 3) * kBlock);
        EXPECT_EQ(tokens.bytes(MemoryTier::Host, Holds::Kv), offload ? tokens.bytes("token_store") : 0);
        EXPECT_EQ(tokens.bytes("chosen_kv"), 2 * 2 * 2 * kBlock) << "100 tokens in 2 blocks, for all layers in turn";
    }
}

/// Four layers, of which two have an indexer with keys of 64 channels; latent keys of 256 + 32 channels, a budget
/// of 48.
TEST(GpuMemoryOfDsa, ByHand) {
    const MethodEntry& dsa = findMethod("dsa");
    for (const bool offload : {true, false}) {
        const SmallSession session(modelFor(dsa), dsa, {.backend = Backend::Cuda, .offload = offload});
        const MemoryPlan plan = gpuMemory(session.setup, someGpu("dsa"));
        const std::int64_t tokens = (6 + 3) * 64, key = 288 * 2; // of the sequences, in whole blocks
        EXPECT_EQ(plan.bytes("token_store"), 4 * tokens * key);
        EXPECT_EQ(plan.bytes(MemoryTier::Host, Holds::Kv), offload ? plan.bytes("token_store") : 0);
        EXPECT_EQ(plan.bytes("index_keys"), 2 * tokens * 64 * 2);
        EXPECT_EQ(plan.bytes("device_tokens"), offload ? 4 * 2 * 96 * key : 0) << "twice the budget";
        EXPECT_EQ(plan.bytes("token_slots"), offload ? 4 * 2 * (324 + 2 * 96 + 2) * 4 : 0);
        EXPECT_EQ(plan.bytes("prompt's selections"), (300 - 48) * 48 * 4) << "for the layers that share them";
    }
}

TEST(LinearNeeds, AreOfTheLargestProduct) {
    cuda::DeviceMatrix small, gated, quantised;
    small.rows = 96, small.cols = 64;
    gated.rows = 512, gated.cols = 128;
    quantised.rows = 100, quantised.cols = 32, quantised.type = DType::Q4_0;
    cuda::LinearNeeds needs;
    needs.addNormalised(small, 10);
    needs.add(gated, 16, true);
    EXPECT_EQ(needs, (cuda::LinearNeeds{10 * 64, 16 * 512, 0})) << "the library may multiply few inputs, too";
    needs.add(gated, 300, true);
    needs.add(quantised, 64);
    EXPECT_EQ(needs, (cuda::LinearNeeds{10 * 64, 300 * 512, 0}));
    needs.add(quantised, 65);
    EXPECT_EQ(needs.slab, std::size_t(32) << 20);
    needs.add({}, 1000, true);
    EXPECT_EQ(needs.gated, std::size_t(300 * 512)) << "a matrix that the model does not have";
}

/// Products take their work space from the session's. A product allocates nothing, and one that was not planned is
/// refused.
TEST(LinearNeeds, AreAllThatAProductTakes) {
    cuda::test::CountingCalls calls;
    const cuda::ScopedDeviceCalls use(calls);
    const cuda::Living before = cuda::living();
    cuda::DeviceMatrix gated;
    gated.rows = 512, gated.cols = 128;
    cuda::LinearNeeds needs;
    needs.add(gated, 300, true);
    __nv_bfloat16 room{};
    cuda::Linear linear({}, needs, {&room, &room, nullptr, nullptr}, nullptr);
    cuda::LinearOutput out;
    out.hidden = &room;
    linear.prepare(gated, 300, out);
    EXPECT_THROW(linear.prepare(gated, 301, out), Error);
    gated.type = DType::Q4_0;
    EXPECT_THROW(linear.prepare(gated, 65, {}), Error);
    EXPECT_EQ(cuda::living(), before);
    EXPECT_EQ(calls.asked(), 0);
}

// ---- With a GPU -----------------------------------------------------------------------------------------------------

constexpr int kSteps = 24;                             // as SmallSessionChoices::newTokens
constexpr std::int64_t kMost = std::int64_t(32) << 20; // of the driver's own: graphs, streams, stacks of kernels

std::int64_t freeBytes() {
    cuda::check(cudaDeviceSynchronize(), "waiting for the GPU");
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
    return std::int64_t(free);
}

/// What a session took, while it ran.
struct Taken {
    std::int64_t deviceBytes = 0, hostBytes = 0; // by the owners
    std::int64_t atBeginning = 0;                // of the two together, before the first prompt
    std::int64_t lost = 0;                       // of the GPU's free memory
    MemoryPlan declared;                         // by the engine's parts
};

Taken run(const std::shared_ptr<const DeviceModel>& weights, const CudaEngineOptions& options,
          const std::vector<std::vector<std::int32_t>>& prompts) {
    const std::int64_t free = freeBytes();
    const cuda::Living before = cuda::living();
    const auto gained = [&] {
        const cuda::Living now = cuda::living();
        return std::pair{now.deviceBytes - before.deviceBytes, now.hostBytes - before.hostBytes};
    };
    CudaEngine engine(weights, options);
    Taken taken;
    taken.atBeginning = gained().first + gained().second;
    StepRecord record;
    engine.prefill(prompts, record, {}, {});
    std::vector<std::uint8_t> rows(prompts.size(), 1);
    std::vector<ActiveSequence> active;
    for (int s = 0; s < int(prompts.size()); ++s) active.push_back({RowId{s}, int(prompts[std::size_t(s)].size())});
    for (int step = 0; step < kSteps - 1; ++step) {
        engine.setInputs(std::vector<std::int32_t>(prompts.size(), 7), rows);
        engine.launch(step + 1);
        engine.wait();
        record.clear();
        if (options.record) engine.fill(record, active);
        for (ActiveSequence& sequence : active) ++sequence.position;
    }
    (void)engine.logits(0);
    engine.settle();
    std::tie(taken.deviceBytes, taken.hostBytes) = gained();
    taken.lost = free - freeBytes();
    taken.declared = engine.memory();
    return taken;
}

/// Empty where the session took what was declared and nothing later; else what differs. declared: before the session.
std::string complaint(const Taken& taken, const MemoryPlan& declared) {
    std::string text = test::differences(declared, "declared before", taken.declared, "declared by the session");
    const auto expect = [&](const char* what, std::int64_t got, std::int64_t wanted) {
        if (got != wanted)
            text += std::string(what) + ": " + std::to_string(got) + " taken, " + std::to_string(wanted) +
                    " declared, " + std::to_string(got - wanted) + " more\n";
    };
    expect("the GPU's memory", taken.deviceBytes, declared.most(MemoryTier::Device));
    expect("host memory that the GPU reaches", taken.hostBytes, declared.most(MemoryTier::Host));
    expect("memory taken before the first prompt", taken.atBeginning,
           declared.most(MemoryTier::Device) + declared.most(MemoryTier::Host));
    if (std::abs(taken.lost - taken.deviceBytes) > kMost)
        text += "the GPU has " + std::to_string(taken.lost) + " bytes less free, and the owners hold " +
                std::to_string(taken.deviceBytes) + "\n";
    if (text.empty()) return text;
    for (const MemoryPlan::Part& part : declared.parts())
        text += std::string("  ") + part.need.key + " " + std::to_string(part.bytes) + "\n";
    return text;
}

class GpuMemoryOfModelsOnCuda : public ::testing::Test {
protected:
    void SetUp() override {
        try {
            (void)usableGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << oneLine(error);
        }
    }
    /// The second of two sessions, so that what the process takes once is there: modules, the driver's pools.
    static std::string complaintOf(const std::shared_ptr<const Model>& model, const CudaEngineOptions& options,
                                   const std::vector<std::vector<std::int32_t>>& prompts,
                                   DeviceSelectorMaker planted = nullptr) {
        const MemoryPlan declared = CudaEngine::memory(DeviceModel::shapesOf(*model), options, gpuLaunch(usableGpu()));
        const auto weights = DeviceModel::of(model);
        CudaEngineOptions used = options;
        if (planted != nullptr) used.method.makeSelector = planted;
        (void)run(weights, used, prompts);
        return complaint(run(weights, used, prompts), declared);
    }
};

class GpuMemoryOnCuda : public GpuMemoryOfModelsOnCuda, public ::testing::WithParamInterface<Case> {};

TEST_P(GpuMemoryOnCuda, IsTakenAsItIsDeclaredAndNoneLater) {
    const MethodEntry& method = findMethod(GetParam().method);
    for (const bool offload : {true, false})
        for (const int recorded : {0, 1, 2}) {
            SCOPED_TRACE(::testing::Message() << "offload " << offload << ", "
                                              << (recorded == 0   ? "nothing recorded"
                                                  : recorded == 1 ? "all recorded"
                                                                  : "oracle"));
            const SmallSession session(embedded(), method,
                                       {.settings = GetParam().settings,
                                        .backend = Backend::Cuda,
                                        .offload = offload,
                                        .oracle = recorded == 2,
                                        .level = recorded > 0 ? RecordLevel::Full : RecordLevel::Counters});
            if (findRefusal(method, session.use(), session.setup.maxTokens.front(), embedded().get())) continue;
            CudaEngineOptions options = gpuEngineOptions(session.setup);
            options.record = recorded > 0;
            EXPECT_EQ(complaintOf(embedded(), options, session.setup.prompts), "");
        }
}

DeviceSelectorMaker usual = nullptr;                // of the method under test
std::optional<cuda::DeviceMemory> nobodyDeclared{}; // what makeGreedy takes without declaring it

std::unique_ptr<DeviceSelector> makeGreedy(const ParameterValues& values, const DeviceSelectorContext& context) {
    nobodyDeclared.emplace(std::size_t(1) << 20, "testing");
    return usual(values, context);
}

TEST_P(GpuMemoryOnCuda, AMegabyteThatNobodyDeclaredShows) {
    const MethodEntry& method = findMethod(GetParam().method);
    const SmallSession session(modelFor(method), method, {.settings = GetParam().settings, .backend = Backend::Cuda});
    if (!method.hasSelector(session.setup.parameters)) GTEST_SKIP() << "the method is data and has no selector";
    usual = method.onDevice.make;
    const auto weights = DeviceModel::of(modelFor(method));
    CudaEngineOptions options = gpuEngineOptions(session.setup);
    const MemoryPlan declared =
        CudaEngine::memory(DeviceModel::shapesOf(*modelFor(method)), options, gpuLaunch(usableGpu()));
    options.method.makeSelector = makeGreedy;
    const Taken taken = run(weights, options, session.setup.prompts);
    EXPECT_THAT(complaint(taken, declared), ::testing::HasSubstr("1048576 more")) << "a megabyte goes unnoticed";
    nobodyDeclared.reset();
}

INSTANTIATE_TEST_SUITE_P(Methods, GpuMemoryOnCuda, ::testing::ValuesIn(cases()), nameOf);

/// Layers that share a choice, and layers with indexers, beside latent attention.
TEST_F(GpuMemoryOfModelsOnCuda, OfLightningIndexersIsTakenAsItIsDeclared) {
    const MethodEntry& dsa = findMethod("dsa");
    for (const bool offload : {true, false}) {
        SCOPED_TRACE(offload ? "offloaded" : "resident");
        const SmallSession session(modelFor(dsa), dsa,
                                   {.backend = Backend::Cuda, .offload = offload, .level = RecordLevel::Full});
        EXPECT_EQ(complaintOf(modelFor(dsa), gpuEngineOptions(session.setup), session.setup.prompts), "");
    }
}

/// Latent attention, experts and shared experts have buffers that the embedded model does not need.
TEST_F(GpuMemoryOfModelsOnCuda, OfLatentAttentionAndExpertsIsTakenAsItIsDeclared) {
    test::Folder folder;
    const auto model = Model::load(test::writeCheckpoint((folder / "model").string(), test::latentExpertsConfig(), 5));
    for (const char* name : {"full", "streaming"}) {
        SCOPED_TRACE(name);
        const SmallSession session(model, findMethod(name), {.backend = Backend::Cuda, .level = RecordLevel::Full});
        EXPECT_EQ(complaintOf(model, gpuEngineOptions(session.setup), session.setup.prompts), "");
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

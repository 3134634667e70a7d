// What a session declares of its memory, beside what it takes: counted from outside, by the heap of the whole program.
#include "core/engine/cpu/cpu_memory.h"

#include "core/select/method.h"
#include "tests/core/counting_allocator.h"
#include "tests/core/random_checkpoint.h"
#include "tests/core/small_session.h"
#include "tests/support/places.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

constexpr int kSteps = 24; // as test::SmallSessionChoices

/// How far what is declared may be from what is taken, as a share of the latter: less than a megabyte of every session
/// here.
constexpr double kTolerance = 0.04;

std::shared_ptr<const Model> model() {
    static const auto loaded = Model::load(kDefaultModel);
    return loaded;
}

/// A checkpoint of GLM-5's form with random weights, whose layers share indexers.
std::shared_ptr<const Model> modelWithIndexer() {
    static const auto loaded = [] {
        const auto folder = fs::temp_directory_path() / ("kvscope-indexer-" + std::to_string(getpid()));
        fs::create_directories(folder);
        const auto model =
            Model::load(test::writeCheckpoint(folder.string(),
                                              test::familyConfig("glm-dsa", {{"hidden_size", 192},
                                                                             {"intermediate_size", 256},
                                                                             {"kv_lora_rank", 128},
                                                                             {"qk_rope_head_dim", 32},
                                                                             {"index_head_dim", 64},
                                                                             {"index_topk", 80},
                                                                             {"max_position_embeddings", 4096},
                                                                             {"vocab_size", 4096}}),
                                              5));
        fs::remove_all(folder); // the files are mapped
        return model;
    }();
    return loaded;
}

/// A checkpoint of MiniMax-M3's form with random weights, whose first layer has no indexer.
std::shared_ptr<const Model> modelWithBlockIndexer() {
    static const auto loaded = [] {
        const auto folder = fs::temp_directory_path() / ("kvscope-block-indexer-" + std::to_string(getpid()));
        fs::create_directories(folder);
        std::ifstream file(test::source("tests/golden/block_sparse/blocks-of-16/config.json"));
        auto config = nlohmann::json::parse(file);
        config["text_config"].update({{"hidden_size", 192},
                                      {"dense_intermediate_size", 256},
                                      {"head_dim", 64},
                                      {"rotary_dim", 32},
                                      {"index_head_dim", 64},
                                      {"max_position_embeddings", 4096},
                                      {"vocab_size", 4096}});
        const auto model = Model::load(test::writeCheckpoint(folder.string(), config, 5));
        fs::remove_all(folder); // the files are mapped
        return model;
    }();
    return loaded;
}

std::shared_ptr<const Model> modelFor(const MethodEntry& method) {
    if (method.hasIndexer == nullptr) return model();
    return method.hasIndexer(modelWithIndexer()->config()) ? modelWithIndexer() : modelWithBlockIndexer();
}

struct Measured {
    std::int64_t declared = 0, taken = 0;
    std::string parts;
};

/// Runs an engine, prompts and steps. undeclared: bytes that its selector takes beyond what its method says.
Measured measure(const MethodEntry& method, const test::Settings& settings, std::int64_t undeclared = 0) {
    const auto used = modelFor(method);
    const ModelConfig& config = used->config();
    test::SmallSession session(used, method, {.settings = settings});
    EngineSetup& setup = session.setup;
    const auto& prompts = setup.prompts;
    std::vector<char> hidden;
    setup.makeSelector = [&, usual = setup.makeSelector](const SelectorContext& context) {
        hidden.resize(std::size_t(undeclared));
        return usual(context);
    };
    const MemoryPlan plan = cpuMemory(setup);
    Measured measured{plan.most(), 0, {}};
    for (const MemoryPlan::Part& part : plan.parts())
        measured.parts += std::string(part.need.key) + " " + std::to_string(part.bytes / 1024) + " KiB\n";

    StepRecord record;
    record.layers.reserve(std::size_t(config.layers));
    test::forgetMost();
    const std::int64_t before = test::bytesHeld();
    const auto engine = makeCpuEngine(setup);
    engine->prefill(record, {}, {});
    for (int step = 0; step < kSteps - 1; ++step) {
        record.clear();
        record.step = step + 1;
        const ActiveSequence active[] = {{RowId{0}, int(prompts[0].size()) + step},
                                         {RowId{1}, int(prompts[1].size()) + step}};
        const std::int32_t tokens[] = {7, 8};
        engine->decode(active, tokens, record);
    }
    measured.taken = test::mostBytesHeld() - before;
    return measured;
}

struct Case {
    std::string method;
    test::Settings settings = {};
};

class DeclaredMemory : public ::testing::TestWithParam<Case> {};

TEST_P(DeclaredMemory, IsDeclaredAsItIsTaken) {
    if (!test::countsAllocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
    (void)measure(findMethod("full"), {}); // what is made once a program is not a session's
    const Measured m = measure(findMethod(GetParam().method), GetParam().settings);
    EXPECT_NEAR(double(m.taken), double(m.declared), kTolerance * double(m.taken))
        << "taken " << m.taken / 1024 << " KiB, declared " << m.declared / 1024 << " KiB:\n"
        << m.parts;
}

TEST_P(DeclaredMemory, AMegabyteThatNobodyDeclaredShows) {
    if (!test::countsAllocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
    (void)measure(findMethod("full"), {});
    const Measured m = measure(findMethod(GetParam().method), GetParam().settings, 1 << 20);
    EXPECT_GT(double(m.taken - m.declared), kTolerance * double(m.taken)) << "a megabyte goes unnoticed";
}

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const MethodEntry& method : methods())
        if (method.decodesTokens) all.push_back({method.name, {}}); // which the models of these tests cannot use
    all.push_back({"quest", {{"bound", "product"}}});
    all.push_back({"quest", {{"group", "per_query_head"}}});
    all.push_back({"infllmv2", {{"lse", "compressed"}}});
    all.push_back({"sparda", {{"prefill", "sparse"}}});
    all.push_back({"nosa", {{"ahead", "forecast"}, {"prefill", "sparse"}}});
    all.push_back({"infllmv2", {{"ahead", "forecast"}}});
    all.push_back({"arkvale", {{"prefetch_layers", "1"}}});
    return all;
}

INSTANTIATE_TEST_SUITE_P(Methods, DeclaredMemory, ::testing::ValuesIn(cases()), [](const auto& tested) {
    std::string name = tested.param.method;
    for (const auto& [key, value] : tested.param.settings) name += std::string("_") + key + "_" + value;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

TEST(MemoryPlan, AddsUpWhatIsDeclared) {
    ModelConfig config;
    config.layers = 4;
    config.queryHeads = 6, config.kvHeads = 2;
    SelectionSpec spec;
    spec.denseLayers = 1;
    MemoryPlan plan(config, LayerPlans(config, spec, {}));
    const auto declare = [&](std::int64_t bytes) {
        using enum Lifetime;
        plan.add({"keys", "keys", MemoryTier::Device, Holds::Kv, Session, Per::KvHead, bytes, LayerSet::Sparse});
        plan.add({"norms", "norms", MemoryTier::Device, Holds::Index, Session, Per::QueryHead, bytes, LayerSet::Dense});
        plan.add({"prompt", "prompt", MemoryTier::Host, Holds::Scratch, Prompt, Per::Row, bytes, LayerSet::None});
        plan.add({"longest", "longest", MemoryTier::Host, Holds::Scratch, Step, Per::One, 10 * bytes, LayerSet::None});
    };
    declare(100);
    declare(300); // a second sequence
    EXPECT_EQ(plan.bytes("keys"), 400 * 2 * 3);
    EXPECT_EQ(plan.bytes("norms"), 400 * 6);
    EXPECT_EQ(plan.bytes("prompt"), 400);
    EXPECT_EQ(plan.bytes("longest"), 3000) << "once, for the sequence that has most";
    EXPECT_EQ(plan.bytes("values"), 0);
    EXPECT_EQ(plan.bytes(MemoryTier::Device, Holds::Kv), 2400);
    EXPECT_EQ(plan.most(MemoryTier::Device), 4800);
    EXPECT_EQ(plan.most(), 4800 + 3000) << "the prompts' memory is gone when the steps take theirs";
}

TEST(MemoryPlan, ASessionThatDoesNotFitIsRefusedWithTheNumbers) {
    ModelConfig config;
    config.layers = 1, config.kvHeads = 1;
    MemoryPlan plan(config, LayerPlans(config, {}, {}));
    for (const auto& [key, gib] : std::initializer_list<std::pair<const char*, int>>{
             {"KV blocks", 8}, {"page digests", 3}, {"projections", 2}, {"logits", 1}})
        plan.add({key, key, MemoryTier::Host, Holds::Kv, Lifetime::Session, Per::One, std::int64_t(gib) << 30,
                  LayerSet::None});
    EXPECT_EQ(plan.describe(),
              "14.0 GiB: 8.0 GiB KV blocks, 3.0 GiB page digests, 2.0 GiB projections, 1.0 GiB for the "
              "rest");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

// What a method's entry says of it, and that nothing else in the program knows it by name.
#include "core/model/model.h"
#include "core/plan/layer_plan.h"
#include "core/select/recorded_heads.h"
#include "core/select/refusal.h"
#include "tests/support/places.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <sstream>

namespace kvscope {

MethodEntry smallNormMethod(); // tests/core/example_method.cpp

namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kSource = test::source("");

ModelConfig shape() {
    ModelConfig config;
    config.layers = 4;
    config.queryHeads = 8, config.kvHeads = 2, config.headDim = 64;
    return config;
}

/// One that the method runs on.
ModelConfig shapeFor(const MethodEntry& method) {
    ModelConfig config = shape();
    if (!method.decodesTokens) config.diffusion = BlockDiffusion{16, 1, !method.canvasParameters.empty()};
    return config;
}

std::string contents(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

/// Files of the program, by their path in the source tree, and how often each has the text.
std::map<std::string, int> placesOf(const std::string& text) {
    std::map<std::string, int> places;
    for (const char* folder : {"core", "kernels", "profiler", "ui", "app", "bench"})
        for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
            const std::string kind = entry.path().extension().string();
            if (kind != ".cpp" && kind != ".h" && kind != ".cu" && kind != ".cuh") continue;
            if (const int found = count(contents(entry.path()), text))
                places[fs::relative(entry.path(), kSource).string()] = found;
        }
    return places;
}

/// The word before "OnDevice" or "Method" in the file that declares the method.
std::string wordBefore(const std::string& text, const std::string& end) {
    const std::size_t at = text.find(end);
    if (at == std::string::npos) return {};
    std::size_t begin = at;
    while (begin > 0 && (std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0)) --begin;
    return text.substr(begin, at + end.size() - begin);
}

/// One file and one line of the registry; with kernels of its own, one file more. The guide says so of every method.
TEST(MethodEntry, IsOneFileAndOneLineAndOneFileMoreForAGpu) {
    std::map<std::string, std::string> files; // by the name of the method
    for (const auto& [path, times] : placesOf("entry.name = \"")) {
        ASSERT_EQ(times, 1) << path;
        const std::string text = contents(kSource / path);
        const std::size_t begin = text.find("entry.name = \"") + 14;
        files[text.substr(begin, text.find('"', begin) - begin)] = path;
    }
    for (const MethodEntry& method : methods()) {
        SCOPED_TRACE(method.name);
        ASSERT_EQ(files.count(method.name), 1u);
        const std::string file = files[method.name], text = contents(kSource / file);
        const std::string maker = wordBefore(text, "Method() {");
        ASSERT_FALSE(maker.empty());
        EXPECT_EQ(placesOf(maker.substr(0, maker.size() - 4)),
                  (std::map<std::string, int>{{file, 1}, {"core/select/registry.cpp", 1}}))
            << "the registry has one line for it";
        const std::string device = wordBefore(text, "OnDevice)");
        EXPECT_EQ(!device.empty(), method.onDevice.exists);
        if (device.empty()) continue;
        std::set<std::string> others;
        for (const auto& [path, times] : placesOf(device.substr(0, device.size() - 1)))
            if (path != file) others.insert(path);
        EXPECT_EQ(others.size(), 1u);
        for (const std::string& path : others) EXPECT_EQ(path.find("core/cuda/select/"), 0u) << path;
    }
}

/// Readers of traces make a method's choice from what a run says of its model, damaged and older traces included.
TEST(MethodEntry, ChoosesByWhatARecordedRunSaysOfItsHeads) {
    for (const MethodEntry& method : methods()) {
        if (!method.decodesTokens) continue;
        SCOPED_TRACE(method.name);
        const auto budgetOf = [&](int queryHeads, int kvHeads) {
            std::vector<std::pair<std::string, std::string>> settings;
            for (const Parameter& parameter : method.parameters)
                if (parameter.key == "group")
                    settings.emplace_back("group", "per_query_head");
                else if (parameter.key == "max_num_kv")
                    settings.emplace_back("max_num_kv", "16777216");
            return specOf(method, settings, configOfHeads(queryHeads, kvHeads, 64)).budgetBlocks();
        };
        const int one = budgetOf(2, 2);
        EXPECT_GE(budgetOf(8, 2), one);
        for (const auto& [queryHeads, kvHeads] : {std::pair(0, 0), {0, 2}, {3, 2}, {1 << 30, 2}, {-8, -2}})
            EXPECT_EQ(budgetOf(queryHeads, kvHeads), one) << queryHeads << " over " << kvHeads;
        EXPECT_GE(budgetOf(4096, 1), one) << "no overflow";
    }
}

/// Only benchmarks and command lines may compare a method's name with a text, to choose a method.
TEST(MethodEntry, NothingDecidesByAMethodsName) {
    const std::set<std::string> baselines{
        "ui/views/roofline/roofline_controls.cpp"}; // full attention, what others are shown beside
    for (const char* comparison : {"method.name ==", "method.name !=", "entry.name !=", "method().name =="})
        for (const auto& [path, times] : placesOf(comparison)) {
            const bool looksUp = path == "ui/figures/common.cpp";
            EXPECT_TRUE(looksUp || baselines.count(path) > 0) << path << ": " << comparison;
        }
}

TEST(MethodEntry, TheExampleOfTheGuideNeedsNoOtherPlace) {
    const MethodEntry example = smallNormMethod();
    EXPECT_TRUE(placesOf(example.name).empty());
    EXPECT_TRUE(placesOf("smallNorm").empty());
    const std::string guide = contents(kSource / "docs/adding-a-method.md");
    const std::size_t begin = guide.find("## The places"), end = guide.find("\n## ", begin + 1);
    ASSERT_NE(begin, std::string::npos);
    const std::string places = guide.substr(begin, end - begin);
    EXPECT_EQ(count(places, "\n1. ") + count(places, "\n2. ") + count(places, "\n3. ") + count(places, "\n4. "), 3);
    for (const char* place : {"core/select/", "core/select/registry.cpp", "core/cuda/select/"})
        EXPECT_THAT(places, HasSubstr(place));
    // What the program asks of a method, the example's one file answers.
    const ModelConfig config = shape();
    const ParameterValues values = resolveDefaults(example, config);
    const SelectionSpec spec = example.make(values, config);
    for (const Backend backend : {Backend::Cpu, Backend::Cuda}) {
        const MethodUse use{values, spec, config, backend};
        EXPECT_TRUE(abilitiesOf(example, use).prompt);
        EXPECT_FALSE(example.memory(use, {1000, 10}).empty());
        EXPECT_EQ(findRefusal(example, use, 1000).has_value(), backend == Backend::Cuda) << "it has no kernels";
    }
}

TEST(MethodEntry, EveryBuildKnowsWhoHasKernels) {
    for (const MethodEntry& method : methods()) {
        EXPECT_TRUE(method.runsOnCuda()) << method.name;
        EXPECT_EQ(method.onDevice.exists, method.makeSelector != nullptr) << method.name;
        EXPECT_EQ(method.makeSelector != nullptr, method.abilities != nullptr)
            << method.name << ": who has a selector says what it can do";
    }
}

TEST(MethodEntry, AbilitiesAreRefusedUntilTheyAreDeclared) {
    const Abilities none;
    EXPECT_FALSE(none.latent || none.pastWindow || none.headNorms || none.sparsePrompt || none.rowsIndependent ||
                 none.quantisedKv);
    EXPECT_FALSE(none.plain || none.input || none.prompt || none.scores || none.after || none.promptAttention ||
                 none.ownKeys || none.logSums || none.valuesByToken || none.looksAhead());
    for (const MethodEntry& method : methods()) {
        const ModelConfig config = shapeFor(method);
        const ParameterValues values = resolveDefaults(method, config);
        const SelectionSpec spec = method.make(values, config);
        EXPECT_EQ(abilitiesOf(method, {values, spec, config}).rowsIndependent, method.name != "infinigen-token")
            << method.name << ": by its paper, all sequences of a batch fetch the same number";
    }
}

std::optional<Error> refusalOf(const char* name, const ModelConfig& config, Backend backend, int longest,
                               const std::vector<std::pair<const char*, const char*>>& settings = {}) {
    const MethodEntry& method = findMethod(name);
    ParameterValues values = resolveDefaults(method, config);
    for (const auto& [key, value] : settings) values.set(method.parameters, key, value);
    const SelectionSpec spec = method.make(values, config);
    return findRefusal(method, {values, spec, config, backend}, longest);
}

TEST(Refusal, NamesTheReasonAndWhoCould) {
    ModelConfig config = shape();
    for (const MethodEntry& method : methods())
        for (const Backend backend : {Backend::Cpu, Backend::Cuda})
            if (method.decodesTokens && method.hasIndexer == nullptr) {
                EXPECT_FALSE(refusalOf(method.name.c_str(), config, backend, 5000)) << method.name;
            }

    ModelConfig windows = config;
    windows.windows = {0, 500, 0, 500};
    const auto past = refusalOf("h2o", windows, Backend::Cuda, 501);
    ASSERT_TRUE(past);
    EXPECT_EQ(past->kind, ErrorKind::Unsupported);
    EXPECT_THAT(past->what(), AllOf(HasSubstr("method h2o on the CUDA backend"), HasSubstr("501 tokens"),
                                    HasSubstr("window of 500")));
    EXPECT_EQ(past->hint,
              "use --backend cpu, or a shorter context, or another method: full, streaming, quest, infllmv2, "
              "dma, nosa");
    EXPECT_FALSE(refusalOf("h2o", windows, Backend::Cuda, 500));
    EXPECT_FALSE(refusalOf("h2o", windows, Backend::Cpu, 501));
    EXPECT_FALSE(refusalOf("quest", windows, Backend::Cuda, 501, {{"bound", "product"}})) << "it scores; others choose";

    ModelConfig latent = config;
    latent.kvHeads = 1;
    latent.latent = LatentAttention{};
    const auto plain = refusalOf("infllmv2", latent, Backend::Cuda, 100, {{"lse", "compressed"}});
    ASSERT_TRUE(plain);
    EXPECT_THAT(plain->what(), HasSubstr("attention is latent"));
    EXPECT_THAT(plain->hint, AllOf(HasSubstr("--backend cpu"), HasSubstr("that infllmv2 has by default"),
                                   HasSubstr("full, streaming, quest"), Not(HasSubstr("h2o"))));

    ModelConfig norms = config;
    norms.queryKeyNorm = true;
    ASSERT_TRUE(refusalOf("locret", norms, Backend::Cuda, 100));
    EXPECT_THAT(refusalOf("locret", norms, Backend::Cuda, 100)->what(), HasSubstr("normalise queries and keys"));
    EXPECT_FALSE(refusalOf("snapkv", norms, Backend::Cuda, 100));

    const auto sparse = refusalOf("infllm", config, Backend::Cuda, 100, {{"prefill", "sparse"}});
    ASSERT_TRUE(sparse);
    EXPECT_THAT(sparse->hint, AllOf(HasSubstr("prefill=full"), HasSubstr("sparda"), Not(HasSubstr("snapkv"))));
    EXPECT_FALSE(refusalOf("infllm", config, Backend::Cpu, 100, {{"prefill", "sparse"}}));
    EXPECT_FALSE(refusalOf("sparda", config, Backend::Cuda, 100, {{"prefill", "sparse"}}));
}

TEST(LayerPlan, SaysWhereALayersChoiceIsMade) {
    const SelectionSpec spec;
    const auto chosen = [&](Ahead ahead) {
        std::vector<Chosen> found;
        for (const LayerPlan& plan : LayerPlans(3, spec, {.ahead = ahead})) found.push_back(plan.chosen);
        return found;
    };
    EXPECT_THAT(chosen(Ahead::No), ElementsAre(Chosen::InLayer, Chosen::InLayer, Chosen::InLayer));
    EXPECT_THAT(chosen(Ahead::NextLayer), ElementsAre(Chosen::InLayer, Chosen::LayerAhead, Chosen::LayerAhead));
    EXPECT_THAT(chosen(Ahead::NextStep), ElementsAre(Chosen::StepAhead, Chosen::StepAhead, Chosen::StepAhead));
}

/// A checkpoint trained with 40 blocks of 32, 3 of them first ones and 7 the window: 30 remain, 960 tokens.
TEST(MethodEntry, BudgetsFollowTheCheckpointThatWasTrainedWithOne) {
    ModelConfig config = shape();
    config.sparse = SparseConfig{16, 8, 32, 3, 7, true, 5, 40, 100, {}, {}, {}};
    const auto expectDefaults = [&](const char* name, const std::map<std::string, std::string>& changed) {
        const MethodEntry& method = findMethod(name);
        const ParameterValues values = resolveDefaults(method, config);
        for (const Parameter& p : method.parameters) {
            const auto found = changed.find(p.key);
            EXPECT_EQ(values.text(p.key), found != changed.end() ? found->second : p.defaultValue)
                << name << " " << p.key;
        }
        for (const auto& [key, value] : changed) EXPECT_TRUE(values.has(key)) << name << " " << key;
    };
    const std::map<std::string, std::string> blocks{
        {"block_size", "32"},   {"sink_blocks", "3"},           {"window_blocks", "7"}, {"kernel_size", "16"},
        {"kernel_stride", "8"}, {"total_blocks", "40"},         {"dense_len", "100"},   {"select_blocks", "5"},
        {"skip_layers", "0"},   {"window_adds_current", "true"}};
    const auto some = [&](std::initializer_list<const char*> keys) {
        std::map<std::string, std::string> part;
        for (const char* key : keys) part[key] = blocks.at(key);
        return part;
    };
    expectDefaults("full", some({"block_size"}));
    auto streaming = some({"block_size", "sink_blocks", "window_adds_current"});
    streaming["window_blocks"] = "36"; // 40 less the sink and the current one
    expectDefaults("streaming", streaming);
    expectDefaults("quest", some({"block_size", "sink_blocks", "window_blocks", "window_adds_current", "total_blocks",
                                  "skip_layers"}));
    const auto pooled = some({"block_size", "sink_blocks", "window_blocks", "window_adds_current", "total_blocks",
                              "kernel_size", "kernel_stride", "dense_len"});
    expectDefaults("infllmv2", pooled);
    expectDefaults("dma", pooled);
    auto shared = pooled;
    shared["select_blocks"] = "5";
    expectDefaults("nosa", shared);
    expectDefaults("sparda", shared);
    expectDefaults("infinigen", some({"block_size", "sink_blocks", "window_blocks", "window_adds_current",
                                      "total_blocks", "dense_len"}));
    // Sink and window of these stay the paper's.
    for (const char* name : {"infinigen-token", "double-sparsity", "h2o", "snapkv"})
        expectDefaults(name, some({"block_size"}));
    expectDefaults("arkvale", {{"block_size", "32"}, {"page_budget", "40"}, {"skip_layers", "0"}});
    expectDefaults("asynctls", {{"block_size", "32"}, {"k_b", "40"}});
    expectDefaults("dma-token", {{"block_size", "32"}, {"budget_tokens", "960"}});
    expectDefaults("locret",
                   {{"block_size", "32"}, {"budget_tokens", "960"}, {"stabilizers", "400"}, {"prefill_chunk", "491"}});
    expectDefaults("shadowkv", {{"block_size", "32"}, {"budget_tokens", "960"}, {"outlier_tokens", "180"}});
    expectDefaults("infllm", {{"block_size", "32"},
                              {"init_tokens", "96"},
                              {"local_tokens", "224"},
                              {"topk_blocks", "30"},
                              {"cached_blocks", "60"}});
    // Where the checkpoint does not say how many blocks there are in all, budgets stay.
    config.sparse->totalBlocks = 0;
    expectDefaults("locret", some({"block_size"}));
    expectDefaults("streaming", some({"block_size", "sink_blocks", "window_blocks", "window_adds_current"}));
    config.sparse.reset();
    for (const MethodEntry& method : methods())
        if (method.decodesTokens) expectDefaults(method.name.c_str(), {});
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

// What is said of a model, and the memory it is said to need against what a session takes.
#include "core/session/model_summary.h"

#include "base/error.h"
#include "core/kv/kv_cache.h"
#include "core/select/refusal.h"
#include "core/session/engine.h"
#include "tests/core/diffusion_model.h"
#include "tests/core/files.h"
#include "tests/core/tiny_checkpoint.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::shared_ptr<const Model> family(const test::Folder& folder, const std::string& name) {
    for (const char* file : {"config.json", "model.safetensors"})
        fs::create_symlink(fs::path(test::source("tests/golden/families")) / name / file, folder / file);
    fs::create_symlink(fs::path(test::source("tests/golden/hf_llama/tokenizer.json")), folder / "tokenizer.json");
    return Model::load(folder.path().string());
}

const SessionMemory& need(const std::vector<SessionMemory>& needs, const std::string& method, Backend backend) {
    for (const SessionMemory& entry : needs)
        if (entry.method == method && entry.backend == backend) return entry;
    throw std::runtime_error("no entry for " + method);
}

TEST(ModelSummary, DescribesTheEmbeddedModel) {
    const auto model = Model::load(kDefaultModel);
    const ModelSummary s = summarize(*model);
    EXPECT_EQ(s.family, "Llama");
    EXPECT_THAT(s.attention, HasSubstr("6 query heads on 2 KV heads of 64"));
    EXPECT_EQ(s.weights, "bf16");
    EXPECT_THAT(s.rope, HasSubstr("theta 500000"));
    EXPECT_EQ(s.scales, "");
    EXPECT_EQ(s.gpuProblem, "");
    EXPECT_EQ(s.kvBytesPerTokenCpu, 8 * 2 * 2 * 64 * 4);
    for (const MethodFit& fit : s.methods) {
        const bool denoises = fit.name == "losa" || fit.name == "sparsed" ||
                              fit.name == "sparse-dllm"; // masks; this model decodes token by token
        const bool needsIndexer = fit.name == "dsa" || fit.name == "msa";
        EXPECT_EQ(fit.applies, !denoises && !needsIndexer) << fit.name;
        EXPECT_EQ(fit.remark.empty(), fit.applies) << fit.name;
    }
}

TEST(ModelSummary, SaysWhyAMethodOrTheGpuCannotRunAModel) {
    const test::Folder folder;
    const auto model = family(folder, "deepseek2-lite");
    const ModelSummary s = summarize(*model);
    EXPECT_THAT(s.attention, HasSubstr("latent"));
    EXPECT_THAT(s.feedForward, HasSubstr("3 of 8 experts"));
    EXPECT_THAT(s.gpuProblem, HasSubstr("latent attention"));
    EXPECT_EQ(s.kvBytesPerTokenCpu, 2 * (24 + 8) * 4); // layers x one key: the value is part of it
    for (const MethodFit& fit : s.methods) {
        const MethodEntry& method = findMethod(fit.name);
        const bool lacksHead = !hasWeightsFor(method, *model);
        EXPECT_EQ(lacksHead, method.needsEvictionHead || method.needsForecastHeads || fit.name == "locret" ||
                                 fit.name == "dsa" || fit.name == "msa" || fit.name == "losa" ||
                                 fit.name == "sparsed" || fit.name == "sparse-dllm");
        const bool needsPlainHeads = fit.name == "shadowkv" || fit.name == "infinigen" || fit.name == "infinigen-token";
        EXPECT_EQ(fit.applies, !lacksHead && !needsPlainHeads) << fit.name << ": " << fit.remark;
        EXPECT_EQ(fit.remark.empty(), fit.applies) << fit.name;
        if (method.needsEvictionHead) {
            EXPECT_THAT(fit.remark, HasSubstr("eviction head"));
        }
    }
    for (const SessionMemory& entry : memoryNeeds(*model, 300, 1))
        EXPECT_EQ(entry.backend, Backend::Cpu) << entry.method;
}

TEST(ModelSummary, NamesTheIndexerAndItsMemory) {
    const test::Folder folder;
    const auto model = family(folder, "glm-dsa"); // three layers, of which the second shares the first one's choice
    EXPECT_THAT(summarize(*model).attention,
                HasSubstr("lightning indexer of 4 heads of 16 channels in 2 of 3 layers, which chooses 512 tokens"));
    // A key of each token in the layers that have an indexer, and for each layer where 1,024 tokens of 300 may lie.
    const auto needs = memoryNeeds(*model, 300, 2);
    EXPECT_EQ(need(needs, "dsa", Backend::Cpu).indexBytes, 2 * (2 * 300 * 16 * 4 + 3 * (3 * 300 + 300) * 4));
}

TEST(ModelSummary, NamesWindowsAndScales) {
    const test::Folder windows, scales;
    EXPECT_THAT(summarize(*family(windows, "mistral-window")).attention, HasSubstr("last 40 tokens"));
    EXPECT_THAT(summarize(*family(scales, "minicpm4")).scales, HasSubstr("embeddings x12"));
}

TEST(ModelSummary, MemoryIsWhatACacheTakes) {
    const auto model = Model::load(kDefaultModel);
    const ModelConfig& config = model->config();
    const auto needs = memoryNeeds(*model, 5000, 3);
    for (const std::string method : {"full", "nosa", "quest"}) {
        const MethodEntry& entry = findMethod(method);
        const SelectionSpec spec = entry.make(resolveDefaults(entry, config), config);
        KvCacheOptions options;
        options.shape = {config.layers, config.kvHeads, config.headDim, config.valueDim()};
        options.layout = {spec.blockSize, config.headDim, spec.bias.scale != 0.f, config.storedValueDim()};
        options.maxTokens = {5000, 5000, 5000};
        options.plans = LayerPlans(config, spec, {});
        options.slots = spec.dense ? 0 : spec.budgetBlocks();
        EXPECT_EQ(need(needs, method, Backend::Cpu).hostKvBytes, KvCache::storeBytes(options)) << method;
        EXPECT_EQ(need(needs, method, Backend::Cpu).deviceKvBytes, KvCache::poolBytes(options)) << method;
    }
    EXPECT_THROW(memoryNeeds(*model, 0, 1), Error);
    EXPECT_THROW(memoryNeeds(*model, config.maxPositions + 1, 1), Error);
    EXPECT_THROW(memoryNeeds(*model, 10, 257), Error);
}

/// Of nosa-tiny: 8 layers, 6 query heads on 2 KV heads of 64 channels. 6400 tokens are 100 blocks of 64.
TEST(ModelSummary, MemoryOfMethodsThatRememberMoreThanBlocks) {
    const auto model = Model::load(kDefaultModel);
    const auto needs = memoryNeeds(*model, 6400, 3);
    const auto places = [&](const char* method) { // sequences x layers in which it chooses x KV heads
        const MethodEntry& entry = findMethod(method);
        const ModelConfig& config = model->config();
        return std::int64_t(3) * (8 - entry.make(resolveDefaults(entry, config), config).denseLayers) * 2;
    };
    // Two vectors a page, and the keys of the open page; on the GPU half numbers and a byte that says what is resident.
    EXPECT_EQ(need(needs, "arkvale", Backend::Cpu).indexBytes, places("arkvale") * (2 * 100 + 64) * 64 * 4);
    // 8 of 64 channels at 4 bits, step and minimum; all keys and values wait on the host.
    EXPECT_EQ(need(needs, "double-sparsity", Backend::Cpu).indexBytes, places("double-sparsity") * 6400 * (4 + 8));
    // A tenth of the tokens are heavy hitters, a tenth recent, and the newest: a place and a mass for each.
    EXPECT_EQ(need(needs, "h2o", Backend::Cpu).indexBytes, places("h2o") * 1281 * 12);
    EXPECT_EQ(need(needs, "infinigen", Backend::Cpu).indexBytes, places("infinigen") * (6400 + 64) * 32 * 4);
    // Rank 20 of 128 for both KV heads together, and a landmark for every 8 tokens but the last 32.
    EXPECT_EQ(need(needs, "shadowkv", Backend::Cpu).indexBytes,
              places("shadowkv") / 2 * ((6400 + 128) * 20 + 2 * 796 * 64) * 4);
    // On the CPU it reads its tokens where every block is stored.
    EXPECT_EQ(need(needs, "h2o", Backend::Cpu).hostKvBytes, need(needs, "full", Backend::Cpu).hostKvBytes);
    EXPECT_EQ(need(needs, "h2o", Backend::Cpu).deviceKvBytes, 0);
    for (const MethodEntry& method : methods()) {                            // nobody forgets to state it
        if (!method.decodesTokens || method.hasIndexer != nullptr) continue; // of other models alone
        const SelectionSpec spec = method.make(resolveDefaults(method, model->config()), model->config());
        if (method.makeSelector && spec.queryScore == QueryScore::None) {
            EXPECT_GT(need(needs, method.name, Backend::Cpu).indexBytes, 0) << method.name;
        }
    }
    // The KV heads of a layer share a set of pages. On a GPU the eviction head's scores of all tokens count too.
    const std::int64_t scores = 3 * 8 * 2 * 6400 * 4;
    EXPECT_EQ(need(needs, "arkvale", Backend::Cuda).indexBytes,
              places("arkvale") * (2 * 100 + 64) * 64 * 2 + places("arkvale") / 2 * 100 + scores);
    EXPECT_EQ(need(needs, "full", Backend::Cuda).indexBytes, scores);
    // What is kept lies on the device in 21 blocks, in bf16, and nothing on the host.
    EXPECT_EQ(need(needs, "h2o", Backend::Cuda).hostKvBytes, 0);
    EXPECT_EQ(need(needs, "h2o", Backend::Cuda).deviceKvBytes, places("h2o") * 21 * 64 * 2 * 64 * 2);
    EXPECT_EQ(need(needs, "h2o", Backend::Cuda).blockSlots, 21);
    EXPECT_EQ(need(needs, "double-sparsity", Backend::Cuda).hostKvBytes, places("double-sparsity") * 6400 * 2 * 64 * 2);
    EXPECT_EQ(need(needs, "double-sparsity", Backend::Cuda).deviceKvBytes, 3 * 2 * 4 * 64 * 2 * 64 * 2)
        << "the layers of a step use them one after another";
    // So do all keys and values of a method that fetches tokens one layer ahead.
    EXPECT_EQ(need(needs, "infinigen-token", Backend::Cuda).hostKvBytes, places("infinigen-token") * 6400 * 2 * 64 * 2);
    // Values alone wait on the host; keys are made again from their low-rank form.
    EXPECT_EQ(need(needs, "shadowkv", Backend::Cuda).hostKvBytes, places("shadowkv") * 796 * 8 * 64 * 2);
    for (const MethodEntry& method : methods())
        if (method.decodesTokens && method.hasIndexer == nullptr) {
            EXPECT_EQ(std::any_of(needs.begin(), needs.end(),
                                  [&](const SessionMemory& n) {
                                      return n.method == method.name && n.backend == Backend::Cuda;
                                  }),
                      method.runsOnCuda())
                << method.name;
        }
}

TEST(ModelSummary, NamesEveryTypeOfTheWeights) {
    const test::Folder folder;
    test::TinyCheckpoint checkpoint("BF16");
    checkpoint.tensors["model.layers.1.mlp.up_proj.weight"] =
        test::TinyCheckpoint("F32").tensors.at("model.layers.1.mlp.up_proj.weight");
    checkpoint.writeTo(folder.path());
    EXPECT_EQ(summarize(*Model::load(folder.path().string())).weights, "bf16, f32");
}

TEST(ModelSummary, SaysWhatAFileOfMistralCannotState) {
    const test::Folder folder;
    if (!fs::exists(test::source("tests/golden/gguf/families")))
        GTEST_SKIP() << "this checkout leaves out tests/golden/gguf/families";
    const fs::path file = folder / "Mistral-7B.gguf";
    fs::create_symlink(fs::path(test::source("tests/golden/gguf/families/mistral.gguf")), file);
    const auto model = Model::load(file.string());
    ASSERT_EQ(summarize(*model).notes.size(), 1u);
    EXPECT_THAT(summarize(*model).notes.front(), HasSubstr("cannot state a sliding window"));
    EXPECT_TRUE(summarize(*Model::load(kDefaultModel)).notes.empty());
}

/// Copies an embedded model's folder, with one change of its config.json. @return the notes of the copy
std::vector<std::string> notesWith(const char* model, const std::function<void(nlohmann::json&)>& change) {
    const test::Folder folder;
    for (const auto& entry : fs::directory_iterator(test::source("resources/models") / fs::path(model)))
        if (entry.path().filename() != "config.json")
            fs::create_symlink(entry.path(), folder / entry.path().filename());
    nlohmann::json json =
        nlohmann::json::parse(test::contentsOf(test::source("resources/models") / fs::path(model) / "config.json"));
    change(json);
    std::ofstream(folder / "config.json") << json.dump();
    return notesOf(*Model::load(folder.path().string()));
}

TEST(ModelSummary, NotesWhatSparseSettingsSayOfOtherMethodsAndTensors) {
    const auto with = [](const char* key, const nlohmann::json& value) {
        return notesWith("nosa-tiny", [&](nlohmann::json& json) { json["sparse_attention"][key] = value; });
    };
    EXPECT_THAT(with("method", "infllmv2"), testing::IsEmpty());
    EXPECT_THAT(with("method", "nossa"), testing::ElementsAre(HasSubstr("the method 'nossa'")));
    EXPECT_THAT(with("eviction_head", false),
                testing::ElementsAre(HasSubstr("eviction_head false, and the model has their tensors")));
}

TEST(ModelSummary, NotesAMaskThatTextsAreMadeOf) {
    KVSCOPE_NEEDS_LOSA_TINY();
    const auto with = [](int mask) {
        return notesWith("losa-tiny", [&](nlohmann::json& json) { json["mask_token_id"] = mask; });
    };
    EXPECT_THAT(with(4096), testing::IsEmpty());
    EXPECT_THAT(with(4097), testing::ElementsAre(HasSubstr("4097 of config.json is none of the tokenizer's tokens")));
    EXPECT_THAT(with(300), testing::ElementsAre(HasSubstr("mask_token_id 300 of config.json is the token")));
}

/// GGUF files of Llama models rotate neighbouring channels; the kernels that rotate keys themselves know that form.
TEST(ModelSummary, NeighbouringChannelsKeepNoMethodFromTheGpu) {
    ModelConfig config = Model::load(kDefaultModel)->config();
    for (const bool interleaved : {false, true}) {
        config.rope.interleaved = interleaved;
        for (const char* method : {"nosa", "infllm", "shadowkv", "infinigen", "infinigen-token", "sparda", "arkvale"})
            EXPECT_TRUE(couldRun(findMethod(method), config, Backend::Cuda, 1000)) << method;
    }
}

/// Kernels of a method's own know no sliding window; those that all methods share do.
TEST(ModelSummary, PastASlidingWindowTheGpuHasTheMethodsThatAreData) {
    ModelConfig config = Model::load(kDefaultModel)->config();
    config.windows.assign(std::size_t(config.layers), 500);
    config.windows.front() = 0;
    for (const char* method : {"full", "streaming", "quest", "infllmv2", "nosa", "dma"})
        for (const int tokens : {500, 501})
            EXPECT_TRUE(couldRun(findMethod(method), config, Backend::Cuda, tokens)) << method;
    for (const char* method : {"h2o", "snapkv", "infllm", "shadowkv", "infinigen", "sparda", "arkvale"}) {
        EXPECT_TRUE(couldRun(findMethod(method), config, Backend::Cuda, 500)) << method;
        EXPECT_FALSE(couldRun(findMethod(method), config, Backend::Cuda, 501)) << method;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

// What is said of a model, and the memory it is said to need against what a session takes.
#include "core/session/model_summary.h"

#include "core/kv/kv_cache.h"
#include "kernels/base/error.h"
#include "tests/profiler/temporary_folder.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::shared_ptr<const Model> family(const test::Folder& folder, const std::string& name) {
    for (const char* file : {"config.json", "model.safetensors"})
        fs::create_symlink(fs::path(KVSCOPE_TEST_DATA) / "golden/families" / name / file, folder / file);
    fs::create_symlink(fs::path(KVSCOPE_TEST_DATA) / "golden/hf_llama/tokenizer.json", folder / "tokenizer.json");
    return Model::load(folder.path().string());
}

const MemoryNeed& need(const std::vector<MemoryNeed>& needs, const std::string& method, Backend backend) {
    for (const MemoryNeed& entry : needs)
        if (entry.method == method && entry.backend == backend) return entry;
    throw std::runtime_error("no entry for " + method);
}

TEST(ModelSummary, DescribesTheEmbeddedModel) {
    const auto model = Model::load(kDefaultModel);
    const ModelSummary s = summarize(*model);
    EXPECT_EQ(s.family, "Llama");
    EXPECT_THAT(s.attention, HasSubstr("3 query heads to a KV head of 64"));
    EXPECT_THAT(s.rope, HasSubstr("theta 500000"));
    EXPECT_EQ(s.scales, "");
    EXPECT_EQ(s.gpuProblem, "");
    EXPECT_EQ(s.kvBytesPerTokenCpu, 8 * 2 * 2 * 64 * 4);
    for (const MethodFit& fit : s.methods) EXPECT_TRUE(fit.applies) << fit.name;
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
        EXPECT_EQ(lacksHead, method.needsEvictionHead || method.needsForecastHeads || fit.name == "locret");
        const bool needsPlainHeads = fit.name == "shadowkv" || fit.name == "infinigen" || fit.name == "infinigen-token";
        EXPECT_EQ(fit.applies, !lacksHead && !needsPlainHeads) << fit.name << ": " << fit.remark;
        EXPECT_EQ(fit.remark.empty(), fit.applies) << fit.name;
        if (method.needsEvictionHead) {
            EXPECT_THAT(fit.remark, HasSubstr("eviction head"));
        }
    }
    for (const MemoryNeed& entry : memoryNeeds(*model, 300, 1)) EXPECT_EQ(entry.backend, Backend::Cpu) << entry.method;
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
        options.offloaded.assign(std::size_t(config.layers), !spec.dense);
        options.slots = spec.dense ? 0 : spec.budgetBlocks();
        EXPECT_EQ(need(needs, method, Backend::Cpu).hostKvBytes, KvCache::storeBytes(options)) << method;
        EXPECT_EQ(need(needs, method, Backend::Cpu).deviceKvBytes, KvCache::poolBytes(options)) << method;
    }
    EXPECT_THROW(memoryNeeds(*model, 0, 1), Error);
    EXPECT_THROW(memoryNeeds(*model, config.maxPositions + 1, 1), Error);
    EXPECT_THROW(memoryNeeds(*model, 10, 257), Error);
}

} // namespace
} // namespace kvscope

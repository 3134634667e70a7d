// Sessions whose full KV blocks are kept in 16, 8 or 4 bits (--kv-type), on the CPU backend.
#include "core/kv/kv_cache.h"
#include "core/session/decode_session.h"
#include "core/session/kv_estimate.h"
#include "tests/core/diffusion_model.h"
#include "tests/core/embedded_model.h"
#include "tests/core/quantised_session.h"
#include "tests/core/small_budgets.h"
#include "tests/support/random_prompt.h"
#include "tests/support/refusal.h"

#include "core/cache/cache_policy.h"
#include "core/plan/kv_format.h"
#include "core/select/refusal.h"
#include "core/session/engine_setup.h"
#include "kernels/quantised_kv.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr KvType kQuantised[] = {KvType::BF16, KvType::FP8, KvType::INT8, KvType::INT4};

const std::shared_ptr<const Model>& model() { return test::quantisedModel(); }

/// Budgets that make every method choose, and blocks of 16 tokens, of which a run fills some.
SessionOptions optionsFor(const std::string& method, std::optional<KvType> type) {
    SessionOptions options;
    options.method = method;
    options.settings = test::smallBudgets(resolveDefaults(findMethod(method), model()->config()));
    options.maxNewTokens = 24;
    options.stopAtEos = false;
    options.threads = 1;
    options.kvType = type;
    return options;
}

using Outcome = test::DecodedSession;

Outcome decode(const SessionOptions& options) {
    return test::decodeAll(options, {test::randomPrompt(217, 1), test::randomPrompt(195, 2)});
}

struct Case {
    const char* method;
    std::vector<std::pair<std::string, std::string>> settings;
};

/// Every method that takes such blocks, in each of the ways in which it reads the cache.
const std::vector<Case>& cases() {
    static const std::vector<Case> all{{"full", {}},
                                       {"streaming", {}},
                                       {"quest", {}},
                                       {"quest", {{"bound", "cuboid-mean"}}},
                                       {"quest", {{"group", "per_query_head"}}},
                                       {"infllmv2", {}},
                                       {"infllmv2", {{"lse", "compressed"}}},
                                       {"dma", {}},
                                       {"nosa", {}},
                                       {"nosa", {{"prefill", "sparse"}}}};
    return all;
}

TEST(QuantisedSession, TokensAreTheSameWhereverTheBlocksLie) {
    KVSCOPE_NEEDS_NOSA_TINY();
    for (const KvType type : kQuantised)
        for (const auto& [method, settings] : cases()) {
            if (type != KvType::INT8 && method != std::string("nosa"))
                continue; // the types differ in the kernels alone
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << method);
            SessionOptions options = optionsFor(method, type);
            options.settings.insert(options.settings.end(), settings.begin(), settings.end());
            const Outcome offloaded = decode(options);
            options.deviceKvBlocks.reset();
            options.offload = false;
            const Outcome resident = decode(options);
            EXPECT_EQ(offloaded.ids, resident.ids);
            EXPECT_EQ(offloaded.logits, resident.logits);
            if (findMethod(method).blocksTravel && method != std::string("streaming")) {
                EXPECT_GT(offloaded.summary.misses, 0);
            }
        }
}

TEST(QuantisedSession, MoreSlotsAndAnotherPolicyChangeNoToken) {
    KVSCOPE_NEEDS_NOSA_TINY();
    SessionOptions options = optionsFor("nosa", KvType::INT4);
    const Outcome few = decode(options);
    options.deviceKvBlocks = 14;
    options.cachePolicy = "lru";
    const Outcome many = decode(options);
    EXPECT_EQ(few.logits, many.logits);
    EXPECT_LT(many.summary.misses, few.summary.misses);
}

/// Of the same bytes, after the block that is being written has its own. No GPU is needed to ask.
TEST(QuantisedSession, AGpuHasAboutTwiceTheSlotsInTheSameBytes) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const MethodEntry& method = findMethod("nosa");
    const std::vector<std::vector<std::int32_t>> prompts{test::randomPrompt(6000, 1)};
    const auto slotsOf = [&](std::optional<KvType> type, std::int64_t blocks) {
        SessionOptions options = optionsFor("nosa", type);
        options.backend = Backend::Cuda;
        options.deviceKvBlocks.reset();
        const ModelConfig& config = test::quantisedModel()->config();
        ParameterValues values = resolveDefaults(method, config);
        for (const auto& [key, value] : options.settings) values.set(method.parameters, key, value);
        const SelectionSpec spec = method.make(values, config);
        const std::int64_t heads = std::int64_t(config.kvHeads) * LayerPlans(config, spec, {}).offloaded();
        options.deviceKvBytes = heads * blocks * kvFormat(Backend::Cuda, config, spec).blockBytes();
        return engineSetup(test::quantisedModel(), prompts, options, method, values, spec, RecordLevel::Counters).slots;
    };
    EXPECT_EQ(slotsOf({}, 30), 30);
    EXPECT_EQ(slotsOf(KvType::BF16, 30), 30);
    // 29 blocks of 16 tokens and 64 channels, 4,096 bytes each, are 51 of 2,304 bytes or 84 of 1,408.
    EXPECT_EQ(slotsOf(KvType::INT8, 30), 51);
    EXPECT_EQ(slotsOf(KvType::FP8, 30), 51);
    EXPECT_EQ(slotsOf(KvType::INT4, 30), 84);
}

TEST(QuantisedSession, TheBackendsOwnTypeIsNoQuantisation) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const Outcome plain = decode(optionsFor("nosa", {})), own = decode(optionsFor("nosa", KvType::F32));
    EXPECT_EQ(plain.logits, own.logits);
    EXPECT_EQ(plain.sink.info.paramsJson, own.sink.info.paramsJson);
    EXPECT_THAT(plain.sink.info.paramsJson, testing::Not(HasSubstr("kv_type")));
}

/// The prompt is read before its blocks are quantised, so that the first token is float32's. Later logits differ, and
/// the more so the fewer bits there are.
TEST(QuantisedSession, FewerBitsMoveTheLogitsFurther) {
    KVSCOPE_NEEDS_NOSA_TINY();
    SessionOptions options = optionsFor("full", {});
    options.maxNewTokens = 2;
    const Outcome exact = decode(options);
    const auto distance = [&](KvType type) {
        options.kvType = type;
        const Outcome out = decode(options);
        EXPECT_EQ(out.logits[0], exact.logits[0]);
        double most = 0;
        for (std::size_t i = 0; i < exact.logits[1].size(); ++i)
            most = std::max(most, std::abs(double(out.logits[1][i]) - double(exact.logits[1][i])));
        return most;
    };
    const double bf16 = distance(KvType::BF16), int8 = distance(KvType::INT8), int4 = distance(KvType::INT4);
    EXPECT_GT(bf16, 0);
    EXPECT_LT(bf16, 0.2);
    EXPECT_LT(int8, 0.5);
    EXPECT_LT(std::max(bf16, int8), int4);
}

TEST(QuantisedSession, BytesAreThoseOfQuantisedBlocks) {
    KVSCOPE_NEEDS_NOSA_TINY();
    for (const KvType type : kQuantised) {
        SCOPED_TRACE(nameOf(type));
        const Outcome out = decode(optionsFor("infllmv2", type));
        const RunInfo& info = out.sink.info;
        const ModelConfig& config = model()->config();
        const std::int64_t bytes =
            KvFormat{type, info.blockSize, config.headDim, config.headDim, model()->hasEvictionHead()}.blockBytes();
        EXPECT_EQ(info.blockBytes, bytes);
        EXPECT_EQ(nlohmann::json::parse(info.paramsJson).at("kv_type"), std::string(nameOf(type)));
        std::int64_t loaded = 0, written = 0;
        for (const StepRecord& step : out.sink.steps)
            for (const LayerRecord& layer : step.layers) {
                EXPECT_EQ(layer.h2dBytes, layer.h2dBlocks * bytes);
                EXPECT_EQ(layer.d2hBytes, layer.d2hBlocks * bytes);
                loaded += layer.h2dBlocks, written += step.step > 0 ? layer.d2hBlocks : 0;
            }
        EXPECT_EQ(loaded, out.summary.misses);
        EXPECT_EQ(out.summary.h2dBytes, out.summary.misses * bytes);
        EXPECT_GT(written, 0); // blocks that a step filled
    }
}

TEST(QuantisedSession, MemoryIsWhatACacheTakes) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const ModelConfig& config = model()->config();
    for (const KvType type : kQuantised)
        for (const std::string method : {"full", "nosa", "quest"}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << method);
            const MethodEntry& entry = findMethod(method);
            const ParameterValues values = resolveDefaults(entry, config);
            const SelectionSpec spec = entry.make(values, config);
            const KvEstimate estimate = estimateKv(
                *model(), entry, {values, spec, config, Backend::Cpu, true, model().get(), type}, {4990, 10}, 3);
            KvCacheOptions options;
            options.shape = {config.layers, config.kvHeads, config.headDim, config.valueDim()};
            options.layout = {spec.blockSize, config.headDim, spec.bias.scale != 0.f, config.storedValueDim()};
            options.maxTokens = {5000, 5000, 5000};
            options.plans = LayerPlans(config, spec, {});
            options.slots = spec.dense ? 0 : spec.budgetBlocks();
            options.type = type;
            EXPECT_EQ(estimate.hostBytes, KvCache::storeBytes(options));
            EXPECT_EQ(estimate.deviceBytes, KvCache::poolBytes(options));
        }
}

TEST(QuantisedSession, MethodsThatReadTheirBlocksThemselvesAreRefused) {
    KVSCOPE_NEEDS_NOSA_TINY();
    for (const char* method : {"h2o", "snapkv", "shadowkv", "arkvale", "infllm", "asynctls", "double-sparsity",
                               "infinigen", "infinigen-token", "dma-token"}) {
        SCOPED_TRACE(method);
        if (!hasWeightsFor(findMethod(method), *model())) continue;
        const std::string refusal = test::refusalOf([&] { decode(optionsFor(method, KvType::INT8)); },
                                                    "reads single keys and values of its KV blocks", 700);
        EXPECT_THAT(refusal, HasSubstr("--kv-type f32"));
        EXPECT_THAT(kvTypesOf(findMethod(method), Backend::Cpu), ElementsAre(KvType::F32));
    }
    EXPECT_THAT(kvTypesOf(findMethod("nosa"), Backend::Cpu),
                ElementsAre(KvType::F32, KvType::BF16, KvType::FP8, KvType::INT8, KvType::INT4));
}

TEST(QuantisedSession, ModelsThatDenoiseAreRefused) {
    KVSCOPE_NEEDS_LOSA_TINY();
    SessionOptions options;
    options.method = "full";
    options.kvType = KvType::INT8;
    CollectingSink sink;
    EXPECT_THAT(test::failureOf([&] {
                    DecodeSession(test::losaTiny(), {{1, 2, 3}}, options, sink);
                }),
                HasSubstr("leave --kv-type out"));
}

/// A prompt's blocks are float32 while a layer reads it. Then the full ones are in the store, quantised, and the rest
/// is the block that is being written.
TEST(QuantisedCache, StoresAPromptsFullBlocks) {
    SelectionSpec spec;
    spec.blockSize = spec.grid.blockSize = 16;
    KvCacheOptions options;
    options.shape = {1, 1, 8, 8};
    options.layout = {16, 8, false, -1};
    options.maxTokens = {64};
    options.plans = LayerPlans(1, spec, {.offload = false});
    options.type = KvType::INT8;
    KvCache cache(options, spec, findCachePolicy("keep-selected"));
    const RowId row{0};
    const LayerId layer{0};
    KvHead& head = cache.head(row, layer, KvHeadId{0});
    cache.beginPrompt(row, layer, 20);
    for (int t = 0; t < 20; ++t) {
        const std::vector<float> key(8, float(t)), value(8, float(-t));
        cache.layout().write(cache.promptBlock(head, BlockId{t / 16}), t % 16, key.data(), value.data(), 0.f);
    }
    EXPECT_EQ(*cache.storedKey(head, 19), 19.f);
    cache.storePrompt(head, 20);
    cache.endPrompt(row, layer);
    std::vector<float> key(8);
    cache.layout().readKey(head.tail, 3, key.data());
    EXPECT_THAT(key, testing::Each(19.f));
    const KvBlockView view = cache.view(cache.storeBlock(head, BlockId{0}), 16, 0);
    ASSERT_NE(view.quantised, nullptr);
    std::vector<float> keys(8 * 16), values(8 * 16);
    readKeys(cache.format(), view.quantised, keys.data());
    readValues(cache.format(), view.quantised, 16, values.data());
    for (int t = 0; t < 16; ++t) {
        EXPECT_NEAR(keys[std::size_t(t)], float(t), 15.f / 127 * 0.6f);
        EXPECT_NEAR(values[std::size_t(t * 8)], float(-t), 0.02f) << "a scale for each token";
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

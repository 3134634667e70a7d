// Sessions whose full KV blocks are kept in 8 or 4 bits on the GPU (--kv-type), against the CPU's.
#include "core/session/decode_session.h"
#include "tests/core/backend.h"
#include "tests/core/embedded_model.h"
#include "tests/core/quantised_session.h"
#include "tests/core/small_budgets.h"
#include "tests/support/random_prompt.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

const std::shared_ptr<const Model>& model() { return test::quantisedModel(); }

using Outcome = test::DecodedSession;

/// method: its name, behind which ahead=forecast may stand.
Outcome run(Backend backend, const std::string& method, std::optional<KvType> type, bool offload, int newTokens = 40,
            std::optional<std::int64_t> slots = {}, std::vector<std::vector<std::int32_t>> given = {}) {
    SessionOptions options;
    options.backend = backend;
    options.method = method.substr(0, method.find(' '));
    options.settings = test::smallBudgets(resolveDefaults(findMethod(options.method), model()->config()));
    if (options.method != method) options.settings.emplace_back("ahead", "forecast");
    options.maxNewTokens = newTokens;
    options.stopAtEos = false;
    options.offload = offload;
    options.kvType = type;
    options.deviceKvBlocks = slots;
    options.given = std::move(given);
    options.twoInFlight = false; // whose logits would be of the step after
    return test::decodeAll(options, {test::randomPrompt(331, 1), test::randomPrompt(304, 2)});
}

constexpr KvType kTypes[] = {KvType::FP8, KvType::INT8, KvType::INT4};
constexpr const char* kLooksAhead[] = {"sparda", "nosa ahead=forecast", "infllmv2 ahead=forecast"};

class QuantisedOnCuda : public ::testing::Test {
protected:
    void SetUp() override {
        if (!test::onCuda()) GTEST_SKIP() << "with KVSCOPE_TEST_BACKEND=cuda";
        KVSCOPE_NEEDS_NOSA_TINY();
    }
};

TEST_F(QuantisedOnCuda, TokensAreTheSameWhereverTheBlocksLie) {
    for (const KvType type : kTypes)
        for (const char* method : {"streaming", "quest", "infllmv2", "dma", "nosa"}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << method);
            const Outcome offloaded = run(Backend::Cuda, method, type, true),
                          resident = run(Backend::Cuda, method, type, false);
            EXPECT_EQ(offloaded.ids, resident.ids);
            EXPECT_EQ(offloaded.logits, resident.logits);
        }
}

/// Blocks that decoding fills go to their slots and to the host, are evicted and come back.
TEST_F(QuantisedOnCuda, BlocksThatFillWhileDecodingAreTheSameWhereverTheyLie) {
    constexpr int kSteps = 270;
    for (const KvType type : kTypes)
        for (const char* method : {"nosa", "dma"}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << method);
            const Outcome offloaded = run(Backend::Cuda, method, type, true, kSteps),
                          resident = run(Backend::Cuda, method, type, false, kSteps);
            EXPECT_EQ(offloaded.ids, resident.ids);
            for (std::size_t step = 0; step < resident.logits.size(); ++step)
                ASSERT_EQ(offloaded.logits[step], resident.logits[step]) << "step " << step;
            if (method != std::string("nosa")) continue;
            EXPECT_GT(offloaded.summary.misses, 0);
            const Outcome roomy = run(Backend::Cuda, method, type, true, kSteps, 14);
            EXPECT_EQ(roomy.ids, resident.ids);
            for (std::size_t step = 0; step < resident.logits.size(); ++step)
                ASSERT_EQ(roomy.logits[step], resident.logits[step]) << "step " << step << ", with slots to spare";
            EXPECT_LT(roomy.summary.misses, offloaded.summary.misses);
        }
}

/// The same where the layer before chooses: tokens go beside the slots of a list that is older than they are, and
/// blocks travel beside the step, in one kernel for all of it or in one for each layer.
TEST_F(QuantisedOnCuda, BlocksThatTravelALayerAheadAreTheSameWhereverTheyLie) {
    constexpr int kSteps = 150;
    for (const KvType type : kTypes)
        for (const char* method : kLooksAhead) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << method);
            const Outcome resident = run(Backend::Cuda, method, type, false, kSteps);
            for (const char* loop : {"1", "0"}) {
                SCOPED_TRACE(testing::Message() << "KVSCOPE_TRANSFER_LOOP=" << loop);
                setenv("KVSCOPE_TRANSFER_LOOP", loop, 1);
                const Outcome offloaded = run(Backend::Cuda, method, type, true, kSteps);
                unsetenv("KVSCOPE_TRANSFER_LOOP");
                EXPECT_EQ(offloaded.ids, resident.ids);
                for (std::size_t step = 0; step < resident.logits.size(); ++step)
                    ASSERT_EQ(offloaded.logits[step], resident.logits[step]) << "step " << step;
                std::int64_t written = 0;
                for (const StepRecord& record : offloaded.sink.steps)
                    for (const LayerRecord& layer : record.layers) {
                        EXPECT_EQ(layer.h2dBytes, layer.h2dBlocks * offloaded.sink.info.blockBytes);
                        if (record.step > 0) written += layer.d2hBlocks;
                    }
                EXPECT_GT(offloaded.summary.misses, 0);
                EXPECT_GT(written, 0);
            }
        }
}

double distanceOf(const Outcome& from, const Outcome& to) {
    EXPECT_EQ(from.logits.size(), to.logits.size());
    double sum = 0, size = 0;
    for (std::size_t step = 0; step < std::min(from.logits.size(), to.logits.size()); ++step)
        for (std::size_t i = 0; i < from.logits[step].size(); ++i) {
            const double x = double(from.logits[step][i]), d = double(to.logits[step][i]) - x;
            sum += d * d, size += x * x;
        }
    return std::sqrt(sum / size);
}

/// All runs are given the same tokens, and blocks fill on the way. Between the two backends lie bf16 sums, and numbers
/// that these move over the border between two codes, as far at most as codes move numbers at all.
TEST_F(QuantisedOnCuda, ManyStepsAreThoseOfTheCpu) {
    constexpr int kSteps = 150;
    for (const std::string method : {"nosa", "nosa ahead=forecast"}) {
        SCOPED_TRACE(method);
        const Outcome exact = run(Backend::Cpu, method, {}, true, kSteps);
        const auto given = [&](Backend backend, std::optional<KvType> type) {
            return run(backend, method, type, true, kSteps, {}, exact.ids);
        };
        const double sums = distanceOf(exact, given(Backend::Cuda, {}));
        for (const KvType type : kTypes) {
            const Outcome cpu = given(Backend::Cpu, type), gpu = given(Backend::Cuda, type);
            EXPECT_EQ(gpu.ids, exact.ids) << "they were given";
            const double codes = distanceOf(exact, cpu), got = distanceOf(cpu, gpu);
            RecordProperty(std::string(nameOf(type)) + (method == "nosa" ? "" : " ahead"), testing::PrintToString(got));
            EXPECT_LT(got, 2 * sums + 1.5 * codes) << nameOf(type) << ": sums " << sums << ", codes " << codes;
        }
    }
}

TEST_F(QuantisedOnCuda, BytesAreThoseOfQuantisedBlocks) {
    for (const KvType type : kTypes) {
        SCOPED_TRACE(nameOf(type));
        const Outcome out = run(Backend::Cuda, "infllmv2", type, true);
        const int dim = model()->config().headDim;
        const std::int64_t bytes = KvFormat{type, out.sink.info.blockSize, dim, dim, false}.blockBytes();
        EXPECT_EQ(out.sink.info.blockBytes, bytes);
        EXPECT_GT(out.summary.misses, 0);
        EXPECT_EQ(out.summary.h2dBytes, out.summary.misses * bytes);
    }
}

/// The first two steps, before texts part: bf16 and float32 differ by less than int4 moves the logits.
TEST_F(QuantisedOnCuda, LogitsAreThoseOfTheCpu) {
    for (const KvType type : kTypes) {
        SCOPED_TRACE(nameOf(type));
        const Outcome gpu = run(Backend::Cuda, "full", type, true, 2), cpu = run(Backend::Cpu, "full", type, true, 2);
        double most = 0;
        for (std::size_t i = 0; i < cpu.logits[1].size(); ++i)
            most = std::max(most, std::abs(double(cpu.logits[1][i]) - double(gpu.logits[1][i])));
        EXPECT_LT(most, 1.5);
    }
}

TEST_F(QuantisedOnCuda, WhatCannotIsRefused) {
    for (const char* method : {"asynctls", "arkvale", "infllm"})
        if (hasWeightsFor(findMethod(method), *model()))
            test::refusalOf([&] { run(Backend::Cuda, method, KvType::INT8, true); }, "single keys and values", 700);
    EXPECT_THAT(test::failureOf([&] { run(Backend::Cuda, "nosa", KvType::F32, true); }), HasSubstr("--kv-type bf16"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

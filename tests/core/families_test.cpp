// Every architecture and every RoPE type against what the transformers library computes with the same tiny random
// checkpoint (tools/make_family_checkpoints.py). KVSCOPE_FAMILIES names a folder with more of them, of any size.
#include "base/error.h"
#include "core/plan/model_limits.h"
#include "core/session/decode_session.h"
#include "core/session/engine.h"
#include "tests/core/golden_file.h"
#include "tests/core/library_reference.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using test::relativeError;

std::vector<std::string> folders() {
    return test::referenceFolders(test::source("tests/golden/families"), "KVSCOPE_FAMILIES");
}

struct Outcome {
    std::vector<std::int32_t> ids;
    std::vector<std::vector<float>> logits; // [step], the prompt's last position first
    SessionSummary summary;
};

class Family : public ::testing::TestWithParam<std::string> {
protected:
    Family() : reference_(GetParam() + "/reference.safetensors") {
        model_ = Model::load(GetParam()); // no tokenizer: a checkpoint runs without one
        prompt_ = reference_.ints("prompt_ids");
    }

    SessionOptions options(const std::string& method) const {
        SessionOptions options;
        options.method = method;
        options.stopAtEos = false;
        options.settings = {{"bias", "none"}}; // the references have no eviction head
        return options;
    }

    /// Greedy when `forced` is empty.
    Outcome decode(const std::vector<std::int32_t>& prompt, SessionOptions options, int newTokens,
                   const std::vector<std::int32_t>& forced = {}) const {
        options.maxNewTokens = newTokens;
        const auto& known = findMethod(options.method).parameters;
        std::erase_if(options.settings, [&](const auto& setting) {
            return std::none_of(known.begin(), known.end(), [&](const auto& p) { return p.key == setting.first; });
        });
        CollectingSink sink;
        DecodeSession session(model_, {prompt}, options, sink);
        Outcome out;
        const auto keep = [&] {
            if (const float* logits = session.logits(0))
                out.logits.emplace_back(logits, logits + model_->config().vocab);
        };
        session.prefill();
        keep();
        for (std::size_t next = 0;; ++next) {
            if (next < forced.size()) session.forceNextTokens({forced[next]});
            if (!session.step()) break;
            keep();
        }
        out.ids = session.generated().at(0);
        out.summary = session.summary();
        session.end(RunStatus::Finished);
        return out;
    }

    std::vector<std::string> methodsThatApply() const {
        std::vector<std::string> names{"streaming", "quest", "infllmv2"};
        if (model_->hasEvictionHead()) names.insert(names.end(), {"dma", "nosa"});
        return names;
    }

    test::GoldenFile reference_;
    std::shared_ptr<const Model> model_;
    std::vector<std::int32_t> prompt_;
};

TEST_P(Family, LogitsAndGreedyIdsAreTheLibrarys) {
    const auto ids = reference_.ints("generated_ids");
    const auto logits = reference_.floats("logits");
    const auto vocab = std::size_t(model_->config().vocab);
    for (const int threads : {1, 2}) {
        SessionOptions full = options("full");
        full.threads = threads;
        const Outcome out = decode(prompt_, full, int(ids.size()));
        EXPECT_EQ(out.ids, ids) << threads << " threads";
        ASSERT_EQ(out.logits.size(), ids.size());
        for (std::size_t step = 0; step < out.logits.size(); ++step)
            ASSERT_LT(relativeError(out.logits[step], &logits[step * vocab]), 1e-4) << "step " << step;
    }
}

/// The prompt's last tokens fed one by one: decoding them gives what reading them gave.
TEST_P(Family, DecodingThePromptsEndEqualsReadingIt) {
    if (model_->config().rope.dependsOnLength()) GTEST_SKIP() << "a shorter prompt is rotated differently";
    const auto expected = reference_.floats("prompt_logits");
    const auto vocab = std::size_t(model_->config().vocab), rows = expected.size() / vocab;
    if (prompt_.size() <= rows) GTEST_SKIP() << "the prompt is shorter than what the reference keeps";
    const auto cut = prompt_.end() - std::ptrdiff_t(rows) + 1;
    const Outcome out = decode({prompt_.begin(), cut}, options("full"), int(rows), {cut, prompt_.end()});
    ASSERT_EQ(out.logits.size(), rows);
    for (std::size_t row = 0; row < rows; ++row)
        EXPECT_LT(relativeError(out.logits[row], &expected[row * vocab]), 1e-4) << row;
}

TEST_P(Family, ABudgetThatCoversEverythingEqualsFullAttention) {
    const Outcome full = [&] {
        SessionOptions chosen = options("full");
        chosen.settings.emplace_back("block_size", "16");
        return decode(prompt_, chosen, 40);
    }();
    for (const std::string& method : methodsThatApply()) {
        SCOPED_TRACE(method);
        SessionOptions chosen = options(method);
        const std::string all = std::to_string(prompt_.size() / 16 + 40);
        for (const auto& [key, value] :
             {std::pair<std::string, std::string>{"block_size", "16"}, {"total_blocks", all}, {"skip_layers", "0"}})
            chosen.settings.emplace_back(key, value);
        if (method == "streaming") chosen.settings.emplace_back("window_blocks", all);
        const Outcome sparse = decode(prompt_, chosen, 40);
        EXPECT_EQ(sparse.ids, full.ids);
        ASSERT_EQ(sparse.logits.size(), full.logits.size());
        for (std::size_t step = 0; step < full.logits.size(); ++step)
            EXPECT_LT(relativeError(sparse.logits[step], full.logits[step].data()), 1e-5) << step;
    }
}

/// InfLLM reads a prompt piece by piece; with a local window that holds everything it is full attention, also where a
/// sliding window of the model leaves blocks of the piece itself behind.
TEST_P(Family, AnInfLlmPromptThatIsAllLocalEqualsFullAttention) {
    const Outcome full = decode(prompt_, options("full"), 2);
    for (const char* piece : {"512", "48"}) {
        SCOPED_TRACE(piece);
        SessionOptions chosen = options("infllm");
        for (const auto& [key, value] : {std::pair{"block_size", "16"},
                                         {"init_tokens", "16"},
                                         {"local_tokens", "65536"},
                                         {"prefill", "sparse"},
                                         {"exc_block", piece}})
            chosen.settings.emplace_back(key, value);
        const Outcome pieces = decode(prompt_, chosen, 2);
        ASSERT_EQ(pieces.logits.size(), full.logits.size());
        for (std::size_t step = 0; step < full.logits.size(); ++step)
            EXPECT_LT(relativeError(pieces.logits[step], full.logits[step].data()), 1e-5) << step;
    }
}

TEST_P(Family, SparseMethodsGiveTheSameBitsWithOffloadingAndWithout) {
    for (const std::string& method : methodsThatApply())
        for (const char* prefill : {"full", "sparse"}) {
            SCOPED_TRACE(method + ", prefill " + prefill);
            SessionOptions chosen = options(method);
            for (const auto& [key, value] : {std::pair{"block_size", "16"},
                                             {"sink_blocks", "1"},
                                             {"window_blocks", "2"},
                                             {"window_adds_current", "false"},
                                             {"select_blocks", "2"},
                                             {"total_blocks", "6"},
                                             {"skip_layers", "0"},
                                             {"dense_len", "0"},
                                             {"prefill", prefill}})
                chosen.settings.emplace_back(key, value);
            chosen.offload = true;
            const Outcome offloaded = decode(prompt_, chosen, 40);
            chosen.offload = false;
            const Outcome resident = decode(prompt_, chosen, 40);
            EXPECT_EQ(offloaded.ids, resident.ids);
            EXPECT_EQ(offloaded.logits, resident.logits);
            if (prompt_.size() > 96 && model_->config().windows.empty()) {
                EXPECT_GT(offloaded.summary.hits, 0);
                EXPECT_GT(offloaded.summary.h2dBytes, 0);
            }
        }
}

/// The GPU keeps bf16 weights and activations: fed the reference's tokens, its logits stay near the reference's. A part
/// left out (a bias, a norm, a scale) moves them by several tenths.
TEST_P(Family, OnTheGpuTheLogitsAreTheLibrarysWithinBf16) {
    if (const std::string problem = gpuProblem(*model_); !problem.empty()) GTEST_SKIP() << problem;
    try {
        requireGpu();
    } catch (const Error& error) {
        GTEST_SKIP() << error.what();
    }
    const auto ids = reference_.ints("generated_ids");
    const auto logits = reference_.floats("logits");
    const auto vocab = std::size_t(model_->config().vocab);
    SessionOptions full = options("full");
    full.backend = Backend::Cuda;
    full.twoInFlight = false;
    const Outcome out = decode(prompt_, full, int(ids.size()), ids);
    ASSERT_EQ(out.logits.size(), ids.size());
    double sum = 0;
    for (std::size_t step = 0; step < out.logits.size(); ++step) {
        const double error = relativeError(out.logits[step], &logits[step * vocab]);
        EXPECT_LT(error, 0.15) << "step " << step;
        sum += error;
    }
    EXPECT_LT(sum / double(ids.size()), 0.05);
    std::printf("mean difference %.4f of the largest logit\n", sum / double(ids.size()));
}

INSTANTIATE_TEST_SUITE_P(Transformers, Family, ::testing::ValuesIn(folders()), test::nameOfFolder);

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

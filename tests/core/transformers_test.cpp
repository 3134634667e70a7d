// A checkpoint that the transformers library wrote, against what that library computes with it
// (tools/make_reference_checkpoint.py).
#include "base/error.h"
#include "core/session/decode_session.h"
#include "tests/core/golden_file.h"
#include "tests/core/library_reference.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::relativeError;

const std::string kFolder = test::source("tests/golden/hf_llama");

TEST(Transformers, ACheckpointWrittenByTheLibraryIsReadAsWritten) {
    const auto model = Model::load(kFolder);
    const ModelConfig& config = model->config();
    EXPECT_EQ(model->name(), "hf_llama");
    EXPECT_EQ(config.architecture, "LlamaForCausalLM");
    EXPECT_EQ(config.layers, 3);
    EXPECT_EQ(config.hidden, 64);
    EXPECT_EQ(config.queryHeads, 8);
    EXPECT_EQ(config.kvHeads, 2);
    EXPECT_EQ(config.headDim, 16); // stated, not hidden / heads
    EXPECT_EQ(config.ffn, 144);
    EXPECT_EQ(config.vocab, 288);
    EXPECT_EQ(config.maxPositions, 512);
    EXPECT_FLOAT_EQ(config.rmsNormEps, 1e-5f);
    EXPECT_EQ(config.rope.theta, 50000);
    EXPECT_FALSE(config.tiedEmbeddings);
    EXPECT_FALSE(config.sparse.has_value());
    EXPECT_EQ(config.bosId, 0);
    EXPECT_EQ(config.eosIds, std::vector<std::int32_t>{1});
    EXPECT_FALSE(model->hasEvictionHead());
    EXPECT_EQ(model->weightType(), DType::F32);
    EXPECT_NE(model->lmHead().data, model->embedding().data);
    EXPECT_EQ(model->layer(2).qBias.size(), 128u);
    EXPECT_EQ(model->layer(2).kBias.size(), 32u);
    EXPECT_EQ(model->layer(2).oBias.size(), 64u);
    EXPECT_EQ(model->tokenizer().vocabSize(), 288);
}

TEST(Transformers, LogitsAndGreedyIdsOfFullAttentionAreTheLibrarys) {
    const test::GoldenFile reference(kFolder + "/reference.safetensors");
    const auto prompt = reference.ints("prompt_ids"), ids = reference.ints("generated_ids");
    const auto logits = reference.floats("logits");
    const auto model = Model::load(kFolder);
    const auto vocab = std::size_t(model->config().vocab);
    for (const int threads : {1, 2, 3}) {
        SessionOptions options;
        options.threads = threads;
        const test::Decoded out = test::decodeFully(model, prompt, int(ids.size()), options);
        EXPECT_EQ(out.ids, ids) << threads << " threads";
        ASSERT_EQ(out.logits.size(), ids.size());
        for (std::size_t step = 0; step < out.logits.size(); ++step)
            ASSERT_LT(relativeError(out.logits[step], &logits[step * vocab]), 1e-4) << "step " << step;
    }
}

TEST(Transformers, WithoutOffloadingTheIdsAreTheSame) {
    const test::GoldenFile reference(kFolder + "/reference.safetensors");
    const auto prompt = reference.ints("prompt_ids"), ids = reference.ints("generated_ids");
    SessionOptions options;
    options.offload = false;
    EXPECT_EQ(test::decodeFully(Model::load(kFolder), prompt, int(ids.size()), options).ids, ids);
}

TEST(Transformers, ItsTokenizerGivesTheLibrarysIdsOnEveryText) {
    const auto model = Model::load(kFolder);
    std::ifstream file(kFolder + "/tokenizer_cases.jsonl");
    if (!file) GTEST_SKIP() << "this checkout leaves out " << kFolder << "/tokenizer_cases.jsonl";
    std::string line;
    int cases = 0, wrong = 0;
    for (; std::getline(file, line); ++cases) {
        const auto json = nlohmann::json::parse(line);
        const auto text = json.at("text").get<std::string>();
        const auto got = model->tokenizer().encode(text);
        if (got == json.at("ids").get<std::vector<std::int32_t>>()) continue;
        EXPECT_LE(++wrong, 5) << "the list ends here";
        if (wrong > 5) break;
        ADD_FAILURE() << "differs on " << line << ", got " << nlohmann::json(got);
    }
    EXPECT_GE(cases, 1000);
}

TEST(Transformers, EveryFileTruncatedAnywhereIsRefusedInOneSentenceThatNamesIt) {
    namespace fs = std::filesystem;
    const test::Folder copy;
    const std::vector<std::string> files = {"config.json",
                                            "tokenizer.json",
                                            "model.safetensors.index.json",
                                            "model-00001-of-00003.safetensors",
                                            "model-00002-of-00003.safetensors",
                                            "model-00003-of-00003.safetensors"};
    for (const std::string& name : files) fs::copy_file(fs::path(kFolder) / name, copy / name);
    ASSERT_NO_THROW(Model::load(copy.path().string()));
    std::mt19937 random(20);
    for (const std::string& name : files) {
        const auto whole = fs::file_size(copy / name);
        for (int round = 0; round < 60; ++round) {
            fs::copy_file(fs::path(kFolder) / name, copy / name, fs::copy_options::overwrite_existing);
            // The beginning, the end before a last line break, and anywhere
            const auto length = round < 10   ? std::uintmax_t(round)
                                : round < 20 ? whole - 2 - std::uintmax_t(round - 10)
                                             : std::uintmax_t(random()) % (whole - 1);
            fs::resize_file(copy / name, length);
            try {
                Model::load(copy.path().string());
                ADD_FAILURE() << name << " loads with " << length << " of " << whole << " bytes";
            } catch (const Error& error) {
                const std::string line = oneLine(error);
                EXPECT_EQ(error.kind, ErrorKind::BadInput) << line;
                EXPECT_NE(line.find(name), std::string::npos) << line;
                EXPECT_EQ(line.find('\n'), std::string::npos) << line;
            }
        }
        fs::copy_file(fs::path(kFolder) / name, copy / name, fs::copy_options::overwrite_existing);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

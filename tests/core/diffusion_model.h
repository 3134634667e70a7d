// Models of the tests of block diffusion: the one that comes with the program, where the checkout has it, and random
// ones.
#pragma once

#include "core/model/bundled_models.h"
#include "core/model/model.h"
#include "core/session/decode_session.h"
#include "tests/core/random_checkpoint.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvscope::test {

/// Null where the checkout leaves losa-tiny out (tools/small_checkout.sh).
inline std::shared_ptr<const Model> losaTiny() {
    static const std::shared_ptr<const Model> model = [] {
        const auto names = embeddedModels();
        const bool there = std::find(names.begin(), names.end(), kDiffusionModel) != names.end();
        return there ? std::shared_ptr<const Model>(Model::load(kDiffusionModel)) : nullptr;
    }();
    return model;
}

#define KVSCOPE_NEEDS_LOSA_TINY()                                                                                      \
    if (kvscope::test::losaTiny() == nullptr) GTEST_SKIP() << "this checkout leaves out resources/models/losa-tiny"

/// Every key that the family needs; two layers, four query heads on two KV heads.
inline nlohmann::json sdarConfig(int block = 4, int maskId = 90) {
    return {{"architectures", {"SDARForCausalLM"}},
            {"model_type", "sdar"},
            {"vocab_size", 96},
            {"hidden_size", 64},
            {"intermediate_size", 96},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 32},
            {"hidden_act", "silu"},
            {"max_position_embeddings", 1024},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 10000.0},
            {"rope_scaling", nullptr},
            {"attention_bias", false},
            {"tie_word_embeddings", false},
            {"use_sliding_window", false},
            {"bos_token_id", 0},
            {"eos_token_id", 1},
            {"mask_token_id", maskId},
            {"block_size", block}};
}

/// The checkpoint is in a folder of its own, which goes with the model: tests that run side by side draw equal models.
inline std::shared_ptr<const Model> randomSdar(const nlohmann::json& config, unsigned seed = 7) {
    std::string folder = testing::TempDir() + "kvscope-sdar-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
    auto model = Model::load(writeCheckpoint(folder, config, seed));
    const Model* const loaded = model.get();
    return {loaded, [model = std::move(model), folder](const Model*) mutable {
                model.reset();
                std::filesystem::remove_all(folder);
            }};
}

/// Ids of a prompt without the mask and without special tokens.
inline std::vector<std::int32_t> somePrompt(int tokens, int from = 2, int below = 90, unsigned seed = 3) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < tokens; ++i) ids.push_back(from + std::int32_t(random() % unsigned(below - from)));
    return ids;
}

struct DenoisedRun {
    std::vector<std::vector<std::int32_t>> generated;
    std::vector<StepRecord> steps; // the prompts' first
    RunInfo info;
    SessionSummary summary;
};

inline DenoisedRun denoise(const std::shared_ptr<const Model>& model, std::vector<std::vector<std::int32_t>> prompts,
                           SessionOptions options, RecordLevel level = RecordLevel::Full) {
    CollectingSink sink(level);
    DecodeSession session(model, std::move(prompts), std::move(options), sink);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    return {session.generated(), std::move(sink.steps), sink.info, session.summary()};
}

} // namespace kvscope::test

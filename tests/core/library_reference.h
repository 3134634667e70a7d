// Compares what a checkpoint computes here with what the transformers library computed
// (tools/make_family_checkpoints.py).
#pragma once

#include "core/session/decode_session.h"
#include "tests/core/golden_file.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::test {

/// Folders below `root`, and below the folder that the environment variable `more` names, that hold a checkpoint with
/// the library's results; in order.
inline std::vector<std::string> referenceFolders(const std::string& root, const char* more) {
    namespace fs = std::filesystem;
    const char* const named = std::getenv(more);
    std::vector<std::string> found;
    for (const std::string& folder : {root, std::string(named != nullptr ? named : "")})
        if (fs::is_directory(folder))
            for (const auto& entry : fs::directory_iterator(folder))
                if (fs::exists(entry.path() / "reference.safetensors")) found.push_back(entry.path().string());
    std::sort(found.begin(), found.end());
    return found;
}

/// The name of a test whose parameter is one of those folders.
inline std::string nameOfFolder(const ::testing::TestParamInfo<std::string>& tested) {
    std::string name = std::filesystem::path(tested.param).filename().string();
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
    return name;
}

/// The largest difference of a step's logits relative to the largest of `want`; infinite where one is not a number.
inline double relativeError(const std::vector<float>& got, const float* want) {
    double difference = 0, scale = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double apart = std::abs(double(got[i]) - double(want[i]));
        if (!std::isfinite(apart)) return INFINITY; // std::max would leave NaN out
        difference = std::max(difference, apart);
        scale = std::max(scale, std::abs(double(want[i])));
    }
    return difference / scale;
}

struct Decoded {
    std::vector<std::int32_t> ids;
    std::vector<std::vector<float>> logits; // [step], the prompt's last position first
};

/// Greedy, with full attention.
inline Decoded decodeFully(const std::shared_ptr<const Model>& model, const std::vector<std::int32_t>& prompt,
                           int newTokens, SessionOptions options = {}) {
    options.method = "full";
    options.stopAtEos = false;
    options.maxNewTokens = newTokens;
    CollectingSink sink;
    DecodeSession session(model, {prompt}, options, sink);
    Decoded out;
    const auto keep = [&] {
        if (const float* logits = session.logits(0)) out.logits.emplace_back(logits, logits + model->config().vocab);
    };
    session.prefill();
    keep();
    while (session.step()) keep();
    out.ids = session.generated().at(0);
    session.end(RunStatus::Finished);
    return out;
}

/// The reference's ids, and its logits within 1e-4 of the largest one. `folder`: where reference.safetensors lies.
inline void expectTheLibrarysLogits(const std::string& folder, const std::shared_ptr<const Model>& model) {
    const GoldenFile reference(folder + "/reference.safetensors");
    const auto ids = reference.ints("generated_ids");
    const auto want = reference.floats("logits");
    const Decoded got = decodeFully(model, reference.ints("prompt_ids"), int(ids.size()));
    EXPECT_EQ(got.ids, ids);
    ASSERT_EQ(got.logits.size(), ids.size());
    const auto vocab = std::size_t(model->config().vocab);
    ASSERT_EQ(want.size(), vocab * ids.size());
    for (std::size_t step = 0; step < ids.size(); ++step)
        ASSERT_LT(relativeError(got.logits[step], &want[step * vocab]), 1e-4) << "step " << step;
}

} // namespace kvscope::test

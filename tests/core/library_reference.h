// Compares what a checkpoint computes here with what the transformers library computed
// (tools/make_family_checkpoints.py).
#pragma once

#include "core/session/decode_session.h"
#include "tests/core/golden_file.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

namespace kvscope::test {

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
    for (std::size_t step = 0; step < ids.size(); ++step) {
        double difference = 0, scale = 0;
        for (std::size_t i = 0; i < vocab; ++i) {
            difference = std::max(difference, std::abs(double(got.logits[step][i]) - double(want[step * vocab + i])));
            scale = std::max(scale, std::abs(double(want[step * vocab + i])));
        }
        ASSERT_LT(difference / scale, 1e-4) << "step " << step;
    }
}

} // namespace kvscope::test

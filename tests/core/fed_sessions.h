// Sessions of one method on both backends, which are fed the same tokens, and what must not depend on where the blocks
// lie.
#pragma once

#include "tests/core/backend.h"

#include "core/session/decode_session.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

using Tokens = std::vector<std::int32_t>;

inline const std::shared_ptr<const Model>& embeddedModel() {
    static const std::shared_ptr<const Model> loaded = Model::load(kDefaultModel);
    return loaded;
}

/// Ids from 2 to 4095. Texts drawn from one `random` follow each other.
inline Tokens randomTokens(int tokens, std::mt19937& random) {
    Tokens result;
    while (int(result.size()) < tokens) result.push_back(std::int32_t(2 + random() % 4094));
    return result;
}

inline SessionOptions methodOptions(const std::string& method,
                                    const std::vector<std::pair<std::string, std::string>>& settings, Backend backend,
                                    int newTokens) {
    SessionOptions options;
    options.backend = backend;
    options.method = method;
    options.settings = settings;
    options.maxNewTokens = newTokens;
    options.stopAtEos = false;
    return options;
}

/// Reads the prompts and feeds every sequence the same tokens, whatever it chooses; the oracle looks on.
inline CollectingSink runFed(const std::shared_ptr<const Model>& model, const std::vector<Tokens>& prompts,
                             const Tokens& fed, SessionOptions options) {
    options.twoInFlight = false;
    options.oracle = true;
    CollectingSink sink;
    DecodeSession session(model, prompts, options, sink);
    session.prefill();
    for (const std::int32_t token : fed) {
        session.forceNextTokens(Tokens(prompts.size(), token));
        EXPECT_TRUE(session.step());
    }
    session.end(RunStatus::Finished);
    return sink;
}

/// The same tokens come of a run whose blocks travel and of one whose blocks all lie on the device.
inline void expectTransfersChangeNothing(const std::vector<Tokens>& prompts, SessionOptions options) {
    const auto run = [&](bool offload, std::int64_t& moved) {
        options.offload = offload;
        CollectingSink sink;
        DecodeSession session(embeddedModel(), prompts, options, sink);
        session.prefill();
        while (session.step()) {
        }
        session.end(RunStatus::Finished);
        for (const StepRecord& record : sink.steps)
            for (const LayerRecord& layer : record.layers) moved += layer.h2dBlocks;
        return session.generated();
    };
    std::int64_t moved = 0, none = 0;
    EXPECT_EQ(run(true, moved), run(false, none));
    EXPECT_GT(moved, 0);
    EXPECT_EQ(none, 0);
}

} // namespace kvscope::test

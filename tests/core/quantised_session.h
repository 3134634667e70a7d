// What the tests of quantised KV blocks decode, on both backends.
#pragma once

#include "core/session/decode_session.h"
#include "tests/core/embedded_model.h"

#include <memory>
#include <vector>

namespace kvscope::test {

/// The embedded model.
inline const std::shared_ptr<const Model>& quantisedModel() {
    static const auto loaded = Model::load(kDefaultModel);
    return loaded;
}

/// What a session gave.
struct DecodedSession {
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<std::vector<float>> logits; // of sequence 0, of the prompt and of every step
    CollectingSink sink;
    SessionSummary summary;
};

inline DecodedSession decodeAll(const SessionOptions& options, const std::vector<std::vector<std::int32_t>>& prompts) {
    DecodedSession out;
    DecodeSession session(quantisedModel(), prompts, options, out.sink);
    session.prefill();
    const auto keep = [&] {
        out.logits.emplace_back(session.logits(0), session.logits(0) + quantisedModel()->config().vocab);
    };
    keep();
    while (session.step()) keep();
    session.end(RunStatus::Finished);
    out.ids = session.generated();
    out.summary = session.summary();
    return out;
}

} // namespace kvscope::test

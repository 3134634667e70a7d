// A method alone with data that a test makes: random queries, keys and values of one layer go through the engine, and
// what was selected, attended and moved is kept for a comparison with a reference in float64.
#pragma once

#include "core/model/rope.h"
#include "core/session/decode_session.h"
#include "core/trace/trace_sink.h"

#include <gtest/gtest.h>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

using MethodSettings = std::vector<std::pair<std::string, std::string>>;

class MethodRun {
public:
    struct Shape {
        int promptTokens = 300, steps = 20;
        unsigned seed = 1;
        bool offload = true, oracle = false;
        bool bias = false;          // the eviction head's scores weigh the attention as the method says
        const char* policy = "lru"; // of the device tier
    };
    struct Head { // of one step
        SelectionRecord record;
        std::vector<std::int32_t> units; // selected, ascending
        std::vector<Origin> origins;
        std::vector<std::uint8_t> hit;
        std::vector<float> scores;
        std::vector<double> out; // [group * dim]
    };
    struct Step {
        LayerRecord layer;
        std::vector<Head> heads;
    };

    static constexpr int kQueryHeads = 6, kKvHeads = 2, kDim = 64, kGroup = 3;

    MethodRun(const std::string& method, const MethodSettings& settings, const Shape& shape);

    /// A query of any token, prompt and decode: rotated, or plain as before rotation.
    const float* q(int token, int head) const { return row(q_, token, head, kQueryHeads); }
    const float* k(int token, int kvHead) const { return row(k_, token, kvHead, kKvHeads); }
    const float* v(int token, int kvHead) const { return row(v_, token, kvHead, kKvHeads); }
    /// Attention output of any token, prompt and decode.
    const float* out(int token, int head) const { return row(out_, token, head, kQueryHeads); }
    const float* plainQ(int token, int head) const { return row(plainQ_, token, head, kQueryHeads); }
    const float* plainK(int token, int kvHead) const { return row(plainK_, token, kvHead, kKvHeads); }
    float score(int token, int kvHead) const {
        return scores_[std::size_t(token * kKvHeads + kvHead)];
    } // eviction head
    /// Rotates a vector [dim] as if at `position`, in float64.
    std::vector<double> rotated(const float* plain, int position) const;

    int promptTokens() const { return shape_.promptTokens; }
    int position(std::size_t step) const { return shape_.promptTokens + int(step); } // of the token a step feeds
    const std::vector<Step>& steps() const { return steps_; }
    const SelectionSpec& spec() const { return spec_; }
    double scale() const { return 1.0 / 8; } // 1/sqrt(64)

    /// softmax(scale * q.k) v of one query head over the listed tokens, float64.
    std::vector<double> attention(int token, int head, const std::vector<std::int32_t>& over) const;
    /// Largest difference between a step's output of a KV head and attention over the listed tokens.
    double outputError(std::size_t step, int kvHead, const std::vector<std::int32_t>& over) const;

private:
    const float* row(const std::vector<float>& values, int token, int head, int heads) const {
        return values.data() + std::size_t((token * heads + head) * kDim);
    }
    Shape shape_;
    SelectionSpec spec_;
    RopeTables rope_;
    std::vector<float> q_, k_, v_, plainQ_, plainK_, scores_, out_;
    std::vector<Step> steps_;
};

/// 0 .. end - 1
inline std::vector<std::int32_t> upTo(int end) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(end));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

/// Expects the `count` best of float64 scores, with room for what float32 rounds: a chosen one must score at least the
/// limit less `tolerance`, all others at most the limit plus it. ids[i] has scores[i].
void expectBest(const std::vector<std::int32_t>& chosen, const std::vector<std::int32_t>& ids,
                const std::vector<double>& scores, int count, double tolerance = 1e-6);

std::vector<double> softmax(std::vector<double> x);

} // namespace kvscope::test

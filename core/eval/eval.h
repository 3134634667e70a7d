// Measures how good a method's answers are and what they cost: needles found, perplexity against full attention, and
// the share of the attention that the selection captures. docs/eval.md has the definitions.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// One row of the table: a method with settings.
struct EvalCase {
    std::string method;
    std::vector<std::pair<std::string, std::string>> settings;
};

struct EvalOptions {
    std::vector<double> depths{0.1, 0.3, 0.5, 0.7, 0.9}; // places in the prompt of the needle asked for; empty: none
    int promptsPerDepth = 1, needles = 4;
    int decodeTokens = 32; // tokens generated for every needle prompt, which give the answer and the throughput
    int textTokens = 128;  // tokens fed after the text's first part to measure the perplexity; 0: none
    bool oracle = true;    // also measure what the selection captures
    Backend backend = Backend::Cpu;
    std::optional<KvType> kvType; // of full KV blocks; nothing: the backend's own
    Link link;
    int threads = 0;
    std::uint64_t seed = 1; // of the first needle prompt; the next prompts have the next seeds
};

struct NeedleScore {
    double depth = 0;
    int prompts = 0, correct = 0;
};

/// How well the model predicts a text whose tokens are fed one by one.
struct TextScore {
    std::vector<double> nll;   // [token] natural logarithm
    double perplexity() const; // NaN without tokens
    double perplexity(std::size_t first, std::size_t count) const;
};

/// Means over all selections of the text (step, layer, sequence, KV head). The fields are those of OracleRecord.
struct SelectionScore {
    std::int64_t selections = 0, farSelections = 0;
    double mass = 0, bestMass = 0, recall = 0, farMass = 0, farBestMass = 0, farRecall = 0; // NaN: none
};

struct EvalResult {
    EvalCase row;
    int context = 0;
    std::string parametersJson;                                // resolved
    bool dense = false;                                        // the method attends to everything
    int unitTokens = 0;                                        // tokens of a unit: a block, a chunk or one token
    int blockSize = 0, budgetBlocks = 0, queryAwareBlocks = 0; // k and k_q; 0 if dense
    std::vector<NeedleScore> needles;
    TextScore text;
    SelectionScore selection;
    // These come from the decode steps of the needle prompts, which run without the oracle.
    std::int64_t decodeSteps = 0, hits = 0, misses = 0, h2dBytes = 0, exposedNs = 0, decodeNs = 0;
    Timing timing = Timing::Modelled; // of exposedNs
    double localityMean = 0;          // NaN: none
    double accuracy() const;          // share of needles answered; NaN without needles
    double tokensPerSecond() const;   // over the measured decode time; NaN without one
    /// Over the decode time and, where the link is modelled, the exposed time, during which no clock has run.
    double tokensPerSecondWithLink() const;
};

/// Evaluates one method with one context length. text: token ids, at least context + textTokens where textTokens > 0.
/// @throws Error(BadInput | OutOfMemory | Cancelled): what a session throws
EvalResult evaluate(const std::shared_ptr<const Model>& model, const EvalCase& row, int context,
                    std::span<const std::int32_t> text, const EvalOptions& options, const Progress& progress = {},
                    const std::stop_token& stop = {});

/// Reads the text's first `context` tokens as a prompt. Scores each of the next `count` tokens and then feeds it.
TextScore scoreText(const std::shared_ptr<const Model>& model, SessionOptions options,
                    std::span<const std::int32_t> text, int context, int count, const Progress& progress = {},
                    const std::stop_token& stop = {});

/// The built-in document, at least `tokens` long. @throws Error(BadInput) if that is too long
std::vector<std::int32_t> evalText(const Tokenizer& tokenizer, int tokens);

} // namespace kvscope

// How good a method's answers are, and what they cost: needles found, perplexity against full attention, what the
// selection holds of the attention. docs/eval.md has the definitions.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <memory>
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
    std::vector<double> depths{0.1, 0.3, 0.5, 0.7, 0.9}; // places of the needle asked for; empty: no needles
    int promptsPerDepth = 1, needles = 4;
    int decodeTokens = 32; // generated for every needle prompt; the answer and the throughput come from them
    int textTokens = 128;  // fed after the text's first part for the perplexity; 0: none
    bool oracle = true;    // also what the selection captures
    Backend backend = Backend::Cpu;
    Link link;
    int threads = 0;
    std::uint64_t seed = 1; // of the first needle prompt; the others follow
};

struct NeedleScore {
    double depth = 0;
    int prompts = 0, correct = 0;
};

/// Teacher-forced text.
struct TextScore {
    std::vector<double> nll;   // [token] natural logarithm
    double perplexity() const; // NaN without tokens
    double perplexity(std::size_t first, std::size_t count) const;
};

/// Means over all selections of the text (step, layer, sequence, KV head); OracleRecord says what of.
struct SelectionScore {
    std::int64_t selections = 0, farSelections = 0;
    double mass = 0, bestMass = 0, recall = 0, farMass = 0, farBestMass = 0, farRecall = 0; // NaN: none
};

struct EvalResult {
    EvalCase row;
    int context = 0;
    std::string parametersJson;                                // resolved
    bool dense = false;                                        // attends everything
    int unitTokens = 0;                                        // of what is selected: a block, a chunk, a token
    int blockSize = 0, budgetBlocks = 0, queryAwareBlocks = 0; // k and k_q; 0 if dense
    std::vector<NeedleScore> needles;
    TextScore text;
    SelectionScore selection;
    // Of the needle prompts' decode steps, without the oracle.
    std::int64_t decodeSteps = 0, hits = 0, misses = 0, h2dBytes = 0, exposedNs = 0, decodeNs = 0;
    Timing timing = Timing::Modelled; // of exposedNs
    double localityMean = 0;          // NaN: none
    double accuracy() const;          // of all needles; NaN without
    double tokensPerSecond() const;   // measured decode time; NaN without
    /// With the link's time, which a modelled link does not spend on the clock.
    double tokensPerSecondWithLink() const;
};

/// One method at one context. text: token ids, at least context + textTokens of them where textTokens > 0.
/// @throws Error(BadInput | OutOfMemory | Cancelled): what a session throws
EvalResult evaluate(const std::shared_ptr<const Model>& model, const EvalCase& row, int context,
                    std::span<const std::int32_t> text, const EvalOptions& options, const Progress& progress = {},
                    const std::stop_token& stop = {});

/// The text's first `context` tokens are read as a prompt, each of the next `count` is fed after it was scored.
TextScore scoreText(const std::shared_ptr<const Model>& model, SessionOptions options,
                    std::span<const std::int32_t> text, int context, int count, const Progress& progress = {},
                    const std::stop_token& stop = {});

/// The built-in document, at least `tokens` long. @throws Error(BadInput) if that is too long
std::vector<std::int32_t> evalText(const Tokenizer& tokenizer, int tokens);

} // namespace kvscope

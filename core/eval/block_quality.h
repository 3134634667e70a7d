// How well a block-diffusion model answers under a method: needles in batches of prompts, decoded one token a forward
// or as fast as confidence allows, and a bound on the perplexity of a text.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// What a prompt asks for: the pass key, or one of several magic numbers.
enum class NeedleTask : std::uint8_t { PassKey, FourKeys, SixteenKeys };
constexpr int kNeedleTasks = 3;
constexpr const char* nameOf(NeedleTask task) {
    constexpr const char* names[] = {"passkey", "keys4", "keys16"};
    return names[int(task)];
}

/// How many tokens a forward writes. Slow: one, so that all but the first forward of a block are sparse ones; fast: all
/// above the method's threshold, and then the dense first forward alone writes most answers.
enum class Pace : std::uint8_t { Slow, Fast };
constexpr const char* nameOf(Pace pace) { return pace == Pace::Slow ? "slow" : "fast"; }

/// Prompts of one kind under one method.
struct QualityCell {
    NeedleTask task = NeedleTask::PassKey;
    int context = 4096; // tokens, prompt and answer; prompts are up to 53 tokens shorter, by all residues of 16
    Pace pace = Pace::Slow;
    std::string method;
    std::vector<std::pair<std::string, std::string>> settings;
};

/// What consecutive prompts of a cell gave.
struct QualityBatch {
    std::vector<std::vector<std::int32_t>> generated; // [prompt] as many tokens as its answer has
    std::vector<bool> right;                          // [prompt] they are the answer
    std::int64_t forwards = 0, blocks = 0;            // of all sequences; clean forwards count
    double density = 0;                               // as SessionSummary::densityMean; NaN: no forward was sparse
    std::int64_t promptNs = 0, decodeNs = 0;
};

/// Consecutive prompts of one kind, which cells of different methods share.
struct NeedlePrompts {
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<std::string> answers;
    std::vector<std::size_t> answerTokens;
};
/// Prompts first .. first + count - 1. A prompt depends on its number, the task, the context and the seed alone.
/// @throws Error(BadInput) where a task does not fit the context
NeedlePrompts needlePrompts(const Tokenizer& tokenizer, NeedleTask task, int context, int first, int count,
                            std::uint64_t seed);
/// Decodes prompts of the cell's kind together. options: backend and threads. @throws Error(BadInput | OutOfMemory |
/// Cancelled): what a session throws, and where the model does not denoise blocks
QualityBatch decodeNeedles(const std::shared_ptr<const Model>& model, SessionOptions options, const QualityCell& cell,
                           const NeedlePrompts& prompts, const Progress& progress = {},
                           const std::stop_token& stop = {});

/// A sum of losses. Their mean is a bound on the negative log-likelihood of a token.
struct BoundSum {
    double nll = 0;            // sum over terms of the mean over the masked tokens of -log p, in nats
    std::int64_t terms = 0;    // losses: of each block one with 1 token masked, one with 2, .., one with all
    double perplexity() const; // NaN without terms
};

/// The losses of the blocks first .. first + count - 1. Block j skips j blocks of the text; the next `context` tokens,
/// in whole blocks, are its prefix, and the block of tokens behind these is the one that is predicted. It gets one
/// forward for every number of masks, each as the block's first forward: a method with first=sparse attends to pages in
/// it, all others attend to the whole prefix. Which tokens are masked depends on j, the number of masks and the seed.
/// The first id of `text` is that which begins every text: it replaces the first id of each prefix. @throws Error as
/// decodeNeedles
BoundSum boundOnBlocks(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                       std::span<const std::int32_t> text, int context, int first, int count, std::uint64_t seed,
                       const std::stop_token& stop = {});
/// Tokens of text that so many blocks need.
int tokensOfBound(const Model& model, int context, int blocks);

} // namespace kvscope

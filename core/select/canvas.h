// How a method denoises the canvas of a masked-diffusion model: the settings of LLaDA's loop and of Dream's, declared
// here once, as ordinary parameters.
#pragma once

#include "core/plan/selection_spec.h"
#include "core/select/parameters.h"

#include <vector>

namespace kvscope {

/// By what the masked positions of a canvas are ranked; the highest are written first.
enum class CanvasRank : std::uint8_t {
    Confidence, // the candidate's probability (LLaDA: low_confidence, Dream: maskgit_plus)
    Random,     // a random number (LLaDA: random)
    Chance,     // each is written by a chance of its own, unranked (Dream: origin)
    Margin,     // probability of the best token minus that of the second (Dream: topk_margin)
    Entropy     // negative entropy (Dream: entropy)
};

/// What a forward after the first one of a block computes.
enum class CanvasCache : std::uint8_t {
    None,    // everything
    Prefix,  // the block and what follows: keys and values before it are kept (Fast-dLLM)
    Dual,    // the block: keys and values of all others are kept (Fast-dLLM)
    Evicted, // from a block's third forward on, the block; it attends to itself and to tokens outside it that the
             // second forward has chosen to keep (Sparse-dLLM)
    Features // the tokens whose values changed most; the others keep what each layer added to them (dLLM-Cache)
};

/// How many of the ranked candidates are written.
enum class CanvasWrites : std::uint8_t {
    Quota,     // as the steps ask for
    Threshold, // the best one, and all whose confidence reaches a threshold (Fast-dLLM)
    Factor     // while the j-th confidence is at least 1 - factor / (j + 1), and the best one (Fast-dLLM)
};

/// The settings of one run, checked.
struct CanvasOptions {
    int length = 0; // tokens of the canvas
    int block = 0;  // tokens that are scheduled together; Dream's loop schedules all of them together unless it has a
                    // cache of blocks
    int steps = 0;  // forwards of the whole run that the quotas are shared among
    CanvasRank rank = CanvasRank::Confidence;
    CanvasCache cache = CanvasCache::None;
    CanvasWrites writes = CanvasWrites::Quota;
    double threshold = 0.9, factor = 1;
    double ratio = 1;       // Evicted: share of the tokens outside the block that are kept
    int kernel = 1;         // Evicted: how many neighbours share their highest importance; odd
    int promptInterval = 1; // Features: one of so many forwards computes all tokens of the prompt
    int canvasInterval = 1; // Features: one of so many forwards computes all tokens of the canvas
    double updateRatio = 0; // Features: share of the canvas's tokens that the other forwards compute
    /// Features: whether a token's change is counted from the forward that computed it last; false: from the forward
    /// before this one.
    bool sinceComputed = false;
    int tile = 0;                // SparseD: tokens of a tile of the masks; 0: there are none
    double select = 1, skip = 0; // share of the tiles that a row keeps; share of the steps that are dense
    bool scaledByHeads = false;  // the masks' scores are divided by sqrt(query heads), not by sqrt(channels)
    bool shifted = false;        // Dream's loop
    bool trimEnd = true;         // the generated text ends with the first end token, not with the block that holds it
    double eps = 1e-3, rankHeat = 0; // Dream: where the noise ends; temperature of the rank, 0: the highest

    int blocks() const { return length / block; }
    int stepsOfBlock() const { return steps / blocks(); }
    /// Whether the canvas is written block by block. Dream's own loop has no blocks.
    bool inBlocks() const {
        return !shifted || cache == CanvasCache::Evicted || cache == CanvasCache::Prefix || cache == CanvasCache::Dual;
    }
    /// Whether the quotas are Dream's, by the noise that is left; otherwise they are LLaDA's.
    bool byNoise() const { return shifted && cache != CanvasCache::Evicted; }
    /// Whether forward `step` of a block writes only the first token of the block. Under Dream's loop a token is read
    /// from the position before it, so that later forwards, which compute the block alone, cannot write that token.
    bool seedsFirst(int step) const { return shifted && inBlocks() && step == 0; }
    /// Whether forward `step` of a block reads all tokens.
    bool computesAll(int step) const {
        return cache == CanvasCache::None || cache == CanvasCache::Features ||
               step < (cache == CanvasCache::Evicted ? 2 : 1);
    }
    bool tiles() const { return tile > 0; }
    /// SparseD: the forward of the run, counted from 0, that makes the masks. It and all forwards before it are dense.
    int maskStep() const { return int(steps * skip) + 1; }
    /// Evicted: how many of so many tokens outside the block are kept.
    int keptOf(int others) const { return int(others * ratio); }
    /// Tokens that step `step` of a block with `masks` masks at its beginning writes, of which `left` are left.
    int quota(int step, int masks, int left) const;
    /// Dream: the share of masks that step `step` of a block writes; 1 in the last one and after it.
    double share(int step) const;
};

namespace select {

/// The parameters of methods on models that denoise a canvas. shifted: those of Dream's loop; else of LLaDA's.
std::vector<Parameter> canvasParameters(bool shifted);
/// The same for a method that evicts tokens outside the block (CanvasCache::Evicted).
std::vector<Parameter> evictingCanvasParameters(bool shifted);
/// The same for a method that gives every query head a mask of tiles (SparseD).
std::vector<Parameter> tileCanvasParameters(bool shifted);
/// The settings that the values mean. newTokens: tokens of the canvas. @throws Error(BadInput) where the values
/// contradict each other
CanvasOptions canvasOptions(const ParameterValues& values, int newTokens);
/// What a method of canvasParameters() chooses: nothing, or which tokens are computed where the cache is
/// CanvasCache::Features.
SelectionSpec canvasSpec(const ParameterValues& values);
/// What a method of evictingCanvasParameters() chooses: tokens that are kept. How many they are depends on the prompt's
/// length too.
SelectionSpec evictingCanvasSpec(const ParameterValues& values);
/// What a method of tileCanvasParameters() chooses: tiles of prompt and canvas.
SelectionSpec tileCanvasSpec(const ParameterValues& values);

} // namespace select
} // namespace kvscope

// How a method denoises the blocks of a block-diffusion model: the settings of the loop, which all methods have, and
// those of methods that attend to pages of the prefix. Declared here once, as ordinary parameters.
#pragma once

#include "core/model/model_config.h"
#include "core/plan/selection_spec.h"
#include "core/select/parameters.h"

#include <optional>
#include <vector>

namespace kvscope {

/// Which masked positions of a block a forward writes.
enum class Unmasking : std::uint8_t {
    Sequential,           // the leftmost
    LowConfidenceStatic,  // the most confident, so many a step
    LowConfidenceDynamic, // all above a threshold, at least as many as static
    EntropyBounded        // the most certain, while their entropies add up to less than a bound
};
constexpr const char* nameOf(Unmasking strategy) {
    constexpr const char* names[] = {"sequential", "low_confidence_static", "low_confidence_dynamic",
                                     "entropy_bounded"};
    return names[int(strategy)];
}

/// The settings of one run, checked.
struct DenoiseOptions {
    int block = 16; // tokens, 1 to kMostBlockLength
    int steps = 16; // a block's tokens are written in so many forwards at most, but for EntropyBounded
    Unmasking strategy = Unmasking::LowConfidenceDynamic;
    double threshold = 0.9, entropyBound = 0.35;
    bool promptMasks = false, trimEnd = true; // see BlockRunRules

    bool pages = false; // active tokens attend to chosen pages of the prefix; false: all tokens attend to all of it
    bool everyToken = false; // every token is active in every sparse forward (Quest)
    int page = 64;           // tokens, a multiple of 16
    int pagesPerQuery = 0;   // that each query chooses
    int agnosticPages = 0;   // besides those: chosen once a block for each KV head, independent of later queries
    int active = 5;
    std::optional<double> activeThreshold; // replaces `active`
    bool activePerHead = false;            // an active set for each KV head instead of one for the layer
    bool firstSparse = false, finalSparse = false;
    bool fetchAhead = false; // where the prefix waits on the host: pages are asked for before a forward begins

    bool tiles = false; // each query head has a mask of tiles of its own, made once a block (SparseD); pages is set too
    int budget = 0;     // tokens of the prefix that a row of the mask keeps
    double skip = 0;    // share of the steps that are dense
    bool scaledByHeads = false; // the mask's scores are divided by sqrt(query heads) instead of sqrt(channels)

    /// Whether queries choose pages by the ranges of their keys.
    bool choosesPages() const { return pages && !tiles; }
    /// The first step of a block that does not attend to the whole prefix.
    int firstSparseStep() const { return tiles ? int(steps * skip) + 1 : firstSparse ? 0 : 1; }

    /// Tokens that step `step` of a block writes under a strategy that counts.
    int tokensOf(int step) const { return step < steps ? block / steps + (step < block % steps ? 1 : 0) : 0; }
};

namespace select {

/// trim_end, which the loops over blocks and over canvases have.
Parameter trimEndParameter();
/// The parameters of the denoising loop: block, steps, strategy, threshold, entropy_bound, prompt_mask, trim_end.
std::vector<Parameter> denoisingParameters();
/// The parameters of the loop and those of a choice of pages: budget, page, first, final; for LoSA also active,
/// active_threshold, active_set.
std::vector<Parameter> pageDenoisingParameters(bool activeSets);
/// The parameters of the loop and those of masks of tiles: budget, tile, skip, scale, final.
std::vector<Parameter> tileDenoisingParameters();

/// `values` resolved for the model: `steps` 0 stands for the block's length. @throws Error(BadInput) where they
/// contradict each other
DenoiseOptions denoiseOptions(const ParameterValues& values);
/// What is kept of the prefix of a block-diffusion run: keys and values alone, or key ranges of its pages too.
SelectionSpec denoisingSpec(const ParameterValues& values);

} // namespace select
} // namespace kvscope

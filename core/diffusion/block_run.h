// One sequence on its way through block diffusion: its tokens so far, the block that is being denoised, and which
// forward follows.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// What is done with mask ids in a prompt, and with text behind an end token.
struct BlockRunRules {
    bool promptMasks = false; // mask ids of the prompt are masks, and become tokens; false: text like any other
    bool trimEnd = true;      // generated() ends with the first end token; false: with the block that holds it
};

/// A prompt, and blocks of masks behind it that become tokens one forward at a time. The last tokens of a prompt, if
/// they do not fill a block, stand unmasked at the beginning of the first block that is denoised. The run remembers
/// which positions are masked and does not read it from the ids.
class BlockRun {
public:
    /// endIds: generation ends with the block in which one was written; empty: never by a token.
    BlockRun(std::vector<std::int32_t> prompt, int maxNewTokens, std::vector<std::int32_t> endIds, int block,
             std::int32_t maskId, BlockRunRules rules = {});

    bool finished() const { return finished_; }
    int block() const { return first_ / length_; } // number of the present block in the sequence
    int first() const { return first_; }           // position of its first token
    int step() const { return step_; }             // forwards of it so far
    /// The tokens and masks of the block that is being denoised, [block].
    std::span<const std::int32_t> ids() const { return NumberedSpan<const std::int32_t>(ids_).part(first_, length_); }
    bool masked(int i) const { return masked_[i] != 0; }
    int masks() const;
    /// Whether nothing is masked any more: the next forward is the clean one.
    bool clean() const { return clean_; }

    /// Writes a token where position i of the block is masked.
    void write(int i, std::int32_t id);
    /// After every forward. After a clean one the next block begins, or the sequence is finished.
    void forwardDone();

    /// How many tokens are read in whole blocks before the first forward: those of the prompt, up to its first mask.
    int promptBlocksEnd() const { return promptBlocksEnd_; }
    int promptTokens() const { return promptTokens_; }
    /// Tokens after the prompt that are written without a gap, up to an end token as the rules say, at most
    /// maxNewTokens.
    const std::vector<std::int32_t>& generated() const { return generated_; }
    /// How many positions the run may reach, in whole blocks, after a prompt of so many tokens.
    static int reach(int promptTokens, int maxNewTokens, int block) {
        return (promptTokens + maxNewTokens + block - 1) / block * block;
    }

private:
    void openBlock();
    void collect();
    bool ends(std::int32_t id) const;
    int firstBlock() const;

    const int promptTokens_, maxNewTokens_, length_;
    const std::int32_t maskId_;
    const std::vector<std::int32_t> endIds_;
    const BlockRunRules rules_;
    Numbered<std::int32_t> ids_;    // prompt and blocks so far
    Numbered<std::uint8_t> masked_; // [block] of the present one
    Numbered<std::int32_t> generated_;
    int promptBlocksEnd_ = 0, first_ = 0, step_ = 0;
    bool clean_ = false, finished_ = false;
};

} // namespace kvscope

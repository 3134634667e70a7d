// One sequence of a masked-diffusion model on its way: the prompt, the canvas of masks behind it, and which block of
// the canvas is being written.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// The run remembers which positions are masked and does not read it from the ids: a mask id in a prompt is text like
/// any other, and is never written over.
class CanvasRun {
public:
    /// block divides length. endIds: generation ends with the block in which one was written and before which nothing
    /// is masked; empty: never by a token. trimEnd: generated() ends with the first end token; false: with the block
    /// that holds it.
    CanvasRun(std::vector<std::int32_t> prompt, int length, std::vector<std::int32_t> endIds, int block,
              std::int32_t maskId, bool trimEnd = true);

    bool finished() const { return finished_; }
    int block() const { return block_; }                           // number of the present block in the canvas
    int first() const { return promptTokens_ + block_ * length_; } // position of its first token
    int step() const { return step_; }                             // forwards of it so far
    int forwards() const { return forwards_; }                     // of all blocks so far
    int masksAtBegin() const { return length_; }
    std::span<const std::int32_t> ids() const { return ids_; } // prompt and canvas
    bool masked(int position) const { return masked_[position] != 0; }
    /// Masked positions of the present block, ascending.
    std::vector<std::int32_t> masks() const;

    /// Writes a token where a position is masked.
    void write(int position, std::int32_t id);
    /// After every forward. Where nothing of the block is masked any more the next one begins, or the run is finished.
    void forwardDone();

    int promptTokens() const { return promptTokens_; }
    /// Tokens of the canvas that are written without a gap, up to an end token where trimEnd says so.
    const std::vector<std::int32_t>& generated() const { return generated_; }

private:
    bool ends(std::int32_t id) const;

    const int promptTokens_, length_;
    const std::vector<std::int32_t> endIds_;
    const bool trimEnd_;
    Numbered<std::int32_t> ids_;
    Numbered<std::uint8_t> masked_; // by position
    Numbered<std::int32_t> generated_;
    int block_ = 0, step_ = 0, forwards_ = 0;
    bool finished_ = false;
};

} // namespace kvscope

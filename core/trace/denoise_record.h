// What a step of a block-diffusion run did: every sequence of the step has one forward of its block.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

/// One position of a sequence's block in one forward.
struct DenoiseToken {
    std::int32_t position = 0;   // in the sequence, prompt included
    std::int32_t id = 0;         // what the forward read there: a token or the mask
    std::int32_t candidate = -1; // what it would write there; -1 where nothing was masked
    float confidence = -1;       // the candidate's probability, 0..1; -1 where nothing was masked
    bool written = false;        // the candidate was written after this forward
};

/// One (layer, sequence, KV head) of one forward.
struct DenoiseLayer {
    std::int32_t layer = 0, sequence = 0, kvHead = 0;
    bool sparse = false;      // false: every token of the block attended to the whole prefix
    std::uint64_t active = 0; // bit i: token i of the block attended to the prefix anew; only where sparse
    std::int32_t pages = 0;   // united pages of the active tokens; only where sparse
    float density = 0;        // tokens of these pages / prefix; only where sparse
    /// The block's change scores are DenoiseStep::changes[firstChange .. firstChange + block); -1: there are none, or
    /// they are those of KV head 0.
    std::int64_t firstChange = -1;
    /// Where every query head chose tiles for each row of tiles of the block: tokens of the tiles / prefix,
    /// DenoiseStep::rowDensities[firstRow .. firstRow + rows), all rows of the group's first query head before those of
    /// the next. -1: there are none.
    std::int64_t firstRow = -1;
    std::int32_t rows = 0; // query heads of the group * rows of tiles
    /// The changes of the block's keys are DenoiseStep::kvChanges[firstKvChange .. firstKvChange + block), those of its
    /// values the next block's worth, of all KV heads together. -1: there are none, or they are those of KV head 0.
    std::int64_t firstKvChange = -1;
};

/// One sequence's forward. Its tokens are DenoiseStep::tokens[firstToken .. firstToken + tokens).
struct DenoiseForward {
    std::int32_t sequence = 0;
    std::int32_t block = 0, step = 0; // the block's number in the sequence; forwards of it before this one
    bool final = false;               // the clean forward: nothing is masked, keys and values are kept
    std::int32_t masked = 0, written = 0;
    std::uint32_t firstToken = 0, tokens = 0;
};

/// All of a step. Empty in runs that decode token by token.
struct DenoiseStep {
    std::vector<DenoiseForward> forwards; // sequences ascending
    std::vector<DenoiseToken> tokens;
    std::vector<DenoiseLayer> layers;
    std::vector<float> changes;   // mean square change of a token's queries since the forward before
    std::vector<float> kvChanges; // likewise of its keys and of its values
    std::vector<float> rowDensities;

    bool empty() const { return forwards.empty(); }
    void clear() {
        forwards.clear();
        tokens.clear();
        layers.clear();
        changes.clear();
        kvChanges.clear();
        rowDensities.clear();
    }
};

} // namespace kvscope

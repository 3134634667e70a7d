// Turns the ids that an engine hands over into the blocks of a trace's selection.
#pragma once

#include "kernels/packed_block.h"
#include "sdk/trace/kvscope_trace.h"

#include <cstdint>
#include <vector>

namespace kvscope::sdk {

/// The ids of one (layer, sequence, KV head), as they lie in the caller's memory.
struct IdRow {
    const kvtrace_selection* of = nullptr;
    /// Where the row's first id lies in `of->ids`, in elements; in hit, score and origin its values lie at the same
    /// place.
    std::int64_t offset = 0;
    std::int64_t count = 0;
    std::int64_t position = 0; // of the query's token
};

struct BlockRules {
    int blockSize = 1; // tokens
    /// So many first and last blocks are sink and window where the caller gives no origin.
    int sinkBlocks = 0, windowBlocks = 0;
};

/// Parallel arrays; the blocks' ids ascend strictly.
struct SelectedBlocks {
    std::vector<PackedBlock> blocks;              // where the caller does not know hits, every block is a hit
    std::vector<float> scores;                    // NaN where none is given
    std::int64_t futureIds = 0, duplicateIds = 0; // how many ids were dropped

    void clear();
};

class BlockFinder {
public:
    /// Replaces `selected`. A block of several tokens was hit if all its tokens were; its score is the best of theirs.
    /// @throws Refusal: an id below -1, a block that a trace cannot number, an unknown origin
    void find(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected);

private:
    struct Entry {
        std::int64_t id = 0;
        std::int64_t at = 0; // place in the caller's arrays
    };
    void fold(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected);
    bool foldPlain(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected);
    static void readMask(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected);

    std::vector<Entry> entries_;      // valid ids of the row
    std::vector<std::uint64_t> bits_; // one for each id; all 0 between two calls
};

} // namespace kvscope::sdk

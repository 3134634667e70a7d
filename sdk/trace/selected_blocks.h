// From the ids that an engine hands over to the blocks of a trace's selection.
#pragma once

#include "kernels/selection.h"
#include "sdk/trace/kvscope_trace.h"

#include <cstdint>
#include <vector>

namespace kvscope::sdk {

/// The ids of one (layer, sequence, KV head), as they lie in the caller's memory.
struct IdRow {
    const kvtrace_selection* of = nullptr;
    std::int64_t offset = 0; // of the row's first id in `of->ids`, in elements; the same in hit, score and origin
    std::int64_t count = 0;
    std::int64_t position = 0; // of the query's token
};

struct BlockRules {
    int blockSize = 1;                    // tokens
    int sinkBlocks = 0, windowBlocks = 0; // origin of blocks for which none is given
};

/// Parallel, blocks strictly ascending.
struct SelectedBlocks {
    std::vector<std::int32_t> blocks;
    std::vector<Origin> origins;
    std::vector<std::uint8_t> hit;                // 1 also where the caller knows no hits
    std::vector<float> scores;                    // NaN where none is given
    std::int64_t futureIds = 0, duplicateIds = 0; // dropped

    void clear();
};

class BlockFinder {
public:
    /// Replaces `selected`. A block of several tokens was hit if all of them were; its score is the best of them.
    /// @throws Refusal: an id below -1, a block that a trace cannot number, an origin that there is not
    void find(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected);

private:
    struct Entry {
        std::int64_t id = 0;
        std::int64_t at = 0; // in the caller's arrays
    };
    void fold(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected);
    bool foldPlain(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected);

    std::vector<Entry> entries_;      // valid ids of the row
    std::vector<std::uint64_t> bits_; // of ids; all 0 between two calls
};

} // namespace kvscope::sdk

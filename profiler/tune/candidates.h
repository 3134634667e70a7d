// What a tuning chooses from: methods, budgets and block sizes that run on a model, with as many block slots as the
// device memory holds.
#pragma once

#include "core/model/model.h"
#include "core/select/method.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// Which candidates are made. Empty lists stand for the usual ones.
struct TuneGrid {
    std::vector<std::string> methods; // empty: every one that runs on the model
    std::vector<int> budgets;         // tokens attended; empty: half, once and twice the method's own
    std::vector<int> blockSizes;      // tokens; empty: the method's own
};

/// What is to be decoded, and in which memory.
struct TuneLoad {
    int promptTokens = 0, newTokens = 0; // of each sequence
    int batch = 1;
    std::int64_t deviceBytes = 0; // for keys, values and what methods remember of them, all sequences; 0: no limit
    Backend backend = Backend::Cpu;
};

struct TuneCandidate {
    std::string method;
    std::vector<std::pair<std::string, std::string>> settings; // that differ from the method's own
    ParameterValues values;                                    // all of them
    SelectionSpec spec;
    int blockSize = 0, budgetTokens = 0; // budgetTokens: attended at most; 0: everything
    bool offload = false;                // false: all blocks stay on the device
    bool travels = false;                // blocks cross the link
    bool looksAhead = false;             // transfers can hide behind the layer before
    std::optional<int> deviceSlots;      // of each (sequence, layer, KV head), where the session sizes the tier
    std::int64_t deviceBytes = 0;        // that it takes of the memory
    std::int64_t blockBytes = 0;         // of a block of one KV head, as it is transferred

    /// "nosa total_blocks=8 window_blocks=2"
    std::string name() const;
    /// Whether both have the same method and block size. Of two such candidates the one with the larger budget attends
    /// to at least as much as the other.
    bool sameFamily(const TuneCandidate& other) const { return method == other.method && blockSize == other.blockSize; }
};

/// A combination that cannot be tried, and why, in one sentence.
struct LeftOut {
    std::string name, reason;
};

/// In the order of methods, block sizes, budgets. leftOut: what else there was.
/// @throws Error(BadInput) for a method that does not exist, and where nothing is left
std::vector<TuneCandidate> candidatesOf(const Model& model, const TuneGrid& grid, const TuneLoad& load,
                                        std::vector<LeftOut>& leftOut);

} // namespace kvscope

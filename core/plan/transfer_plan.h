// How blocks cross the link between the host's memory and a GPU where requests are served.
#pragma once

#include <cstdint>

namespace kvscope {

/// How missing blocks come to the device: by a copy call for each of them, by one call for all of a layer, or by a
/// kernel that gathers them.
enum class TransferPlan : std::uint8_t { Calls, Batched, Kernel };

/// How the blocks of a prompt go to the host. Runs: a copy call for each KV head, whose blocks lie side by side in both
/// memories. Calls: a copy call for each block. Kernel: a kernel stores them. Bounce: one copy into a buffer, from
/// which threads of the host scatter them (SparseServe's FlashD2H).
enum class StorePlan : std::uint8_t { Runs, Calls, Kernel, Bounce };

/// What the rows of an engine have in common: how their blocks cross the link, and how their prompts are read.
struct RowTransfers {
    TransferPlan loads = TransferPlan::Kernel;
    StorePlan stores = StorePlan::Runs;
    int chunkTokens = 0; // prompts are read in chunks of so many tokens; 0: layer by layer
};

} // namespace kvscope

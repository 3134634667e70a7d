// Stage offloading of a denoising forward whose prefix waits on the host: which pages of the prefix get slots on the
// device, which blocks are moved for them, and where the attention finds every page. Pages may be asked for before the
// forward begins.
#pragma once

#include "kernels/cuda/device/block_moves.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Which slots a layer's pages have, in device memory. All is zero when a session begins.
struct PrefixSlots {
    std::int32_t* slotOf = nullptr; // [rows, kvHeads, maxPages] slot of a page, counted from 1; 0: none
    std::int32_t* usedAt = nullptr; // [rows, kvHeads, maxPages] `turn` at which a page that has a slot was chosen last
    std::int32_t* pageIn = nullptr; // [rows, kvHeads, count] page in a slot, counted from 1; 0: the slot is empty
    std::int32_t* filled = nullptr; // [rows, kvHeads] slots that are not empty
    std::int32_t* turn = nullptr;   // [rows, kvHeads] how often pages were chosen
    int count = 0;                  // slots of a KV head
    bool byUse = false;             // a miss takes the slot whose page was chosen longest ago, else the first free one
};

/// What came of the pages that a KV head had asked for.
struct AskedPages {
    std::int32_t predicted = -1;       // how many pages it asked for that had a slot or got one; -1: it did not ask
    std::int32_t used = 0, wasted = 0; // of them in the union; of those that travelled not in the union
};

/// Pages of one layer that were asked for before the forward began, as bits.
struct PrefixAhead {
    std::uint32_t* asked = nullptr; // [rows, kvHeads, wordsOf()] pages that had a slot or got one; null: nobody asks
    std::uint32_t* travelled = nullptr; // [rows, kvHeads, wordsOf()] those of them that had none
    AskedPages* came = nullptr;         // [rows, kvHeads] out, by placePrefixPages, of sparse rows
};

/// Blocks of one layer in an array that the attention reads: first the window, in which the heads lie as
/// BlockRows::headFirst says, with the block that is denoised, the prefix of rows that are not sparse, and the pages
/// that pass through; then the slots. The host's store has the heads as the window has them.
struct PrefixPagesArgs {
    BlockRows rows;
    PrefixSlots slots;
    std::int64_t firstSlot = 0; // block of the array: the layer's first slot
    int maxPages = 0;           // most of a prefix, an incomplete one included
    // The union of sparse rows, as unitePages() writes it.
    const std::int32_t* pages = nullptr;   // [rows, kvHeads, maxPages] ascending
    const std::int32_t* count = nullptr;   // [rows, kvHeads]
    const std::uint32_t* united = nullptr; // [rows, kvHeads, wordsOf()] the same as bits
    std::int32_t* places = nullptr;        // [rows, kvHeads, maxPages] out, of `pages`: see BlockAttentionArgs
    std::uint32_t* hits = nullptr;         // [rows, kvHeads, wordsOf()] out: those of the union that were there
    std::int32_t* missing = nullptr;       // [rows, kvHeads, maxPages] scratch
    std::int32_t* freeSlots = nullptr;     // [rows, kvHeads, slots.count] scratch
    const __nv_bfloat16* blocks = nullptr; // the array
    const __nv_bfloat16* store = nullptr;  // of the layer: pinned host memory, as the device sees it
    /// Lists of moves, for a gather. storeUnits: see there, of kStoreUnit bytes each; `loads` has room for all pages.
    /// `counts` has kCounts numbers, which are zero before: those of the lists, how many loads come from the host, and
    /// how many were made ahead.
    MoveList moves;
    enum Count { kMoves, kStores, kLoads, kAsked, kCounts };
    PrefixAhead ahead;

    int wordsOf() const { return (maxPages + 31) / 32; }
};

/// @throws Error(Unsupported): a thread block's shared memory is too small to choose among so many pages
void checkPrefixPages(const Launch& launch, int maxPages, int slots);

/// Lists the moves of a layer. Sparse rows: pages of the union that have a slot keep it; as long as there are slots,
/// the others get one in ascending order, and are loaded into it; the rest is loaded into the window. An incomplete
/// page is in the window already, and a hit. Other rows: all complete pages go to the window, from their slots or the
/// store, and slots stay as they are. Clean rows: the pages that the block completes are stored.
/// What was loaded ahead for a row with kAsks is there, and no hit.
void placePrefixPages(const Launch& launch, const PrefixPagesArgs& args);

struct NameAskingArgs {
    BlockRows rows;
    const std::int32_t* ids = nullptr; // [rows*block] tokens of the blocks
    std::int32_t* last = nullptr;      // [rows*block] those of the forward before; takes the others
    std::uint64_t* asking = nullptr;   // [rows, kvHeads] out: tokens whose queries say what is asked for
};
/// Names the tokens by which rows with kAsks ask for pages.
void nameAsking(const Launch& launch, const NameAskingArgs& args);
/// Rounds the queries of rows with kAsks. before, q [rows*block, queryHeads*dim]
void roundQueries(const Launch& launch, const BlockRows& rows, const float* before, __nv_bfloat16* q);

struct AskPagesArgs {
    PrefixPagesArgs pages; // without unions; loads are listed in moves.loads, slots counted from the layer's first one
    const std::uint32_t* foreseen = nullptr; // [rows, kvHeads, wordsOf()] what the asking tokens would choose, as bits
    const std::uint32_t* before = nullptr;   // likewise: the unions of the forward before
};
/// Gives slots to the complete pages that rows with kAsks ask for: those that have a slot keep it, and as long as there
/// are slots, the others get one in ascending order. Lists the loads, and counts them in kAsked.
void askPrefixPages(const Launch& launch, const AskPagesArgs& args);

/// The incomplete last page of each prefix, of one layer. The window is for all layers, so that layers keep it.
struct PrefixTailsArgs {
    BlockRows rows;
    __nv_bfloat16* blocks = nullptr; // the window
    __nv_bfloat16* tails = nullptr;  // [rows, kvHeads] a page each
};
/// Copies the incomplete page of each row's prefix, where there is one, from the tails to the window.
void restorePrefixTails(const Launch& launch, const PrefixTailsArgs& args);
/// Copies the page that each clean row's block leaves incomplete, where there is one, from the window to the tails.
void keepPrefixTails(const Launch& launch, const PrefixTailsArgs& args);

} // namespace kvscope::cuda

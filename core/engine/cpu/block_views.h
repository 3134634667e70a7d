// Where the blocks of one query's KV head lie, and which of their tokens the query sees.
#pragma once

#include "core/select/selector.h"

#include <cstdint>

namespace kvscope {

/// Sets `item` up for the token at `position` in a layer. Blocks older than the layer's sliding window do not exist for
/// the item.
void placeAt(const SelectorContext& context, HeadStep& item, LayerId layer, int position);

/// Sets the pointers of `item`, whose KV head is set, to its row of the projections.
void pointAt(const SelectorContext& context, HeadStep& item, const TokenRows& rows, int row);

/// Makes the item attend to everything: it wants every block that it sees and selects none.
void wantAll(const SelectorContext& context, HeadStep& item);

/// The view of a block's tokens, from the oldest token in the item's sliding window to the item's own token.
/// With quantised blocks the item's own block is float32 until it is full, and while a prompt is read all its blocks
/// are.
/// @param block memory of block `id` in one of the tiers
KvBlockView viewOf(const SelectorContext& context, const HeadStep& item, const float* block, BlockId id);

/// Where a step attends to block `id`: in its device slot, or in the store of a layer that has no slots.
const float* attendedBlock(const SelectorContext& context, const HeadStep& item, BlockId id);

/// Lists in item.views what the item attends to: the selected blocks, or all wanted blocks where the item attends to
/// everything. For a choice by token nothing is listed yet, because packTokens packs the tokens when their blocks have
/// arrived.
void listViews(const SelectorContext& context, HeadStep& item);

/// Packs the chosen tokens into separate blocks, item.gathered, and lists these in item.views.
void packTokens(const SelectorContext& context, HeadStep& item);

} // namespace kvscope

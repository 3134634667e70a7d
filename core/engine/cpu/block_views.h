// Where the blocks of one query's KV head lie, and which of their tokens the query sees.
#pragma once

#include "core/select/selector.h"

#include <cstdint>

namespace kvscope {

/// Makes `item` the step of the token at `position` in a layer: nothing older than the layer's window exists for it.
void placeAt(const SelectorContext& context, HeadStep& item, int layer, int position);

/// Points `item`, whose KV head is set, at its row of the projections.
void pointAt(const SelectorContext& context, HeadStep& item, const TokenRows& rows, std::size_t row);

/// Wants every block within reach and selects none: the item attends to everything.
void wantAll(const SelectorContext& context, HeadStep& item);

/// The block's tokens from the oldest that the item's window shows to the item's own.
/// @param block where block `id` lies
KvBlockView viewOf(const SelectorContext& context, const HeadStep& item, const float* block, std::int32_t id);

/// Where a step attends to block `id`: in its device slot, or in the store of a layer that has no slots.
const float* attendedBlock(const SelectorContext& context, const HeadStep& item, std::int32_t id);

/// Lists in item.views what the item attends to: the selected blocks, or all it wants where it is dense; nothing yet
/// for a choice by token, whose tokens are packed (packTokens) once their blocks have arrived.
void listViews(const SelectorContext& context, HeadStep& item);

/// Packs the chosen tokens into blocks of their own, item.gathered, and lists those.
void packTokens(const SelectorContext& context, HeadStep& item);

} // namespace kvscope

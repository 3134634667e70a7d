// What a request takes of every tier, computed from the sizes of the engine's memory.
#pragma once

#include "core/serve/request.h"
#include "core/serve/scheduler_options.h"

namespace kvscope::serve {

/// Sizes of one engine. The defaults are the NOSA-8B shape: 32 layers, 2 KV heads of dimension 128, blocks of 64
/// tokens, 64 blocks selected, hidden size 4096; keys and values in bf16, activations in float32.
struct MemoryShape {
    int layers = 32, kvHeads = 2, blockTokens = 64;
    std::int64_t blockBytes = 32768;        // keys and values of a block of one KV head
    std::int64_t indexBytesPerToken = 1024; // all layers and heads
    int selectedBlocks = 64;                // per layer and KV head
    int hidden = 4096;                      // numbers of the residual stream of a token
    int hostRunBlocks = 16;                 // the host store is handed out in runs of this many blocks of one head
    int pieceTokens = 2048;                 // where a layer of a prompt can be cut
    bool pausesInLayer = true;              // whether the engine can stop inside a layer of a prompt
    int residentLayers = 0;                 // layers that attend to everything: their blocks stay on the device
    // What a row takes of the device besides, as rotary tables, lists and the rest of a page: for each token, and
    // whatever its length.
    std::int64_t rowBytesPerToken = 0, rowBytes = 0;

    int offloadedLayers() const { return layers - residentLayers; }

    /// Bytes of the keys and values of one token, all layers and heads together.
    std::int64_t tokenBytes() const { return std::int64_t(layers) * kvHeads * blockBytes / blockTokens; }
    /// Slots per layer and KV head that cache=partition gives a row.
    int partitionBlocks(const SchedulerOptions& options) const;

    /// Bytes of the blocks that a step selects from `context` tokens, all offloaded layers and heads together.
    std::int64_t selectionBytes(std::int64_t context) const;
    /// The working set that is assumed of a request before its first step: with cache=partition its slots, with
    /// global-lru k x offloaded layers x KV heads blocks; 0 where nothing is offloaded.
    std::int64_t firstWorkingSet(const SchedulerOptions& options, std::int64_t context) const;
    /// What a request with a prompt of `promptTokens` and at most `maxTokens` new tokens takes, both at least 1. Of
    /// offloaded layers the host holds whole runs and the device the newest block of every head; of all other layers
    /// the device holds all blocks. The index is on the device.
    RequestNeeds needsOf(const SchedulerOptions& options, int promptTokens, int maxTokens) const;

    /// @throws Error(BadInput) naming the first field that is not positive
    void check() const;
};

} // namespace kvscope::serve

// Estimates the memory of the two KV tiers before a session exists, from the method's spec and the model's shape.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <optional>

namespace kvscope {

struct KvEstimate {
    std::int64_t hostBytes = 0, deviceBytes = 0; // KV blocks
    std::int64_t oracleBytes = 0;                // KV blocks that only the oracle reads, on the device tier
    std::int64_t indexBytes = 0;                 // the method's block index, on the device tier
    int blockSlots = 0;                          // slots per (sequence, layer, KV head); 0: everything resident
    int neededSlots = 0;                         // fewest slots with which the method works
};

/// Bytes of the common block index for one KV head in one layer: pooled keys and scores, or key ranges, and the ring of
/// tokens whose pooling window is not complete.
std::int64_t blockIndexBytes(Backend backend, const SelectionSpec& spec, int dim, int tokens);

/// @param tokens length of every sequence, generated tokens included
KvEstimate estimateKv(const Model& model, const SelectionSpec& spec, int tokens, int sequences, bool offload,
                      std::optional<std::int64_t> deviceSlots, Backend backend = Backend::Cpu, bool oracle = false);

} // namespace kvscope

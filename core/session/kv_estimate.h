// Memory of the two KV tiers before a session exists, from the method's spec and the model's shape.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <optional>

namespace kvscope {

struct KvEstimate {
    std::int64_t hostBytes = 0, deviceBytes = 0; // KV blocks
    std::int64_t oracleBytes = 0;                // and those that only the oracle reads, on the device tier too
    std::int64_t indexBytes = 0;                 // what the method keeps of them for its choice, on the device tier
    int blockSlots = 0;                          // per (sequence, layer, KV head); 0: everything resident
    int neededSlots = 0;                         // fewest the method works with
};

/// What the common block index keeps of one KV head in one layer: pooled keys and scores, or key ranges, and the ring
/// of tokens whose window is not complete.
std::int64_t blockIndexBytes(Backend backend, const SelectionSpec& spec, int dim, int tokens);

/// @param tokens of every sequence, new ones included
KvEstimate estimateKv(const Model& model, const SelectionSpec& spec, int tokens, int sequences, bool offload,
                      std::optional<std::int64_t> deviceSlots, Backend backend = Backend::Cpu, bool oracle = false);

} // namespace kvscope

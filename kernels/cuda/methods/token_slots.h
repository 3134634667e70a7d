// DeepSeek sparse attention with offloading: which tokens of each sequence lie in slots on the device, and how they
// come there. A token is one row of `dim` channels, a key that holds its value (latent attention). The device form of
// select::TokenSlots.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// The slots of one layer. `turns` is zero and `slotOf` and `tokenIn` are -1 where nothing has been admitted.
struct DeviceTokenSlots {
    int slots = 0, maxTokens = 0;    // of a row
    std::int32_t* slotOf = nullptr;  // [rows, maxTokens] -1: the token has none
    std::int32_t* tokenIn = nullptr; // [rows, slots]
    std::int32_t* last = nullptr;    // [rows, slots] the admission that chose the slot's token last
    std::int32_t* turns = nullptr;   // [rows, 2] admissions so far; slots that have ever held a token
    /// Elements of all four arrays of one row.
    static constexpr std::int64_t words(std::int64_t slots, std::int64_t maxTokens) {
        return maxTokens + 2 * slots + 2;
    }
};

/// Makes room for what each row attends to: its chosen tokens, and the token at its position, which the step has just
/// made. Tokens that were chosen least recently leave; of those that one admission chose last, the lower positions
/// leave first. One thread block takes a row.
struct AdmitTokensArgs {
    DeviceTokenSlots slots; // more than `capacity`, or as many as maxTokens
    int rows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const std::int32_t* tokens = nullptr;   // [rows, capacity] chosen, ascending
    const std::int32_t* count = nullptr;    // [rows]
    int capacity = 0;
    std::int32_t* place = nullptr;         // [rows, capacity] out: the slot of each chosen token
    std::int32_t* fetch = nullptr;         // [rows, capacity] out: which of them must come, as indices into the list
    std::int32_t* missing = nullptr;       // [rows] out: how many
    std::int32_t* madeSlot = nullptr;      // [rows] out: the slot of the new token
    std::int32_t* freed = nullptr;         // [rows, capacity + 1] scratch
    std::int32_t* missingRecord = nullptr; // [rows] a copy of `missing`, or null
    std::uint8_t* hitRecord = nullptr;     // [rows, capacity] whether each chosen token lay there, or null
    std::uint64_t* mark = nullptr;
};
void admitTokens(const Launch& launch, const AdmitTokensArgs& args);

/// Copies what admitTokens asked for into the slots: missing tokens from the store, new ones from newKey.
struct FetchTokenSlotsArgs {
    AdmitTokensArgs admitted;
    int dim = 0;                           // a multiple of 8
    const __nv_bfloat16* store = nullptr;  // [tokens, dim]; may be pinned host memory
    const std::int64_t* first = nullptr;   // [rows] a row's first token there; null: 0
    const __nv_bfloat16* newKey = nullptr; // [rows, dim]
    __nv_bfloat16* pool = nullptr;         // [rows, slots, dim]
};
void fetchTokenSlots(const Launch& launch, const FetchTokenSlotsArgs& args);

/// store[first + position] = newKey, of every row.
struct StoreTokenArgs {
    int rows = 0, dim = 0;                  // dim a multiple of 8
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* newKey = nullptr;  // [rows, dim]
    __nv_bfloat16* store = nullptr;         // [tokens, dim]; may be pinned host memory
    const std::int64_t* first = nullptr;    // [rows]
};
void storeTokens(const Launch& launch, const StoreTokenArgs& args);

} // namespace kvscope::cuda

// One selection as bytes: block ids, why each was taken, whether it was resident, and its score. Each row stands alone,
// so a cut trace stays readable. Layout, byte by byte: docs/trace-format.md.
#pragma once

#include "kernels/selection.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvscope {

struct SelectionView {
    std::span<const std::int32_t> blocks; // strictly ascending, not negative
    std::span<const Origin> origins;      // one per block
    std::span<const std::uint8_t> hit;    // one per block
    std::span<const float> scores;        // one per block, or empty
};

/// Replaces `bytes`, keeping its memory. @return false if the view breaks its rules; `bytes` is then meaningless
bool encodeSelection(const SelectionView& selection, std::vector<std::byte>& bytes);

struct DecodedSelection {
    std::vector<std::int32_t> blocks;
    std::vector<Origin> origins;
    std::vector<std::uint8_t> hit;
    std::vector<float> scores;
};

/// Into `selection`, keeping its memory. @return false if the bytes are not exactly one valid selection
bool decodeSelection(std::span<const std::byte> bytes, DecodedSelection& selection);

} // namespace kvscope

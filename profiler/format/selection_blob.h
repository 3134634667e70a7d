// One selection as bytes: block ids, why each was taken, whether it was resident, and its score. Each row stands alone,
// so a cut trace stays readable. Layout, byte by byte: docs/trace-format.md.
#pragma once

#include "kernels/packed_block.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvscope {

struct SelectionView {
    std::span<const PackedBlock> blocks; // ids ascend strictly
    std::span<const float> scores;       // one per block, or empty
};

/// Replaces `bytes`, keeping its memory. @return false if the view breaks its rules; `bytes` is then meaningless
bool encodeSelection(const SelectionView& selection, std::vector<std::byte>& bytes);

/// Replaces `blocks` and `scores`, keeping their memory. @return false if the bytes are not exactly one valid selection
bool decodeSelection(std::span<const std::byte> bytes, std::vector<PackedBlock>& blocks, std::vector<float>& scores);

} // namespace kvscope

// When the bytes of a KV head are known: a trace records them for whole layers.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>

namespace kvscope {

/// SQL: 1 where a layer's host-to-device bytes in that step are those of its misses, so that a head's are those of its
/// own; else 0 or NULL. Not so where a method loads other things than blocks, or blocks ahead of the step that misses
/// them. `selection`: the name of rows of that table.
inline std::string bytesAreOfMisses(std::string_view selection, std::int64_t blockBytes) {
    return fmt::format("(SELECT l.h2d_bytes = l.misses * {} FROM layer_step l WHERE l.id = {}.id >> 20)", blockBytes,
                       selection);
}

} // namespace kvscope

// A selected block as one word. Kernels write it, records hold it, a blob of the trace encodes a list of such words,
// and readers, tiles, replays and comparisons walk through the decoded words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvscope {

/// Why a block is attended. Values are the trace's codes.
enum class Origin : std::uint8_t { Sink = 0, Window = 1, QueryAware = 2, QueryAgnostic = 3, TokenLevel = 4 };
const char* nameOf(Origin origin);

/// The id of a block in the low 28 bits, then 3 bits of Origin, then 1 bit that says whether the block had a slot when
/// it was selected. Of methods that select tokens or chunks, the id is that of the token or the chunk.
class PackedBlock {
public:
    static constexpr std::int32_t kMaxId = (1 << 28) - 1;

    constexpr PackedBlock() = default;
    /// id: 0 .. kMaxId
    constexpr PackedBlock(std::int32_t id, Origin origin, bool hit)
        : word_(std::uint32_t(id) | std::uint32_t(origin) << kOriginShift | std::uint32_t(hit) << kHitShift) {}
    static constexpr PackedBlock ofWord(std::uint32_t word) {
        PackedBlock block;
        block.word_ = word;
        return block;
    }

    constexpr std::int32_t id() const { return std::int32_t(word_ & std::uint32_t(kMaxId)); }
    constexpr Origin origin() const { return Origin(word_ >> kOriginShift & 7); }
    constexpr bool hit() const { return word_ >> kHitShift != 0; }
    constexpr std::uint32_t word() const { return word_; }
    constexpr PackedBlock withHit(bool hit) const { return {id(), origin(), hit}; }
    friend constexpr bool operator==(PackedBlock, PackedBlock) = default;

private:
    static constexpr std::uint32_t kOriginShift = 28, kHitShift = 31;
    std::uint32_t word_ = 0;
};
static_assert(sizeof(PackedBlock) == sizeof(std::uint32_t));

/// The block with this id in a list whose ids ascend; null: the list does not have it.
inline const PackedBlock* findBlock(std::span<const PackedBlock> blocks, std::int64_t id) {
    const auto at =
        std::lower_bound(blocks.begin(), blocks.end(), id, [](PackedBlock b, std::int64_t i) { return b.id() < i; });
    return at != blocks.end() && at->id() == id ? &*at : nullptr;
}

/// How many ids two lists have in common; the ids of both ascend.
inline int commonBlocks(std::span<const PackedBlock> a, std::span<const PackedBlock> b) {
    int common = 0;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        const std::int32_t idA = a[i].id(), idB = b[j].id();
        common += idA == idB ? 1 : 0;
        i += idA <= idB ? 1 : 0;
        j += idB <= idA ? 1 : 0;
    }
    return common;
}

} // namespace kvscope

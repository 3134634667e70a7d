// What packed blocks hold, list by list, for tests that compare lists; and packed blocks of ids.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::test {

inline std::vector<std::int32_t> idsOf(std::span<const PackedBlock> blocks) {
    std::vector<std::int32_t> ids;
    for (const PackedBlock block : blocks) ids.push_back(block.id());
    return ids;
}

inline std::vector<std::int32_t> idsOf(const StepRecord& record, const SelectionRecord& selection) {
    return idsOf(record.blocksOf(selection));
}

inline std::vector<Origin> originsOf(std::span<const PackedBlock> blocks) {
    std::vector<Origin> origins;
    for (const PackedBlock block : blocks) origins.push_back(block.origin());
    return origins;
}

/// 1: the block had a slot.
inline std::vector<std::uint8_t> hitsOf(std::span<const PackedBlock> blocks) {
    std::vector<std::uint8_t> hits;
    for (const PackedBlock block : blocks) hits.push_back(block.hit() ? 1 : 0);
    return hits;
}

/// Blocks with these ids, all of one origin and with a slot.
inline std::vector<PackedBlock> packed(std::span<const std::int32_t> ids) {
    std::vector<PackedBlock> blocks;
    for (const std::int32_t id : ids) blocks.emplace_back(id, Origin::QueryAware, true);
    return blocks;
}

/// The block with its id moved by so much.
inline PackedBlock moved(PackedBlock block, std::int32_t by) { return {block.id() + by, block.origin(), block.hit()}; }

} // namespace kvscope::test

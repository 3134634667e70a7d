#include "sdk/trace/selected_blocks.h"

#include "sdk/trace/handles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

namespace kvscope::sdk {
namespace {

constexpr std::int64_t kMaxBlock = PackedBlock::kMaxId;
// up to so many, ids are sorted by setting bits; above it by comparing
constexpr std::int64_t kMaxBits = std::int64_t(1) << 24;

std::int64_t idAt(const kvtrace_selection& of, std::int64_t at) {
    if (of.id_type == KVTRACE_INT64) return static_cast<const std::int64_t*>(of.ids)[at];
    return static_cast<const std::int32_t*>(of.ids)[at];
}

Origin originAt(const IdRow& row, const BlockRules& rules, std::int64_t at, std::int64_t block) {
    if (row.of->origin != nullptr) {
        const std::uint8_t origin = row.of->origin[at];
        if (origin > std::uint8_t(Origin::TokenLevel))
            refuse(KVTRACE_INVALID, "origin ", std::to_string(origin), " of layer ", std::to_string(row.of->layer),
                   " is none; give a value of kvtrace_origin");
        return Origin(origin);
    }
    if (row.of->unit == KVTRACE_TOKENS) return Origin::TokenLevel;
    if (block < rules.sinkBlocks) return Origin::Sink;
    return block > row.position / rules.blockSize - rules.windowBlocks ? Origin::Window : Origin::QueryAware;
}

} // namespace

void SelectedBlocks::clear() {
    blocks.clear();
    scores.clear();
    futureIds = duplicateIds = 0;
}

void BlockFinder::find(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected) {
    selected.clear();
    entries_.clear();
    const bool tokens = row.of->unit == KVTRACE_TOKENS;
    const std::int64_t last = tokens ? row.position : row.position / rules.blockSize;
    if (last / (tokens ? rules.blockSize : 1) > kMaxBlock)
        refuse(KVTRACE_UNSUPPORTED, "position ", std::to_string(row.position),
               " lies beyond the last block of a trace");
    if (row.of->unit == KVTRACE_BITMASK) {
        readMask(row, rules, selected);
        return;
    }
    for (std::int64_t i = 0; i < row.count; ++i) {
        const std::int64_t at = row.offset + i * row.of->id_stride, id = idAt(*row.of, at);
        if (id == -1) continue;
        if (id < -1)
            refuse(KVTRACE_INVALID, "id ", std::to_string(id), " of layer ", std::to_string(row.of->layer),
                   " is negative; pass -1 where a place is empty");
        if (id > last)
            ++selected.futureIds;
        else
            entries_.push_back({id, at});
    }
    const bool plain = row.of->hit == nullptr && row.of->score == nullptr && row.of->origin == nullptr;
    if (!plain || !foldPlain(row, rules, selected)) fold(row, rules, selected);
}

/// Folds ids that come without hits, scores and origins: sets a bit for each id, then reads the bits block by block.
/// @return false if the ids are too far apart
bool BlockFinder::foldPlain(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected) {
    std::int64_t highest = -1;
    for (const Entry& entry : entries_) highest = std::max(highest, entry.id);
    if (highest >= kMaxBits) return false;
    bits_.resize(std::max(bits_.size(), std::size_t(highest / 64 + 1)));
    for (const Entry& entry : entries_) {
        std::uint64_t& word = bits_[std::size_t(entry.id / 64)];
        const std::uint64_t bit = std::uint64_t(1) << unsigned(entry.id % 64);
        selected.duplicateIds += (word & bit) != 0;
        word |= bit;
    }
    const std::int64_t perBlock = row.of->unit == KVTRACE_TOKENS ? rules.blockSize : 1;
    std::int64_t before = -1;
    for (std::int64_t word = 0; word <= highest / 64; ++word)
        for (std::uint64_t rest = std::exchange(bits_[std::size_t(word)], 0); rest != 0; rest &= rest - 1) {
            const std::int64_t block = (word * 64 + std::countr_zero(rest)) / perBlock;
            if (block == before) continue;
            before = block;
            selected.blocks.emplace_back(std::int32_t(block), originAt(row, rules, 0, block), true);
        }
    selected.scores.assign(selected.blocks.size(), std::numeric_limits<float>::quiet_NaN());
    return true;
}

/// Reads a row of words, of which every bit that is set is a block.
void BlockFinder::readMask(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected) {
    const bool wide = row.of->id_type == KVTRACE_INT64;
    const auto wordAt = [&](const void* words, std::int64_t at) {
        return wide ? static_cast<const std::uint64_t*>(words)[at]
                    : std::uint64_t(static_cast<const std::uint32_t*>(words)[at]);
    };
    const std::int64_t bits = wide ? 64 : 32, last = row.position / rules.blockSize;
    for (std::int64_t i = 0; i < row.count; ++i) {
        const std::int64_t at = row.offset + i * row.of->id_stride;
        const std::uint64_t hits = row.of->hit_mask == nullptr ? ~std::uint64_t(0) : wordAt(row.of->hit_mask, at);
        for (std::uint64_t rest = wordAt(row.of->ids, at); rest != 0; rest &= rest - 1) {
            const int bit = std::countr_zero(rest);
            const std::int64_t block = i * bits + bit;
            if (block > last)
                ++selected.futureIds;
            else
                selected.blocks.emplace_back(std::int32_t(block), originAt(row, rules, 0, block),
                                             (hits >> unsigned(bit) & 1) != 0);
        }
    }
    selected.scores.assign(selected.blocks.size(), std::numeric_limits<float>::quiet_NaN());
}

void BlockFinder::fold(const IdRow& row, const BlockRules& rules, SelectedBlocks& selected) {
    std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
    const std::int64_t perBlock = row.of->unit == KVTRACE_TOKENS ? rules.blockSize : 1;
    std::int64_t before = -1;
    for (const Entry& entry : entries_) {
        if (entry.id == before) {
            ++selected.duplicateIds;
            continue;
        }
        before = entry.id;
        const std::int64_t block = entry.id / perBlock;
        const bool hit = row.of->hit == nullptr || row.of->hit[entry.at] != 0;
        const float score =
            row.of->score == nullptr ? std::numeric_limits<float>::quiet_NaN() : row.of->score[entry.at];
        if (!selected.blocks.empty() && selected.blocks.back().id() == block) {
            PackedBlock& whole = selected.blocks.back();
            whole = whole.withHit(whole.hit() && hit);
            selected.scores.back() = std::fmax(selected.scores.back(), score);
            continue;
        }
        selected.blocks.emplace_back(std::int32_t(block), originAt(row, rules, entry.at, block), hit);
        selected.scores.push_back(score);
    }
}

} // namespace kvscope::sdk

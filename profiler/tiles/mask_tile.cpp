#include "profiler/tiles/mask_tile.h"

#include "profiler/tiles/tile_bytes.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace kvscope {

namespace {
constexpr std::size_t kRowsFrom = 2;    // the level, of groups of 16 steps, from which rows of bits may be kept
constexpr std::size_t kRowPerCell = 32; // rows of bits are kept if they have at most so many bytes for each cell
} // namespace

/// Adds up the cells of a group, block by block.
class MaskTile::Merger {
public:
    explicit Merger(int blocks) : sums_(blocks) {}
    void add(MaskCell cell, int selected, int missed) {
        GroupCell& sum = sums_[cell.block()];
        if (sum.selected == 0) touched_.push_back(cell.block()), sum.cell = cell;
        sum.cell.add(cell.bits());
        sum.selected = std::uint16_t(sum.selected + selected);
        sum.missed = std::uint16_t(sum.missed + missed);
    }
    void finish(Level& level) {
        std::sort(touched_.begin(), touched_.end());
        for (const int block : touched_) level.cells.push_back(std::exchange(sums_[block], {}));
        level.offsets.push_back(std::uint32_t(level.cells.size()));
        touched_.clear();
    }

private:
    Numbered<GroupCell> sums_; // [block]
    std::vector<int> touched_;
};

std::size_t MaskTile::bytes() const {
    std::size_t bytes = (offsets_.size() + missed_.size()) * sizeof(std::uint32_t) + cells_.size() * sizeof(MaskCell);
    for (const Level& level : upper_)
        bytes += level.offsets.size() * sizeof(std::uint32_t) + level.cells.size() * sizeof(GroupCell) +
                 level.bits.size() * sizeof(MaskBits) + 2 * level.selected.size() * sizeof(std::uint16_t);
    return bytes;
}

MaskBits MaskTile::anyBits() const {
    MaskBits all = 0;
    for (const MaskCell cell : cells_) all |= cell.bits();
    return all;
}

void MaskTile::append(const MaskChunk& chunk) {
    assert(!sealed_ && steps() + chunk.steps() <= kTileSteps);
    const auto before = std::uint32_t(cells_.size());
    cells_.insert(cells_.end(), chunk.cells.begin(), chunk.cells.end());
    for (int step = 0; step < chunk.steps(); ++step)
        if (const auto cells = chunk.cellsOf(step); !cells.empty())
            blocks_ = std::max(blocks_, cells.back().block() + 1);
    for (std::size_t i = 1; i < chunk.offsets.size(); ++i) offsets_.push_back(before + std::uint32_t(chunk.offsets[i]));
    grow();
}

void MaskTile::append(const MaskTile& more) {
    assert(!sealed_ && steps() + more.steps() <= kTileSteps);
    const auto before = std::uint32_t(cells_.size());
    cells_.insert(cells_.end(), more.cells_.begin(), more.cells_.end());
    for (std::size_t i = 1; i < more.offsets_.size(); ++i) offsets_.push_back(before + more.offsets_[i]);
    blocks_ = std::max(blocks_, more.blocks_);
    grow();
}

void MaskTile::grow() {
    for (int step = missed_.count() - 1; step < steps(); ++step) {
        const auto first = cells_.begin() + offsets_[step], last = cells_.begin() + offsets_[step + 1];
        const auto missed = std::count_if(first, last, [](MaskCell cell) { return cell.missed(); });
        missed_.push_back(missed_.back() + std::uint32_t(missed));
    }
    Merger merger(blocks_);
    std::size_t below = offsets_.size() - 1; // how many groups of the level below are complete
    for (std::size_t l = 0; below >= kSpanFanOut; ++l) {
        if (upper_.size() == l) upper_.emplace_back();
        Level& level = upper_[l];
        const std::size_t complete = below / kSpanFanOut;
        for (std::size_t group = level.offsets.size() - 1; group < complete; ++group) {
            const std::size_t first = group * kSpanFanOut, last = first + kSpanFanOut;
            if (l == 0) {
                for (std::size_t i = offsets_[first]; i < offsets_[last]; ++i)
                    merger.add(cells_[i], 1, cells_[i].missed() ? 1 : 0);
            } else {
                const Level& lower = upper_[l - 1];
                for (std::size_t i = lower.offsets[first]; i < lower.offsets[last]; ++i)
                    merger.add(lower.cells[i].cell, lower.cells[i].selected, lower.cells[i].missed);
            }
            merger.finish(level);
        }
        below = complete;
    }
}

void MaskTile::seal() {
    const auto width = std::size_t(blocks_);
    for (std::size_t l = sealed_ ? upper_.size() : 0; l < upper_.size(); ++l) {
        Level& level = upper_[l];
        const std::size_t groups = level.offsets.size() - 1;
        constexpr std::size_t perBlock = sizeof(MaskBits) + 2 * sizeof(std::uint16_t);
        const bool smaller = groups * width * perBlock <= level.cells.size() * sizeof(GroupCell);
        const bool quicker = l + 1 >= kRowsFrom && groups * width <= level.cells.size() * kRowPerCell;
        if (width == 0 || !(smaller || quicker)) continue;
        level.width = width;
        level.bits.assign(groups * width, 0);
        if (smaller) level.selected.assign(groups * width, 0);
        if (smaller) level.missed.assign(groups * width, 0);
        for (std::size_t group = 0; group < groups; ++group)
            for (std::size_t i = level.offsets[group]; i < level.offsets[group + 1]; ++i) {
                const GroupCell& cell = level.cells[i];
                const std::size_t at = group * width + std::size_t(cell.cell.block());
                level.bits[at] = cell.cell.bits();
                if (!smaller) continue;
                level.selected[at] = cell.selected;
                level.missed[at] = cell.missed;
            }
        if (!smaller) continue;
        level.offsets.assign(1, 0);
        level.cells = {};
    }
    sealed_ = true;
}

std::span<const MaskCell> MaskTile::cells(int step) const {
    const std::size_t first = offsets_[step];
    return std::span(cells_).subspan(first, offsets_[step + 1] - first);
}

std::span<const MaskTile::GroupCell> MaskTile::cellsOf(const Level& level, std::size_t group) const {
    return std::span(level.cells).subspan(level.offsets[group], level.offsets[group + 1] - level.offsets[group]);
}

template <class Cell> const Cell* MaskTile::atOrAfter(const Cell* first, const Cell* last, int block) {
    return std::lower_bound(first, last, block, [](const Cell& cell, int wanted) { return blockOf(cell) < wanted; });
}

template <class Cell> const Cell* MaskTile::lookUp(std::span<const Cell> cells, int block) {
    const Cell* last = cells.data() + cells.size();
    const Cell* at = atOrAfter(cells.data(), last, block);
    return at != last && blockOf(*at) == block ? at : nullptr;
}

std::optional<MaskBits> MaskTile::find(int step, int block) const {
    const MaskCell* at = lookUp(cells(step), block);
    return at ? std::optional(at->bits()) : std::nullopt;
}

void MaskTile::addBits(int first, int last, NumberedSpan<MaskBits> bits) const {
    forEachSpan(first, last, levels(), [&](std::size_t l, std::size_t group) {
        if (l == 0) {
            for (const MaskCell cell : cells(int(group))) bits[cell.block()] |= cell.bits();
            return;
        }
        const Level& level = upper_[l - 1];
        if (level.width > 0) {
            const MaskBits* row = level.bits.data() + group * level.width;
            for (std::size_t block = 0; block < level.width; ++block) bits[block] |= row[block];
            return;
        }
        for (const GroupCell& sum : cellsOf(level, group)) bits[blockOf(sum)] |= sum.cell.bits();
    });
}

void MaskTile::addCounts(int first, int last, MaskCounts counts) const {
    forEachSpan(first, last, levels(), [&](std::size_t l, std::size_t group) {
        if (l == 0) {
            for (const MaskCell cell : cells(int(group))) {
                const int block = cell.block();
                ++counts.selected[block];
                counts.missed[block] += cell.missed() ? 1u : 0u;
            }
            return;
        }
        const Level& level = upper_[l - 1];
        if (!level.listed()) {
            const std::uint16_t* selected = level.selected.data() + group * level.width;
            const std::uint16_t* missed = level.missed.data() + group * level.width;
            for (std::size_t block = 0; block < level.width; ++block) {
                counts.selected[block] += selected[block];
                counts.missed[block] += missed[block];
            }
            return;
        }
        for (const GroupCell& sum : cellsOf(level, group)) {
            const int block = blockOf(sum);
            counts.selected[block] += sum.selected;
            counts.missed[block] += sum.missed;
        }
    });
}

void MaskTile::addBands(int first, int last, MaskBandSums& sums) const {
    const MaskBands& bands = sums.bands_;
    const int base = bands.firstBlock(), end = std::min(bands.lastBlock(), int(blocks_));
    if (base >= end) return;
    const std::uint16_t* bandOf = bands.bandOf().data();
    MaskBits* bits = sums.bits_.data();
    std::uint64_t* counts = sums.counted_ ? sums.counts_.data() : nullptr;
    const auto inBands = [&](const auto cells) { // cells ascend by their blocks
        const auto *from = cells.data(), *to = from + cells.size();
        if (base > 0) from = atOrAfter(from, to, base);
        if (end < blocks_) to = atOrAfter(from, to, end);
        return std::span(from, to);
    };
    forEachSpan(first, last, levels(), [&](std::size_t l, std::size_t group) {
        if (l == 0) {
            for (const MaskCell cell : inBands(cells(int(group)))) {
                const std::size_t band = bandOf[cell.block() - base];
                bits[band] |= cell.bits();
                if (counts) counts[band] += MaskBandSums::pair(1, cell.missed() ? 1 : 0);
            }
            return;
        }
        const Level& level = upper_[l - 1];
        if (level.width == 0 || (counts && level.listed())) {
            for (const GroupCell& sum : inBands(cellsOf(level, group))) {
                const std::size_t band = bandOf[blockOf(sum) - base];
                bits[band] |= sum.cell.bits();
                if (counts) counts[band] += MaskBandSums::pair(sum.selected, sum.missed);
            }
            return;
        }
        sums.rows_ = true;
        const std::size_t row = group * level.width;
        const int blocks = std::min(end, int(level.width)) - base;
        const MaskBits* rowBits = level.bits.data() + row + base;
        MaskBits* toBits = sums.rowBits_.data();
        for (int i = 0; i < blocks; ++i) toBits[i] |= rowBits[i];
        if (!counts) return;
        const std::uint16_t *selected = level.selected.data() + row + base, *missed = level.missed.data() + row + base;
        std::uint32_t *toSelected = sums.rowSelected_.data(), *toMissed = sums.rowMissed_.data();
        for (int i = 0; i < blocks; ++i) toSelected[i] += selected[i];
        for (int i = 0; i < blocks; ++i) toMissed[i] += missed[i];
    });
}

std::array<int, 2> MaskTile::count(int block, int first, int last) const {
    std::array<int, 2> result{0, 0};
    if (block < 0 || block >= blocks_) return result;
    forEachSpan(first, last, levels(), [&](std::size_t l, std::size_t group) {
        if (l == 0) {
            if (const auto bits = find(int(group), block)) {
                ++result[0];
                result[1] += (*bits & kMaskMiss) ? 1 : 0;
            }
            return;
        }
        const Level& level = upper_[l - 1];
        if (!level.listed()) {
            const auto inRow = std::size_t(block);
            if (inRow >= level.width) return;
            const std::size_t at = group * level.width + inRow;
            result[0] += level.selected[at];
            result[1] += level.missed[at];
        } else if (const GroupCell* sum = lookUp(cellsOf(level, group), block)) {
            result[0] += sum->selected;
            result[1] += sum->missed;
        }
    });
    return result;
}

std::array<std::int64_t, 2> MaskTile::count(int first, int last) const {
    const auto between = [&](const Numbered<std::uint32_t>& sums) { return std::int64_t(sums[last]) - sums[first]; };
    return {between(offsets_), between(missed_)};
}

std::vector<std::byte> MaskTile::save() const {
    TileWriter out;
    out.number(std::uint64_t(blocks_));
    out.array(offsets_);
    out.array(cells_);
    out.array(missed_);
    out.number(upper_.size());
    for (const Level& level : upper_) {
        out.number(level.width);
        out.array(level.offsets);
        out.array(level.cells);
        out.array(level.bits);
        out.array(level.selected);
        out.array(level.missed);
    }
    return out.take();
}

std::shared_ptr<MaskTile> MaskTile::load(std::span<const std::byte> bytes) {
    auto tile = std::make_shared<MaskTile>();
    TileParser in(bytes);
    std::uint64_t blocks = 0, levels = 0;
    if (!in.number(blocks) || blocks > std::uint64_t(kMaxMaskBlock) + 1 || !in.array(tile->offsets_) ||
        !in.array(tile->cells_) || !in.array(tile->missed_) || !in.number(levels) || levels > 6)
        return nullptr;
    tile->blocks_ = std::int32_t(blocks);
    for (std::uint64_t l = 0; l < levels; ++l) {
        Level& level = tile->upper_.emplace_back();
        if (!in.number(level.width) || !in.array(level.offsets) || !in.array(level.cells) || !in.array(level.bits) ||
            !in.array(level.selected) || !in.array(level.missed))
            return nullptr;
    }
    tile->sealed_ = true;
    return in.atEnd() && tile->valid() ? tile : nullptr;
}

/// Whether a loaded tile is consistent: the functions above index its arrays without checks.
bool MaskTile::valid() const {
    const auto ascends = [](const std::vector<std::uint32_t>& offsets, std::size_t cells) {
        return !offsets.empty() && offsets.front() == 0 && offsets.back() == cells &&
               std::is_sorted(offsets.begin(), offsets.end());
    };
    const auto inside = [&](MaskCell cell) { return cell.block() < blocks_; };
    if (!ascends(offsets_, cells_.size()) || steps() > kTileSteps || missed_.size() != offsets_.size()) return false;
    if (!std::all_of(cells_.begin(), cells_.end(), inside)) return false;
    std::size_t groups = offsets_.size() - 1;
    for (const Level& level : upper_) {
        groups /= kSpanFanOut;
        const std::size_t dense = groups * level.width;
        if (groups == 0 || level.width > std::size_t(blocks_)) return false;
        if (level.bits.size() != dense || level.missed.size() != level.selected.size()) return false;
        if (!level.listed() && level.selected.size() != dense) return false;
        if (level.listed() && (level.offsets.size() != groups + 1 || !ascends(level.offsets, level.cells.size())))
            return false;
        for (const GroupCell& cell : level.cells)
            if (!inside(cell.cell)) return false;
    }
    return groups < kSpanFanOut;
}

} // namespace kvscope

#include "profiler/tiles/mask_pyramid.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

void MaskPyramid::reset() {
    tiles_.reset();
    blocks_ = 0;
    ++revision_;
}

void MaskPyramid::announce(int steps) {
    tiles_.announce(steps);
    ++revision_;
}

void MaskPyramid::append(const MaskChunk& chunk) {
    for (int from = 0; from < chunk.steps();) {
        const int at = tiles_.steps(), count = std::min(kTileSteps - at % kTileSteps, chunk.steps() - from);
        MaskChunk part;
        for (int step = from; step < from + count; ++step) {
            const auto cells = chunk.cellsOf(step);
            part.cells.insert(part.cells.end(), cells.begin(), cells.end());
            part.endStep();
        }
        place(at, std::make_shared<MaskTile>(part));
        from += count;
    }
}

void MaskPyramid::place(int first, std::shared_ptr<MaskTile> tile, int times) {
    ++revision_;
    blocks_ = std::max(blocks_, tile->blocks());
    tiles_.place(first, std::move(tile), times);
}

void MaskPyramid::setPreview(std::shared_ptr<const MaskTile> preview, int stride) {
    if (tiles_.complete()) return;
    ++revision_;
    blocks_ = std::max(blocks_, preview->blocks());
    tiles_.setPreview(std::move(preview), stride);
}

std::span<const MaskCell> MaskPyramid::cells(int step) const {
    if (!tiles_.knows(step)) return {};
    return tiles_.tileOf(step).cells(step % kTileSteps);
}

std::optional<MaskBits> MaskPyramid::find(int step, int block) const {
    if (!tiles_.knows(step)) return std::nullopt;
    return tiles_.tileOf(step).find(step % kTileSteps, block);
}

void MaskPyramid::bits(int first, int last, std::span<MaskBits> bits) const {
    std::fill(bits.begin(), bits.end(), MaskBits(0));
    tiles_.forEachPart(first, last, [&](const MaskTile& tile, int from, int to) { tile.addBits(from, to, bits); });
}

int MaskPyramid::counts(int first, int last, MaskCounts counts) const {
    std::fill(counts.selected.begin(), counts.selected.end(), 0u);
    std::fill(counts.missed.begin(), counts.missed.end(), 0u);
    int steps = 0;
    tiles_.forEachPart(first, last, [&](const MaskTile& tile, int from, int to) {
        tile.addCounts(from, to, counts);
        steps += to - from;
    });
    return steps;
}

int MaskPyramid::bands(int first, int last, MaskBandSums& sums) const {
    sums.clear();
    int steps = 0;
    tiles_.forEachPart(first, last, [&](const MaskTile& tile, int from, int to) {
        tile.addBands(from, to, sums);
        steps += to - from;
    });
    sums.foldRows();
    return steps;
}

std::array<int, 2> MaskPyramid::count(int block, int first, int last) const {
    std::array<int, 2> all{0, 0};
    tiles_.forEachPart(first, last, [&](const MaskTile& tile, int from, int to) {
        const auto part = tile.count(block, from, to);
        all[0] += part[0];
        all[1] += part[1];
    });
    return all;
}

std::array<double, 2> MaskPyramid::perStep(int first, int last) const {
    std::array<std::int64_t, 2> all{0, 0};
    std::int64_t steps = 0;
    tiles_.forEachPart(first, last, [&](const MaskTile& tile, int from, int to) {
        const auto part = tile.count(from, to);
        all[0] += part[0];
        all[1] += part[1];
        steps += to - from;
    });
    if (steps == 0) return {std::nan(""), std::nan("")};
    return {double(all[0]) / double(steps), double(all[1]) / double(steps)};
}

std::size_t MaskPyramid::bytes() const {
    std::size_t bytes = 0;
    tiles_.forEachTile([&](const MaskTile& tile) { bytes += tile.bytes(); });
    return bytes;
}

} // namespace kvscope

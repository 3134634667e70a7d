#include "profiler/tiles/step_pyramid.h"

#include "base/extents.h"
#include "base/indexed.h"

#include <algorithm>
#include <cassert>

namespace kvscope {

void StepPyramid::reset(int rows) {
    rows_ = std::max(rows, 0);
    tiles_.reset();
}

void StepPyramid::append(std::span<const float> values) {
    if (rows_ == 0) return;
    assert(values.size() % std::size_t(rows_) == 0 && "whole columns only");
    while (!values.empty()) {
        const int at = tiles_.steps();
        const std::size_t room = Extents<int, int>(kTileSteps - at % kTileSteps, rows_).size();
        const auto part = values.first(std::min(values.size(), room));
        auto tile = std::make_shared<HeatTile>(rows_);
        tile->append(part);
        tiles_.place(at, std::move(tile));
        values = values.subspan(part.size());
    }
}

float StepPyramid::at(int step, int row) const {
    if (!tiles_.knows(step)) return std::numeric_limits<float>::quiet_NaN();
    return tiles_.tileOf(step).at(step % kTileSteps, row);
}

void StepPyramid::sums(int first, int last, std::span<double> sums, std::span<std::int64_t> counts) const {
    std::fill(sums.begin(), sums.end(), 0.0);
    std::fill(counts.begin(), counts.end(), 0);
    tiles_.forEachPart(first, last,
                       [&](const HeatTile& tile, int from, int to) { tile.addSums(from, to, sums, counts); });
}

void StepPyramid::extremes(int first, int last, Aggregate which, std::span<float> out) const {
    constexpr float inf = std::numeric_limits<float>::infinity();
    std::fill(out.begin(), out.end(), which == Aggregate::Min ? inf : -inf);
    tiles_.forEachPart(first, last,
                       [&](const HeatTile& tile, int from, int to) { tile.addExtremes(from, to, which, out); });
}

void StepPyramid::aggregate(int first, int last, std::span<CellStats> out) const {
    Numbered<double> sum(rows_);
    Numbered<std::int64_t> count(rows_);
    Numbered<float> low(rows_), high(rows_);
    assert(out.size() >= sum.size());
    sums(first, last, sum, count);
    extremes(first, last, Aggregate::Min, low);
    extremes(first, last, Aggregate::Max, high);
    for (std::size_t row = 0; row < sum.size(); ++row) {
        out[row] = {};
        if (count[row] > 0) out[row] = {low[row], high[row], sum[row], count[row]};
    }
}

CellStats StepPyramid::stats(int row, int first, int last) const {
    CellStats all;
    if (row < 0 || row >= rows_) return all;
    tiles_.forEachPart(first, last,
                       [&](const HeatTile& tile, int from, int to) { all.add(tile.stats(row, from, to)); });
    return all;
}

CellStats StepPyramid::range(int first, int last) const {
    CellStats all;
    Numbered<CellStats> rows(rows_);
    aggregate(first, last, rows);
    for (const CellStats& row : rows) all.add(row);
    return all;
}

std::size_t StepPyramid::bytes() const {
    std::size_t bytes = 0;
    tiles_.forEachTile([&](const HeatTile& tile) { bytes += tile.bytes(); });
    return bytes;
}

} // namespace kvscope

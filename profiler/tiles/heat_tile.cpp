#include "profiler/tiles/heat_tile.h"

#include "profiler/tiles/tile_bytes.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace kvscope {

namespace {
constexpr float kInf = std::numeric_limits<float>::infinity();
}

float CellStats::value(Aggregate aggregate) const {
    if (count == 0) return std::numeric_limits<float>::quiet_NaN();
    return aggregate == Aggregate::Min ? min : aggregate == Aggregate::Max ? max : float(sum / double(count));
}

void CellStats::add(const CellStats& other) {
    if (other.count == 0) return;
    min = count ? std::min(min, other.min) : other.min;
    max = count ? std::max(max, other.max) : other.max;
    sum += other.sum;
    count += other.count;
}

std::size_t HeatTile::bytes() const {
    std::size_t bytes = base_.size() * sizeof(float);
    for (const Level& level : upper_) bytes += level.min.size() * (2 * sizeof(float) + sizeof(double) + 2);
    return bytes;
}

void HeatTile::append(std::span<const float> columns) {
    assert(rows_ > 0 && columns.size() % rows_ == 0 && "whole columns only");
    assert(base_.size() + columns.size() <= cells_.size());
    base_.insert(base_.end(), columns.begin(), columns.end());
    grow();
}

void HeatTile::grow() {
    std::size_t below = rows_ > 0 ? base_.size() / rows_ : 0; // complete groups of the level below
    for (std::size_t l = 0; below >= kSpanFanOut; ++l) {
        if (upper_.size() == l) upper_.emplace_back();
        Level& level = upper_[l];
        const std::size_t complete = below / kSpanFanOut;
        for (std::size_t group = level.min.size() / rows_; group < complete; ++group) {
            const std::size_t at = group * rows_;
            level.min.resize(at + rows_, kInf);
            level.max.resize(at + rows_, -kInf);
            level.sum.resize(at + rows_, 0);
            level.count.resize(at + rows_, 0);
            for (std::size_t child = group * kSpanFanOut; child < (group + 1) * kSpanFanOut; ++child) {
                for (std::size_t row = 0; row < rows_; ++row) {
                    const std::size_t from = child * rows_ + row, to = at + row;
                    if (l == 0) {
                        const float v = base_[from];
                        if (std::isnan(v)) continue;
                        level.min[to] = std::min(level.min[to], v);
                        level.max[to] = std::max(level.max[to], v);
                        level.sum[to] += double(v);
                        ++level.count[to];
                    } else {
                        const Level& lower = upper_[l - 1];
                        level.min[to] = std::min(level.min[to], lower.min[from]);
                        level.max[to] = std::max(level.max[to], lower.max[from]);
                        level.sum[to] += lower.sum[from];
                        level.count[to] = std::uint16_t(level.count[to] + lower.count[from]);
                    }
                }
            }
        }
        below = complete;
    }
}

void HeatTile::addSums(int first, int last, std::span<double> sums, std::span<std::int64_t> counts) const {
    forEachSpan(first, last, levels(), [&](std::size_t level, std::size_t group) {
        const std::size_t from = group * rows_;
        if (level == 0) {
            const float* cells = base_.data() + from;
            for (std::size_t row = 0; row < rows_; ++row) {
                const bool defined = cells[row] == cells[row];
                sums[row] += defined ? double(cells[row]) : 0;
                counts[row] += defined ? 1 : 0;
            }
            return;
        }
        const Level& nodes = upper_[level - 1];
        for (std::size_t row = 0; row < rows_; ++row) {
            sums[row] += nodes.sum[from + row];
            counts[row] += nodes.count[from + row];
        }
    });
}

void HeatTile::addExtremes(int first, int last, Aggregate which, std::span<float> out) const {
    const bool smallest = which == Aggregate::Min;
    forEachSpan(first, last, levels(), [&](std::size_t level, std::size_t group) {
        const std::vector<float>& from = level == 0 ? base_ : smallest ? upper_[level - 1].min : upper_[level - 1].max;
        const float* cells = from.data() + group * rows_;
        if (smallest)
            for (std::size_t row = 0; row < rows_; ++row) out[row] = cells[row] < out[row] ? cells[row] : out[row];
        else // comparisons with NaN are false, so that undefined cells change nothing
            for (std::size_t row = 0; row < rows_; ++row) out[row] = cells[row] > out[row] ? cells[row] : out[row];
    });
}

CellStats HeatTile::stats(int row, int first, int last) const {
    CellStats all;
    forEachSpan(first, last, levels(), [&](std::size_t level, std::size_t group) {
        const std::size_t at = cells_.offset(int(group), row);
        if (level == 0) {
            const float v = base_[at];
            if (!std::isnan(v)) all.add({v, v, double(v), 1});
            return;
        }
        const Level& nodes = upper_[level - 1];
        all.add({nodes.min[at], nodes.max[at], nodes.sum[at], nodes.count[at]});
    });
    return all;
}

std::vector<std::byte> HeatTile::save() const {
    TileWriter out;
    out.number(rows_);
    out.array(base_);
    out.number(upper_.size());
    for (const Level& level : upper_) {
        out.array(level.min);
        out.array(level.max);
        out.array(level.sum);
        out.array(level.count);
    }
    return out.take();
}

std::shared_ptr<HeatTile> HeatTile::load(std::span<const std::byte> bytes) {
    TileParser in(bytes);
    std::uint64_t rows = 0, levels = 0;
    if (!in.number(rows) || rows == 0 || rows > (1u << 24)) return nullptr;
    auto tile = std::make_shared<HeatTile>(int(rows));
    if (!in.array(tile->base_) || tile->base_.size() % rows != 0) return nullptr;
    std::size_t groups = tile->base_.size() / rows;
    if (groups > kTileSteps || !in.number(levels)) return nullptr;
    for (std::uint64_t l = 0; l < levels; ++l) {
        groups /= kSpanFanOut;
        Level& level = tile->upper_.emplace_back();
        const std::size_t cells = groups * rows;
        if (cells == 0 || !in.array(level.min) || !in.array(level.max) || !in.array(level.sum) ||
            !in.array(level.count) || level.min.size() != cells || level.max.size() != cells ||
            level.sum.size() != cells || level.count.size() != cells)
            return nullptr;
    }
    return in.atEnd() && groups < kSpanFanOut ? tile : nullptr;
}

} // namespace kvscope

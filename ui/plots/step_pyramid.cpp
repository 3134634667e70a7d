#include "ui/plots/step_pyramid.h"

#include "ui/plots/step_spans.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
} // namespace

float CellStats::value(Aggregate aggregate) const {
    if (count == 0) return kNan;
    switch (aggregate) {
    case Aggregate::Min:
        return min;
    case Aggregate::Max:
        return max;
    case Aggregate::Mean:
        break;
    }
    return float(sum / double(count));
}

void StepPyramid::reset(int rows) {
    rows_ = std::max(rows, 0);
    base_.clear();
    upper_.clear();
}

StepPyramid::Node StepPyramid::leaf(std::size_t index) const {
    const float v = base_[index];
    if (std::isnan(v)) return {kInf, -kInf, 0, 0};
    return {v, v, double(v), 1};
}

void StepPyramid::merge(Node& into, const Node& from) {
    into.min = std::min(into.min, from.min);
    into.max = std::max(into.max, from.max);
    into.sum += from.sum;
    into.count += from.count;
}

void StepPyramid::append(std::span<const float> values) {
    if (rows_ == 0) return;
    assert(values.size() % std::size_t(rows_) == 0 && "whole columns only");
    base_.insert(base_.end(), values.begin(), values.end());
    grow();
}

void StepPyramid::grow() {
    const auto rows = std::size_t(rows_);
    std::size_t below = base_.size() / rows; // complete nodes of the level below
    for (std::size_t level = 0; below >= kSpanFanOut; ++level) {
        if (upper_.size() <= level) upper_.emplace_back();
        auto& nodes = upper_[level];
        const std::size_t complete = below / kSpanFanOut;
        for (std::size_t n = nodes.size() / rows; n < complete; ++n) {
            for (std::size_t row = 0; row < rows; ++row) {
                Node node{kInf, -kInf, 0, 0};
                for (std::size_t child = n * kSpanFanOut; child < (n + 1) * kSpanFanOut; ++child) {
                    const std::size_t at = child * rows + row;
                    merge(node, level == 0 ? leaf(at) : upper_[level - 1][at]);
                }
                nodes.push_back(node);
            }
        }
        below = complete;
    }
}

void StepPyramid::aggregate(int first, int last, std::span<CellStats> out) const {
    assert(out.size() >= std::size_t(rows_));
    first = std::max(first, 0);
    last = std::min(last, steps());
    const auto rows = std::size_t(rows_);
    for (std::size_t row = 0; row < rows; ++row) out[row] = {kInf, -kInf, 0, 0};
    if (first < last) {
        forEachSpan(std::size_t(first), std::size_t(last), int(upper_.size()) + 1, [&](int level, std::size_t index) {
            for (std::size_t row = 0; row < rows; ++row) {
                const std::size_t at = index * rows + row;
                const Node node = level == 0 ? leaf(at) : upper_[std::size_t(level) - 1][at];
                CellStats& cell = out[row];
                cell.min = std::min(cell.min, node.min);
                cell.max = std::max(cell.max, node.max);
                cell.sum += node.sum;
                cell.count += node.count;
            }
        });
    }
    for (std::size_t row = 0; row < rows; ++row)
        if (out[row].count == 0) out[row] = {};
}

CellStats StepPyramid::stats(int row, int first, int last) const {
    first = std::max(first, 0);
    last = std::min(last, steps());
    Node all{kInf, -kInf, 0, 0};
    if (row < 0 || row >= rows_ || first >= last) return {};
    forEachSpan(std::size_t(first), std::size_t(last), int(upper_.size()) + 1, [&](int level, std::size_t index) {
        const std::size_t at = index * std::size_t(rows_) + std::size_t(row);
        merge(all, level == 0 ? leaf(at) : upper_[std::size_t(level) - 1][at]);
    });
    if (all.count == 0) return {};
    return {all.min, all.max, all.sum, all.count};
}

CellStats StepPyramid::range(int first, int last) const {
    CellStats all{kInf, -kInf, 0, 0};
    std::vector<CellStats> rows(std::size_t(std::max(rows_, 0)));
    aggregate(first, last, rows);
    for (const CellStats& row : rows) {
        if (row.count == 0) continue;
        all.min = std::min(all.min, row.min);
        all.max = std::max(all.max, row.max);
        all.sum += row.sum;
        all.count += row.count;
    }
    if (all.count == 0) return {};
    return all;
}

} // namespace kvscope::ui

#include "core/calibrate/forecast_objective.h"

#include "kernels/selection.h"

#include <algorithm>
#include <cmath>

namespace kvscope {
namespace {

constexpr double kFloor = 1e-8;

/// The teacher's share of every visible window. The shares sum to 1.
std::vector<float> alignedTeacher(const PoolingGrid& grid, std::span<const std::span<const float>> logits, int position,
                                  int windows) {
    const std::size_t fine = std::size_t(position); // entry m is the mean of the tokens m and m + 1, m + 1 <= position
    std::vector<double> mass(fine, 0.0), weight(fine);
    for (const auto& head : logits) {
        double most = -INFINITY, sum = 0;
        for (std::size_t m = 0; m < fine; ++m) {
            weight[m] = 0.5 * (double(head[m]) + double(head[m + 1]));
            most = std::max(most, weight[m]);
        }
        for (double& w : weight) sum += w = std::exp(w - most);
        for (std::size_t m = 0; m < fine; ++m) mass[m] += weight[m] / sum;
    }
    Numbered<float> share(windows);
    double total = 0;
    for (int c = 0; c < windows; ++c) {
        const auto first = mass.begin() + c * grid.stride;
        const double best = *std::max_element(first, first + grid.kernel - 1);
        share[c] = float(best);
        total += best;
    }
    for (float& s : share) s = float(double(s) / total);
    return share;
}

} // namespace

ForecastTarget forecastTarget(const SelectionSpec& spec, std::span<const std::span<const float>> logits, int position,
                              int farBlocks) {
    const int windows = spec.grid.windows(position + 1);
    if (windows == 0) return {};
    return targetOfShares(spec, alignedTeacher(spec.grid, logits, position, windows), position, farBlocks);
}

ForecastTarget targetOfShares(const SelectionSpec& spec, NumberedSpan<const float> share, int position, int farBlocks) {
    const PoolingGrid& grid = spec.grid;
    ForecastTarget target;
    target.windows = std::int32_t(share.size());
    Numbered<float> pooled(grid.blocks(position + 1));
    poolToBlocks(grid, share, pooled);
    SelectionBudget budget = spec.budget;
    budget.queryAware = farBlocks;
    budget.queryAgnostic = 0;
    std::vector<SelectedBlock> chosen;
    selectBlocks(budget, position / spec.blockSize, pooled, {}, chosen);
    double kept = 0;
    for (const SelectedBlock& block : chosen) {
        if (block.origin != Origin::QueryAware) continue;
        const int first = block.block * grid.windowsPerBlock();
        for (int c = first; c < std::min(first + grid.windowsPerBlock(), target.windows); ++c) {
            target.kept.push_back(c);
            target.share.push_back(share[c]);
            kept += double(share[c]);
        }
    }
    target.rest = float(std::max(0.0, 1.0 - kept));
    return target;
}

double forecastLoss(const ForecastTarget& target, std::span<const float> scores, std::span<float> gradient) {
    double most = -INFINITY, sum = 0;
    for (const float s : scores) most = std::max(most, double(s));
    for (std::size_t c = 0; c < scores.size(); ++c) sum += gradient[c] = float(std::exp(double(scores[c]) - most));
    // Until the last loop gradient[c] holds the student's share of window c.
    double keptShare = 0;
    for (float& g : gradient) g = float(double(g) / sum);
    for (const std::int32_t c : target.kept) keptShare += double(gradient[std::size_t(c)]);
    const double studentRest = std::max(1.0 - keptShare, kFloor);
    const auto term = [](double teacher, double student) {
        return teacher > kFloor ? teacher * std::log(teacher / std::max(student, kFloor)) : 0.0;
    };
    const bool hasRest = target.kept.size() < scores.size();
    double loss = hasRest ? term(double(target.rest), studentRest) : 0.0;
    // The derivative of -sum T log S by a score is S - T for a kept window. For a window of the bucket, T is the
    // bucket's share of the teacher times the window's part of the student's share of the bucket.
    const double bucket = hasRest ? double(target.rest) / studentRest : 0.0;
    std::size_t next = 0;
    for (std::size_t c = 0; c < scores.size(); ++c) {
        const double student = double(gradient[c]);
        if (next < target.kept.size() && std::size_t(target.kept[next]) == c) {
            const double teacher = double(target.share[next++]);
            loss += term(teacher, student);
            gradient[c] = float(student - teacher);
        } else {
            gradient[c] = float(student - bucket * student);
        }
    }
    return loss;
}

} // namespace kvscope

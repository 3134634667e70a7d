#include "core/serve/planted_hits.h"

#include <algorithm>
#include <array>

namespace kvscope::serve {

void plantHits(ServiceCosts& costs, double drift, const Workload& workload) {
    const double selected = costs.shape.selectedBlocks;
    const auto hitsWith = [&](double slots) {
        double there = 0, weight = 0;
        for (const WorkloadLine& line : workload.lines) {
            const double blocks = (line.promptTokens + line.outputTokens / 2.0) / costs.shape.blockTokens;
            there += line.outputTokens * (slots >= blocks ? 1.0 : (slots - selected) / (blocks - selected));
            weight += line.outputTokens;
        }
        return 1 - drift * (1 - (weight > 0 ? there / weight : 0));
    };
    constexpr std::array kShares{0.1, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0};
    std::vector<std::pair<double, double>> pool, partition;
    for (const double share : kShares) {
        pool.emplace_back(share, hitsWith(selected / share));
        partition.emplace_back(1 / share, pool.back().second);
    }
    for (const auto& point : costs.lruHits.points)
        if (point.first > 1) pool.push_back(point);
    std::ranges::reverse(partition);
    costs.lruHits.points = std::move(pool), costs.partitionHits.points = std::move(partition);
    costs.drift = drift;
}

} // namespace kvscope::serve

#include "core/session/oracle_best.h"

#include "base/indexed.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace kvscope {

void describeSelection(std::span<const float> mass, std::span<const std::int32_t> selected,
                       std::span<const Origin> origins, OracleRecord& record) {
    const std::size_t blocks = mass.size();
    std::vector<std::uint8_t> isSelected(blocks, 0), isNear(blocks, 0);
    record.selected = std::int32_t(selected.size());
    record.far = 0;
    record.mass = record.bestMass = record.farMass = record.farBestMass = 0;
    for (std::size_t i = 0; i < selected.size(); ++i) {
        const auto block = std::size_t(selected[i]);
        isSelected[block] = 1;
        if (origins[i] == Origin::Sink || origins[i] == Origin::Window)
            isNear[block] = 1;
        else
            ++record.far;
        record.mass += mass[block];
    }
    // The `count` allowed blocks with the most mass; of equal ones the lower block.
    Numbered<std::int32_t> best;
    const auto addBest = [&](int count, bool farOnly, float& sum, float& recall) {
        best.clear();
        for (std::size_t b = 0; b < blocks; ++b)
            if (!farOnly || isNear[b] == 0) best.push_back(std::int32_t(b));
        std::partial_sort(best.begin(), best.begin() + count, best.end(), [&](std::int32_t a, std::int32_t b) {
            const float massA = mass[std::size_t(a)], massB = mass[std::size_t(b)];
            return massA != massB ? massA > massB : a < b;
        });
        int found = 0;
        for (int i = 0; i < count; ++i) {
            const auto block = std::size_t(best[i]);
            sum += mass[block];
            found += isSelected[block];
        }
        recall = float(found) / float(count);
    };
    addBest(record.selected, false, record.bestMass, record.recall);
    float allFar = 0;
    for (std::size_t b = 0; b < blocks; ++b)
        if (isNear[b] == 0) {
            allFar += mass[b];
            record.farMass += isSelected[b] ? mass[b] : 0.f;
        }
    if (record.far > 0 && allFar > 0) {
        addBest(record.far, true, record.farBestMass, record.farRecall);
        record.farMass /= allFar;
        record.farBestMass /= allFar;
    } else {
        record.farMass = record.farBestMass = record.farRecall = std::numeric_limits<float>::quiet_NaN();
    }
}

void keepOracle(const OracleRecord& record, SelectionRecord& selection) {
    selection.bestMass = record.bestMass;
    selection.recall = record.recall;
    selection.farMass = record.farMass;
    selection.farBestMass = record.farBestMass;
    selection.farRecall = record.farRecall;
}

} // namespace kvscope

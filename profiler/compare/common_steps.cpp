#include "profiler/compare/common_steps.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace kvscope {

CommonSteps commonSteps(std::span<const RunSample> a, std::span<const RunSample> b) {
    struct Seen {
        std::size_t runs = 0;
        bool opens = false;
    };
    std::map<int, Seen> seen;
    for (const auto side : {a, b})
        for (const RunSample& sample : side)
            for (const StepSample& step : sample.steps) {
                Seen& entry = seen[step.step];
                ++entry.runs;
                entry.opens |= step.opensBlock;
            }
    CommonSteps result;
    std::vector<int> opening;
    constexpr int kFirstDecodeStep = 1; // 0 is the prefill
    for (const auto& [step, entry] : seen) {
        if (entry.runs < a.size() + b.size())
            ++result.unpaired;
        else if (step <= kFirstDecodeStep)
            ++result.first;
        else
            (entry.opens ? opening : result.steps).push_back(step);
    }
    if (int(result.steps.size()) < kFewestSteps && int(result.steps.size() + opening.size()) >= kFewestSteps) {
        std::vector<int> both;
        std::merge(result.steps.begin(), result.steps.end(), opening.begin(), opening.end(), std::back_inserter(both));
        result.steps = std::move(both);
        result.openingKept = true;
    } else {
        result.opening = int(opening.size());
    }
    return result;
}

} // namespace kvscope

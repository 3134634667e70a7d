#include "profiler/compare/common_steps.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace kvscope {

CommonSteps commonSteps(std::span<const RunSample> a, std::span<const RunSample> b) {
    struct Seen {
        std::size_t runs = 0;
        bool opens = false, cold = false;
    };
    std::map<int, Seen> seen;
    for (const auto side : {a, b})
        for (const RunSample& sample : side) {
            std::vector<StepMark> marks;
            for (const StepSample& step : sample.steps) marks.push_back(step.mark);
            const std::vector<StepKind> kinds = kindsOf(marks);
            for (std::size_t i = 0; i < kinds.size(); ++i) {
                Seen& entry = seen[sample.steps[i].step];
                ++entry.runs;
                entry.opens |= marks[i].opensBlock;
                entry.cold |= isLeftOut(kinds[i]);
            }
        }
    CommonSteps result;
    std::vector<int> opening;
    const bool leaveOut = coldSteps() == ColdSteps::LeftOut;
    for (const auto& [step, entry] : seen) {
        if (entry.runs < a.size() + b.size())
            ++result.unpaired;
        else if (entry.cold && leaveOut)
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

#include "profiler/read/step_kind.h"

#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <atomic>

namespace kvscope {
namespace {

std::atomic<ColdSteps> choice = ColdSteps::LeftOut;

} // namespace

StepMark markOf(const StepRow& row) {
    return {row.step, row.selected > 0, row.selected > 0 && row.kept >= 0, row.opensBlock};
}

std::vector<StepKind> kindsOf(std::span<const StepMark> steps) {
    const bool saysKept = std::any_of(steps.begin(), steps.end(), [](const StepMark& step) { return step.saysKept; });
    const bool selects = std::any_of(steps.begin(), steps.end(), [](const StepMark& step) { return step.selects; });
    std::vector<StepKind> kinds;
    kinds.reserve(steps.size());
    bool selectedBefore = false;
    for (const StepMark& step : steps) {
        const bool cold = !selects   ? step.step <= 1
                          : saysKept ? step.selects && !step.saysKept && !(step.opensBlock && selectedBefore)
                                     : step.selects && !selectedBefore;
        kinds.push_back(cold ? StepKind::Cold : step.opensBlock ? StepKind::Opening : StepKind::Steady);
        selectedBefore |= step.selects;
    }
    return kinds;
}

std::vector<StepKind> kindsOf(const std::vector<StepRow>& decodeSteps) {
    std::vector<StepMark> marks;
    marks.reserve(decodeSteps.size());
    for (const StepRow& row : decodeSteps) marks.push_back(markOf(row));
    return kindsOf(marks);
}

std::vector<int> coldStepsOf(const TraceReader& reader, int runId) {
    constexpr int kPieceSteps = 8192;
    std::vector<StepMark> marks;
    const int steps = reader.stepCount(runId);
    for (int first = 0; first < steps; first += kPieceSteps) {
        first = ReaderAccess::of(reader).nextStep(runId, first); // rows bound the work, not their numbers
        for (const StepRow& row : reader.steps(runId, first, std::min(first + kPieceSteps, steps) - 1))
            if (row.phase == Phase::Decode) marks.push_back(markOf(row));
    }
    const std::vector<StepKind> kinds = kindsOf(marks);
    std::vector<int> cold;
    for (std::size_t i = 0; i < kinds.size(); ++i)
        if (kinds[i] == StepKind::Cold) cold.push_back(marks[i].step);
    return cold;
}

ColdSteps coldSteps() { return choice.load(std::memory_order_relaxed); }
void setColdSteps(ColdSteps wanted) { choice.store(wanted, std::memory_order_relaxed); }

} // namespace kvscope

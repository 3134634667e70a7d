#include "profiler/read/run_numbers.h"

#include "core/trace/run_meta.h"
#include "profiler/read/denoising.h"
#include "profiler/read/needle_evidence.h"
#include "profiler/read/next_step.h"

#include <algorithm>
#include <limits>

namespace kvscope {

bool extendRunNumbers(RunNumbers& numbers, const TraceReader& reader, const RunRow& run, int mostSteps) {
    const int steps = reader.stepCount(run.runId);
    if (numbers.nextStep < steps) {
        // A trace may have large gaps between the numbers of its steps.
        const int next = nextRecordedStep(reader, run.runId, numbers.nextStep);
        const int last = int(std::min<std::int64_t>(std::int64_t(next) + mostSteps, steps)) - 1;
        const std::vector<StepRow> rows = reader.steps(run.runId, next, last);
        const StepMarks marks(reader, run);
        for (const StepRow& step : rows) numbers.sums.addStep(step, marks.of(step));
        numbers.nextStep = last + 1;
    }
    if (numbers.nextStep < steps) return false;
    numbers.answer = answersText(needleAnswers(reader, run));
    return true;
}

double h2dBytesPerToken(const RunSummary& summary) {
    // The mean step's tokens are its rate times its time.
    return summary.h2dBytesPerStep / (summary.tokensPerSecond * summary.stepMs * 1e-3);
}

std::int64_t slotBlocksOf(const RunRow& run) {
    if (!run.knows.has(Known::Hits) || denoisingBlock(run) > 0) return -1;
    return std::int64_t(run.deviceSlots) * run.layers * run.sequences * run.kvHeads;
}

double deviceKvBytes(const RunRow& run, const RunSummary& summary) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    const std::int64_t slots = slotBlocksOf(run);
    if (slots < 0 || run.blockBytes <= 0 || run.serves()) return kUnknown;
    if (slots > 0) return double(slots) * double(run.blockBytes);
    const std::int64_t tokens = summary.promptTokens + summary.decodedTokens;
    const bool partsOfBlocks = !run.metaOr(run_meta::kKvBlockTokens).empty();
    const bool keepsAll = run.budgetBlocks == 0 && summary.misses == 0 && summary.h2dBytes == 0;
    if (run.blockSize <= 0 || tokens <= 0 || run.droppedSteps > 0 || partsOfBlocks || !keepsAll ||
        run.prompts.severalPrompts()) // whose requests are over keep none
        return kUnknown;
    return double(tokens) / run.blockSize * double(run.blockBytes) * run.layers * run.kvHeads;
}

} // namespace kvscope

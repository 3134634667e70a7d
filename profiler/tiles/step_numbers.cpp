#include "profiler/tiles/step_numbers.h"

#include "base/extents.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace kvscope {
namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

void fillStages(const BreakdownStep& step, int only, float* column) {
    std::uint64_t total = 0; // unsigned, because the numbers of a damaged trace may overflow
    for (std::size_t i = 0; i < kStageCount; ++i)
        column[i] = float(step.stageNs[i]), total += std::uint64_t(step.stageNs[i]);
    for (std::size_t i = 0; i < kStepStageCount; ++i)
        column[kStageCount + i] = float(step.stepStageNs[i]), total += std::uint64_t(step.stepStageNs[i]);
    const std::int64_t other = std::max<std::int64_t>(step.otherNs, 0);
    column[kStageRows - 1] = float(other);
    column[kStageRows] = float(std::int64_t(total + std::uint64_t(other)));
    if (only < 0) return;
    for (int i = 0; i < kStageRows; ++i)
        if (i != only) column[i] = 0;
    column[kStageRows] = column[only];
}

/// The step without its stages: all of it is its rest. A step of chosen layers is their stages, and has none.
BreakdownStep wholeStep(const BreakdownStep& step, const ReadFilter& filter) {
    BreakdownStep whole;
    whole.step = step.step;
    if (filter.layers.empty()) whole.durationNs = whole.otherNs = step.durationNs;
    return whole;
}

void fillTransfers(const StepRow& row, float* column) {
    const auto set = [column](TransferNumber number, double value) { column[int(number)] = float(value); };
    const auto known = [](std::int64_t value) { return value >= 0 ? double(value) : double(kNoNumber); };
    const double hits = known(row.hits), misses = known(row.misses);
    set(TransferNumber::HitRatePercent, hits + misses > 0 ? 100 * hits / (hits + misses) : double(kNoNumber));
    set(TransferNumber::Hits, hits);
    set(TransferNumber::Misses, misses);
    set(TransferNumber::H2dBytes, known(row.h2dBytes));
    set(TransferNumber::D2hBytes, known(row.d2hBytes)); // a trace has no such number for single KV heads
    set(TransferNumber::LinkNs, known(row.transferNs));
    set(TransferNumber::ExposedNs, known(row.exposedNs));
    set(TransferNumber::OpensBlock, row.opensBlock ? 1 : 0);
    const bool defined = row.kept >= 0 && row.selected > 0;
    set(TransferNumber::Locality, defined ? double(row.kept) / double(row.selected) : double(kNoNumber));
}

} // namespace

int rowsOf(StepNumbers numbers) { return numbers == StepNumbers::Stages ? kStageRows + 1 : int(TransferNumber::Count); }

std::vector<float> stepColumns(const TraceReader& reader, const StepRequest& request, int first, int last) {
    const Extents<int, int> columns(last - first + 1, rowsOf(request.numbers));
    std::vector<float> values(columns.size(), kNoNumber);
    const bool prefill = request.phase == Phase::Prefill;
    const std::optional<RunRow> run = reader.run(request.runId);
    const PromptSteps prompts = run ? run->prompts : PromptSteps();
    const int from = prefill ? first : std::max(first, prompts.firstDecode()),
              to = prefill && !prompts.inPieces() ? std::min(last, 0) : last;
    if (from > to) return values;
    const auto isWanted = [&](int step) { return step >= from && step <= to && prompts.readsPrompt(step) == prefill; };
    const auto column = [&](int step) { return columns.part(std::span(values), step - first).data(); };
    if (request.numbers == StepNumbers::Stages) {
        for (BreakdownStep& step : filteredBreakdownSteps(reader, request.runId, request.filter, from, to)) {
            if (!request.stagesKnown) step = wholeStep(step, request.filter);
            if (isWanted(step.step)) fillStages(step, request.only, column(step.step));
        }
    } else {
        for (const StepRow& row : filteredSteps(reader, request.runId, request.filter, from, to))
            if (isWanted(row.step)) fillTransfers(row, column(row.step));
    }
    return values;
}

} // namespace kvscope

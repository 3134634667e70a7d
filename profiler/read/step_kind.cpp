#include "profiler/read/step_kind.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/denoising.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <atomic>
#include <bitset>

namespace kvscope {
namespace {

std::atomic<ColdSteps> choice = ColdSteps::LeftOut;

/// Of a denoising run: the steps in which some sequence selects for the first time. Only steps without `kept` can be
/// among them, and no more is read once every sequence has selected.
std::vector<int> firstSelections(const TraceReader& reader, const RunRow& run) {
    Connection& connection = *ReaderAccess::of(reader).connection;
    Statement steps(connection, "SELECT id FROM step WHERE id BETWEEN ? AND ? AND phase <> 0 AND selected > 0"
                                " AND kept IS NULL ORDER BY id");
    Statement sequences(connection, "SELECT DISTINCT (id >> 10) & 1023 FROM selection WHERE id BETWEEN ? AND ?"
                                    " AND selected > 0 AND kept IS NULL");
    steps.bindAll(trace::stepKey(run.runId, 0), trace::stepKey(run.runId, trace::kMaxStep));
    std::vector<int> first;
    std::bitset<trace::kMaxSequences> seen;
    int candidate = -1; // the first one: where a trace has no selections, it is all that is known
    while (std::int64_t(seen.count()) < run.sequences && steps.step()) {
        const int step = trace::stepOf(steps.int64(0), 0);
        if (candidate < 0) candidate = step;
        const auto [low, high] = trace::keysOfSteps(run.runId, step, step, trace::kSelectionShift);
        sequences.reset();
        sequences.bindAll(low, high);
        bool newcomer = false;
        while (sequences.step()) {
            const auto sequence = std::size_t(sequences.int64(0));
            newcomer |= !seen[sequence];
            seen.set(sequence);
        }
        if (newcomer) first.push_back(step);
    }
    if (first.empty() && candidate >= 0) first.push_back(candidate);
    return first;
}

} // namespace

StepMarks::StepMarks(const TraceReader& reader, const RunRow& run)
    : denoises_(denoisingBlock(run) > 0), firstDecode_(run.prompts.firstDecode()) {
    if (denoises_) first_ = firstSelections(reader, run);
}

StepMark StepMarks::of(const StepRow& row) const {
    const bool selects = row.selected > 0;
    const bool newcomer =
        selects && row.kept < 0 && (!denoises_ || std::binary_search(first_.begin(), first_.end(), row.step));
    return {row.step, selects, newcomer, row.opensBlock, row.mixed(), firstDecode_};
}

std::array<bool, ColdRule::kReadings> ColdRule::next(const StepMark& step) {
    std::array<bool, kReadings> cold{step.step <= step.firstDecode, step.selects && !selects_, step.newcomer};
    selects_ |= step.selects;
    compares_ |= step.selects && !step.newcomer;
    if (step.mixed) cold.fill(true);
    return cold;
}

std::vector<StepKind> kindsOf(std::span<const StepMark> steps) {
    ColdRule rule;
    std::vector<std::array<bool, ColdRule::kReadings>> cold;
    cold.reserve(steps.size());
    for (const StepMark& step : steps) cold.push_back(rule.next(step));
    std::vector<StepKind> kinds;
    kinds.reserve(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i)
        kinds.push_back(steps[i].mixed            ? StepKind::Mixed
                        : cold[i][rule.reading()] ? StepKind::Cold
                        : steps[i].opensBlock     ? StepKind::Opening
                                                  : StepKind::Steady);
    return kinds;
}

std::vector<StepKind> kindsOf(const TraceReader& reader, const RunRow& run, std::span<const StepRow> decodeSteps) {
    const StepMarks marksOfRun(reader, run);
    std::vector<StepMark> marks;
    marks.reserve(decodeSteps.size());
    for (const StepRow& row : decodeSteps) marks.push_back(marksOfRun.of(row));
    return kindsOf(marks);
}

std::vector<int> coldStepsOf(const TraceReader& reader, int runId) {
    const auto& access = ReaderAccess::of(reader);
    const RunRow run = access.known(runId);
    Statement steps(*access.connection, "SELECT id, selected, kept FROM step WHERE id BETWEEN ? AND ? AND phase <> 0"
                                        " ORDER BY id");
    steps.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, trace::kMaxStep));
    std::vector<StepRow> rows;
    while (steps.step()) {
        StepRow& row = rows.emplace_back();
        row.step = trace::stepOf(steps.int64(0), 0);
        row.selected = steps.int64(1);
        row.kept = steps.isNull(2) ? -1 : steps.int64(2);
        row.promptTokens = run.prompts.mixedTokens(row.step);
    }
    const std::vector<StepKind> kinds = kindsOf(reader, run, rows);
    std::vector<int> cold;
    for (std::size_t i = 0; i < kinds.size(); ++i)
        if (isLeftOut(kinds[i])) cold.push_back(rows[i].step);
    return cold;
}

ColdSteps coldSteps() { return choice.load(std::memory_order_relaxed); }
void setColdSteps(ColdSteps wanted) { choice.store(wanted, std::memory_order_relaxed); }

} // namespace kvscope

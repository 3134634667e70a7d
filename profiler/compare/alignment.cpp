#include "profiler/compare/alignment.h"

#include "base/error.h"
#include "profiler/read/step_kind.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>

namespace kvscope {

StepIndex loadStepIndex(const TraceReader& reader, int runId, int sequence) {
    StepIndex index;
    const auto run = reader.run(runId);
    if (!run) throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), runId));
    index.run = *run;
    std::unordered_map<int, int> positions;
    for (const TokenRow& token : reader.tokens(runId, sequence)) {
        const auto [place, added] = positions.emplace(token.step, token.position);
        if (!added) place->second = std::min(place->second, token.position);
    }
    std::vector<StepRow> rows = reader.steps(runId);
    std::erase_if(rows, [](const StepRow& row) { return row.phase != Phase::Decode; });
    const std::vector<StepKind> kinds = kindsOf(reader, index.run, rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto position = positions.find(rows[i].step);
        index.steps.push_back({rows[i].step, position == positions.end() ? -1 : position->second, rows[i].opensBlock,
                               isLeftOut(kinds[i])});
    }
    return index;
}

Alignment align(const StepIndex& a, const StepIndex& b, AlignBy by, const std::string& other) {
    Alignment result;
    if (a.run.layers != b.run.layers) {
        result.refusal = fmt::format("A has {} layers and {} {}: a layer of one has no counterpart in the other",
                                     a.run.layers, other, b.run.layers);
        return result;
    }
    const auto keyOf = [by](const StepIndex::Step& step) { return by == AlignBy::Step ? step.step : step.position; };
    // In traces that KVScope records, positions ascend with the steps. Other traces are put in order.
    const auto ordered = [&](const std::vector<StepIndex::Step>& steps) {
        std::vector<StepIndex::Step> kept;
        for (const StepIndex::Step& step : steps)
            if (keyOf(step) >= 0 && (kept.empty() || keyOf(step) > keyOf(kept.back()))) kept.push_back(step);
        return kept;
    };
    const auto left = ordered(a.steps), right = ordered(b.steps);
    std::size_t i = 0, j = 0;
    while (i < left.size() && j < right.size()) {
        const int x = keyOf(left[i]), y = keyOf(right[j]);
        if (x == y) {
            const bool cold = (left[i].cold || right[j].cold) && coldSteps() == ColdSteps::LeftOut;
            result.pairs.push_back(
                {x, left[i].step, right[j].step, !cold && !left[i].opensBlock && !right[j].opensBlock});
            ++i, ++j;
        } else {
            x < y ? ++i : ++j;
        }
    }
    result.onlyA = int(a.steps.size() - result.pairs.size());
    result.onlyB = int(b.steps.size() - result.pairs.size());
    if (result.pairs.empty()) {
        result.tooEarly = a.steps.empty() || b.steps.empty();
        if (result.tooEarly)
            result.refusal = fmt::format("{} has no decode step yet", a.steps.empty() ? std::string("A") : other);
        else if (left.empty() || right.empty())
            result.refusal =
                fmt::format("{} has no tokens recorded: align by step", left.empty() ? std::string("A") : other);
        else
            result.refusal =
                by == AlignBy::Token
                    ? fmt::format("A decodes positions {} to {}, {} {} to {}: none is common; align by step",
                                  keyOf(left.front()), keyOf(left.back()), other, keyOf(right.front()),
                                  keyOf(right.back()))
                    : fmt::format("A has decode steps {} to {}, {} {} to {}: none is common", left.front().step,
                                  left.back().step, other, right.front().step, right.back().step);
        return result;
    }
    const auto note = [&](std::string text) { result.notes.push_back(std::move(text)); };
    if (result.onlyA + result.onlyB > 0)
        note(fmt::format("{} of A's decode steps and {} of {}'s have no counterpart and are left out", result.onlyA,
                         result.onlyB, other));
    if (a.run.model != b.run.model) note(fmt::format("the models differ: {} and {}", a.run.model, b.run.model));
    if (a.run.sequences != b.run.sequences)
        note(fmt::format("A has {} in the batch, {} {}: sequences of one alone have no counterpart",
                         a.run.sequences == 1 ? "1 sequence" : fmt::format("{} sequences", a.run.sequences), other,
                         b.run.sequences));
    if (a.run.kvHeads != b.run.kvHeads)
        note(fmt::format("A has {} KV heads a layer, {} {}", a.run.kvHeads, other, b.run.kvHeads));
    if (a.run.blockSize != b.run.blockSize)
        note(fmt::format("blocks are {} tokens in A and {} in {}, so numbers of blocks differ for that reason alone",
                         a.run.blockSize, b.run.blockSize, other));
    if (a.run.timing != b.run.timing)
        note(
            fmt::format("times of the link are {} in A and {} in {}", a.run.timing.text(), b.run.timing.text(), other));
    if (a.run.backend != b.run.backend)
        note(fmt::format("A ran on {}, {} on {}", a.run.backend.text(), other, b.run.backend.text()));
    return result;
}

} // namespace kvscope

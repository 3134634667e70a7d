// What was answered, where the prompt asks for a fact that it hides.
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"
#include "profiler/read/needle_evidence.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

using AnswerVerdict = NeedleAnswer::Verdict;

/// The last of the steps in which an answer is written, as far as this finding looks; less than 1: none was recorded.
int lastAnswerStep(const RunRow& run) {
    constexpr int kAnswerSteps = 16;
    return std::min(kAnswerSteps, run.steps - 1);
}

/// Which heads had the fact in the steps that wrote the answer.
std::string sightText(const TraceReader& reader, const RunRow& run, const NeedlePlace& needle) {
    if (run.level == RecordLevel::Counters || !run.knows.has(Known::Selections) || run.blockSize <= 0) return {};
    const int last = lastAnswerStep(run);
    if (last < 1) return {};
    int choosing = 0, heads = 0, most = 0, mostStep = 0, step = 1;
    const std::vector<std::vector<NeedleSight>> sights = needleSights(reader, run, {needle}, 1, last);
    for (const NeedleSight& sight : sights.front()) {
        choosing += sight.choosing, heads += sight.heads;
        if (sight.heads > most) most = sight.heads, mostStep = step;
        ++step;
    }
    const BlockSpan span = blocksOf(needle, run.blockSize);
    const std::string name = span.first == span.last ? fmt::format("block {}", span.first)
                                                     : fmt::format("blocks {} to {}", span.first, span.last);
    if (choosing == 0) return fmt::format(" The fact lies in {}; no head chose blocks.", name);
    if (heads == 0) return fmt::format(" The fact lies in {}, which no head selected in steps 1 to {}.", name, last);
    return fmt::format(" The fact lies in {}: {} of the selections in steps 1 to {} have it, most in step {} ({}).",
                       name, words::percent(double(heads) / choosing), last, mostStep, words::many(most, "head"));
}

} // namespace

void findAnswer(RunFacts& facts, std::vector<Insight>& out) {
    const std::vector<NeedleAnswer> answers = needleAnswers(facts.reader(), facts.run());
    if (answers.empty()) return;
    const auto countOf = [&](AnswerVerdict verdict) {
        return std::count_if(answers.begin(), answers.end(),
                             [verdict](const NeedleAnswer& answer) { return answer.verdict == verdict; });
    };
    const auto wrong = countOf(AnswerVerdict::Other), correct = countOf(AnswerVerdict::Correct);
    const auto shown = std::find_if(answers.begin(), answers.end(), [&](const NeedleAnswer& answer) {
        return wrong == 0 || answer.verdict == AnswerVerdict::Other;
    });
    Insight insight;
    insight.trust = wrong > 0;
    insight.severity = wrong > 0 ? Severity::Alarm : Severity::Note;
    insight.priced = false;
    insight.title = answers.size() == 1 ? fmt::format("The answer is {}", answers.front().text())
                                        : fmt::format("The answers: {}", answersText(answers));
    insight.detail =
        fmt::format("The prompt of sequence {} hides “{}” for {} from token {} on and asks for it{}.{}",
                    shown->needle.sequence, shown->needle.value, shown->needle.name, words::count(shown->needle.first),
                    answers.size() > 1 && wrong > 0 ? fmt::format("; written was {}", shown->text()) : "",
                    facts.hasDamagedBlobs() ? "" : sightText(facts.reader(), facts.run(), shown->needle));
    insight.advice = wrong > 0 ? "See on Selection when the fact's block was selected; fork the run with a larger "
                                 "budget or another method to see whether the answer changes."
                               : "See on Selection which heads had the fact's block.";
    insight.evidence = facts.evidence("selection");
    insight.evidence.sequence = shown->needle.sequence;
    if (const int last = lastAnswerStep(facts.run()); last >= 1) // those that the sentence counts
        insight.evidence.firstStep = facts.run().prompts.firstDecode(), insight.evidence.lastStep = last;
    insight.figures = {
        {"answers", double(answers.size()), ""}, {"correct", double(correct), ""}, {"wrong", double(wrong), ""}};
    out.push_back(std::move(insight));
}

} // namespace kvscope

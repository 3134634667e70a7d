#include "profiler/read/needle_evidence.h"

#include "base/utf8.h"
#include "core/trace/run_meta.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace kvscope {
namespace {

constexpr std::size_t kShownAnswer = 32; // bytes

std::string firstLine(const std::string& text) {
    std::string line = text.substr(0, text.find_first_of("\n\r"));
    while (!line.empty() && line.back() == ' ') line.pop_back();
    if (line.size() > kShownAnswer) {
        std::size_t end = kShownAnswer;
        while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
        line = line.substr(0, end) + "…";
    }
    return toValidUtf8(line);
}

NeedleAnswer judge(const NeedlePlace& needle, const std::string& bytes) {
    NeedleAnswer answer{needle, {}, NeedleAnswer::Verdict::Open};
    const std::size_t first = std::min(bytes.find_first_not_of(' '), bytes.size());
    const std::string text = bytes.substr(first);
    answer.answered = firstLine(text);
    if (text.compare(0, needle.value.size(), needle.value) == 0) {
        answer.verdict = NeedleAnswer::Verdict::Correct;
        answer.answered = needle.value;
    } else if (needle.value.compare(0, text.size(), text) != 0) {
        answer.verdict = NeedleAnswer::Verdict::Other;
    }
    return answer;
}

void look(const SelectionRow& row, const BlockSpan& span, NeedleSight& sight) {
    ++sight.choosing;
    int origin = -1;
    bool missed = false;
    for (const PackedBlock& block : row.blocks) {
        if (!span.has(block.id())) continue;
        origin = std::max(origin, int(block.origin()));
        missed |= row.knowsHits && !block.hit();
    }
    if (origin < 0) return;
    ++sight.heads;
    ++sight.byOrigin[std::size_t(std::min(origin, kNeedleOrigins - 1))];
    sight.missed += missed;
}

} // namespace

std::vector<NeedlePlace> needlesOf(const RunRow& run) {
    std::vector<NeedlePlace> needles = parseNeedles(run.metaOr(run_meta::kNeedles));
    std::erase_if(needles, [&run](const NeedlePlace& needle) { return needle.sequence >= run.sequences; });
    return needles;
}

std::string NeedleAnswer::text() const {
    switch (verdict) {
    case Verdict::Correct:
        return needle.value + ", correct";
    case Verdict::Other:
        return fmt::format("{} instead of {}", answered.empty() ? "an empty line" : answered, needle.value);
    case Verdict::Open:
        break;
    }
    return answered.empty() ? fmt::format("not written yet ({} is expected)", needle.value)
                            : fmt::format("{}, written in part ({} is expected)", answered, needle.value);
}

std::vector<NeedleAnswer> needleAnswers(const TraceReader& reader, const RunRow& run) {
    std::vector<NeedleAnswer> answers;
    for (const NeedlePlace& needle : needlesOf(run)) {
        if (!needle.asked) continue;
        std::string text;
        for (const TokenRow& token : reader.tokens(run.runId, needle.sequence)) text += token.bytes;
        answers.push_back(judge(needle, text));
    }
    return answers;
}

std::string answersText(const std::vector<NeedleAnswer>& answers) {
    if (answers.empty()) return {};
    if (answers.size() == 1) return answers.front().text();
    const auto correct = std::count_if(answers.begin(), answers.end(), [](const NeedleAnswer& answer) {
        return answer.verdict == NeedleAnswer::Verdict::Correct;
    });
    const auto open = std::count_if(answers.begin(), answers.end(), [](const NeedleAnswer& answer) {
        return answer.verdict == NeedleAnswer::Verdict::Open;
    });
    std::string text = fmt::format("{} of {} correct", correct, answers.size());
    if (open > 0) text += fmt::format(", {} not written to the end", open);
    return text;
}

BlockSpan blocksOf(const NeedlePlace& needle, int blockSize) {
    const int size = std::max(blockSize, 1);
    return {needle.first / size, (needle.first + needle.tokens - 1) / size};
}

std::vector<std::vector<NeedleSight>> needleSights(const TraceReader& reader, const RunRow& run,
                                                   const std::vector<NeedlePlace>& needles, int firstStep,
                                                   int lastStep) {
    std::vector<std::vector<NeedleSight>> sights(needles.size());
    if (needles.empty() || lastStep < firstStep || run.blockSize <= 0) return sights;
    std::map<int, std::vector<NeedleSight>> steps; // [step][needle]
    for (int layer = 0; layer < run.layers; ++layer)
        for (int head = 0; head < run.kvHeads; ++head)
            for (const SelectionRow& row :
                 reader.selections(run.runId, layer, needles.front().sequence, head, firstStep, lastStep)) {
                std::vector<NeedleSight>& seen = steps[row.step];
                seen.resize(needles.size());
                for (std::size_t n = 0; n < needles.size(); ++n)
                    look(row, blocksOf(needles[n], run.blockSize), seen[n]);
            }
    for (auto& [step, seen] : steps)
        for (std::size_t n = 0; n < needles.size(); ++n) {
            seen[n].step = step;
            sights[n].push_back(seen[n]);
        }
    return sights;
}

} // namespace kvscope

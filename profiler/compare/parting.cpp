#include "profiler/compare/parting.h"

#include "base/error.h"
#include "profiler/read/next_step.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace kvscope {
namespace {

using HeadKey = std::pair<int, int>; // layer, KV head

std::vector<int> idsOf(const SelectionRow& row) {
    std::vector<int> ids;
    for (const PackedBlock& block : row.blocks) ids.push_back(block.id());
    return ids;
}

std::string whyNotCompared(const RunRow& a, const RunRow& b) {
    const auto lacks = [](const RunRow& run) {
        return run.level == RecordLevel::Counters || !run.knows.has(Known::Selections);
    };
    if (lacks(a) || lacks(b)) return "one of the runs was recorded without selections";
    if (a.layers != b.layers || a.kvHeads != b.kvHeads) return "the runs have other layers or KV heads";
    if (a.blockSize != b.blockSize)
        return fmt::format("one run selects in blocks of {} tokens, the other of {}", a.blockSize, b.blockSize);
    return {};
}

/// Two runs whose selections can be compared.
class Pair {
public:
    Pair(const TraceReader& a, const RunRow& runA, const TraceReader& b, const RunRow& runB, int sequence)
        : a_(a), b_(b), runA_(runA), runB_(runB), sequence_(sequence) {}

    std::optional<PartedSelection> firstDifference(int firstStep, int lastStep) const;
    void count(int step, Parting& parting) const;

private:
    /// Calls `visit` for each head with a selection in both runs, until it returns false.
    template <class Visit> bool eachHead(int step, Visit&& visit) const {
        for (int layer = 0; layer < runA_.layers; ++layer)
            for (int head = 0; head < runA_.kvHeads; ++head) {
                const auto rowA = a_.selection(runA_.runId, step, layer, sequence_, head);
                const auto rowB = b_.selection(runB_.runId, step, layer, sequence_, head);
                if (rowA && rowB && !visit(HeadKey(layer, head), idsOf(*rowA), idsOf(*rowB))) return false;
            }
        return true;
    }

    const TraceReader &a_, &b_;
    const RunRow &runA_, &runB_;
    const int sequence_;
};

std::vector<int> without(const std::vector<int>& from, const std::vector<int>& what) {
    std::vector<int> left;
    std::set_difference(from.begin(), from.end(), what.begin(), what.end(), std::back_inserter(left));
    return left;
}

std::optional<PartedSelection> Pair::firstDifference(int firstStep, int lastStep) const {
    std::optional<PartedSelection> found;
    for (int next = firstStep; next <= lastStep && !found;) {
        // Visits recorded steps only, because a trace may have large gaps between the numbers of its steps.
        const int step = nextRecordedStep(a_, runA_.runId, next);
        if (step > lastStep) break;
        next = step + 1;
        eachHead(step, [&](HeadKey at, const std::vector<int>& idsA, const std::vector<int>& idsB) {
            if (idsA != idsB) found = {step, at.first, at.second, without(idsA, idsB), without(idsB, idsA)};
            return !found;
        });
    }
    return found;
}

void Pair::count(int step, Parting& parting) const {
    std::map<int, std::pair<int, int>> heads; // of a block, in run A and B
    eachHead(step, [&](HeadKey, const std::vector<int>& idsA, const std::vector<int>& idsB) {
        ++parting.heads;
        parting.differing += idsA != idsB;
        for (const int id : idsA) ++heads[id].first;
        for (const int id : idsB) ++heads[id].second;
        return true;
    });
    parting.step = step;
    for (const auto& [block, counts] : heads) {
        const auto [inA, inB] = counts;
        if (inA <= inB) continue;
        if (parting.missing && inA - inB <= parting.missing->headsA - parting.missing->headsB) continue;
        parting.missing = MissingBlock{block, inA, inB, {}};
    }
    if (parting.missing) parting.missing->text = a_.blockText(runA_.runId, sequence_, parting.missing->block);
}

std::string excerptOf(const std::string& text) {
    constexpr std::size_t kMost = 90; // bytes
    std::string line;
    for (const char c : text)
        if (c != '\n' && c != '\r' && c != '\t')
            line += c;
        else if (!line.empty() && line.back() != ' ')
            line += ' ';
    if (line.size() <= kMost) return line;
    std::size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
    return line.substr(0, end) + "…";
}

std::string blocksText(const std::vector<int>& blocks) {
    constexpr std::size_t kNamed = 6;
    if (blocks.empty()) return "none";
    const std::vector<int> named(blocks.begin(), blocks.begin() + std::ptrdiff_t(std::min(blocks.size(), kNamed)));
    std::string text = fmt::format("{}", fmt::join(named, ", "));
    if (blocks.size() > kNamed) text += fmt::format(" and {} more", blocks.size() - kNamed);
    return text;
}

std::string quoted(const std::string& text) {
    constexpr std::size_t kMost = 40;
    return "“" + excerptOf(text.size() > kMost ? text.substr(0, text.rfind(' ', kMost)) : text) + "”";
}

} // namespace

Parting partingOf(const TraceReader& a, int runA, const TraceReader& b, int runB, int sequence, int firstStep) {
    const auto rowA = a.run(runA), rowB = b.run(runB);
    for (const auto& [row, reader, run] : {std::tuple(rowA, &a, runA), std::tuple(rowB, &b, runB)})
        if (!row)
            throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader->path(), run),
                        "kvscope-cli info lists its runs");
    Parting parting;
    parting.sequence = sequence;
    parting.tokens = compareTokens(a, runA, b, runB, sequence);
    parting.notCompared = whyNotCompared(*rowA, *rowB);
    parting.offloads = rowB->deviceSlots > 0;
    if (!parting.notCompared.empty()) return parting;
    const Pair pair(a, *rowA, b, *rowB, sequence);
    // Behind the step in which the texts part, the runs read other tokens, so that their selections differ anyway.
    int last = std::min(rowA->steps, rowB->steps) - 1;
    const auto& token = parting.tokens.first;
    if (token && !token->inPrompt) last = std::min({last, token->stepA, token->stepB});
    parting.first = pair.firstDifference(std::max(firstStep, 1), last);
    if (token && !token->inPrompt && last >= 1)
        pair.count(last, parting);
    else if (parting.first)
        pair.count(parting.first->step, parting);
    return parting;
}

std::vector<std::string> sentencesOf(const Parting& parting, const std::string& nameA, const std::string& nameB) {
    std::vector<std::string> out;
    const TokenComparison& tokens = parting.tokens;
    if (!tokens.first && tokens.lengthA == tokens.lengthB)
        out.push_back("The texts are the same to the end.");
    else if (!tokens.first)
        out.push_back(fmt::format("The texts are the same for all {} tokens that both have; {} goes on.", tokens.common,
                                  tokens.lengthA > tokens.lengthB ? nameA : nameB));
    else if (tokens.first->inPrompt)
        out.push_back(fmt::format("The prompts differ at token {}.", tokens.first->position));
    else
        out.push_back(fmt::format("The texts part at step {}, token {}: {} goes on with {}, {} with {}.",
                                  tokens.first->stepB, tokens.first->position, nameA, quoted(tokens.first->afterA),
                                  nameB, quoted(tokens.first->afterB)));
    if (!parting.notCompared.empty()) {
        out.push_back(fmt::format("Selections are not compared: {}.", parting.notCompared));
        return out;
    }
    if (!parting.first) {
        out.emplace_back("No selection of both runs differs up to there.");
        return out;
    }
    const PartedSelection& first = *parting.first;
    out.push_back(fmt::format("The first selection that differs is of step {}, layer {}, KV head {}: only {} has "
                              "selected {}; only {} {}.",
                              first.step, first.layer, first.kvHead, nameA, blocksText(first.onlyA), nameB,
                              blocksText(first.onlyB)));
    if (parting.step >= 0 && parting.differing > 0)
        out.push_back(fmt::format("In step {}, {} of {} heads have chosen otherwise.", parting.step, parting.differing,
                                  parting.heads));
    if (const auto& missing = parting.missing) {
        std::string text = fmt::format("Block {} was selected by {} {} of {} and by {} of {}", missing->block,
                                       missing->headsA, missing->headsA == 1 ? "head" : "heads", nameA,
                                       missing->headsB == 0 ? "none" : fmt::format("{}", missing->headsB), nameB);
        if (missing->headsB == 0 && parting.offloads) text += ", which did not fetch it for any";
        if (!missing->text.empty()) text += ": “" + excerptOf(missing->text) + "”";
        out.push_back(text + ".");
    }
    return out;
}

} // namespace kvscope

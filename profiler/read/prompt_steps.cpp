#include "profiler/read/prompt_steps.h"

#include "profiler/sqlite/sqlite.h"

#include <algorithm>
#include <bitset>
#include <tuple>

namespace kvscope {

namespace {

bool hasColumns(Connection& connection, std::string_view table, std::string_view names, int count) {
    Statement columns(connection, "SELECT count(*) FROM pragma_table_info(?1) WHERE instr(?2, ' ' || name || ' ') > 0");
    columns.bind(1, table);
    return columns.bind(2, names).step() && columns.int64(0) >= count;
}

} // namespace

PromptSteps::PromptSteps(Connection& connection, int runId, int firstStep, int lastStep) {
    if (runId < 1 || runId > trace::kMaxRuns) return;
    auto read = std::make_shared<Read>();
    readPieces(connection, runId, firstStep, lastStep, *read);
    readRequests(connection, runId, firstStep, lastStep, *read);
    if (!read->steps.empty() || !read->begins.empty()) read_ = std::move(read);
}

void PromptSteps::readPieces(Connection& connection, int runId, int firstStep, int lastStep, Read& read) {
    // written before there was the table, or another tool's
    if (!hasColumns(connection, "prompt_piece", " id begins tokens ", 3)) return;
    Statement rows(connection, "SELECT p.id, p.begins, p.tokens, s.phase FROM prompt_piece p LEFT JOIN step s ON s.id ="
                               " p.id >> 20 WHERE p.id BETWEEN ? AND ? ORDER BY p.id");
    const auto [low, high] = trace::keysOfSteps(runId, firstStep, lastStep, trace::kTokenShift);
    rows.bindAll(low, high);
    bool zeroDecodes = false;
    while (rows.step()) {
        if (rows.isNull(3)) continue; // of a step that has no row
        const std::int64_t id = rows.int64(0);
        const int step = trace::stepOf(id, trace::kTokenShift), sequence = int((id >> 10) & 1023);
        const bool decodes = rows.int64(3) != 0;
        if (read.steps.empty() || read.steps.back().step != step) read.steps.push_back({step, decodes, 0});
        read.steps.back().tokens = std::int64_t(std::uint64_t(read.steps.back().tokens) + std::uint64_t(rows.int64(2)));
        if (const std::int64_t piece = std::int64_t(step) << 10 | sequence;
            read.pieces.empty() || read.pieces.back() != piece)
            read.pieces.push_back(piece);
        if (rows.int64(1) != 0) read.begins.push_back({step, sequence});
        zeroDecodes |= step == 0 && decodes;
    }
    if (read.steps.empty()) return;
    Statement zero(connection, "SELECT 1 FROM step WHERE id = ? AND phase = 0");
    read.wholeFirst = read.steps.front().step > 0 && zero.bind(1, trace::stepKey(runId, 0)).step();
    if (zeroDecodes) read.prompts.clear();
    for (const Step& step : read.steps)
        if (!step.decodes && step.step > 0) read.prompts.push_back(step.step);
    sortBegins(read);
}

/// A request of another engine begins a prompt of its row in the first step that works for it, whether the engine says
/// what it reads or not.
void PromptSteps::readRequests(Connection& connection, int runId, int firstStep, int lastStep, Read& read) {
    if (!hasColumns(connection, "request", " id row first_step ", 3)) return;
    Statement rows(connection, "SELECT first_step, row FROM request WHERE id BETWEEN ?1 << 40 AND (?1 << 40) |"
                               " 0xFFFFFFFFFF AND first_step BETWEEN ?2 AND ?3 AND row BETWEEN 0 AND 1023");
    rows.bindAll(runId, firstStep, lastStep);
    bool any = false;
    for (; rows.step(); any = true) {
        read.begins.push_back({rows.int32(0), rows.int32(1)});
        if (rows.int32(0) == 0) read.wholeFirst = false; // what step 0 has read is the request's prompt
    }
    if (!any) return;
    sortBegins(read);
    const auto same = [](const Begin& a, const Begin& b) { return a.step == b.step && a.sequence == b.sequence; };
    read.begins.erase(std::unique(read.begins.begin(), read.begins.end(), same), read.begins.end());
}

void PromptSteps::sortBegins(Read& read) {
    std::sort(read.begins.begin(), read.begins.end(), [](const Begin& a, const Begin& b) {
        return std::tie(a.sequence, a.step) < std::tie(b.sequence, b.step);
    });
}

const PromptSteps::Step* PromptSteps::find(int step) const {
    if (!read_) return nullptr;
    const auto found = std::lower_bound(read_->steps.begin(), read_->steps.end(), step,
                                        [](const Step& a, int number) { return a.step < number; });
    return found != read_->steps.end() && found->step == step ? &*found : nullptr;
}

StepReads PromptSteps::reads(int step) const {
    if (const Step* found = find(step)) return found->decodes ? StepReads::Mixed : StepReads::Prompt;
    return step == 0 ? StepReads::Prompt : StepReads::Decode;
}

std::int64_t PromptSteps::mixedTokens(int step) const {
    const Step* found = find(step);
    return found != nullptr && found->decodes ? std::max<std::int64_t>(found->tokens, 0) : 0;
}

int PromptSteps::promptsWithin(int first, int last) const {
    if (last < first) return 0;
    if (!read_) return first <= 0 && last >= 0 ? 1 : 0;
    const auto& prompts = read_->prompts;
    return int(std::upper_bound(prompts.begin(), prompts.end(), last) -
               std::lower_bound(prompts.begin(), prompts.end(), first));
}

int PromptSteps::firstDecode() const {
    if (!read_) return 1;
    int next = 0;
    for (const int step : read_->prompts) {
        if (step > next) break;
        next = step + 1;
    }
    return std::max(next, 1);
}

int PromptSteps::decodeBefore(int step) const {
    int before = step - 1;
    while (before >= 0 && readsPrompt(before)) --before;
    return before;
}

int PromptSteps::promptAt(int sequence, int step) const {
    if (!read_) return 0;
    const auto before = [](const Begin& a, const Begin& b) {
        return std::tie(a.sequence, a.step) < std::tie(b.sequence, b.step);
    };
    const auto first = std::lower_bound(read_->begins.begin(), read_->begins.end(), Begin{-1, sequence}, before);
    const auto last = std::upper_bound(read_->begins.begin(), read_->begins.end(), Begin{step, sequence}, before);
    return std::max(int(last - first) - (read_->wholeFirst ? 0 : 1), 0);
}

bool PromptSteps::readsPieceOf(int sequence, int step) const {
    return read_ && std::binary_search(read_->pieces.begin(), read_->pieces.end(), std::int64_t(step) << 10 | sequence);
}

const std::vector<PromptSteps::Begin>& PromptSteps::begins() const {
    static const std::vector<Begin> none;
    return read_ ? read_->begins : none;
}

bool PromptSteps::severalPrompts(int sequence) const { return promptAt(sequence, trace::kMaxStep) > 0; }

bool PromptSteps::severalPrompts() const {
    if (!read_) return false;
    std::bitset<trace::kMaxSequences> seen;
    if (read_->wholeFirst && !read_->begins.empty()) return true;
    for (const Begin& begin : read_->begins) {
        if (seen[std::size_t(begin.sequence)]) return true;
        seen.set(std::size_t(begin.sequence));
    }
    return false;
}

const std::vector<PromptSteps::Step>& PromptSteps::steps() const {
    static const std::vector<Step> none;
    return read_ ? read_->steps : none;
}

} // namespace kvscope

// What a server did to its requests: who waited for what, and why tokens came late.
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"
#include "profiler/read/thrash.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>

namespace kvscope {
namespace {

constexpr double kLateTokens = 0.01; // from here on prompts alone break a bound on the 99th percentile
constexpr double kLateFirst = 0.10;  // of requests: DistServe asks that nine of ten keep their bounds
constexpr double kOver = 0.05;       // of the time
constexpr double kPaused = 0.01;     // of requests
constexpr double kSurprises = 0.05;  // of selected blocks: about the drift of a selection from step to step
constexpr double kPlanError = 0.20;  // of an iteration, in the median; a fifth of the budget is kept free for it
constexpr int kLeastIterations = 32; // for a median
constexpr double kRefusedShare = 0.01;

double spanOf(const std::vector<IterationRow>& iterations) {
    return iterations.empty() ? 0 : double(iterations.back().endNs() - iterations.front().startNs);
}

Insight aboutServing(double share, double alarmFrom) {
    Insight insight;
    insight.priced = false; // tokens per second of a fixed batch say nothing of a server
    insight.severity = share >= alarmFrom ? Severity::Alarm : Severity::Note;
    insight.impact = share;
    insight.evidence.view = "serving";
    return insight;
}

/// Time in which the iterations that ended in (fromNs, toNs] read prompts.
std::int64_t promptTime(const std::vector<IterationRow>& iterations, std::int64_t fromNs, std::int64_t toNs) {
    auto row = std::lower_bound(iterations.begin(), iterations.end(), fromNs,
                                [](const IterationRow& each, std::int64_t ns) { return each.endNs() <= ns; });
    std::int64_t ns = 0;
    for (; row != iterations.end() && row->endNs() <= toNs; ++row) ns += row->prefillNs;
    return ns;
}

int iterationAt(const std::vector<IterationRow>& iterations, std::int64_t ns) {
    const auto row = std::lower_bound(iterations.begin(), iterations.end(), ns,
                                      [](const IterationRow& each, std::int64_t at) { return each.endNs() < at; });
    return row == iterations.end() ? -1 : row->iteration;
}

struct WaitingReason {
    const char *limit, *words, *advice;
};
/// What keeps requests in the queue (v_iteration.limited_by), and what a person can do about it.
constexpr WaitingReason kReasons[] = {
    {"rows", "every row has a request", "Give more rows (--knob rows=N)."},
    {"host_memory", "the host store is full", "Give more --host-kv, or ask for fewer new tokens."},
    {"device_memory", "index and newest blocks fill the device",
     "Give more --device-kv: no cached block can make room."},
    {"prefill_scratch", "there is no scratch memory for another prompt", "Give more --scratch, or park activations."},
    {"working_sets", "the working sets fill the device",
     "Give more --device-kv, or a smaller window or partition_blocks, if locality is high."},
    {"hard_need", "the selections of one layer fill the device", "Give more --device-kv, or a smaller budget."},
    {"prefill_lane", "prompts are read one after the other",
     "Read more of them at once (long_prefills, short_turns), or raise short_tokens, so that long prompts hold up "
     "fewer "
     "short ones."},
    {"paused_first", "paused requests go first",
     "Give fewer rows, or more --device-kv, so that no request has to be paused."},
    {"holders_first", "a prompt that is being read waits for memory", "Give more --scratch, or cut prompts by layers."},
    {"barrier", "an older request may not be overtaken any more", "Look at what that request waits for."},
    {"time_budget", "the time of the iterations is used up",
     "The prompts take longer than the iterations have for them: offer fewer requests, or allow longer iterations "
     "(iteration_ms)."},
    {"token_budget", "the tokens of the iterations are used up", "Raise iteration_tokens."},
};

const WaitingReason* reasonOf(const std::string& limit) {
    const auto* found = std::find_if(std::begin(kReasons), std::end(kReasons),
                                     [&](const WaitingReason& reason) { return limit == reason.limit; });
    return found == std::end(kReasons) ? nullptr : found;
}

} // namespace

void findPrefillStallsDecode(RunFacts& facts, std::vector<Insight>& out) {
    const ServedFacts* served = facts.served();
    if (!served || served->gaps.empty()) return;
    std::int64_t byPrompts = 0;
    const TokenGap* worst = nullptr;
    for (const TokenGap& gap : served->rows.late) {
        if (2 * promptTime(served->rows.iterations, gap.ns - gap.gapNs, gap.ns) < gap.gapNs) continue;
        ++byPrompts;
        if (!worst || gap.gapNs > worst->gapNs) worst = &gap;
    }
    const double share = double(byPrompts) / double(served->gaps.size());
    if (!worst || share < kLateTokens) return;
    Insight insight = aboutServing(share, kLateTokens);
    insight.title = fmt::format("{} of the tokens come too late because iterations read prompts beside them",
                                words::percent(share));
    insight.detail =
        fmt::format("In {} of {} late gaps between tokens at least half of the time went to prompts. The longest is "
                    "that of request "
                    "{}: {}, of which prompts took {}.",
                    byPrompts, served->rows.late.size(), worst->request, words::ms(double(worst->gapNs)),
                    words::ms(double(promptTime(served->rows.iterations, worst->ns - worst->gapNs, worst->ns))));
    insight.advice = "Lower iteration_ms, or cut prompts by layers (prefill=layers): a chunk is never divided.";
    insight.evidence.firstStep = insight.evidence.lastStep = iterationAt(served->rows.iterations, worst->ns);
    insight.figures = {{"late_tokens", double(served->rows.late.size()), ""},
                       {"late_by_prompts", double(byPrompts), ""},
                       {"longest_gap_ms", double(worst->gapNs) / 1e6, "ms"}};
    out.push_back(std::move(insight));
}

void findQueueBound(RunFacts& facts, std::vector<Insight>& out) {
    const ServedFacts* served = facts.served();
    if (!served) return;
    const double end = served->rows.iterations.empty() ? 0 : double(served->rows.iterations.back().endNs());
    std::int64_t bounded = 0, late = 0;
    double longest = 0;
    for (const RequestRow& request : served->rows.requests) {
        if (request.ttftBoundMs <= 0 || request.status == ServedStatus::Refused) continue;
        ++bounded;
        const double until = request.firstTokenNs >= 0 ? double(request.firstTokenNs) : end;
        const double waited = until - double(request.arrivalNs);
        late += waited > request.ttftBoundMs * 1e6;
        longest = std::max(longest, waited);
    }
    std::map<std::string, double> waiting; // time by reason
    double all = 0;
    const IterationRow* most = nullptr;
    for (const IterationRow& row : served->rows.iterations) {
        if (row.waiting == 0) continue;
        waiting[row.limitedBy] += double(row.durationNs), all += double(row.durationNs);
        if (!most || row.waiting > most->waiting) most = &row;
    }
    const double share = bounded > 0 ? double(late) / double(bounded) : 0;
    if (share < kLateFirst || !most) return;
    const auto longestWait = std::max_element(waiting.begin(), waiting.end(),
                                              [](const auto& a, const auto& b) { return a.second < b.second; });
    const WaitingReason* reason = reasonOf(longestWait->first);
    Insight insight = aboutServing(share, kLateFirst);
    insight.title = fmt::format("{} of the requests get their first token later than promised: {}",
                                words::percent(share), reason ? reason->words : "they wait in the queue");
    insight.detail = fmt::format("That bound the plans for {} of the time in which requests waited; at most {} waited "
                                 "at once, and the longest wait for a first token was {}.",
                                 words::percent(longestWait->second / all), words::many(most->waiting, "request"),
                                 words::ms(longest));
    insight.advice = reason ? reason->advice : "Offer fewer requests.";
    insight.evidence.firstStep = insight.evidence.lastStep = most->iteration;
    insight.figures = {{"late_first_tokens", double(late), ""},
                       {"longest_wait_ms", longest / 1e6, "ms"},
                       {"waiting_at_once", double(most->waiting), ""}};
    out.push_back(std::move(insight));
}

void findWorkingSetsBeyond(RunFacts& facts, std::vector<Insight>& out) {
    const ServedFacts* served = facts.served();
    if (!served) return;
    const double span = spanOf(served->rows.iterations);
    double over = 0;
    const IterationRow* most = nullptr;
    const auto excess = [](const IterationRow& row) { return row.workingSetBytes - row.availableBytes; };
    for (const IterationRow& row : served->rows.iterations) {
        if (excess(row) <= 0) continue;
        over += double(row.durationNs);
        if (!most || excess(row) > excess(*most)) most = &row;
    }
    const double share = span > 0 ? over / span : 0;
    if (!most || share < kOver) return;
    std::int64_t misses = 0, again = 0;
    const Thrash thrash = readThrash(facts.reader(), facts.run().runId, false);
    for (const ThrashRow& row : thrash.rows) misses += row.misses, again += row.again;
    Insight insight = aboutServing(share, kAlarmImpact);
    insight.title = fmt::format("Working sets exceed the room for them in {} of the time", words::percent(share));
    insight.detail = fmt::format("At most {} for {}.", words::bytes(double(most->workingSetBytes)),
                                 words::bytes(double(most->availableBytes)));
    if (thrash.basis != Thrash::Basis::Unknown && misses > 0)
        insight.detail += fmt::format(" At most {} of the misses were blocks that the same request had selected in the "
                                      "{} steps before.",
                                      words::percent(double(again) / double(misses)), thrash.window);
    insight.advice =
        "Turn working_set_control on, give fewer rows or more --device-kv; kvscope-cli replay --pool device "
        "says at which size loads explode.";
    insight.evidence.firstStep = insight.evidence.lastStep = most->iteration;
    insight.figures = {{"working_sets_bytes", double(most->workingSetBytes), ""},
                       {"available_bytes", double(most->availableBytes), ""},
                       {"misses_again", double(again), "blocks"}};
    out.push_back(std::move(insight));
}

void findLongPauses(RunFacts& facts, std::vector<Insight>& out) {
    const ServedFacts* served = facts.served();
    if (!served || served->rows.requests.empty()) return;
    std::int64_t paused = 0;
    const RequestRow* worst = nullptr;
    for (const RequestRow& request : served->rows.requests) {
        if (request.tbtBoundMs <= 0 || double(request.pausedNs) <= request.tbtBoundMs * 1e6) continue;
        ++paused;
        if (!worst || request.pausedNs > worst->pausedNs) worst = &request;
    }
    const double share = double(paused) / double(served->rows.requests.size());
    if (!worst || share < kPaused) return;
    Insight insight = aboutServing(share, kAlarmImpact);
    insight.title =
        fmt::format("{} of the requests are paused for longer than a token may take", words::percent(share));
    insight.detail = fmt::format("Request {} was paused {} for {} together; its bound between tokens is {}.",
                                 worst->number, worst->pauses == 1 ? "once" : fmt::format("{} times", worst->pauses),
                                 words::ms(double(worst->pausedNs)), words::ms(worst->tbtBoundMs * 1e6));
    insight.advice = "Admit fewer requests: fewer rows, a longer window, or cache=partition, which pauses no request.";
    for (const RequestSpanRow& span : served->rows.spans)
        if (span.request == worst->number && span.state == ServedState::Paused)
            insight.evidence.firstStep = insight.evidence.lastStep =
                iterationAt(served->rows.iterations, span.startNs + 1);
    insight.figures = {{"requests", double(paused), ""}, {"longest_pause_ms", double(worst->pausedNs) / 1e6, "ms"}};
    out.push_back(std::move(insight));
}

void findWorkingSetEstimateOff(RunFacts& facts, std::vector<Insight>& out) {
    const ServedFacts* served = facts.served();
    if (!served) return;
    std::int64_t surprises = 0, selected = 0;
    const IterationRow* most = nullptr;
    for (const IterationRow& row : served->rows.iterations) {
        surprises += row.surprises;
        if (row.surprises > 0 && (!most || row.surprises > most->surprises)) most = &row;
    }
    for (const RequestRow& request : served->rows.requests) selected += request.hits + request.misses;
    const double share = selected > 0 ? double(surprises) / double(selected) : 0;
    if (!most || share < kSurprises) return;
    Insight insight = aboutServing(share, std::numeric_limits<double>::infinity());
    insight.title =
        fmt::format("{} of the selected blocks lie outside of the estimated working sets", words::percent(share));
    insight.detail = fmt::format("{} of {} blocks; rows that have just joined or returned do not count.",
                                 words::count(double(surprises)), words::count(double(selected)));
    insight.advice = "Take more steps into a working set (window), or a method with more locality.";
    insight.evidence.firstStep = insight.evidence.lastStep = most->iteration;
    insight.figures = {{"surprises", double(surprises), "blocks"}, {"selected", double(selected), "blocks"}};
    out.push_back(std::move(insight));
}

void findPlanTimesOff(RunFacts& facts, std::vector<Insight>& out) {
    const ServedFacts* served = facts.served();
    if (!served) return;
    std::vector<double> errors, signs;
    for (const IterationRow& row : served->rows.iterations) {
        if (row.durationNs <= 0 || row.predictedNs <= 0) continue;
        signs.push_back(double(row.predictedNs) / double(row.durationNs) - 1);
        errors.push_back(std::abs(signs.back()));
    }
    const double error = medianOf(errors), sign = medianOf(signs);
    if (int(errors.size()) < kLeastIterations || error < kPlanError) return;
    Insight insight = aboutServing(std::min(error, 1.0), std::numeric_limits<double>::infinity());
    insight.title = fmt::format("Plans are made from times that are off by {} in the median", words::percent(error));
    insight.detail = sign > 0
                         ? "Iterations take less than predicted. The scheduler cuts prompts by these times, so that it "
                           "reads them in smaller parts than it could."
                         : "Iterations take longer than predicted. The scheduler cuts prompts by these times, so that "
                           "their parts are too large and tokens come late.";
    insight.advice = "serve measures these times when it starts without --costs; load takes a file by --costs, which "
                     "--costs-out of an earlier load writes.";
    insight.figures = {{"median_error", error, ""}, {"iterations", double(errors.size()), ""}};
    out.push_back(std::move(insight));
}

void findRefusedRequests(RunFacts& facts, std::vector<Insight>& out) {
    const ServedFacts* served = facts.served();
    if (!served || served->rows.requests.empty()) return;
    std::int64_t refused = 0;
    const RequestRow* first = nullptr;
    for (const RequestRow& request : served->rows.requests) {
        if (request.status != ServedStatus::Refused) continue;
        ++refused;
        if (!first) first = &request;
    }
    const double share = double(refused) / double(served->rows.requests.size());
    if (!first || share < kRefusedShare) return;
    Insight insight = aboutServing(share, kAlarmImpact);
    insight.title = fmt::format("{} of the requests are refused", words::percent(share));
    insight.detail = fmt::format("{} of {}; the first, of {} prompt tokens: {}.", refused, served->rows.requests.size(),
                                 first->promptTokens, first->reason.empty() ? "no reason is recorded" : first->reason);
    insight.advice = "They count as requests that missed their bounds. Give the budgets what the reason names, or "
                     "raise max_waiting.";
    insight.evidence.firstStep = insight.evidence.lastStep = iterationAt(served->rows.iterations, first->endNs);
    insight.figures = {{"refused", double(refused), ""}, {"requests", double(served->rows.requests.size()), ""}};
    out.push_back(std::move(insight));
}

} // namespace kvscope

#include "profiler/read/serving.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>
#include <utility>

namespace kvscope {
namespace {

/// Reads a time; -1 where it is NULL, or where a damaged file has no time there.
std::int64_t timeIn(const Statement& row, int column) {
    return row.isNull(column) ? -1 : std::max<std::int64_t>(row.int64(column), -1);
}

std::optional<ServedState> stateOf(std::string_view name) {
    for (int i = 0; i < kServedStates; ++i)
        if (nameOf(ServedState(i)) == name) return ServedState(i);
    return std::nullopt;
}

Statement ofRun(const TraceReader& reader, int runId, std::string_view sql) {
    Statement rows(*ReaderAccess::of(reader).connection, sql);
    rows.bind(1, runId);
    return rows;
}

/// Whose a row of the batch is in a step, by the steps that requests of another engine say.
class RowOwners {
public:
    RowOwners(const TraceReader& reader, int runId) {
        Statement rows = ofRun(reader, runId,
                               "SELECT row, first_step, last_step, request FROM v_request WHERE run_id = ? AND row IS"
                               " NOT NULL AND first_step IS NOT NULL ORDER BY first_step");
        while (rows.step()) byRow_[rows.int32(0)].push_back({rows.int64(1), rows.int64(2), rows.int64(3)});
    }
    bool empty() const { return byRow_.empty(); }
    std::optional<std::int64_t> at(int row, std::int64_t step) const {
        const auto found = byRow_.find(row);
        if (found == byRow_.end()) return std::nullopt;
        auto next = std::upper_bound(found->second.begin(), found->second.end(), step,
                                     [](std::int64_t at, const Owner& owner) { return at < owner.first; });
        if (next == found->second.begin() || (--next)->last < step) return std::nullopt;
        return next->request;
    }

private:
    struct Owner {
        std::int64_t first = 0, last = 0, request = 0; // steps
    };
    std::unordered_map<int, std::vector<Owner>> byRow_; // in the order of steps
};

/// Calls visit(request, ns of the token, ns of the token before it) for every token of each request but its first, in
/// the order of iterations or steps.
template <class Visit> void forEachGap(const TraceReader& reader, int runId, const Visit& visit) {
    std::unordered_map<std::int64_t, std::int64_t> last;
    forEachServedToken(reader, runId, [&](std::int64_t request, std::int64_t ns) {
        const auto [found, first] = last.try_emplace(request, ns);
        if (!first) visit(request, ns, std::exchange(found->second, ns));
    });
}

} // namespace

void forEachServedToken(const TraceReader& reader, int runId,
                        const std::function<void(std::int64_t request, std::int64_t ns)>& take) {
    Statement members = ofRun(reader, runId,
                              "SELECT request, token_ns FROM v_member WHERE run_id = ? AND token_ns IS NOT NULL"
                              " ORDER BY iteration");
    bool any = false;
    for (; members.step(); any = true) take(members.int64(0), members.int64(1));
    const std::optional<RunRow> run = any ? std::nullopt : reader.run(runId);
    if (!run || !run->knows.has(Known::StepTimes)) return;
    const RowOwners owners(reader, runId);
    if (owners.empty()) return;
    Statement tokens(*ReaderAccess::of(reader).connection,
                     "SELECT (t.id >> 10) & 1023, (t.id >> 20) & 0x1FFFFFF, s.start_ns + s.duration_ns FROM token t"
                     " JOIN step s ON s.id = t.id >> 20 WHERE t.id BETWEEN ?1 << 45 AND (?1 << 45) | 0x1FFFFFFFFFFF"
                     " ORDER BY t.id");
    tokens.bind(1, runId);
    while (tokens.step())
        if (const auto request = owners.at(tokens.int32(0), tokens.int64(1))) take(*request, tokens.int64(2));
}

bool isServing(const TraceReader& reader, int runId) {
    for (const char* view : {"v_request", "v_iteration"})
        if (ofRun(reader, runId, fmt::format("SELECT 1 FROM {} WHERE run_id = ? LIMIT 1", view)).step()) return true;
    return false;
}

ServingRows readServing(const TraceReader& reader, int runId, std::vector<TokenGap>* gaps) {
    ServingRows out;
    Statement requests = ofRun(reader, runId,
                               "SELECT request, coalesce(row, -1), class, arrival_ns, first_sched_ns, first_token_ns,"
                               " end_ns, prompt_tokens, max_tokens, output_tokens, status, reason, paused_ns, pauses,"
                               " hits, misses, h2d_bytes, slo_ttft_ms, slo_tbt_ms FROM v_request WHERE run_id = ?");
    while (requests.step()) {
        RequestRow& row = out.requests.emplace_back();
        row.number = requests.int64(0);
        row.row = requests.int32(1);
        row.kind = requests.text(2);
        row.arrivalNs = requests.int64(3);
        row.firstScheduledNs = timeIn(requests, 4), row.firstTokenNs = timeIn(requests, 5);
        row.endNs = timeIn(requests, 6);
        row.promptTokens = requests.int64(7), row.maxTokens = requests.int64(8), row.outputTokens = requests.int64(9);
        row.status = RunFact<ServedStatus>::parse(requests.text(10)), row.reason = requests.text(11);
        row.pausedNs = requests.int64(12), row.pauses = requests.int64(13);
        row.hits = requests.int64(14), row.misses = requests.int64(15), row.h2dBytes = requests.int64(16);
        row.ttftBoundMs = requests.real(17), row.tbtBoundMs = requests.real(18);
    }
    Statement spans =
        ofRun(reader, runId, "SELECT request, state, start_ns, end_ns FROM v_request_span WHERE run_id = ?");
    while (spans.step())
        if (const auto state = stateOf(spans.text(1)))
            out.spans.push_back({spans.int64(0), *state, spans.int64(2), std::max(spans.int64(2), spans.int64(3))});
    Statement iterations =
        ofRun(reader, runId,
              "SELECT iteration, start_ns, duration_ns, decode_ns, prefill_ns, predicted_ns, decode_rows,"
              " prefill_requests, prefill_tokens, waiting, paused, ws_bytes, mavl_bytes, device_bytes, scratch_bytes,"
              " host_bytes, surprises, limited_by FROM v_iteration WHERE run_id = ?");
    while (iterations.step()) {
        IterationRow& row = out.iterations.emplace_back();
        int column = 0;
        row.iteration = iterations.int32(column++);
        for (std::int64_t* value :
             {&row.startNs, &row.durationNs, &row.decodeNs, &row.prefillNs, &row.predictedNs, &row.decodeRows,
              &row.prefillRequests, &row.prefillTokens, &row.waiting, &row.paused, &row.workingSetBytes,
              &row.availableBytes, &row.deviceBytes, &row.scratchBytes, &row.hostBytes, &row.surprises})
            *value = iterations.int64(column++);
        row.durationNs = std::max<std::int64_t>(row.durationNs, 0);
        row.limitedBy = iterations.text(column);
    }
    std::unordered_map<std::int64_t, double> bounds; // ns
    for (const RequestRow& request : out.requests) bounds[request.number] = request.tbtBoundMs * 1e6;
    forEachGap(reader, runId, [&](std::int64_t request, std::int64_t ns, std::int64_t before) {
        const auto bound = bounds.find(request);
        const double gap = double(ns) - double(before);
        if (gaps != nullptr) gaps->push_back({request, ns, std::int64_t(gap)});
        if (bound != bounds.end() && bound->second > 0 && gap > bound->second)
            out.late.push_back({request, ns, std::int64_t(gap)});
    });
    return out;
}

std::vector<MemberRow> readMembers(const TraceReader& reader, int runId, int iteration) {
    std::vector<MemberRow> out;
    Statement rows = ofRun(reader, runId,
                           "SELECT iteration, row, request, kind = 'prefill', tokens, layer_from, layer_to, hits,"
                           " misses, h2d_bytes, ws_bytes, token_ns FROM v_member WHERE run_id = ?1 AND iteration = ?2");
    rows.bind(2, iteration);
    while (rows.step()) {
        MemberRow& row = out.emplace_back();
        row.iteration = rows.int32(0), row.row = rows.int32(1);
        row.request = rows.int64(2);
        row.prefill = rows.int64(3) != 0;
        row.tokens = rows.int64(4), row.layerFrom = rows.int64(5), row.layerTo = rows.int64(6);
        row.hits = rows.int64(7), row.misses = rows.int64(8), row.h2dBytes = rows.int64(9);
        row.workingSetBytes = rows.int64(10);
        row.tokenNs = timeIn(rows, 11);
    }
    return out;
}

std::optional<ServingSummary> summarizeServing(const TraceReader& reader, int runId) {
    if (!isServing(reader, runId)) return std::nullopt;
    ServingSummary out;
    const ServingRows rows = readServing(reader, runId);
    out.requests = std::int64_t(rows.requests.size());
    out.iterations = std::int64_t(rows.iterations.size());
    for (const RequestRow& request : rows.requests) {
        out.finished += request.finished() ? 1 : 0;
        out.refused += request.status == ServedStatus::Refused ? 1 : 0;
        out.open += request.ended() ? 0 : 1;
        out.tokens += request.outputTokens;
        if (request.firstTokenNs >= 0) out.ttftMs.push_back(double(request.firstTokenNs - request.arrivalNs) / 1e6);
        if (request.firstScheduledNs >= 0)
            out.queueMs.push_back(double(request.firstScheduledNs - request.arrivalNs) / 1e6);
    }
    forEachGap(reader, runId, [&](std::int64_t, std::int64_t ns, std::int64_t before) {
        out.tbtMs.push_back(double(ns - before) / 1e6);
    });
    for (std::vector<double>* samples : {&out.ttftMs, &out.queueMs, &out.tbtMs})
        std::sort(samples->begin(), samples->end());
    return out;
}

} // namespace kvscope

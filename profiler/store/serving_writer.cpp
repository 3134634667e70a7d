#include "profiler/store/serving_writer.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string_view>

namespace kvscope {
namespace {

[[noreturn]] void refuseNumber(const char* what, std::int64_t number, const std::string& path, const char* hint) {
    throw Error(ErrorKind::Storage, fmt::format("{} {} cannot be numbered in {}", what, number, path), hint);
}

/// A number or time that is not known is below 0 in a record and NULL in the file.
std::optional<std::int64_t> whereKnown(std::int64_t value) { return value < 0 ? std::nullopt : std::optional(value); }

} // namespace

ServingWriter::ServingWriter(Connection& connection) : path_(connection.path()) {
    requests_ =
        RowInserter(connection, "request",
                    "id, row, class, arrival_ns, first_sched_ns, first_token_ns, end_ns, prompt_tokens, max_tokens,"
                    " output_tokens, status, reason, paused_ns, pauses, hits, misses, h2d_bytes, host_bytes,"
                    " device_bytes, slo_ttft_ms, slo_tbt_ms, external_id, first_step, last_step",
                    RowInserter::Twice::Replaces);
    spans_ = RowInserter(connection, "request_span",
                         "id, request, state, start_ns, end_ns, first_iteration, last_iteration");
    iterations_ =
        RowInserter(connection, "iteration",
                    "id, start_ns, duration_ns, decode_ns, prefill_ns, predicted_ns, decode_rows, prefill_requests,"
                    " prefill_tokens, waiting, paused, admitted, refused, ws_bytes, mavl_bytes, hard_bytes,"
                    " device_bytes, scratch_bytes, host_bytes, surprises, limited_by");
    members_ = RowInserter(connection, "member",
                           "id, request, kind, tokens, layer_from, layer_to, hits, misses, h2d_bytes, ws_bytes,"
                           " token_ns");
    events_ = RowInserter(connection, "row_event", "id, iteration, row, request, kind, time_ns");
}

void ServingWriter::add(int run, const ServingRecord& record) {
    addRequests(run, record);
    addSpans(run, record.spans);
    addIterations(run, record);
    addMembers(run, record);
    addEvents(run, record);
}

void ServingWriter::reset() {
    for (RowInserter* inserter : {&requests_, &spans_, &iterations_, &members_, &events_}) inserter->reset();
}

void ServingWriter::add(int run, const EngineRequest& request) {
    requests_.expect(1);
    addRequest(run, request.request, request.externalId, request.firstStep, request.lastStep);
    addSpans(run, request.spans);
}

void ServingWriter::addRequest(int run, const ServedRequest& request, const std::string& externalId,
                               std::int64_t firstStep, std::int64_t lastStep) {
    if (request.number < 0 || request.number > trace::kMaxServed)
        refuseNumber("request", request.number, path_, "record to another file");
    std::optional<std::string_view> name;
    if (!externalId.empty()) name = externalId;
    requests_.add(trace::servedKey(run, request.number), whereKnown(request.row), std::string_view(request.kind),
                  request.arrivalNs, whereKnown(request.firstScheduledNs), whereKnown(request.firstTokenNs),
                  whereKnown(request.endNs), request.promptTokens, request.maxTokens, request.outputTokens,
                  std::string_view(nameOf(request.status)), std::string_view(request.reason), request.pausedNs,
                  request.pauses, request.hits, request.misses, request.missedBytes, request.hostBytes,
                  request.deviceBytes, request.ttftBoundMs, request.tbtBoundMs, name, whereKnown(firstStep),
                  whereKnown(lastStep));
}

void ServingWriter::addRequests(int run, const ServingRecord& record) {
    requests_.expect(record.requests.size());
    for (const ServedRequest& request : record.requests) addRequest(run, request, {}, -1, -1);
}

void ServingWriter::addSpans(int run, const std::vector<RequestSpan>& spans) {
    spans_.expect(spans.size());
    for (const RequestSpan& span : spans)
        spans_.add(trace::servedKey(run, spanNumber_++), span.request, std::string_view(nameOf(span.state)),
                   span.startNs, span.endNs, whereKnown(span.firstIteration), whereKnown(span.lastIteration));
}

void ServingWriter::addIterations(int run, const ServingRecord& record) {
    iterations_.expect(record.iterations.size());
    for (const ServingIteration& row : record.iterations) {
        if (row.iteration < 0 || row.iteration > trace::kMaxStep)
            refuseNumber("iteration", row.iteration, path_, "record to another file");
        const auto prefills =
            std::count_if(row.members.begin(), row.members.end(), [](const auto& member) { return member.prefill; });
        std::int64_t tokens = 0;
        for (const IterationMember& member : row.members) tokens += member.prefill ? member.tokens : 0;
        iterations_.add(trace::stepKey(run, row.iteration), row.startNs, row.durationNs, row.decodeNs, row.prefillNs,
                        row.predictedNs, std::int64_t(row.members.size()) - prefills, prefills, tokens, row.waiting,
                        row.paused, row.admitted, row.refused, row.workingSetBytes, row.availableBytes, row.hardBytes,
                        row.deviceBytes, row.scratchBytes, row.hostBytes, row.surprises,
                        std::string_view(row.limitedBy));
    }
}

void ServingWriter::addMembers(int run, const ServingRecord& record) {
    std::size_t members = 0;
    for (const ServingIteration& row : record.iterations) members += row.members.size();
    members_.expect(members);
    for (const ServingIteration& row : record.iterations)
        for (const IterationMember& member : row.members) {
            if (member.row < 0 || member.row >= trace::kMaxSequences)
                refuseNumber("row", member.row, path_, "serve with fewer rows");
            members_.add(trace::memberKey(run, row.iteration, member.row), member.request, member.prefill,
                         member.tokens, member.layerFrom, member.layerTo, member.hits, member.misses,
                         member.missedBytes, member.workingSetBytes, whereKnown(member.tokenNs));
        }
}

void ServingWriter::addEvents(int run, const ServingRecord& record) {
    events_.expect(record.events.size());
    for (const RowEvent& event : record.events)
        events_.add(trace::servedKey(run, eventNumber_++), event.iteration, event.row, event.request,
                    std::string_view(nameOf(event.kind)), event.ns);
}

} // namespace kvscope

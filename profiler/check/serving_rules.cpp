// Rules about the requests and iterations of serving runs.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

constexpr const char* kRequests = "id BETWEEN ?1 << 40 AND (?1 << 40) | 0xFFFFFFFFFF"; // and their spans
constexpr const char* kIterations = "id BETWEEN ?1 << 25 AND (?1 << 25) | 0x1FFFFFF";
constexpr const char* kMembers = "id BETWEEN ?1 << 35 AND (?1 << 35) | 0x7FFFFFFFF";

} // namespace

std::span<const SqlRule> servingRules() {
    static const std::vector<SqlRule> rules{
        {"request-times", "a request arrives, is scheduled, makes its first token and ends in this order",
         Concern::Serving, Needs::Nothing, "request", Form::Request,
         fmt::format("SELECT id, 'arrival ' || arrival_ns || ', first scheduled ' || coalesce(first_sched_ns, 'never')"
                     " || ', first token ' || coalesce(first_token_ns, 'never') || ', end ' ||"
                     " coalesce(end_ns, 'none') FROM request WHERE {} AND (arrival_ns < 0 OR first_sched_ns <"
                     " arrival_ns OR first_token_ns < coalesce(first_sched_ns, first_token_ns + 1) OR end_ns <"
                     " max(arrival_ns, coalesce(first_sched_ns, 0), coalesce(first_token_ns, 0)))",
                     kRequests)},
        {"request-counts", "the counts of a request are not negative, and it makes at most the tokens it asks for",
         Concern::Serving, Needs::Nothing, "request", Form::Request,
         fmt::format("SELECT id, 'prompt ' || prompt_tokens || ', output ' || output_tokens || ' of ' || max_tokens ||"
                     " ', pauses ' || pauses || ', hits ' || hits || ', misses ' || misses FROM request WHERE {} AND"
                     " (prompt_tokens < 0 OR output_tokens NOT BETWEEN 0 AND max_tokens OR pauses < 0 OR paused_ns < 0"
                     " OR hits < 0 OR misses < 0 OR h2d_bytes < 0 OR host_bytes < 0 OR device_bytes < 0)",
                     kRequests)},
        {"request-status", "status of a request is one of the words, and one that has ended has an end",
         Concern::Serving, Needs::Nothing, "request", Form::Request,
         fmt::format("SELECT id, 'status is ' || status || ', end ' || coalesce(end_ns, 'none') FROM request WHERE {}"
                     " AND CASE WHEN status IN ('queued', 'prefill', 'decode', 'paused') THEN end_ns IS NOT NULL WHEN"
                     " status IN ('length', 'stop', 'cancelled', 'refused', 'failed') THEN end_ns IS NULL ELSE 1 END",
                     kRequests)},
        {"span-request", "a span of a request has one, a known state, and ends after it begins", Concern::Serving,
         Needs::Nothing, "request_span", Form::Request,
         fmt::format("SELECT ?1 << 40 | s.request, 'state is ' || s.state || ', ' || s.start_ns || ' to ' || s.end_ns"
                     " FROM request_span s WHERE s.{} AND (s.end_ns < s.start_ns OR s.state NOT IN ('queued',"
                     " 'prefill', 'decode', 'paused') OR (?1 << 40 | s.request) NOT IN (SELECT id FROM request))",
                     kRequests)},
        {"span-gapless", "the spans of a request follow each other from its arrival to its end", Concern::Serving,
         Needs::Nothing, "request_span", Form::Request,
         fmt::format("SELECT ?1 << 40 | request, 'a span begins at ' || start_ns || ', the one before ends at ' ||"
                     " before FROM (SELECT s.request, s.start_ns, coalesce(lag(s.end_ns) OVER (PARTITION BY s.request"
                     " ORDER BY s.id), q.arrival_ns) AS before FROM request_span s JOIN request q ON q.id = (?1 << 40"
                     " | s.request) WHERE s.{}) WHERE start_ns <> before",
                     kRequests)},
        {"iteration-times", "iterations do not overlap, and their parts are no longer than they are", Concern::Serving,
         Needs::Nothing, "iteration", Form::Iteration,
         fmt::format("SELECT id, 'begins at ' || start_ns || ' and takes ' || duration_ns || ', the one before ends at"
                     " ' || coalesce(before, 'no time') FROM (SELECT id, start_ns, duration_ns, decode_ns, prefill_ns,"
                     " lag(start_ns + duration_ns) OVER (ORDER BY id) AS before FROM iteration WHERE {}) WHERE"
                     " start_ns < coalesce(before, 0) OR duration_ns < 0 OR decode_ns < 0 OR prefill_ns < 0 OR"
                     " decode_ns + prefill_ns > duration_ns",
                     kIterations)},
        {"iteration-counts", "the counts and bytes of an iteration are not negative", Concern::Serving, Needs::Nothing,
         "iteration", Form::Iteration,
         fmt::format("SELECT id, 'waiting ' || waiting || ', paused ' || paused || ', reserved ' || device_bytes FROM"
                     " iteration WHERE {} AND (min(decode_rows, prefill_requests, prefill_tokens, waiting, paused,"
                     " admitted, refused, ws_bytes, hard_bytes, device_bytes, scratch_bytes, host_bytes, surprises,"
                     " predicted_ns) < 0)",
                     kIterations)},
        {"iteration-members", "an iteration counts its members: rows that decode, prompts and their tokens",
         Concern::Serving, Needs::Nothing, "member", Form::Iteration,
         fmt::format("SELECT i.id, 'decode rows ' || i.decode_rows || ', prompts ' || i.prefill_requests || ', members"
                     " ' || coalesce(m.decodes, 0) || ' and ' || coalesce(m.prefills, 0) FROM iteration i LEFT JOIN"
                     " (SELECT id >> 10 AS iteration, sum(kind = 0) AS decodes, sum(kind = 1) AS prefills, sum(CASE"
                     " kind WHEN 1 THEN tokens ELSE 0 END) AS tokens FROM member WHERE {} GROUP BY id >> 10) m ON"
                     " m.iteration = i.id WHERE i.{} AND (i.decode_rows <> coalesce(m.decodes, 0) OR"
                     " i.prefill_requests <> coalesce(m.prefills, 0) OR i.prefill_tokens <> coalesce(m.tokens, 0))",
                     kMembers, kIterations)},
        {"member-place", "a member has an iteration and a request, and its token comes before the iteration ends",
         Concern::Serving, Needs::Nothing, "member", Form::Member,
         fmt::format("SELECT m.id, 'request ' || m.request || ', kind ' || m.kind || ', token at ' ||"
                     " coalesce(m.token_ns, 'no time') FROM member m LEFT JOIN iteration i ON i.id = m.id >> 10 WHERE"
                     " m.{} AND (i.id IS NULL OR m.kind NOT IN (0, 1) OR min(m.tokens, m.hits, m.misses, m.h2d_bytes,"
                     " m.ws_bytes, m.layer_from, m.layer_to) < 0 OR m.token_ns NOT BETWEEN i.start_ns AND i.start_ns +"
                     " i.duration_ns OR (?1 << 40 | m.request) NOT IN (SELECT id FROM request))",
                     kMembers)},
        {"request-tokens", "a request has as many tokens, hits, misses and bytes as its members together",
         Concern::Serving, Needs::Nothing, "member", Form::Request,
         fmt::format("SELECT q.id, 'tokens ' || q.output_tokens || ', of its members ' || coalesce(m.tokens, 0) ||"
                     " '; misses ' || q.misses || ', of its members ' || coalesce(m.misses, 0) FROM request q LEFT"
                     " JOIN (SELECT request, count(token_ns) AS tokens, sum(hits) AS hits, sum(misses) AS misses,"
                     " sum(h2d_bytes) AS bytes FROM member WHERE {} GROUP BY request) m ON (?1 << 40 | m.request) ="
                     " q.id WHERE q.{} AND (q.output_tokens <> coalesce(m.tokens, 0) OR q.hits <> coalesce(m.hits, 0)"
                     " OR q.misses <> coalesce(m.misses, 0) OR q.h2d_bytes <> coalesce(m.bytes, 0))",
                     kMembers, kRequests)}};
    return rules;
}

} // namespace kvscope::check

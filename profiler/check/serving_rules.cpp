// Rules about the requests and iterations of serving runs.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// SQL for the member that the request of span s has in an iteration. iteration: its number, in SQL
std::string memberIn(const char* iteration) {
    return fmt::format("SELECT 1 FROM member m WHERE m.id BETWEEN (?1 << 25 | {0}) << 10 AND (?1 << 25 | {0}) << 10 |"
                       " 1023 AND m.request = s.request",
                       iteration);
}

/// SQL: whether the run says who has which row.
std::string hasEvents() { return fmt::format("EXISTS (SELECT 1 FROM row_event WHERE {})", kRequests); }

/// SQL: whether the run has iterations, as a server of KVScope's has. Another engine may know its requests alone.
std::string hasIterations() { return fmt::format("EXISTS (SELECT 1 FROM iteration WHERE {})", kIterations); }

/// SQL for the iterations that decode, their requests and the position of the token that each request is fed.
std::string fed() {
    return fmt::format("SELECT d.id, d.request, q.prompt_tokens + d.before AS position FROM (SELECT id, request,"
                       " row_number() OVER (PARTITION BY request ORDER BY id) - 1 AS before FROM member WHERE {} AND"
                       " kind = 0) d JOIN request q ON q.id = (?1 << 40 | d.request)",
                       kMembers);
}

/// SQL for the iterations whose column `paused` is not the number of requests that were paused when they began, by the
/// spans of requests. It goes once over the begins and ends of pauses and the iterations, in the order of time.
std::string pausedThen() {
    return fmt::format(
        "SELECT id, 'paused is ' || paused || ', by the spans ' || now FROM (SELECT id, paused, sum(change) OVER"
        " (ORDER BY ns, kind ROWS UNBOUNDED PRECEDING) AS now FROM (SELECT start_ns AS ns, 0 AS kind, 1 AS change,"
        " NULL AS id, NULL AS paused FROM request_span WHERE {0} AND state = 'paused' UNION ALL SELECT end_ns, 0, -1,"
        " NULL, NULL FROM request_span WHERE {0} AND state = 'paused' UNION ALL SELECT (SELECT max(s.end_ns) FROM"
        " request_span s WHERE s.{0} AND (?1 << 40 | s.request) = q.id), 0, 1, NULL, NULL FROM request q WHERE q.{0}"
        " AND q.status = 'paused' UNION ALL SELECT start_ns, 1, 0, id, paused FROM iteration WHERE {1})) WHERE paused"
        " <> now",
        kRequests, kIterations);
}

/// SQL for what an iteration has reserved beyond the budgets that the server says it has.
std::string beyondBudgets() {
    const auto column = [](const char* name, const char* budget) {
        return fmt::format("SELECT id, '{0}' AS what, {0} AS reserved, '{1}' AS budget FROM iteration WHERE {2}", name,
                           budget, kIterations);
    };
    return fmt::format("SELECT i.id, i.what || ' is ' || i.reserved || ', the server has ' || b.value FROM ({} UNION"
                       " ALL {} UNION ALL {} UNION ALL {}) i JOIN (SELECT n.key AS key, n.value AS value FROM run_meta"
                       " m, json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE '{{}}' END) n WHERE m.run_id ="
                       " ?1 AND m.key = 'serving' AND n.type = 'integer') b ON b.key = i.budget WHERE i.reserved >"
                       " b.value",
                       column("device_bytes", "device_kv_bytes"), column("mavl_bytes", "device_kv_bytes"),
                       column("scratch_bytes", "scratch_bytes"), column("host_bytes", "host_kv_bytes"));
}

/// Of requests and their spans.
std::vector<SqlRule> requestRules() {
    return {
        {"request-times", "a request arrives, is scheduled, makes its first token and ends in this order",
         Concern::Serving, Needs::Nothing, "request", Form::Request,
         fmt::format("SELECT id, 'arrival ' || arrival_ns || ', first scheduled ' || coalesce(first_sched_ns, 'never')"
                     " || ', first token ' || coalesce(first_token_ns, 'never') || ', end ' ||"
                     " coalesce(end_ns, 'none') FROM request WHERE {} AND (arrival_ns < 0 OR first_sched_ns <"
                     " arrival_ns OR first_token_ns < coalesce(first_sched_ns, first_token_ns + 1) OR end_ns <"
                     " max(arrival_ns, coalesce(first_sched_ns, 0), coalesce(first_token_ns, 0)))",
                     kRequests)},
        {"request-counts",
         "the counts and bounds of a request are not negative, and it makes at most the tokens it asks for, where"
         " that is known",
         Concern::Serving, Needs::Nothing, "request", Form::Request,
         fmt::format(
             "SELECT id, 'prompt ' || prompt_tokens || ', output ' || output_tokens || ' of ' || max_tokens ||"
             " ', pauses ' || pauses || ', hits ' || hits || ', misses ' || misses FROM request WHERE {} AND"
             " (prompt_tokens < 0 OR output_tokens < 0 OR max_tokens < 0 OR (output_tokens > max_tokens AND"
             " (max_tokens > 0 OR {})) OR pauses < 0 OR paused_ns < 0"
             " OR hits < 0 OR misses < 0 OR h2d_bytes < 0 OR host_bytes < 0 OR device_bytes < 0 OR NOT (slo_ttft_ms"
             " BETWEEN 0 AND 1e300) OR NOT (slo_tbt_ms BETWEEN 0 AND 1e300))",
             kRequests, hasIterations())},
        {"request-status", "status of a request is one of the words, and one that has ended has an end",
         Concern::Serving, Needs::Nothing, "request", Form::Request,
         fmt::format("SELECT id, 'status is ' || status || ', end ' || coalesce(end_ns, 'none') FROM request WHERE {}"
                     " AND CASE WHEN status IN ('queued', 'prefill', 'decode', 'paused') THEN end_ns IS NOT NULL WHEN"
                     " status IN ('length', 'stop', 'cancelled', 'refused', 'failed') THEN end_ns IS NULL ELSE 1 END",
                     kRequests)},
        {"request-steps",
         "first_step and last_step of a request are the run's, and at most one request has a row in a step",
         Concern::Serving, Needs::Nothing, "request", Form::Request,
         fmt::format("SELECT q.id, 'row ' || coalesce(q.row, 'none') || ', steps ' || coalesce(q.first_step, 'none') ||"
                     " ' to ' || coalesce(q.last_step, 'none') || ', the request before in the row has steps up to ' ||"
                     " coalesce(q.before, 'none') FROM (SELECT id, row, first_step, last_step, first_sched_ns,"
                     " lag(last_step) OVER (PARTITION BY row ORDER BY first_step, last_step) AS before FROM request"
                     " WHERE {}) q, run r WHERE r.run_id = ?1 AND (q.first_step IS NOT NULL OR q.last_step IS NOT NULL)"
                     " AND (q.row IS NULL OR q.row < 0 OR (q.row >= r.sequences AND r.sequences > 0) OR"
                     " q.first_sched_ns IS NULL OR NOT coalesce(q.first_step BETWEEN 0 AND q.last_step AND q.last_step"
                     " <= 0x1FFFFFF, 0) OR q.first_step <= q.before)",
                     kRequests)},
        {"span-request", "a span of a request has one, a known state, and ends after it begins", Concern::Serving,
         Needs::Nothing, "request_span", Form::Request,
         fmt::format("SELECT ?1 << 40 | s.request, 'state is ' || s.state || ', ' || s.start_ns || ' to ' || s.end_ns"
                     " FROM request_span s WHERE s.{} AND (s.end_ns < s.start_ns OR s.state NOT IN ('queued',"
                     " 'prefill', 'decode', 'paused') OR (?1 << 40 | s.request) NOT IN (SELECT id FROM request))",
                     kRequests)},
        {"request-progress", "what a request has done is what its status says", Concern::Serving, Needs::Nothing,
         "request", Form::Request,
         fmt::format(
             "SELECT id, 'status is ' || status || ', first scheduled ' || coalesce(first_sched_ns, 'never') ||"
             " ', first token ' || coalesce(first_token_ns, 'never') || ', output ' || output_tokens || ' of '"
             " || max_tokens FROM request WHERE {0} AND ((first_token_ns IS NULL) <> (output_tokens = 0) OR"
             " CASE status WHEN 'queued' THEN first_sched_ns IS NOT NULL WHEN 'refused' THEN first_sched_ns IS"
             " NOT NULL WHEN 'prefill' THEN first_sched_ns IS NULL OR output_tokens > 0 WHEN 'decode' THEN"
             " output_tokens = 0 WHEN 'paused' THEN output_tokens = 0 WHEN 'stop' THEN output_tokens = 0 AND {1} WHEN"
             " 'length' THEN output_tokens <> max_tokens AND {1} ELSE 0 END)",
             kRequests, hasIterations())},
        {"span-gapless", "the spans of a request follow each other from its arrival to its end", Concern::Serving,
         Needs::Nothing, "request_span", Form::Request,
         fmt::format("SELECT ?1 << 40 | request, 'a span begins at ' || start_ns || ', the one before ends at ' ||"
                     " before FROM (SELECT s.request, s.start_ns, coalesce(lag(s.end_ns) OVER (PARTITION BY s.request"
                     " ORDER BY s.id), q.arrival_ns) AS before FROM request_span s JOIN request q ON q.id = (?1 << 40"
                     " | s.request) WHERE s.{0}) WHERE start_ns <> before UNION ALL SELECT q.id, 'the last span ends at"
                     " ' || coalesce(s.last, 'no time') || ', the request at ' || q.end_ns FROM request q LEFT JOIN"
                     " (SELECT request, max(end_ns) AS last FROM request_span WHERE {0} GROUP BY request) s ON"
                     " (?1 << 40 | s.request) = q.id WHERE q.{0} AND q.end_ns <> coalesce(s.last, q.end_ns + 1)",
                     kRequests)},
        {"request-pauses", "the pauses of a request are its spans in which it was paused", Concern::Serving,
         Needs::Nothing, "request_span", Form::Request,
         fmt::format("SELECT q.id, 'pauses is ' || q.pauses || ', paused_ns ' || q.paused_ns || ', of its spans ' ||"
                     " coalesce(s.count, 0) || ' and ' || coalesce(s.ns, 0) FROM request q LEFT JOIN (SELECT request,"
                     " sum(state = 'paused') AS count, sum(CASE state WHEN 'paused' THEN end_ns - start_ns ELSE 0 END)"
                     " AS ns FROM request_span WHERE {0} GROUP BY request) s ON (?1 << 40 | s.request) = q.id WHERE"
                     " q.{0} AND (q.paused_ns <> coalesce(s.ns, 0) OR q.pauses <> coalesce(s.count, 0) + (q.status ="
                     " 'paused'))",
                     kRequests)},
        {"span-iterations", "the first and last iteration of a request's span have it as a member", Concern::Serving,
         Needs::Nothing, "member", Form::Request,
         fmt::format("SELECT ?1 << 40 | s.request, 'first_iteration is ' || coalesce(s.first_iteration, 'NULL') || ',"
                     " last_iteration ' || coalesce(s.last_iteration, 'NULL') FROM request_span s WHERE s.{} AND"
                     " ((s.first_iteration IS NULL) <> (s.last_iteration IS NULL) OR s.last_iteration <"
                     " s.first_iteration OR (s.first_iteration IS NOT NULL AND NOT EXISTS ({})) OR (s.last_iteration"
                     " IS NOT NULL AND NOT EXISTS ({})))",
                     kRequests, memberIn("s.first_iteration"), memberIn("s.last_iteration"))}};
}

/// Of iterations.
std::vector<SqlRule> iterationRules() {
    return {
        {"iteration-times", "iterations do not overlap, and their parts are no longer than they are", Concern::Serving,
         Needs::Nothing, "iteration", Form::Iteration,
         fmt::format("SELECT id, 'begins at ' || start_ns || ' and takes ' || duration_ns || ', the one before ends at"
                     " ' || coalesce(before, 'no time') FROM (SELECT id, start_ns, duration_ns, decode_ns, prefill_ns,"
                     " lag(start_ns + duration_ns) OVER (ORDER BY id) AS before FROM iteration WHERE {}) WHERE"
                     " start_ns < coalesce(before, 0) OR duration_ns < 0 OR decode_ns < 0 OR prefill_ns < 0 OR"
                     " decode_ns + prefill_ns > duration_ns",
                     kIterations)},
        {"iteration-numbers", "iterations are numbered 0, 1, 2, ...", Concern::Serving, Needs::Nothing, "iteration",
         Form::None,
         fmt::format("SELECT NULL, count(*) || ' iterations are numbered up to ' || (max(id) & 0x1FFFFFF) FROM"
                     " iteration WHERE {} HAVING (max(id) & 0x1FFFFFF) + 1 <> count(*)",
                     kIterations)},
        {"iteration-heartbeat", "an iteration ends before the writer's last sign of life, give or take an hour",
         Concern::Serving, Needs::Nothing, "iteration", Form::Iteration,
         fmt::format("SELECT i.id, 'the iteration ends ' || (i.start_ns + i.duration_ns) / 1000000 || ' ms after the"
                     " run''s start, the last sign of life is of ' || (h.heartbeat_ms - 1000 * strftime('%s',"
                     " substr(r.created_utc, 1, 19))) || ' ms' FROM iteration i, run r JOIN health h ON h.run_id ="
                     " r.run_id WHERE i.{} AND r.run_id = ?1 AND h.heartbeat_ms > 0 AND i.start_ns + i.duration_ns >"
                     " (h.heartbeat_ms - 1000 * strftime('%s', substr(r.created_utc, 1, 19)) + 3600000) * 1000000",
                     kIterations)},
        {"iteration-counts", "the counts and bytes of an iteration are not negative", Concern::Serving, Needs::Nothing,
         "iteration", Form::Iteration,
         fmt::format("SELECT id, 'waiting ' || waiting || ', paused ' || paused || ', reserved ' || device_bytes FROM"
                     " iteration WHERE {} AND (min(decode_rows, prefill_requests, prefill_tokens, waiting, paused,"
                     " admitted, refused, ws_bytes, hard_bytes, device_bytes, scratch_bytes, host_bytes, surprises,"
                     " predicted_ns) < 0)",
                     kIterations)},
        {"iteration-budget", "what an iteration has reserved is within the budgets of the server", Concern::Serving,
         Needs::Nothing, "iteration", Form::Iteration, beyondBudgets()},
        {"iteration-requests", "an iteration admits, refuses and lets wait requests of the run, each admitted once",
         Concern::Serving, Needs::Nothing, "iteration", Form::Iteration,
         fmt::format(
             "SELECT id, 'waiting ' || waiting || ', refused up to it ' || refusals || ', admitted up to it ' ||"
             " admissions || ' of ' || q.count || ' requests' FROM (SELECT id, waiting, sum(refused) OVER"
             " (ORDER BY id) AS refusals, sum(admitted) OVER (ORDER BY id) AS admissions FROM iteration WHERE"
             " {}), (SELECT count(*) AS count, total(status = 'refused') AS refused FROM request WHERE {}) q"
             " WHERE waiting > q.count OR admissions > q.count OR refusals > q.refused",
             kIterations, kRequests)},
        {"iteration-paused", "paused of an iteration counts the requests that are paused when it begins",
         Concern::Serving, Needs::Nothing, "iteration", Form::Iteration, pausedThen()},
        {"iteration-members", "an iteration counts its members: rows that decode, prompts and their tokens",
         Concern::Serving, Needs::Nothing, "member", Form::Iteration,
         fmt::format("SELECT i.id, 'decode rows ' || i.decode_rows || ', prompts ' || i.prefill_requests || ', members"
                     " ' || coalesce(m.decodes, 0) || ' and ' || coalesce(m.prefills, 0) FROM iteration i LEFT JOIN"
                     " (SELECT id >> 10 AS iteration, sum(kind = 0) AS decodes, sum(kind = 1) AS prefills, sum(CASE"
                     " kind WHEN 1 THEN tokens ELSE 0 END) AS tokens FROM member WHERE {} GROUP BY id >> 10) m ON"
                     " m.iteration = i.id WHERE i.{} AND (i.decode_rows <> coalesce(m.decodes, 0) OR"
                     " i.prefill_requests <> coalesce(m.prefills, 0) OR i.prefill_tokens <> coalesce(m.tokens, 0))",
                     kMembers, kIterations)}};
}

/// Of what iterations did for requests.
std::vector<SqlRule> memberRules() {
    return {
        {"member-place",
         "a member has an iteration and a request whose prompt it reads a part of, and its token comes before the"
         " iteration ends",
         Concern::Serving, Needs::Nothing, "member", Form::Member,
         fmt::format(
             "SELECT m.id, 'request ' || m.request || ', kind ' || m.kind || ', token at ' ||"
             " coalesce(m.token_ns, 'no time') FROM member m LEFT JOIN iteration i ON i.id = m.id >> 10 LEFT JOIN"
             " request q ON q.id = (?1 << 40 | m.request) WHERE m.{} AND (i.id IS NULL OR q.id IS NULL OR"
             " (m.kind = 1 AND m.tokens > q.prompt_tokens) OR m.kind NOT IN (0, 1) OR min(m.tokens, m.hits, m.misses, "
             "m.h2d_bytes,"
             " m.ws_bytes, m.layer_from, m.layer_to) < 0 OR m.token_ns NOT BETWEEN i.start_ns AND i.start_ns +"
             " i.duration_ns OR (?1 << 40 | m.request) NOT IN (SELECT id FROM request))",
             kMembers)},
        {"member-layers",
         "a decoding member has one token and no layers, one that reads its prompt layers of the run in order",
         Concern::Serving, Needs::Nothing, "member", Form::Member,
         fmt::format("SELECT m.id, 'kind is ' || m.kind || ', tokens ' || m.tokens || ', layers ' || m.layer_from ||"
                     " ' to ' || m.layer_to FROM member m, run r WHERE m.{} AND r.run_id = ?1 AND CASE m.kind WHEN 0"
                     " THEN m.tokens <> 1 OR m.layer_from <> 0 OR m.layer_to <> 0 ELSE m.layer_to < m.layer_from OR"
                     " (m.layer_to > r.layers AND r.layers > 0) END",
                     kMembers)},
        {"request-row", "the row of a request is that of its last member, and below the rows of the run",
         Concern::Serving, Needs::Nothing, "member", Form::Request,
         fmt::format(
             "SELECT q.id, 'row is ' || coalesce(q.row, 'NULL') || ', of its last member ' ||"
             " coalesce(m.last & 1023, 'NULL') || ', the run has ' || r.sequences FROM request q, run r LEFT"
             " JOIN (SELECT request, max(id) AS last FROM member WHERE {} GROUP BY request) m ON (?1 << 40 |"
             " m.request) = q.id WHERE q.{} AND {} AND r.run_id = ?1 AND (q.row IS NOT (m.last & 1023) OR (q.row >="
             " r.sequences AND r.sequences > 0))",
             kMembers, kRequests, hasIterations())},
        {"request-first", "a request is first scheduled and makes its first token in the iterations of its members",
         Concern::Serving, Needs::Nothing, "member", Form::Request,
         fmt::format("SELECT q.id, 'first scheduled ' || coalesce(q.first_sched_ns, 'never') || ', first token ' ||"
                     " coalesce(q.first_token_ns, 'never') || '; the first member''s iteration begins at ' ||"
                     " coalesce(i.start_ns, 'no time') || ', its first token is of ' || coalesce(m.token, 'no time')"
                     " FROM request q LEFT JOIN (SELECT request, min(id) AS first, min(token_ns) AS token FROM member"
                     " WHERE {} GROUP BY request) m ON (?1 << 40 | m.request) = q.id LEFT JOIN iteration i ON i.id ="
                     " m.first >> 10 WHERE q.{} AND {} AND (q.first_token_ns IS NOT m.token OR (q.first_sched_ns <>"
                     " q.arrival_ns AND q.first_sched_ns NOT BETWEEN i.start_ns AND i.start_ns + i.duration_ns))",
                     kMembers, kRequests, hasIterations())},
        {"request-tokens", "a request has as many tokens, hits, misses and bytes as its members together",
         Concern::Serving, Needs::Nothing, "member", Form::Request,
         fmt::format(
             "SELECT q.id, 'tokens ' || q.output_tokens || ', of its members ' || coalesce(m.tokens, 0) ||"
             " '; misses ' || q.misses || ', of its members ' || coalesce(m.misses, 0) FROM request q LEFT"
             " JOIN (SELECT request, count(token_ns) AS tokens, sum(hits) AS hits, sum(misses) AS misses,"
             " sum(h2d_bytes) AS bytes FROM member WHERE {} GROUP BY request) m ON (?1 << 40 | m.request) ="
             " q.id WHERE q.{} AND {} AND (q.output_tokens <> coalesce(m.tokens, 0) OR q.hits <> coalesce(m.hits, 0)"
             " OR q.misses <> coalesce(m.misses, 0) OR q.h2d_bytes <> coalesce(m.bytes, 0))",
             kMembers, kRequests, hasIterations())}};
}

/// Of who has which row of the batch.
std::vector<SqlRule> rowEventRules() {
    return {
        {"event-place", "an event of a row is of a request and a row of the run, in the order of iterations",
         Concern::Serving, Needs::Nothing, "row_event", Form::None,
         fmt::format("SELECT NULL, 'event ' || (e.id & 0xFFFFFFFFFF) || ': ' || e.kind || ', request ' || e.request ||"
                     " ', row ' || e.row || ', iteration ' || e.iteration || ', the event before is of ' ||"
                     " coalesce(e.before, 'none') FROM (SELECT id, kind, request, row, iteration, time_ns,"
                     " lag(iteration) OVER (ORDER BY id) AS before FROM row_event WHERE {0}) e, run r, (SELECT"
                     " coalesce(max(id) & 0x1FFFFFF, -1) AS last FROM iteration WHERE {1}) i WHERE r.run_id = ?1 AND"
                     " (e.kind NOT IN ('admitted', 'paused', 'resumed', 'released') OR e.row < 0 OR (e.row >="
                     " r.sequences AND r.sequences > 0) OR e.time_ns < 0 OR e.iteration < coalesce(e.before, 0) OR"
                     " e.iteration > i.last + 1 OR (?1 << 40 | e.request) NOT IN (SELECT id FROM request))",
                     kRequests, kIterations)},
        {"event-row", "a row is free when a request is admitted to it, and is released by the request that has it",
         Concern::Serving, Needs::Nothing, "row_event", Form::Request,
         fmt::format("SELECT ?1 << 40 | request, kind || ', row ' || row || '; the event of the row before is ' ||"
                     " coalesce(before || ' by request ' || had, 'none') FROM (SELECT row, request, kind, lag(kind)"
                     " OVER w AS before, lag(request) OVER w AS had FROM row_event WHERE {} AND kind IN ('admitted',"
                     " 'released') WINDOW w AS (PARTITION BY row ORDER BY id)) WHERE CASE kind WHEN 'admitted' THEN"
                     " before IS 'admitted' ELSE before IS NOT 'admitted' OR had IS NOT request END",
                     kRequests)},
        {"event-order", "a request is admitted once, paused and resumed in turn in its row, and released last",
         Concern::Serving, Needs::Nothing, "row_event", Form::Request,
         fmt::format("SELECT ?1 << 40 | request, kind || ' in row ' || row || ' behind ' || coalesce(before || ' in"
                     " row ' || place, 'nothing') FROM (SELECT row, request, kind, lag(kind) OVER w AS before,"
                     " lag(row) OVER w AS place FROM row_event WHERE {} WINDOW w AS (PARTITION BY request ORDER BY"
                     " id)) WHERE CASE kind WHEN 'admitted' THEN before IS NOT NULL WHEN 'resumed' THEN before IS NOT"
                     " 'paused' WHEN 'paused' THEN before IS NULL OR before IN ('paused', 'released') ELSE before IS"
                     " NULL OR before = 'released' END OR row <> coalesce(place, row)",
                     kRequests)},
        {"event-pauses", "a request was paused as often as its events say, where events are recorded", Concern::Serving,
         Needs::Nothing, "row_event", Form::Request,
         fmt::format("SELECT q.id, 'pauses is ' || q.pauses || ', of its events ' || coalesce(e.count, 0) FROM request"
                     " q LEFT JOIN (SELECT request, count(*) AS count FROM row_event WHERE {0} AND kind = 'paused'"
                     " GROUP BY request) e ON (?1 << 40 | e.request) = q.id WHERE q.{0} AND {1} AND q.pauses <>"
                     " coalesce(e.count, 0)",
                     kRequests, hasEvents())},
        {"event-member", "a request has its row in every iteration that works for it, where events are recorded",
         Concern::Serving, Needs::Nothing, "row_event", Form::Member,
         fmt::format(
             "SELECT m.id, 'request ' || m.request || ' has row ' || coalesce(e.row, 'none') || ' from iteration"
             " ' || coalesce(e.since, 'none') || ' to before ' || coalesce(e.until, 'the end') FROM member m"
             " LEFT JOIN (SELECT request, max(CASE kind WHEN 'admitted' THEN row END) AS row, max(CASE kind"
             " WHEN 'admitted' THEN iteration END) AS since, max(CASE kind WHEN 'released' THEN iteration END)"
             " AS until FROM row_event WHERE {0} GROUP BY request) e ON e.request = m.request WHERE m.{1} AND"
             " {2} AND (e.row IS NOT (m.id & 1023) OR e.since > ((m.id >> 10) & 0x1FFFFFF) OR e.until <="
             " ((m.id >> 10) & 0x1FFFFFF))",
             kRequests, kMembers, hasEvents())}};
}

/// Of the steps and selections that iterations made.
std::vector<SqlRule> servedRules() {
    return {
        {"served-step", "a step of a serving run is the decode step of an iteration, whose rows it counts",
         Concern::Serving, Needs::Nothing, "iteration", Form::Step,
         fmt::format(
             "SELECT s.id, 'tokens is ' || s.tokens || ', from ' || s.start_ns || ' for ' || s.duration_ns ||"
             " '; rows that made a token ' || m.tokens || ', the decode step took ' || coalesce(i.decode_ns,"
             " 'nothing') FROM (SELECT id, tokens, start_ns, duration_ns FROM step WHERE {0}) s LEFT JOIN"
             " iteration i ON i.id = s.id LEFT JOIN (SELECT id >> 10 AS iteration, count(token_ns) AS tokens"
             " FROM member WHERE {1} AND kind = 0 GROUP BY id >> 10) m ON m.iteration = s.id WHERE EXISTS"
             " (SELECT 1 FROM iteration WHERE {0}) AND (i.id IS NULL OR s.tokens IS NOT m.tokens OR s.duration_ns"
             " <> i.decode_ns OR s.start_ns < i.start_ns OR s.start_ns + s.duration_ns > i.start_ns +"
             " i.duration_ns)",
             kIterations, kMembers)},
        {"served-selection", "a selection of a serving run is of a request that its iteration decodes in that row",
         Concern::Serving, Needs::Selections, "iteration", Form::Selection,
         fmt::format("SELECT c.id, 'row ' || ((c.id >> 10) & 1023) || ' decodes for nobody' FROM selection c LEFT JOIN"
                     " member m ON m.id = (((c.id >> 30) << 10) | ((c.id >> 10) & 1023)) WHERE c.{} AND EXISTS (SELECT"
                     " 1 FROM iteration WHERE {}) AND m.kind IS NOT 0",
                     kSelections, kIterations)},
        {"served-hits", "hits and misses of a member that decodes are the sums over its selections, where it has any",
         Concern::Serving, Needs::Hits, "member", Form::Member,
         fmt::format("SELECT m.id, 'hits is ' || m.hits || ', misses ' || m.misses || ', of its selections ' ||"
                     " CAST(c.hits AS INTEGER) || ' and ' || CAST(c.misses AS INTEGER) FROM member m JOIN (SELECT"
                     " ((id >> 30) << 10) | ((id >> 10) & 1023) AS member, total(hits) AS hits, total(misses) AS misses"
                     " FROM selection WHERE {} GROUP BY 1) c ON c.member = m.id WHERE m.{} AND m.kind = 0 AND (m.hits"
                     " <> c.hits OR m.misses <> c.misses)",
                     kSelections, kMembers)},
        {"served-opens", "a selection of a serving run opens a block if its request is fed a block's first token",
         Concern::Serving, Needs::Selections, "member", Form::Selection,
         fmt::format("SELECT c.id, 'opens_block is ' || c.opens_block || ', the token fed is at ' || f.position FROM"
                     " selection c JOIN ({}) f ON f.id = (((c.id >> 30) << 10) | ((c.id >> 10) & 1023)) JOIN (SELECT"
                     " coalesce((SELECT CAST(value AS INTEGER) FROM run_meta WHERE run_id = ?1 AND key ="
                     " 'kv_block_tokens'), block_size) AS tokens FROM run WHERE run_id = ?1) r WHERE c.{} AND"
                     " r.tokens > 0 AND c.opens_block <> (f.position % r.tokens = 0)",
                     fed(), kSelections)},
        {"served-kept", "kept is undefined in the first step in which a request selects, in a layer and KV head",
         Concern::Serving, Needs::Selections, "member", Form::Selection,
         fmt::format("SELECT id, 'kept is ' || kept || ' in the first selection of request ' || request FROM (SELECT"
                     " c.id, c.kept, m.request, row_number() OVER (PARTITION BY m.request, (c.id >> 20) & 1023, c.id &"
                     " 1023 ORDER BY c.id) AS number FROM selection c JOIN member m ON m.id = (((c.id >> 30) << 10) |"
                     " ((c.id >> 10) & 1023)) WHERE c.{}) WHERE number = 1 AND kept IS NOT NULL AND {} = 0",
                     kSelections, kDropped)}};
}

} // namespace

std::span<const SqlRule> servingRules() {
    static const std::vector<SqlRule> rules = [] {
        std::vector<SqlRule> all;
        for (const auto& some : {requestRules(), iterationRules(), memberRules(), rowEventRules(), servedRules()})
            all.insert(all.end(), some.begin(), some.end());
        return all;
    }();
    return rules;
}

} // namespace kvscope::check

// Rules about requests of serving runs that wait for a row, and about the time at which rows change hands.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// SQL for the requests that were admitted, by their events.
std::string admittedEvents() { return fmt::format("FROM row_event WHERE {} AND kind = 'admitted'", kRequests); }

/// SQL for each iteration: how many requests had arrived when it began and had not left without a row (`waited`), and
/// how many had left without one when it began (`gone_before`) and when it ended (`gone_after`). It goes once over the
/// arrivals, ends and iterations, in the order of time.
std::string arrivedAndGone() {
    return fmt::format(
        "SELECT id, max(CASE kind WHEN 1 THEN waited END) AS waited, max(CASE kind WHEN 1 THEN gone END) AS "
        "gone_before,"
        " max(CASE kind WHEN 2 THEN gone END) AS gone_after FROM (SELECT id, kind, sum(wait) OVER w AS waited, "
        "sum(gone)"
        " OVER w AS gone FROM (SELECT arrival_ns AS ns, 0 AS kind, 1 AS wait, 0 AS gone, NULL AS id FROM request WHERE"
        " {0} UNION ALL SELECT end_ns, 0, -1, 1, NULL FROM request WHERE {0} AND end_ns IS NOT NULL AND id NOT IN"
        " (SELECT ?1 << 40 | request {2}) UNION ALL SELECT start_ns, 1, 0, 0, id FROM iteration WHERE {1} UNION ALL"
        " SELECT start_ns + duration_ns, 2, 0, 0, id FROM iteration WHERE {1}) WINDOW w AS (ORDER BY ns, kind ROWS"
        " UNBOUNDED PRECEDING)) WHERE id IS NOT NULL GROUP BY id",
        kRequests, kIterations, admittedEvents());
}

/// SQL for each iteration: how many requests were admitted until it ended, by their events.
std::string admittedUntil() {
    return fmt::format("SELECT i.id, sum(coalesce(e.count, 0)) OVER (ORDER BY i.id) AS admitted FROM iteration i LEFT"
                       " JOIN (SELECT ?1 << 25 | iteration AS id, count(*) AS count {1} GROUP BY 1) e ON e.id = i.id"
                       " WHERE i.{0}",
                       kIterations, admittedEvents());
}

/// Requests are taken in one after the other, and leave the queue for a row or without one. So those that wait, those
/// that were admitted and those that have left make up how many were taken in: never fewer than one iteration before.
std::string queueThen() {
    return fmt::format(
        "SELECT id, 'waiting is ' || waiting || ' where at most ' || most || ' wait; ' || taken || ' requests were"
        " taken in, one iteration before ' || coalesce(before, 0) FROM (SELECT t.id, i.waiting, t.waited - a.admitted"
        " AS most, i.waiting + a.admitted + t.gone_after AS taken, lag(i.waiting + a.admitted + t.gone_before) OVER"
        " (ORDER BY t.id) AS before FROM ({}) t JOIN ({}) a ON a.id = t.id JOIN iteration i ON i.id = t.id) WHERE"
        " EXISTS (SELECT 1 {}) AND (waiting > most OR taken < before)",
        arrivedAndGone(), admittedUntil(), admittedEvents());
}

/// An admission may fail, which then ends the request in its iteration.
std::string admissionsThen() {
    return fmt::format(
        "SELECT i.id, 'admitted is ' || i.admitted || ', by the events ' || coalesce(e.count, 0) FROM iteration i LEFT"
        " JOIN (SELECT ?1 << 25 | iteration AS id, count(*) AS count {1} GROUP BY 1) e ON e.id = i.id WHERE i.{0} AND"
        " EXISTS (SELECT 1 {1}) AND i.admitted <> coalesce(e.count, 0) AND (i.admitted < coalesce(e.count, 0) OR"
        " i.admitted > coalesce(e.count, 0) + (SELECT count(*) FROM request q WHERE q.{2} AND q.status = 'failed' AND "
        "q.row IS NULL"
        " AND q.end_ns BETWEEN i.start_ns AND i.start_ns + i.duration_ns))",
        kIterations, admittedEvents(), kRequests);
}

/// A plan refuses requests when its iteration begins. Others were refused between two of them.
std::string refusalsThen() {
    return fmt::format(
        "SELECT i.id, 'refused is ' || i.refused || ', of the requests ' || coalesce(q.count, 0) || ' were"
        " refused then' FROM iteration i LEFT JOIN (SELECT end_ns, count(*) AS count FROM request WHERE"
        " {} AND status = 'refused' GROUP BY end_ns) q ON q.end_ns = i.start_ns WHERE i.{} AND i.refused"
        " > coalesce(q.count, 0)",
        kRequests, kIterations);
}

/// SQL for the events that lie outside of the iterations that they name. e.iteration is the first one that an event
/// holds for: pauses and admissions come as it begins, a release with or behind the end of the one before.
std::string misplacedEvents() {
    return fmt::format(
        "SELECT ?1 << 40 | e.request, e.kind || ' at ' || e.time_ns || ', for iteration ' || e.iteration || ' from ' ||"
        " coalesce(i.start_ns, 'no time') || ', the event before is of ' || coalesce(e.before, 'no time') FROM (SELECT"
        " *, lag(time_ns) OVER (ORDER BY id) AS before FROM row_event WHERE {0}) e LEFT JOIN iteration i ON i.id = (?1"
        " << 25 | e.iteration) LEFT JOIN iteration p ON p.id = (?1 << 25 | e.iteration) - 1 AND e.iteration > 0 LEFT"
        " JOIN request q ON q.id = (?1 << 40 | e.request) WHERE e.time_ns < e.before OR e.time_ns < CASE e.kind WHEN"
        " 'released' THEN p.start_ns ELSE p.start_ns + p.duration_ns END OR e.time_ns > CASE e.kind WHEN 'released' "
        "THEN"
        " i.start_ns ELSE i.start_ns + i.duration_ns END OR (e.kind = 'released' AND e.time_ns <> q.end_ns)",
        kRequests);
}

/// SQL for the pauses and resumptions that the spans of their requests place at another time. A pause that has not
/// ended has no span.
std::string pausesElsewhere() {
    return fmt::format(
        "SELECT ?1 << 40 | e.request, e.kind || ' at ' || e.time_ns || ', where no span in which the request was "
        "paused '"
        " || CASE e.kind WHEN 'paused' THEN 'begins' ELSE 'ends' END FROM row_event e JOIN request q ON q.id = (?1 << "
        "40"
        " | e.request) WHERE e.{0} AND CASE e.kind WHEN 'paused' THEN q.status <> 'paused' AND (e.request, e.time_ns) "
        "NOT"
        " IN (SELECT request, start_ns FROM request_span WHERE {0} AND state = 'paused') WHEN 'resumed' THEN "
        "(e.request,"
        " e.time_ns) NOT IN (SELECT request, end_ns FROM request_span WHERE {0} AND state = 'paused') ELSE 0 END",
        kRequests);
}

} // namespace

std::span<const SqlRule> queueRules() {
    static const std::vector<SqlRule> rules = {
        {"iteration-waiting",
         "waiting of an iteration counts requests that have arrived and were neither admitted nor ended, where events "
         "are"
         " recorded",
         Concern::Serving, Needs::Nothing, "row_event", Form::Iteration, queueThen()},
        {"iteration-admitted", "an iteration admits as many requests as its events say, where events are recorded",
         Concern::Serving, Needs::Nothing, "row_event", Form::Iteration, admissionsThen()},
        {"iteration-refused", "an iteration refuses no more requests than were refused when it began", Concern::Serving,
         Needs::Nothing, "iteration", Form::Iteration, refusalsThen()},
        {"event-time", "an event of a row comes in the order of time, where its iteration begins or its request ends",
         Concern::Serving, Needs::Nothing, "row_event", Form::Request, misplacedEvents()},
        {"event-span", "a row is paused and resumed where a span in which its request was paused begins and ends",
         Concern::Serving, Needs::Nothing, "row_event", Form::Request, pausesElsewhere()}};
    return rules;
}

} // namespace kvscope::check

// Rules about what lies where on the run's clock, and about the numbers of steps.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

constexpr const char* kLayerEnd =
    "start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns + offloading_ns + stage2_ns +"
    " attention_ns + o_linear_ns + ffn_ns";
constexpr const char* kHourNs = "3600000000000";

/// SQL for rows of a timeline table that lie far from every step of the run.
std::string farFromSteps(const char* table) {
    return fmt::format(
        "SELECT NULL, '{0} ' || x.id || ' lasts from ' || x.start_ns || ' to ' || (x.start_ns + x.duration_ns) || ','"
        " || ' the run''s steps end at ' || e.last FROM {0} x, (SELECT max(start_ns + duration_ns) AS last FROM step"
        " WHERE {1}) e WHERE x.run_id = ?1 AND (x.start_ns < -{2} OR x.start_ns + x.duration_ns > e.last + {2})",
        table, kSteps, kHourNs);
}

/// A serving run has no step where an iteration decoded nothing.
std::string gaps() {
    return fmt::format(
        "SELECT NULL, s.count || ' steps are numbered ' || (s.first & 0x1FFFFFF) || ' to ' ||"
        " (s.last & 0x1FFFFFF) || ', and ' || {1} || ' were dropped' FROM (SELECT count(*) AS count,"
        " min(id) AS first, max(id) AS last FROM step WHERE {0}) s WHERE s.count > 0 AND s.last - s.first"
        " + 1 - s.count - (SELECT count(*) FROM iteration WHERE {0} AND id BETWEEN s.first AND s.last AND"
        " id NOT IN (SELECT id >> 10 FROM member WHERE id BETWEEN ?1 << 35 AND (?1 << 35) | 0x7FFFFFFFF"
        " AND kind = 0 AND token_ns IS NOT NULL)) > {1}",
        kSteps, kDropped);
}

/// SQL for the time that a modelled link takes: from the shortest (all blocks in one transfer) to the longest (a
/// transfer for every block).
std::string modelled() {
    const auto direction = [](const char* way) {
        return fmt::format(
            "SELECT l.id, '{0}_ns is ' || l.{0}_ns || ' for ' || l.{0}_bytes || ' bytes in ' || l.{0}_blocks || '"
            " blocks, at ' || r.link_gbps || ' GB/s and ' || r.link_latency_us || ' us each' FROM layer_step l, run r"
            " WHERE l.{1} AND r.run_id = ?1 AND r.timing = 'modelled' AND r.link_gbps > 0 AND"
            " l.{0}_ns NOT BETWEEN l.{0}_bytes / r.link_gbps - 2 + (l.{0}_bytes > 0) * r.link_latency_us * 1000 AND "
            "l.{0}_bytes / r.link_gbps + 2 +"
            " (l.{0}_bytes > 0) * max(l.{0}_blocks, 1) * r.link_latency_us * 1000",
            way, kLayers);
    };
    return direction("h2d") + " UNION ALL " + direction("d2h");
}

} // namespace

std::span<const SqlRule> timeRules() {
    static const std::vector<SqlRule> rules{
        {"step-gaps", "numbers of steps follow each other, but for those dropped and iterations without a decode step",
         Concern::Identity, Needs::Nothing, "step", Form::None, gaps()},
        {"step-overlap", "a step ends before the next one starts", Concern::Times, Needs::StepTimes, "step", Form::Step,
         fmt::format("SELECT id, 'start_ns is ' || start_ns || ', the step before ends at ' || before FROM (SELECT id,"
                     " start_ns, lag(start_ns + duration_ns) OVER (ORDER BY id) AS before FROM step WHERE {}) WHERE"
                     " start_ns < before",
                     kSteps)},
        {"step-heartbeat", "a step ends before the writer's last sign of life, give or take an hour", Concern::Times,
         Needs::StepTimes, "step", Form::Step,
         fmt::format("SELECT s.id, 'the step ends ' || (s.start_ns + s.duration_ns) / 1000000 || ' ms after the run''s"
                     " start, the last sign of life is of ' || (h.heartbeat_ms - 1000 * strftime('%s',"
                     " substr(r.created_utc, 1, 19))) || ' ms' FROM step s, run r JOIN health h ON h.run_id = r.run_id"
                     " WHERE s.{} AND r.run_id = ?1 AND h.heartbeat_ms > 0 AND s.start_ns + s.duration_ns >"
                     " (h.heartbeat_ms - 1000 * strftime('%s', substr(r.created_utc, 1, 19))) * 1000000 + {}",
                     kSteps, kHourNs)},
        {"layer-order", "a layer of a decode step ends before the next one starts", Concern::Times, Needs::StageTimes,
         "layer_step", Form::Layer,
         fmt::format("SELECT id, 'start_ns is ' || start_ns || ', the layer before ends at ' || before FROM (SELECT id,"
                     " start_ns, lag({}) OVER (PARTITION BY id >> 10 ORDER BY id) AS before FROM layer_step WHERE {}"
                     " AND id >> 10 NOT IN (SELECT id FROM step WHERE {} AND phase = 0)) WHERE start_ns < before",
                     kLayerEnd, kLayers, kSteps)},
        {"modelled-times", "a modelled link time is bytes / bandwidth and a latency for each transfer",
         Concern::Transfer, Needs::TransferTimes, "layer_step", Form::Layer, modelled()},
        {"measured-times", "a measured link time of a layer lies between the start of the step before and its own end",
         Concern::Transfer, Needs::TransferTimes, "layer_step", Form::Layer,
         fmt::format("SELECT l.id, 'h2d_ns is ' || l.h2d_ns || ', d2h_ns is ' || l.d2h_ns || ', there were ' || s.most"
                     " FROM layer_step l JOIN (SELECT id, start_ns + duration_ns - coalesce(lag(start_ns) OVER (ORDER"
                     " BY id), 0) AS most FROM step WHERE {}) s ON s.id = l.id >> 10 JOIN run r ON r.run_id = ?1 WHERE"
                     " l.{} AND r.timing = 'measured' AND (l.h2d_ns > s.most OR l.d2h_ns > s.most)",
                     kSteps, kLayers)},
        {"span-step", "a span's step and layer are the run's, where it has steps", Concern::Timeline, Needs::Nothing,
         "span", Form::None,
         fmt::format("SELECT NULL, 'span ' || x.id || ': step ' || x.step || ', layer ' || x.layer || '; the run''s"
                     " last step is ' || (e.last & 0x1FFFFFF) || ', it has ' || r.layers || ' layers' FROM span x,"
                     " run r, (SELECT max(id) AS last FROM step WHERE {0}) e WHERE x.run_id = ?1 AND r.run_id = ?1 AND"
                     " e.last IS NOT NULL AND ((x.layer >= r.layers AND r.layers > 0) OR (x.step >= 0 AND"
                     " (?1 << 25) + x.step NOT IN (SELECT id FROM step WHERE {0}) AND NOT ({1} > 0 AND x.step <="
                     " (e.last & 0x1FFFFFF) + {1}) AND NOT (r.status <> 'finished' AND x.step BETWEEN"
                     " (e.last & 0x1FFFFFF) + 1 AND (e.last & 0x1FFFFFF) + 2)))",
                     kSteps, kDropped)},
        {"span-time", "a span begins and ends within an hour of the run's steps", Concern::Timeline, Needs::StepTimes,
         "span", Form::None, farFromSteps("span")},
        {"counter-time", "a counter's interval lies within an hour of the run's steps", Concern::Timeline,
         Needs::StepTimes, "counter", Form::None, farFromSteps("counter")},
    };
    return rules;
}

} // namespace kvscope::check

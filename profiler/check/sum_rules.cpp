// Rules about columns that hold sums or means of other rows, beside those that the family of the row has.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// SQL: the sum of `kept` over rows, undefined where `kept` is undefined in one of them. parts: the condition that
/// selects the rows
std::string keptOf(const char* parts) {
    return fmt::format("CASE WHEN count(CASE WHEN {0} THEN 1 END) > 0 AND count(CASE WHEN {0} AND kept IS NULL THEN 1"
                       " END) = 0 THEN total(CASE WHEN {0} THEN kept END) END",
                       parts);
}

} // namespace

std::span<const SqlRule> sumRules() {
    static const std::vector<SqlRule> rules{
        {"step-sum-kept", "kept of a step is the sum over its layers that select, undefined where it is in one of them",
         Concern::Selection, Needs::Selections, "layer_step", Form::Step,
         fmt::format("SELECT s.id, 'kept is ' || coalesce(s.kept, 'NULL') || ', of its layers ' ||"
                     " coalesce(CAST(l.kept AS INTEGER), 'NULL') FROM step s JOIN (SELECT id >> 10 AS step, {} AS kept"
                     " FROM layer_step WHERE {} GROUP BY id >> 10) l ON l.step = s.id WHERE s.{} AND s.kept IS NOT"
                     " l.kept AND (s.selected <> 0 OR coalesce(s.kept, 0) <> 0)",
                     keptOf("selected > 0"), kLayers, kSteps)},
        {"layer-sum-kept", "kept of a layer is the sum over its selections, undefined where it is in one of them",
         Concern::Selection, Needs::Selections, "selection", Form::Layer,
         fmt::format("SELECT l.id, 'kept is ' || coalesce(l.kept, 'NULL') || ', of its selections ' ||"
                     " coalesce(CAST(c.kept AS INTEGER), 'NULL') FROM layer_step l JOIN (SELECT id >> 20 AS layer,"
                     " {} AS kept FROM selection WHERE {} GROUP BY id >> 20) c ON c.layer = l.id WHERE l.{} AND"
                     " l.kept IS NOT c.kept",
                     keptOf("1"), kSelections, kLayers)},
        {"layer-mean-mass", "mass of a layer is the mean over its selections", Concern::Mass, Needs::Nothing,
         "selection", Form::Layer,
         // A layer's selections are asked for by their ids: SQLite makes no index for the right side of a LEFT JOIN.
         fmt::format("SELECT id, 'mass is ' || coalesce(mass, 'NULL') || ', of its selections ' || coalesce(mean,"
                     " 'NULL') FROM (SELECT l.id, l.mass, (SELECT avg(c.mass) FROM selection c WHERE c.id BETWEEN"
                     " l.id << 20 AND (l.id << 20) | 0xFFFFF) AS mean FROM layer_step l WHERE l.{}) WHERE (mass IS"
                     " NULL) <> (mean IS NULL) OR abs(mass - mean) > 0.001",
                     kLayers)},
        {"layer-block-bytes", "bytes to the device are at most blocks times block_bytes, and none without blocks",
         Concern::Bytes, Needs::Bytes, "layer_step", Form::Layer,
         fmt::format("SELECT l.id, 'h2d_bytes is ' || l.h2d_bytes || ' for ' || l.h2d_blocks || ' blocks of ' ||"
                     " r.block_bytes || ' bytes' FROM layer_step l, run r WHERE l.{} AND r.run_id = ?1 AND"
                     " r.block_bytes > 0 AND (l.h2d_bytes > l.h2d_blocks * r.block_bytes OR (l.h2d_bytes = 0) <>"
                     " (l.h2d_blocks = 0))",
                     kLayers)},
        {"step-layers", "a step that selects or transfers has layers, in a run whose steps have any", Concern::Identity,
         Needs::Nothing, "layer_step", Form::Step,
         fmt::format("SELECT s.id, 'selected is ' || s.selected || ', h2d_bytes is ' || s.h2d_bytes || ', d2h_bytes"
                     " is ' || s.d2h_bytes || ', and there is no layer' FROM step s WHERE s.{} AND (s.selected <> 0 OR"
                     " s.h2d_bytes <> 0 OR s.d2h_bytes <> 0) AND NOT EXISTS (SELECT 1 FROM layer_step WHERE id BETWEEN"
                     " s.id << 10 AND (s.id << 10) | 1023) AND EXISTS (SELECT 1 FROM layer_step WHERE {})",
                     kSteps, kLayers)},
        {"layer-selections",
         "a layer that selects has selections, in a run whose layers have any and that keeps those of all steps",
         Concern::Selection, Needs::Selections, "selection", Form::Layer,
         fmt::format("SELECT l.id, 'selected is ' || l.selected || ', and there is no selection' FROM layer_step l"
                     " WHERE l.{} AND l.selected <> 0 AND NOT EXISTS (SELECT 1 FROM selection WHERE id BETWEEN"
                     " l.id << 20 AND (l.id << 20) | 0xFFFFF) AND EXISTS (SELECT 1 FROM selection WHERE {}) AND NOT"
                     " EXISTS (SELECT 1 FROM run_meta WHERE run_id = ?1 AND key = 'sample_every')",
                     kLayers, kSelections)},
    };
    return rules;
}

} // namespace kvscope::check

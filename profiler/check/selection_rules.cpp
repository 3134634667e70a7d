// Rules about selections and what belongs to them, and about the timeline.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// Layers whose column is not the sum over their selections, where there are any.
std::string sumOfSelections(const char* column) {
    return fmt::format(
        "SELECT l.id, '{0} is ' || l.{0} || ', of its selections ' || CAST(c.value AS INTEGER) FROM layer_step"
        " l JOIN (SELECT id >> 20 AS layer, total({0}) AS value FROM selection WHERE {1} GROUP BY id >> 20)"
        " c ON c.layer = l.id WHERE l.id BETWEEN ?1 << 35 AND (?1 << 35) | 0x7FFFFFFFF AND"
        " l.{0} <> c.value",
        column, kSelections);
}

/// SQL for selections with more blocks than the size of the run that `size` names. A size of 0 limits nothing.
std::string atMost(const char* size) {
    return fmt::format("SELECT c.id, 'selected is ' || c.selected || ', {0} is ' || r.{0} FROM selection c, run r WHERE"
                       " c.{1} AND r.run_id = ?1 AND r.{0} > 0 AND c.selected > r.{0}",
                       size, kSelections);
}

std::string ofSelection(const char* table) {
    return fmt::format(
        "SELECT id, 'there is no such selection' FROM {} WHERE {} AND id NOT IN (SELECT id FROM selection)", table,
        kSelections);
}

std::string share(const char* table, const char* column) {
    return fmt::format("SELECT id, '{1} is ' || {1} FROM {0} WHERE {2} AND NOT ({1} BETWEEN 0 AND 1.0001)", table,
                       column, kSelections);
}

} // namespace

std::span<const SqlRule> selectionRules() {
    static const std::vector<SqlRule> rules{
        {"selection-layer", "a selection has a layer_step", Concern::Identity, Needs::Nothing, "selection",
         Form::Selection,
         fmt::format("SELECT id, 'there is no such layer_step' FROM selection WHERE {} AND id >> 20 NOT IN"
                     " (SELECT id FROM layer_step)",
                     kSelections)},
        {"selection-place", "a selection's sequence and KV head are of the run's", Concern::Identity, Needs::Nothing,
         "selection", Form::Selection,
         fmt::format("SELECT c.id, 'the run has ' || r.sequences || ' sequences and ' || r.kv_heads || ' KV heads' FROM"
                     " selection c, run r WHERE c.{} AND r.run_id = ?1 AND ((c.id & 1023) >= r.kv_heads OR"
                     " ((c.id >> 10) & 1023) >= r.sequences)",
                     kSelections)},
        {"selection-counts", "selected is not negative, opens_block is 0 or 1", Concern::Selection, Needs::Nothing,
         "selection", Form::Selection,
         fmt::format(
             "SELECT id, 'selected is ' || selected || ', opens_block is ' || opens_block FROM selection WHERE {}"
             " AND (selected < 0 OR opens_block NOT IN (0, 1))",
             kSelections)},
        {"selection-hits", "hits and misses of a selection are not negative", Concern::Hits, Needs::Hits, "selection",
         Form::Selection,
         fmt::format(
             "SELECT id, 'hits is ' || hits || ', misses is ' || misses FROM selection WHERE {} AND (hits < 0 OR"
             " misses < 0)",
             kSelections)},
        {"hits-and-misses", "hits + misses = selected, in a selection", Concern::Hits, Needs::Hits, "selection",
         Form::Selection,
         fmt::format("SELECT id, 'hits + misses is ' || (hits + misses) || ', selected is ' || selected FROM selection"
                     " WHERE {} AND hits + misses <> selected",
                     kSelections)},
        {"kept", "kept is at most selected, in a selection", Concern::Selection, Needs::Selections, "selection",
         Form::Selection,
         fmt::format("SELECT id, 'kept is ' || kept || ', selected is ' || selected FROM selection WHERE {} AND"
                     " (kept > selected OR kept < 0)",
                     kSelections)},
        {"selection-slots",
         "a KV head selects no more blocks than the device tier has slots, where it has any and blocks are not "
         "denoised",
         Concern::Selection, Needs::Selections, "selection", Form::Selection,
         atMost("device_slots") + " AND NOT EXISTS (SELECT 1 FROM run_meta m WHERE m.run_id = ?1 AND m.key = "
                                  "'denoising_block')"},
        {"selection-budget", "a KV head selects no more blocks than its budget, where it has one", Concern::Selection,
         Needs::Selections, "selection", Form::Selection, atMost("budget_blocks")},
        {"selection-mass", "mass is 0 to 1, in a selection", Concern::Mass, Needs::Nothing, "selection",
         Form::Selection, share("selection", "mass")},
        {"selection-level", "at level counters selections have no blocks", Concern::Identity, Needs::Nothing,
         "selection", Form::Selection,
         fmt::format("SELECT c.id, 'the level is counters, and there are blocks' FROM selection c, run r WHERE c.{} AND"
                     " r.run_id = ?1 AND r.level = 'counters' AND c.blocks IS NOT NULL",
                     kSelections)},
        {"selection-blocks", "a selection of blocks says which, in a run whose selections do", Concern::Selection,
         Needs::Selections, "selection", Form::Selection,
         fmt::format("SELECT id, 'selected is ' || selected || ', and there are no blocks' FROM selection WHERE {0} AND"
                     " selected > 0 AND blocks IS NULL AND EXISTS (SELECT 1 FROM selection WHERE {0} AND blocks IS NOT"
                     " NULL)",
                     kSelections)},
        {"layer-sum-selected", "selected of a layer is the sum over its selections", Concern::Selection,
         Needs::Selections, "selection", Form::Layer, sumOfSelections("selected")},
        {"layer-sum-hits", "hits of a layer is the sum over its selections", Concern::Hits, Needs::Hits, "selection",
         Form::Layer, sumOfSelections("hits")},
        {"layer-sum-misses", "misses of a layer is the sum over its selections", Concern::Hits, Needs::Hits,
         "selection", Form::Layer, sumOfSelections("misses")},
    };
    return rules;
}

std::span<const SqlRule> selectionDetailRules() {
    static const std::vector<SqlRule> rules{
        {"lookahead-selection", "a lookahead row is of a selection", Concern::Identity, Needs::Nothing, "lookahead",
         Form::Selection, ofSelection("lookahead")},
        {"lookahead-counts", "used, wasted and late are parts of predicted", Concern::Hits, Needs::Nothing, "lookahead",
         Form::Selection,
         fmt::format(
             "SELECT id, 'predicted is ' || predicted || ', used ' || used || ', wasted ' || wasted || ', late ' ||"
             " late FROM lookahead WHERE {} AND (predicted < 0 OR used NOT BETWEEN 0 AND predicted OR wasted NOT"
             " BETWEEN 0 AND predicted OR late NOT BETWEEN 0 AND predicted OR used + wasted > predicted OR"
             " stale < 0)",
             kSelections)},
        {"lookahead-selected", "used and stale blocks are at most the selected ones", Concern::Hits, Needs::Selections,
         "lookahead", Form::Selection,
         fmt::format("SELECT a.id, 'used is ' || a.used || ', stale ' || coalesce(a.stale, 'NULL') || ', selected ' ||"
                     " c.selected FROM lookahead a JOIN selection c ON c.id = a.id WHERE a.{} AND (a.used > c.selected"
                     " OR a.stale > c.selected)",
                     kSelections)},
        {"oracle-selection", "an oracle row is of a selection", Concern::Identity, Needs::Nothing, "oracle",
         Form::Selection, ofSelection("oracle")},
        {"oracle-missing", "a selection with a mass has an oracle row, in a run that has some", Concern::Mass,
         Needs::Nothing, "oracle", Form::Selection,
         fmt::format("SELECT id, 'there is no oracle row' FROM selection WHERE {0} AND mass IS NOT NULL AND id NOT IN"
                     " (SELECT id FROM oracle) AND EXISTS (SELECT 1 FROM oracle WHERE {0})",
                     kSelections)},
        {"oracle-best", "best_mass is 0 to 1", Concern::Mass, Needs::Nothing, "oracle", Form::Selection,
         share("oracle", "best_mass")},
        {"oracle-recall", "recall is 0 to 1", Concern::Mass, Needs::Nothing, "oracle", Form::Selection,
         share("oracle", "recall")},
        {"oracle-far", "far_mass, far_best_mass and far_recall are 0 to 1, or all three undefined", Concern::Mass,
         Needs::Nothing, "oracle", Form::Selection,
         fmt::format("SELECT id, 'far_mass is ' || coalesce(far_mass, 'NULL') || ', far_best_mass ' ||"
                     " coalesce(far_best_mass, 'NULL') || ', far_recall ' || coalesce(far_recall, 'NULL') FROM oracle"
                     " WHERE {} AND (NOT (far_mass BETWEEN 0 AND 1.0001) OR NOT (far_best_mass BETWEEN 0 AND 1.0001) OR"
                     " NOT (far_recall BETWEEN 0 AND 1.0001) OR (far_mass IS NULL) <> (far_best_mass IS NULL) OR"
                     " (far_mass IS NULL) <> (far_recall IS NULL))",
                     kSelections)},
        {"oracle-order", "the best blocks have no less mass than the selected ones", Concern::Mass, Needs::Nothing,
         "oracle", Form::Selection,
         fmt::format("SELECT o.id, 'mass is ' || coalesce(c.mass, 'NULL') || ', best_mass ' || o.best_mass || ',"
                     " far_mass ' || coalesce(o.far_mass, 'NULL') || ', far_best_mass ' || coalesce(o.far_best_mass,"
                     " 'NULL') FROM oracle o JOIN selection c ON c.id = o.id WHERE o.{} AND (c.mass > o.best_mass +"
                     " 0.001 OR o.far_mass > o.far_best_mass + 0.001)",
                     kSelections)},
    };
    return rules;
}

std::span<const SqlRule> timelineRules() {
    static const std::vector<SqlRule> rules{
        {"span-numbers",
         "a span's kind is 0 to 2, its step and layer -1 or more, its duration, depth and bytes not negative",
         Concern::Timeline, Needs::Nothing, "span", Form::None,
         "SELECT NULL, 'span ' || id || ': kind ' || kind || ', step ' || step || ', layer ' || layer || ', "
         "duration_ns ' ||"
         " duration_ns || ', depth ' || depth || ', bytes ' || coalesce(bytes, 'NULL') FROM span WHERE run_id = ?1 AND"
         " (kind NOT IN (0, 1, 2) OR step < -1 OR layer < -1 OR duration_ns < 0 OR depth < 0 OR bytes < 0)"},
        {"span-names", "a span's track, name and stage are in `text`", Concern::Timeline, Needs::Nothing, "span",
         Form::None,
         "SELECT NULL, 'span ' || id || ': track ' || track || ', name ' || name || ', stage ' || coalesce(stage, "
         "'NULL')"
         " FROM span WHERE run_id = ?1 AND (track NOT IN (SELECT id FROM text) OR name NOT IN (SELECT id FROM text) OR"
         " (stage IS NOT NULL AND stage NOT IN (SELECT id FROM text)))"},
        {"span-detail", "a span_detail is of a span, its category in `text`, its args one JSON object",
         Concern::Timeline, Needs::Nothing, "span_detail", Form::None,
         "SELECT NULL, 'span_detail ' || d.id FROM span_detail d JOIN span s ON s.id = d.id WHERE s.run_id = ?1 AND"
         " ((d.category IS NOT NULL AND d.category NOT IN (SELECT id FROM text)) OR (d.args IS NOT NULL AND"
         " CASE WHEN json_valid(d.args) THEN json_type(d.args) <> 'object' ELSE 1 END))"},
        {"counter-values", "a counter's track is in `text`, its duration and value are not negative", Concern::Timeline,
         Needs::Nothing, "counter", Form::None,
         "SELECT NULL, 'counter ' || id || ': duration_ns ' || duration_ns || ', value ' || value || ', track ' || "
         "track FROM"
         " counter WHERE run_id = ?1 AND (duration_ns < 0 OR value < 0 OR track NOT IN (SELECT id FROM text))"},
        {"clock-values", "a clock's name is in `text`, the error of its reading not negative", Concern::Timeline,
         Needs::Nothing, "clock_sync", Form::None,
         "SELECT NULL, 'clock_sync ' || id || ': error_ns ' || error_ns || ', clock ' || clock FROM clock_sync WHERE"
         " run_id = ?1 AND (error_ns < 0 OR clock NOT IN (SELECT id FROM text))"},
        {"gauge-values", "a gauge's track is in `text`, its value a number", Concern::Timeline, Needs::Nothing, "gauge",
         Form::None,
         "SELECT NULL, 'gauge ' || id || ': value ' || value || ', track ' || track FROM gauge WHERE run_id = ?1 AND"
         " (abs(value) > 1.7976931348623157e308 OR track NOT IN (SELECT id FROM text))"},
        {"flow-spans", "a flow leads from a span of the run to another", Concern::Timeline, Needs::Nothing, "flow",
         Form::None,
         "SELECT NULL, 'flow ' || id || ': from span ' || from_span || ' to ' || to_span FROM flow WHERE run_id = ?1 "
         "AND"
         " (from_span NOT IN (SELECT id FROM span WHERE run_id = ?1) OR"
         " to_span NOT IN (SELECT id FROM span WHERE run_id = ?1))"},
        {"note-times", "a note's duration is not negative", Concern::Timeline, Needs::Nothing, "note", Form::None,
         "SELECT NULL, 'note ' || id || ': duration_ns is ' || duration_ns FROM note WHERE run_id = ?1 AND"
         " duration_ns < 0"},
    };
    return rules;
}

} // namespace kvscope::check

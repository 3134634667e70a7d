// Rules about steps and their layers.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <initializer_list>
#include <vector>

namespace kvscope::check {
namespace {

constexpr const char* kLayerStages =
    "(qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns + offloading_ns + stage2_ns + attention_ns +"
    " o_linear_ns + ffn_ns)";

/// Rows in which one of the columns is below zero, and which.
std::string notNegative(const char* table, const char* range, std::initializer_list<const char*> columns) {
    std::string what, condition;
    for (const char* column : columns) {
        what += fmt::format("{0}CASE WHEN {1} < 0 THEN '{1} is ' || {1} || ' ' ELSE '' END", what.empty() ? "" : " || ",
                            column);
        condition += fmt::format("{}{} < 0", condition.empty() ? "" : " OR ", column);
    }
    return fmt::format("SELECT id, rtrim({}) FROM {} WHERE {} AND ({})", what, table, range, condition);
}

std::string hitsAndMisses(const char* table, const char* range) {
    return fmt::format(
        "SELECT id, 'hits + misses is ' || (hits + misses) || ', selected is ' || selected FROM {} WHERE {}"
        " AND hits + misses <> selected",
        table, range);
}

std::string keptOfSelected(const char* table, const char* range) {
    return fmt::format("SELECT id, 'kept is ' || kept || ', selected is ' || selected FROM {} WHERE {} AND"
                       " (kept > selected OR kept < 0)",
                       table, range);
}

/// Steps whose column is not the sum over their layers. Sums are of reals: absurd numbers do not end the statement.
std::string sumOfLayers(std::initializer_list<std::pair<const char*, const char*>> columns) {
    std::string sums, what, condition;
    for (const auto& [column, ofLayer] : columns) {
        sums += fmt::format(", total({}) AS {}", ofLayer, column);
        what += fmt::format("{0}CASE WHEN s.{1} <> l.{1} THEN '{1} is ' || s.{1} || ', of its layers ' ||"
                            " CAST(l.{1} AS INTEGER) || ' ' ELSE '' END",
                            what.empty() ? "" : " || ", column);
        condition += fmt::format("{}s.{} <> l.{}", condition.empty() ? "" : " OR ", column, column);
    }
    return fmt::format("SELECT s.id, rtrim({}) FROM step s JOIN (SELECT id >> 10 AS step{} FROM layer_step WHERE {}"
                       " GROUP BY id >> 10) l ON l.step = s.id WHERE s.{} AND ({})",
                       what, sums, kLayers, kSteps, condition);
}

std::string exposedOfTransfer(const char* table, const char* range, const char* transfer) {
    return fmt::format(
        "SELECT id, 'exposed_ns is ' || exposed_ns || ', the link was busy for ' || ({2}) FROM {0} WHERE {1}"
        " AND exposed_ns > {2}",
        table, range, transfer);
}

} // namespace

std::span<const SqlRule> stepRules() {
    static const std::vector<SqlRule> rules{
        {"step-phase",
         "phase is 0 (prefill) at step 0, and behind it 1 (decode), or 0 where pieces of prompts are read",
         Concern::Tokens, Needs::Nothing, "step", Form::Step,
         fmt::format("SELECT id, 'phase is ' || phase FROM step WHERE {} AND phase <> (id & 0x1FFFFFF > 0) AND NOT"
                     " (phase = 0 AND EXISTS (SELECT 1 FROM prompt_piece p WHERE p.id BETWEEN step.id << 20 AND"
                     " (step.id << 20) | 0xFFFFF))",
                     kSteps)},
        {"step-tokens", "tokens of a step are not negative", Concern::Tokens, Needs::Nothing, "step", Form::Step,
         notNegative("step", kSteps, {"tokens"})},
        {"step-times", "times of a step are not negative", Concern::Times, Needs::StepTimes, "step", Form::Step,
         notNegative("step", kSteps, {"start_ns", "duration_ns"})},
        {"step-order", "a step does not start before the one before it", Concern::Times, Needs::StepTimes, "step",
         Form::Step,
         fmt::format(
             "SELECT id, 'start_ns is ' || start_ns || ', the step before starts at ' || before FROM (SELECT id,"
             " start_ns, lag(start_ns) OVER (ORDER BY id) AS before FROM step WHERE {}) WHERE start_ns < before",
             kSteps)},
        {"step-stages", "stages outside the layers are not negative", Concern::Times, Needs::StageTimes, "step",
         Form::Step, notNegative("step", kSteps, {"embed_ns", "lm_head_ns", "sample_ns"})},
        {"step-counts", "counts of a step are not negative", Concern::Selection, Needs::Selections, "step", Form::Step,
         notNegative("step", kSteps, {"selected"})},
        {"step-hits", "hits and misses of a step are not negative", Concern::Hits, Needs::Hits, "step", Form::Step,
         notNegative("step", kSteps, {"hits", "misses"})},
        {"step-bytes", "blocks and bytes of a step are not negative", Concern::Bytes, Needs::Bytes, "step", Form::Step,
         notNegative("step", kSteps, {"h2d_blocks", "d2h_blocks", "h2d_bytes", "d2h_bytes"})},
        {"step-transfer", "link time of a step is not negative", Concern::Transfer, Needs::TransferTimes, "step",
         Form::Step, notNegative("step", kSteps, {"transfer_ns"})},
        {"step-exposed-sign", "exposed time of a step is not negative", Concern::Exposed, Needs::ExposedTimes, "step",
         Form::Step, notNegative("step", kSteps, {"exposed_ns"})},
        {"step-opens", "opens_block is 0 or 1", Concern::Selection, Needs::Nothing, "step", Form::Step,
         fmt::format("SELECT id, 'opens_block is ' || opens_block FROM step WHERE {} AND opens_block NOT IN (0, 1)",
                     kSteps)},
        {"step-opens-selection", "a step opens a block if one of its selections does", Concern::Selection,
         Needs::Selections, "selection", Form::Step,
         "SELECT s.id, 'opens_block is 0, of its selections ' || count(*) || ' have 1' FROM selection c JOIN step s ON"
         " s.id = c.id >> 30 WHERE c.id BETWEEN ?1 << 55 AND (?1 << 55) | 0x7FFFFFFFFFFFFF AND c.opens_block = 1 AND"
         " s.opens_block = 0 GROUP BY s.id"},
        {"step-hits-and-misses", "hits + misses = selected, in a step", Concern::Hits, Needs::Hits, "step", Form::Step,
         hitsAndMisses("step", kSteps)},
        {"step-kept", "kept is at most selected, in a step", Concern::Selection, Needs::Selections, "step", Form::Step,
         keptOfSelected("step", kSteps)},
        {"step-exposed", "exposed time is part of the link time, in a step", Concern::Exposed, Needs::ExposedTimes,
         "step", Form::Step, exposedOfTransfer("step", kSteps, "transfer_ns")},
        {"step-has-stages", "the stages of a step are no longer than the step", Concern::Times, Needs::StageTimes,
         "step", Form::Step,
         fmt::format("SELECT id, 'stages take ' || CAST(stages AS INTEGER) || ' ns, the step ' || duration_ns FROM"
                     " (SELECT id, duration_ns, embed_ns + lm_head_ns + sample_ns + (SELECT total({}) FROM layer_step"
                     " WHERE id BETWEEN s.id << 10 AND (s.id << 10) | 1023) AS stages FROM step s WHERE s.{}) WHERE"
                     " stages > duration_ns",
                     kLayerStages, kSteps)},
        {"step-sum-selected", "selected of a step is the sum over its layers", Concern::Selection, Needs::Selections,
         "layer_step", Form::Step, sumOfLayers({{"selected", "selected"}})},
        {"step-sum-hits", "hits and misses of a step are the sums over its layers", Concern::Hits, Needs::Hits,
         "layer_step", Form::Step, sumOfLayers({{"hits", "hits"}, {"misses", "misses"}})},
        {"step-sum-bytes", "blocks and bytes of a step are the sums over its layers", Concern::Bytes, Needs::Bytes,
         "layer_step", Form::Step,
         sumOfLayers({{"h2d_blocks", "h2d_blocks"},
                      {"d2h_blocks", "d2h_blocks"},
                      {"h2d_bytes", "h2d_bytes"},
                      {"d2h_bytes", "d2h_bytes"}})},
        {"step-sum-transfer", "link time of a step is the sum over its layers", Concern::Transfer, Needs::TransferTimes,
         "layer_step", Form::Step, sumOfLayers({{"transfer_ns", "h2d_ns + d2h_ns"}})},
        {"step-sum-exposed", "exposed time of a step is the sum over its layers", Concern::Exposed, Needs::ExposedTimes,
         "layer_step", Form::Step, sumOfLayers({{"exposed_ns", "exposed_ns"}})},
        // A method that keeps its own device tier has no slots either, but it loads.
        {"resident-hits", "with every block resident (device_slots 0, and no byte is ever loaded) nothing is missed",
         Concern::Hits, Needs::Hits, "step", Form::Step,
         fmt::format("SELECT s.id, 'misses is ' || s.misses FROM step s, run r WHERE s.{0} AND r.run_id = ?1 AND"
                     " r.device_slots = 0 AND s.misses > 0 AND NOT EXISTS (SELECT 1 FROM step t WHERE t.{0} AND"
                     " t.h2d_bytes > 0)",
                     kSteps)},
    };
    return rules;
}

std::span<const SqlRule> layerRules() {
    static const std::vector<SqlRule> rules{
        {"layer-step", "a layer_step has a step", Concern::Identity, Needs::Nothing, "layer_step", Form::Layer,
         fmt::format("SELECT id, 'there is no such step' FROM layer_step WHERE {} AND id >> 10 NOT IN"
                     " (SELECT id FROM step)",
                     kLayers)},
        {"layer-number", "a layer is one of the run's", Concern::Identity, Needs::Nothing, "layer_step", Form::Layer,
         fmt::format("SELECT l.id, 'the run has ' || r.layers || ' layers' FROM layer_step l, run r WHERE l.{} AND"
                     " r.run_id = ?1 AND (l.id & 1023) >= r.layers",
                     kLayers)},
        {"layer-times", "times of a layer are not negative", Concern::Times, Needs::StageTimes, "layer_step",
         Form::Layer,
         notNegative("layer_step", kLayers,
                     {"start_ns", "qkv_linear_ns", "rope_ns", "compression_ns", "stage1_ns", "pooling_ns",
                      "offloading_ns", "stage2_ns", "attention_ns", "o_linear_ns", "ffn_ns"})},
        {"layer-in-step", "a layer lies within its step", Concern::Times, Needs::StageTimes, "layer_step", Form::Layer,
         fmt::format(
             "SELECT l.id, 'the layer lasts from ' || l.start_ns || ' to ' || (l.start_ns + {0}) || ', its step from"
             " ' || s.start_ns || ' to ' || (s.start_ns + s.duration_ns) FROM layer_step l JOIN step s ON s.id ="
             " l.id >> 10 WHERE l.{1} AND (l.start_ns < s.start_ns OR l.start_ns + {0} > s.start_ns +"
             " s.duration_ns)",
             kLayerStages, kLayers)},
        {"layer-counts", "selected of a layer is not negative", Concern::Selection, Needs::Selections, "layer_step",
         Form::Layer, notNegative("layer_step", kLayers, {"selected"})},
        {"layer-hits", "hits and misses of a layer are not negative", Concern::Hits, Needs::Hits, "layer_step",
         Form::Layer, notNegative("layer_step", kLayers, {"hits", "misses"})},
        {"layer-bytes", "blocks and bytes of a layer are not negative", Concern::Bytes, Needs::Bytes, "layer_step",
         Form::Layer, notNegative("layer_step", kLayers, {"h2d_blocks", "d2h_blocks", "h2d_bytes", "d2h_bytes"})},
        {"layer-transfer", "link times of a layer are not negative", Concern::Transfer, Needs::TransferTimes,
         "layer_step", Form::Layer, notNegative("layer_step", kLayers, {"h2d_ns", "d2h_ns"})},
        {"layer-exposed-sign", "exposed time of a layer is not negative", Concern::Exposed, Needs::ExposedTimes,
         "layer_step", Form::Layer, notNegative("layer_step", kLayers, {"exposed_ns"})},
        {"layer-hits-and-misses", "hits + misses = selected, in a layer", Concern::Hits, Needs::Hits, "layer_step",
         Form::Layer, hitsAndMisses("layer_step", kLayers)},
        {"layer-kept", "kept is at most selected, in a layer", Concern::Selection, Needs::Selections, "layer_step",
         Form::Layer, keptOfSelected("layer_step", kLayers)},
        // A layer whose blocks were asked for ahead may also wait for what another layer had asked for before it.
        {"layer-exposed", "exposed time is part of the link time, in a layer of a run that loads nothing ahead",
         Concern::Exposed, Needs::ExposedTimes, "layer_step", Form::Layer,
         exposedOfTransfer("layer_step", kLayers, "h2d_ns + d2h_ns") +
             " AND NOT EXISTS (SELECT 1 FROM lookahead WHERE id BETWEEN ?1 << 55 AND (?1 << 55) | 0x7FFFFFFFFFFFFF)"},
        {"layer-mass", "mass is 0 to 1, in a layer", Concern::Mass, Needs::Nothing, "layer_step", Form::Layer,
         fmt::format("SELECT id, 'mass is ' || mass FROM layer_step WHERE {} AND NOT (mass BETWEEN 0 AND 1.0001)",
                     kLayers)},
    };
    return rules;
}

} // namespace kvscope::check

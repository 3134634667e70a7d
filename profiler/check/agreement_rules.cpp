// Rules about what two tables, or a row and the facts of its run, say of the same thing.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// SQL: whether a session of KVScope's engine decoded the run, which says what the model looks like.
std::string ofSession() {
    return fmt::format("{} AND EXISTS (SELECT 1 FROM run_meta WHERE run_id = ?1 AND key = 'model_shape')", kOfOurs);
}

/// SQL: whether such a session loaded a block only when a layer had selected it. Where the units that are selected are
/// no KV blocks, or layers share a choice, run_meta says so. Block diffusion loads pages for several queries at once.
std::string onDemand() {
    return fmt::format(
        "{} AND NOT EXISTS (SELECT 1 FROM lookahead WHERE {}) AND NOT EXISTS (SELECT 1 FROM run_meta"
        " WHERE run_id = ?1 AND key IN ('kv_block_tokens', 'index_leader', 'denoising_block')) AND (SELECT CASE WHEN"
        " json_valid(params_json) THEN coalesce(json_extract(params_json, '$.ahead'), 'none') = 'none'"
        " AND coalesce(json_extract(params_json, '$.overlap'), 'none') = 'none' END FROM run WHERE"
        " run_id = ?1)",
        ofSession(), kSelections);
}

/// SQL: whether a row of layer_step is of a decode step.
std::string decoding() { return fmt::format("id >> 10 IN (SELECT id FROM step WHERE {} AND phase = 1)", kSteps); }

/// SQL: whether a program of KVScope recorded the timeline of the run.
constexpr const char* kOwnTimeline =
    "EXISTS (SELECT 1 FROM health h JOIN run r ON r.run_id = h.run_id WHERE h.run_id = ?1 AND h.program GLOB"
    " 'kvscope [0-9]*' AND r.backend = 'cuda')";

/// Rules about steps, layers and selections.
std::vector<SqlRule> decodeRules() {
    return {
        {"layer-loads", "a layer of KVScope's engine loads the blocks that it misses, in a run that loads on demand",
         Concern::Bytes, Needs::Bytes, "layer_step", Form::Layer,
         fmt::format("SELECT id, 'h2d_blocks is ' || h2d_blocks || ', misses is ' || misses FROM layer_step WHERE {}"
                     " AND h2d_blocks <> misses AND {} AND {}",
                     kLayers, decoding(), onDemand())},
        {"layer-waits",
         "a layer of KVScope's engine waits for all that it loads, in a modelled run that loads on demand",
         Concern::Exposed, Needs::ExposedTimes, "layer_step", Form::Layer,
         fmt::format("SELECT id, 'exposed_ns is ' || exposed_ns || ', h2d_ns is ' || h2d_ns FROM layer_step WHERE {}"
                     " AND exposed_ns < h2d_ns AND EXISTS (SELECT 1 FROM run WHERE run_id = ?1 AND timing = 'modelled')"
                     " AND {} AND {}",
                     kLayers, decoding(), onDemand())},
        {"layer-attention", "a layer of a lone sequence of KVScope's engine selects, or attends to everything",
         Concern::Times, Needs::StageTimes, "layer_step", Form::Layer,
         fmt::format("SELECT id, 'attention_ns is ' || attention_ns || ', selected is ' || selected FROM layer_step"
                     " WHERE {} AND attention_ns > 0 AND selected > 0 AND EXISTS (SELECT 1 FROM run WHERE run_id = ?1"
                     " AND sequences = 1) AND {} AND {}",
                     kLayers, decoding(), ofSession())},
        // A cache of block diffusion computes some tokens of a canvas and adds the others to them, under full attention
        // too.
        {"full-selects", "full attention of KVScope's engine selects nothing where it decodes token by token",
         Concern::Selection, Needs::Selections, "step", Form::Step,
         fmt::format("SELECT id, 'method is full, selected is ' || selected FROM step WHERE {} AND selected > 0 AND"
                     " EXISTS (SELECT 1 FROM run WHERE run_id = ?1 AND method = 'full') AND NOT EXISTS (SELECT 1 FROM"
                     " run_meta WHERE run_id = ?1 AND key = 'denoising_block') AND {}",
                     kSteps, ofSession())},
        {"timing-backend", "link times of KVScope's engine on a CPU are modelled", Concern::Transfer,
         Needs::TransferTimes, "run", Form::None,
         fmt::format("SELECT NULL, 'backend is cpu, timing is ' || timing FROM run WHERE run_id = ?1 AND backend ="
                     " 'cpu' AND timing <> 'modelled' AND {}",
                     ofSession())},
        {"link-speed", "a measured link moves at most 10 TB/s", Concern::Transfer, Needs::TransferTimes, "layer_step",
         Form::Layer,
         fmt::format("SELECT id, h2d_bytes || ' bytes to the device in ' || h2d_ns || ' ns, ' || d2h_bytes || ' to the"
                     " host in ' || d2h_ns FROM layer_step WHERE {} AND ((h2d_ns > 0 AND h2d_bytes / h2d_ns > 10000)"
                     " OR (d2h_ns > 0 AND d2h_bytes / d2h_ns > 10000)) AND EXISTS (SELECT 1 FROM run WHERE run_id = ?1"
                     " AND timing = 'measured')",
                     kLayers)},
        {"head-groups", "the query heads of a run divide evenly among its KV heads", Concern::Identity, Needs::Nothing,
         "run", Form::None,
         "SELECT NULL, 'query_heads is ' || query_heads || ', kv_heads is ' || kv_heads FROM run WHERE run_id = ?1 AND"
         " query_heads > 0 AND kv_heads > 0 AND query_heads % kv_heads <> 0"},
        {"shadow-loads", "nothing is loaded for the selections of a shadow", Concern::Bytes, Needs::Bytes, "step",
         Form::Step,
         fmt::format("SELECT id, 'h2d_bytes is ' || h2d_bytes FROM step WHERE {} AND h2d_bytes > 0 AND EXISTS (SELECT 1"
                     " FROM run_meta WHERE run_id = ?1 AND key = 'shadow')",
                     kSteps)},
        {"leader-rows", "a layer that is not its own leader selects as many blocks as its leader", Concern::Selection,
         Needs::Selections, "selection", Form::Selection,
         fmt::format("SELECT c.id, 'selected is ' || c.selected || ', kept ' || coalesce(c.kept, 'NULL') || '; of layer"
                     " ' || w.value || ' ' || l.selected || ' and ' || coalesce(l.kept, 'NULL') FROM run_meta m,"
                     " json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE '[]' END) w JOIN selection l ON"
                     " (l.id >> 20) & 1023 = w.value JOIN selection c ON c.id = l.id + ((w.key - w.value) << 20) WHERE"
                     " m.run_id = ?1 AND m.key = 'index_leader' AND w.type = 'integer' AND typeof(w.key) = 'integer'"
                     " AND w.key > w.value AND l.{} AND (c.selected <> l.selected OR c.kept IS NOT l.kept) AND {}",
                     kSelections, ofSession())},
    };
}

/// Rules about what runs say beside their steps.
std::vector<SqlRule> besideRules() {
    return {
        {"needles-text", "the tokens of a needle have its value, in a session of KVScope's engine", Concern::Tokens,
         Needs::Nothing, "prompt", Form::None,
         fmt::format("SELECT NULL, 'needle ' || key || ' has the value ' || substr(value, 1, 60) || ', its tokens are '"
                     " || substr(coalesce(text, 'not there'), 1, 100) FROM (SELECT n.key AS key,"
                     " json_extract(n.value, '$.value') AS value, (SELECT group_concat(text, '') FROM (SELECT text FROM"
                     " prompt WHERE id BETWEEN (?1 << 55) + (json_extract(n.value, '$.sequence') << 45) +"
                     " json_extract(n.value, '$.first') AND (?1 << 55) + (json_extract(n.value, '$.sequence') << 45) +"
                     " json_extract(n.value, '$.first') + json_extract(n.value, '$.tokens') - 1 ORDER BY id)) AS text"
                     " FROM run_meta m, json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE '[]' END) n WHERE"
                     " m.run_id = ?1 AND m.key = 'needles' AND n.type = 'object' AND {}) WHERE instr(coalesce(text,"
                     " ''), coalesce(value, '')) = 0 AND EXISTS (SELECT 1 FROM prompt WHERE {})",
                     ofSession(), kSelections)},
        {"oracle-whole", "where all of the best blocks were selected, the selected ones have the best mass",
         Concern::Mass, Needs::Nothing, "oracle", Form::Selection,
         fmt::format("SELECT o.id, 'recall is 1, mass is ' || c.mass || ', best_mass is ' || o.best_mass || ', far"
                     " recall is ' || coalesce(o.far_recall, 'NULL') || ', far mass is ' || coalesce(o.far_mass,"
                     " 'NULL') || ', far_best_mass is ' || coalesce(o.far_best_mass, 'NULL') FROM oracle o JOIN"
                     " selection c ON c.id = o.id WHERE o.{} AND ((o.recall = 1 AND abs(c.mass - o.best_mass) > 0.001)"
                     " OR (o.far_recall = 1 AND abs(o.far_mass - o.far_best_mass) > 0.001)) AND {}",
                     kSelections, ofSession())},
        {"lookahead-wasted", "blocks that were transferred ahead for nothing are among those transferred",
         Concern::Bytes, Needs::Bytes, "lookahead", Form::None,
         fmt::format("SELECT NULL, 'wasted is ' || CAST(w.value AS INTEGER) || ' in all, h2d_blocks is ' ||"
                     " CAST(s.value AS INTEGER) FROM (SELECT total(wasted) AS value FROM lookahead WHERE {}) w,"
                     " (SELECT total(h2d_blocks) AS value FROM step WHERE {}) s WHERE w.value > s.value AND {}",
                     kSelections, kSteps, ofSession())},
        {"step-denoises", "a decode step of a run with denoising_block has denoising forwards", Concern::Tokens,
         Needs::Nothing, "step", Form::Step,
         fmt::format("SELECT id, 'it has none' FROM step WHERE {} AND phase = 1 AND EXISTS (SELECT 1 FROM run_meta"
                     " WHERE run_id = ?1 AND key = 'denoising_block') AND NOT EXISTS (SELECT 1 FROM denoise d WHERE"
                     " d.id BETWEEN step.id << 20 AND (step.id << 20) | 0xFFFFF)",
                     kSteps)},
        {"denoise-said", "a run with denoising forwards has denoising_block", Concern::Identity, Needs::Nothing,
         "denoise", Form::None,
         fmt::format("SELECT NULL, 'run_meta has no such key' WHERE EXISTS (SELECT 1 FROM denoise WHERE {}) AND NOT"
                     " EXISTS (SELECT 1 FROM run_meta WHERE run_id = ?1 AND key = 'denoising_block')",
                     kTokens)},
        {"span-order", "kernels of a stream that KVScope recorded overlap by less than 1 ms", Concern::Timeline,
         Needs::Nothing, "span", Form::None,
         fmt::format("SELECT NULL, 'span ' || id || ' begins at ' || start_ns || ', the kernel before it ends at ' ||"
                     " before FROM (SELECT id, start_ns, lag(start_ns + duration_ns) OVER (PARTITION BY track ORDER BY"
                     " start_ns) AS before FROM span WHERE run_id = ?1 AND kind = 1 AND {}) WHERE start_ns < before -"
                     " 1000000",
                     kOwnTimeline)},
        {"span-kernel",
         "a kernel or copy that KVScope recorded lies between the step before and the step behind, give or take 10 ms",
         Concern::Timeline, Needs::StepTimes, "span", Form::None,
         fmt::format(
             "SELECT NULL, 'span ' || x.id || ' of step ' || x.step || ' lasts from ' || x.start_ns || ' to ' ||"
             " (x.start_ns + x.duration_ns) || ', the steps from ' || s.first || ' to ' || s.last FROM span x"
             " JOIN (SELECT id, coalesce(lag(start_ns) OVER (ORDER BY id), start_ns - 1000000000) AS first,"
             " coalesce(lead(start_ns + duration_ns) OVER (ORDER BY id), start_ns + duration_ns + 1000000000)"
             " AS last FROM step WHERE {}) s ON s.id = (?1 << 25) + x.step WHERE x.run_id = ?1 AND x.kind IN"
             " (1, 2) AND x.step >= 0 AND (x.start_ns < s.first - 10000000 OR x.start_ns + x.duration_ns >"
             " s.last + 10000000) AND {}",
             kSteps, kOwnTimeline)},
    };
}

} // namespace

std::span<const SqlRule> agreementRules() {
    static const std::vector<SqlRule> rules = [] {
        std::vector<SqlRule> all = decodeRules();
        for (SqlRule& rule : besideRules()) all.push_back(std::move(rule));
        return all;
    }();
    return rules;
}

std::span<const SqlRule> servingAgreementRules() {
    static const std::vector<SqlRule> rules{
        {"request-budget", "what a request with a row reserves is within the budgets of the server", Concern::Serving,
         Needs::Nothing, "request", Form::Request,
         fmt::format("SELECT q.id, 'host_bytes is ' || q.host_bytes || ', device_bytes is ' || q.device_bytes FROM"
                     " request q, run_meta m WHERE q.{} AND q.row IS NOT NULL AND m.run_id = ?1 AND m.key = 'serving'"
                     " AND json_valid(m.value) AND (q.host_bytes > json_extract(m.value, '$.host_kv_bytes') OR"
                     " q.device_bytes > json_extract(m.value, '$.device_kv_bytes'))",
                     kRequests)},
        {"span-state", "a request reads its prompt before its first token, and decodes behind it", Concern::Serving,
         Needs::Nothing, "request_span", Form::Request,
         fmt::format("SELECT q.id, 'state is ' || s.state || ' from ' || s.start_ns || ' to ' || s.end_ns || ', the"
                     " first token is of ' || coalesce(q.first_token_ns, 'no time') FROM request_span s JOIN request q"
                     " ON q.id = (?1 << 40 | s.request) WHERE s.{} AND CASE s.state WHEN 'prefill' THEN s.end_ns >"
                     " q.first_token_ns WHEN 'decode' THEN q.first_token_ns IS NULL OR s.start_ns < q.first_token_ns"
                     " END",
                     kRequests)},
        {"iteration-surprises", "blocks outside of the working sets are among those that the iteration's step selects",
         Concern::Serving, Needs::Selections, "iteration", Form::Iteration,
         fmt::format("SELECT i.id, 'surprises is ' || i.surprises || ', selected is ' || s.selected FROM iteration i"
                     " JOIN step s ON s.id = i.id WHERE i.{} AND i.surprises > s.selected",
                     kIterations)},
        {"event-paused", "an iteration works for no request that is paused", Concern::Serving, Needs::Nothing,
         "row_event", Form::Member,
         fmt::format("SELECT m.id, 'request ' || e.request || ' was paused in iteration ' || e.iteration || ' and was"
                     " not resumed' FROM (SELECT request, kind, iteration, lead(iteration) OVER (PARTITION BY request"
                     " ORDER BY id) AS next FROM row_event WHERE {}) e JOIN member m ON m.id BETWEEN ((?1 << 25) +"
                     " e.iteration) << 10 AND (((?1 << 25) + coalesce(e.next, 0x1FFFFFF)) << 10) - 1 AND m.request ="
                     " e.request WHERE e.kind = 'paused'",
                     kRequests)},
    };
    return rules;
}

} // namespace kvscope::check

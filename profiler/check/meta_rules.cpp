// Rules about table run_meta: numbers, JSON, and what they say of the run.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// SQL: whether column `value` is not JSON of this type. table: the column's table with a point, or empty
std::string isNo(const char* type, const char* table = "") {
    return fmt::format("CASE WHEN json_valid({0}value) THEN json_type({0}value) <> '{1}' ELSE 1 END", table, type);
}

} // namespace

std::span<const SqlRule> metaRules() {
    static const std::vector<SqlRule> rules{
        {"fingerprint-form", "model_fingerprint is VERSION:FILES:BYTES:HASH", Concern::Identity, Needs::Nothing,
         "run_meta", Form::None,
         "SELECT NULL, 'model_fingerprint is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND"
         " key = 'model_fingerprint' AND (value NOT GLOB '[0-9]*:[0-9]*:[0-9]*:[0-9a-f]*' OR"
         " value GLOB '*[^0-9a-f:]*' OR length(value) - length(replace(value, ':', '')) <> 3)"},
        // A merged run has the shape of its rank, and the heads and layers of all ranks; so it is with index_leader.
        {"shape-of-run", "model_shape has the layers, query heads, KV heads and head size of the run",
         Concern::Identity, Needs::Nothing, "run_meta", Form::None,
         "SELECT NULL, CASE WHEN json_valid(m.value) THEN 'model_shape has ' ||"
         " coalesce(json_extract(m.value, '$.layers'), 'no') || ' layers, ' ||"
         " coalesce(json_extract(m.value, '$.query_heads'), 'no') || ' query heads, ' ||"
         " coalesce(json_extract(m.value, '$.kv_heads'), 'no') || ' KV heads of ' ||"
         " coalesce(json_extract(m.value, '$.head_dim'), 'no size') || '; the run ' || r.layers || ', ' ||"
         " r.query_heads || ', ' || r.kv_heads || ' of ' || r.head_dim ELSE 'model_shape is not JSON' END"
         " FROM run_meta m JOIN run r ON r.run_id = m.run_id WHERE m.run_id = ?1 AND m.key = 'model_shape' AND"
         " CASE WHEN json_valid(m.value) THEN json_extract(m.value, '$.layers') IS NOT r.layers OR"
         " json_extract(m.value, '$.query_heads') IS NOT r.query_heads OR"
         " json_extract(m.value, '$.kv_heads') IS NOT r.kv_heads OR"
         " json_extract(m.value, '$.head_dim') IS NOT r.head_dim ELSE 1 END AND NOT (json_valid(m.value)"
         " AND EXISTS (SELECT 1 FROM run_meta WHERE run_id = ?1 AND key = 'merged_from'))"},
        {"shape-numbers", "numbers of model_shape are those of a model", Concern::Identity, Needs::Nothing, "run_meta",
         Form::None,
         "SELECT NULL, 'model_shape has ' || n.key || ' ' || coalesce(n.value, 'null') FROM run_meta m, json_each(CASE"
         " WHEN json_valid(m.value) THEN m.value ELSE '{}' END) n WHERE m.run_id = ?1 AND m.key = 'model_shape' AND"
         " CASE WHEN n.key IN ('layers', 'hidden', 'query_heads', 'kv_heads', 'head_dim', 'vocab') THEN n.type <>"
         " 'integer' OR n.value NOT BETWEEN 1 AND 16777216 WHEN n.key = 'ffn' THEN n.type <> 'integer' OR n.value NOT"
         " BETWEEN 0 AND 16777216 WHEN n.key = 'bytes_per_weight' THEN n.type NOT IN ('integer', 'real') OR n.value"
         " NOT BETWEEN 1e-9 AND 8 WHEN n.key IN ('eviction_head', 'tied_embeddings') THEN n.type NOT IN ('true',"
         " 'false') ELSE 0 END"},
        {"knows-words", "knows is a JSON array of the words of its table", Concern::Identity, Needs::Nothing,
         "run_meta", Form::None,
         "SELECT NULL, CASE WHEN json_valid(m.value) THEN 'knows has ' || substr(coalesce(w.value, 'null'), 1, 60)"
         " ELSE 'knows is not JSON' END FROM run_meta m, json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE"
         " '[0]' END) w WHERE m.run_id = ?1 AND m.key = 'knows' AND (w.type <> 'text' OR w.value NOT IN ('selections',"
         " 'hits', 'bytes', 'transfer_times', 'exposed_times', 'step_times', 'stage_times'))"
         " UNION ALL SELECT NULL, 'knows is not an array' FROM run_meta WHERE run_id = ?1 AND key = 'knows' AND CASE "
         "WHEN"
         " json_valid(value) THEN json_type(value) <> 'array' ELSE 0 END"},
        {"meta-numbers", "denoising_block, denoising_canvas and kv_block_tokens are numbers of tokens",
         Concern::Identity, Needs::Nothing, "run_meta", Form::None,
         "SELECT NULL, key || ' is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND key IN"
         " ('denoising_block', 'denoising_canvas', 'kv_block_tokens') AND (value GLOB '*[^0-9]*' OR CAST(value AS"
         " INTEGER) NOT BETWEEN 1 AND 16777216)"},
        {"sample-every", "sample_every is a number of steps above 2", Concern::Identity, Needs::Nothing, "run_meta",
         Form::None,
         "SELECT NULL, 'sample_every is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND key ="
         " 'sample_every' AND (value = '' OR value GLOB '*[^0-9]*' OR length(value) > 9 OR CAST(value AS INTEGER) < "
         "3)"},
        {"rank-numbers", "rank, world, head_first and layer_first are numbers, and rank is below world",
         Concern::Identity, Needs::Nothing, "run_meta", Form::None,
         "SELECT NULL, key || ' is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND key IN ('rank',"
         " 'world', 'head_first', 'layer_first') AND (value = '' OR value GLOB '*[^0-9]*' OR length(value) > 9)"
         " UNION ALL SELECT NULL, 'rank is ' || substr(a.value, 1, 60) || ', world ' || substr(b.value, 1, 60) FROM"
         " run_meta a JOIN run_meta b ON b.run_id = a.run_id AND b.key = 'world' WHERE a.run_id = ?1 AND a.key = 'rank'"
         " AND CAST(a.value AS INTEGER) >= CAST(b.value AS INTEGER)"},
        {"rank-layout", "layout is words like tp=1/4, each place below its size", Concern::Identity, Needs::Nothing,
         "run_meta", Form::None,
         "SELECT NULL, 'layout has ' || substr(w.value, 1, 60) FROM run_meta m, json_each('[' ||"
         " replace(json_quote(trim(m.value)), ' ', '\",\"') || ']') w WHERE m.run_id = ?1 AND m.key = 'layout' AND "
         "m.value <> '' AND NOT"
         " (w.value GLOB '[a-z]*=[0-9]*/[0-9]*' AND CAST(substr(w.value, instr(w.value, '=') + 1) AS INTEGER) <"
         " CAST(substr(w.value, instr(w.value, '/') + 1) AS INTEGER))"},
        {"rank-heads", "head_range lies within the KV heads of the run", Concern::Identity, Needs::Nothing, "run_meta",
         Form::None,
         "SELECT NULL, 'head_range is ' || substr(m.value, 1, 60) || ', KV heads are ' || r.kv_heads FROM run_meta m"
         " JOIN run r ON r.run_id = m.run_id WHERE m.run_id = ?1 AND m.key = 'head_range' AND NOT (m.value GLOB"
         " '[0-9]*..[0-9]*' AND CAST(m.value AS INTEGER) <= CAST(substr(m.value, instr(m.value, '..') + 2) AS INTEGER)"
         " AND CAST(substr(m.value, instr(m.value, '..') + 2) AS INTEGER) < r.kv_heads)"},
        {"rank-clocks", "clocks has readings: a clock, two times, an error that is not negative", Concern::Identity,
         Needs::Nothing, "run_meta", Form::None,
         fmt::format("SELECT NULL, 'clocks is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND"
                     " key = 'clocks' AND {} UNION ALL SELECT NULL, 'clocks has ' || substr(w.value, 1, 60) FROM"
                     " run_meta m, json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE '[]' END) w WHERE"
                     " m.run_id = ?1 AND m.key = 'clocks' AND CASE w.type WHEN 'array' THEN json_array_length(w.value)"
                     " <> 4 OR json_type(w.value, '$[0]') <> 'text' OR json_type(w.value, '$[1]') <> 'integer' OR"
                     " json_type(w.value, '$[2]') <> 'integer' OR json_type(w.value, '$[3]') <> 'integer' OR"
                     " json_extract(w.value, '$[3]') < 0 ELSE 1 END",
                     isNo("array"))},
        {"rank-offset", "clock_offset has added_ns, and an error_ns that is not negative", Concern::Identity,
         Needs::Nothing, "run_meta", Form::None,
         fmt::format("SELECT NULL, 'clock_offset is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND"
                     " key = 'clock_offset' AND CASE WHEN {} THEN 1 ELSE json_type(value, '$.added_ns') IS NOT"
                     " 'integer' OR json_type(value, '$.error_ns') IS NOT 'integer' OR json_extract(value,"
                     " '$.error_ns') < 0 END",
                     isNo("object"))},
        {"index-leader", "index_leader has for each layer one that is not behind it and is its own", Concern::Selection,
         Needs::Nothing, "run_meta", Form::None,
         fmt::format("SELECT NULL, 'index_leader is ' || substr(m.value, 1, 60) || ', layers are ' || r.layers FROM"
                     " run_meta m JOIN run r ON r.run_id = m.run_id WHERE m.run_id = ?1 AND m.key = 'index_leader' AND"
                     " CASE WHEN {} THEN 1 ELSE json_array_length(m.value) <> r.layers AND NOT EXISTS (SELECT 1 FROM"
                     " run_meta WHERE run_id = ?1 AND key = 'merged_from') END UNION ALL SELECT NULL,"
                     " 'index_leader of layer ' || w.key || ' is ' || substr(coalesce(w.value, 'null'), 1, 60) FROM"
                     " run_meta m, json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE '[]' END) w WHERE"
                     " m.run_id = ?1 AND m.key = 'index_leader' AND CASE WHEN w.type <> 'integer' OR typeof(w.key) <>"
                     " 'integer' THEN 1 WHEN w.value BETWEEN 0 AND w.key THEN json_extract(m.value, '$[' || w.value ||"
                     " ']') IS NOT w.value ELSE 1 END",
                     isNo("array", "m."))},
        {"needles-place", "needles lie in the prompts of the run, and have a value", Concern::Identity, Needs::Nothing,
         "run_meta", Form::None,
         fmt::format(
             "SELECT NULL, 'needles is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND"
             " key = 'needles' AND {} UNION ALL SELECT NULL, 'needle ' || n.key || ' is ' || substr(n.value, 1,"
             " 100) FROM run_meta m JOIN run r ON r.run_id = m.run_id, json_each(CASE WHEN json_valid(m.value)"
             " THEN m.value ELSE '[]' END) n WHERE m.run_id = ?1 AND m.key = 'needles' AND CASE n.type WHEN"
             " 'object' THEN json_type(n.value, '$.sequence') IS NOT 'integer' OR json_type(n.value, '$.first')"
             " IS NOT 'integer' OR json_type(n.value, '$.tokens') IS NOT 'integer' OR json_type(n.value,"
             " '$.value') IS NOT 'text' OR json_extract(n.value, '$.value') = '' OR json_extract(n.value,"
             " '$.sequence') NOT BETWEEN 0 AND r.sequences - 1 OR json_extract(n.value, '$.first') < 0 OR"
             " json_extract(n.value, '$.tokens') < 1 OR (EXISTS (SELECT 1 FROM prompt WHERE {}) AND"
             " json_extract(n.value, '$.first') + json_extract(n.value, '$.tokens') > (SELECT count(*) FROM"
             " prompt WHERE id BETWEEN (?1 << 55) + (json_extract(n.value, '$.sequence') << 45) AND (?1 << 55) +"
             " (json_extract(n.value, '$.sequence') << 45) + (1 << 45) - 1)) ELSE 1 END",
             isNo("array"), kSelections)},
        {"fork-step", "fork names a run, its time and a step that it has, and what changed", Concern::Identity,
         Needs::Nothing, "run_meta", Form::None,
         fmt::format("SELECT NULL, 'fork is ' || substr(m.value, 1, 100) FROM run_meta m WHERE m.run_id = ?1 AND"
                     " m.key = 'fork' AND CASE WHEN {} THEN 1 ELSE json_type(m.value, '$.run') IS NOT 'integer' OR"
                     " json_type(m.value, '$.step') IS NOT 'integer' OR json_type(m.value, '$.changes') IS NOT 'array'"
                     " OR json_extract(m.value, '$.run') NOT BETWEEN 1 AND 255 OR json_extract(m.value, '$.step') NOT"
                     " BETWEEN 0 AND 33554431 OR (json_type(m.value, '$.file') IS NULL AND EXISTS (SELECT 1 FROM run o"
                     " WHERE o.run_id = json_extract(m.value, '$.run') AND o.created_utc = json_extract(m.value,"
                     " '$.created_utc') AND json_extract(m.value, '$.step') > 1 + (SELECT coalesce(max(s.id), 0) &"
                     " 0x1FFFFFF FROM step s WHERE s.id BETWEEN o.run_id << 25 AND (o.run_id << 25) | 0x1FFFFFF))) END",
                     isNo("object", "m."))},
        {"labels-words", "labels has name and note in words, tags in a list, and pinned", Concern::Identity,
         Needs::Nothing, "run_meta", Form::None,
         fmt::format("SELECT NULL, 'labels is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND key ="
                     " 'labels' AND CASE WHEN {} THEN 1 ELSE coalesce(json_type(value, '$.name'), 'text') <> 'text' OR"
                     " coalesce(json_type(value, '$.note'), 'text') <> 'text' OR coalesce(json_type(value, '$.tags'),"
                     " 'array') <> 'array' OR coalesce(json_type(value, '$.pinned'), 'true') NOT IN ('true', 'false')"
                     " END",
                     isNo("object"))},
        {"serving-numbers", "serving is a JSON object, whose numbers are not negative", Concern::Serving,
         Needs::Nothing, "run_meta", Form::None,
         fmt::format("SELECT NULL, 'serving is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND key ="
                     " 'serving' AND {} UNION ALL SELECT NULL, 'serving has ' || n.key || ' ' || n.value FROM run_meta"
                     " m, json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE '{{}}' END) n WHERE m.run_id = ?1"
                     " AND m.key = 'serving' AND n.type IN ('integer', 'real') AND n.value < 0",
                     isNo("object"))},
        {"overhead-times", "recording_overhead has times of steps that are not negative", Concern::Identity,
         Needs::Nothing, "run_meta", Form::None,
         fmt::format("SELECT NULL, 'recording_overhead is ' || substr(value, 1, 60) FROM run_meta WHERE run_id = ?1 AND"
                     " key = 'recording_overhead' AND {} UNION ALL SELECT NULL, 'recording_overhead has ' || n.key ||"
                     " ' ' || n.value FROM run_meta m, json_each(CASE WHEN json_valid(m.value) THEN m.value ELSE '{{}}'"
                     " END) n WHERE m.run_id = ?1 AND m.key = 'recording_overhead' AND n.type IN ('integer', 'real')"
                     " AND n.value < 0",
                     isNo("object"))},
    };
    return rules;
}

} // namespace kvscope::check

// Rules about the forwards of block-diffusion runs.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

constexpr const char* kForwards = kTokens; // the keys of forwards and of their tokens lie in the same range
constexpr const char* kForwardLayers = kSelections;
constexpr const char* kBlockTokens =
    "(SELECT CAST(value AS INTEGER) FROM run_meta WHERE run_id = ?1 AND key = 'denoising_block')";
/// Blocks of a canvas are counted from the end of the prompt; others from the beginning of the sequence.
constexpr const char* kHasCanvas = "EXISTS (SELECT 1 FROM run_meta WHERE run_id = ?1 AND key = 'denoising_canvas')";

constexpr const char* kCanvasTokens =
    "(SELECT CAST(value AS INTEGER) FROM run_meta WHERE run_id = ?1 AND key = 'denoising_canvas')";

/// A query head of a row of denoise_tile is an element `h`, one of its rows of tiles an element `w`.
constexpr const char* kTileHeads = "json_each(CASE WHEN json_valid(t.densities) THEN t.densities ELSE '[]' END) h";
constexpr const char* kTileRows = "json_each(CASE h.type WHEN 'array' THEN h.value ELSE '[]' END) w";

/// SQL for the forwards that have rows in denoise_token and whose `column` is not what these rows come to. ofTokens:
/// SQL that aggregates the rows of one forward
std::string sumOfTokens(const char* column, const char* ofTokens) {
    return fmt::format("SELECT d.id, '{0} is ' || d.{0} || ', of its tokens ' || t.value FROM denoise d JOIN (SELECT"
                       " id >> 10 AS forward, {1} AS value FROM denoise_token WHERE {2} GROUP BY id >> 10) t"
                       " ON t.forward = d.id >> 10 WHERE d.{2} AND d.{0} <> t.value",
                       column, ofTokens, kForwards);
}

/// SQL for the number of bits that are 1 in a column.
std::string bitsOf(const char* column) {
    std::string sum;
    for (int bit = 0; bit < 64; ++bit) sum += fmt::format("{}(({} >> {}) & 1)", bit > 0 ? " + " : "", column, bit);
    return "(" + sum + ")";
}

} // namespace

std::span<const SqlRule> denoiseRules() {
    static const std::vector<SqlRule> rules{
        {"denoise-step", "a denoising forward has a step", Concern::Identity, Needs::Nothing, "denoise", Form::Token,
         fmt::format(
             "SELECT id, 'there is no such step' FROM denoise WHERE {} AND id >> 20 NOT IN (SELECT id FROM step)",
             kForwards)},
        {"denoise-counts",
         "a forward writes at most what is masked, and its kind is 1 (final) where nothing is, else 0", Concern::Tokens,
         Needs::Nothing, "denoise", Form::Token,
         fmt::format(
             "SELECT id, 'kind is ' || kind || ', masked ' || masked || ', written ' || written FROM denoise WHERE"
             " {} AND (kind NOT IN (0, 1) OR block < 0 OR denoise_step < 0 OR masked < 0 OR written < 0 OR written >"
             " masked OR (kind = 1) <> (masked = 0))",
             kForwards)},
        {"denoise-masked", "masked of a forward counts its tokens with a candidate", Concern::Tokens, Needs::Nothing,
         "denoise_token", Form::Token, sumOfTokens("masked", "count(candidate)")},
        {"denoise-written", "written of a forward counts its written tokens", Concern::Tokens, Needs::Nothing,
         "denoise_token", Form::Token, sumOfTokens("written", "sum(written)")},
        {"denoise-tokens", "tokens of a step of denoising forwards are those they wrote", Concern::Tokens,
         Needs::Nothing, "denoise", Form::Step,
         fmt::format(
             "SELECT s.id, 'tokens is ' || s.tokens || ', written ' || d.value FROM step s JOIN (SELECT id >> 20 AS"
             " step, sum(written) AS value FROM denoise WHERE {} GROUP BY id >> 20) d ON d.step = s.id WHERE"
             " s.tokens <> d.value",
             kForwards)},
        {"denoise-token",
         "a token of a forward has a candidate and a confidence of 0 to 1, or neither; what is written has",
         Concern::Tokens, Needs::Nothing, "denoise_token", Form::Token,
         fmt::format(
             "SELECT id, 'candidate is ' || coalesce(candidate, 'NULL') || ', confidence ' ||"
             " coalesce(confidence, 'NULL') || ', written ' || written FROM denoise_token WHERE {} AND"
             " ((candidate IS NULL) <> (confidence IS NULL) OR NOT (confidence BETWEEN 0 AND 1.0001) OR candidate < 0"
             " OR written NOT IN (0, 1) OR (written = 1 AND candidate IS NULL) OR position < 0)",
             kForwards)},
        {"denoise-token-forward", "a token of a forward has one", Concern::Identity, Needs::Nothing, "denoise_token",
         Form::Token,
         fmt::format(
             "SELECT id, 'there is no such forward' FROM denoise_token WHERE {} AND (id >> 10 << 10) NOT IN (SELECT"
             " id FROM denoise)",
             kForwards)},
    };
    return rules;
}

std::span<const SqlRule> denoiseLayerRules() {
    static const std::vector<SqlRule> rules{
        {"denoise-layer",
         "a layer of a forward is dense without, or sparse with active tokens, pages and a density of 0 to 1",
         Concern::Selection, Needs::Nothing, "denoise_layer", Form::Selection,
         fmt::format(
             "SELECT id, 'mode is ' || mode || ', active ' || coalesce(active, 'NULL') || ', pages ' ||"
             " coalesce(pages, 'NULL') || ', density ' || coalesce(density, 'NULL') FROM denoise_layer WHERE {} AND"
             " (mode NOT IN (0, 1) OR (mode = 1) <> (active IS NOT NULL) OR (mode = 1) <> (pages IS NOT NULL) OR"
             " (mode = 1) <> (density IS NOT NULL) OR (active IS NULL) <> (active_set IS NULL) OR active < 0 OR"
             " pages < 0 OR NOT (density BETWEEN 0 AND 1.0001))",
             kForwardLayers)},
        {"denoise-layer-step", "a layer of a forward has a layer_step", Concern::Identity, Needs::Nothing,
         "denoise_layer", Form::Selection,
         fmt::format(
             "SELECT id, 'there is no such layer_step' FROM denoise_layer WHERE {} AND id >> 20 NOT IN (SELECT id"
             " FROM layer_step)",
             kForwardLayers)},
        {"denoise-layer-missing", "a forward has a row for every layer and KV head, in a run that has some",
         Concern::Selection, Needs::Nothing, "denoise_layer", Form::Token,
         fmt::format("SELECT d.id, 'there are ' || coalesce(l.rows, 0) || ' rows, and ' || r.layers || ' layers of ' ||"
                     " r.kv_heads || ' KV heads' FROM denoise d JOIN run r ON r.run_id = ?1 LEFT JOIN (SELECT"
                     " ((id >> 30) << 20) | (((id >> 10) & 1023) << 10) AS forward, count(*) AS rows FROM denoise_layer"
                     " WHERE {0} GROUP BY 1) l ON l.forward = d.id WHERE d.{1} AND coalesce(l.rows, 0) <> r.layers *"
                     " r.kv_heads AND EXISTS (SELECT 1 FROM denoise_layer WHERE {0})",
                     kForwardLayers, kForwards)},
        {"denoise-pages", "pages of a sparse layer are those of its selection", Concern::Selection, Needs::Selections,
         "denoise_layer", Form::Selection,
         fmt::format(
             "SELECT d.id, 'pages is ' || d.pages || ', selected ' || coalesce(s.selected, 'NULL') FROM"
             " denoise_layer d LEFT JOIN selection s ON s.id = d.id WHERE d.{} AND d.mode = 1 AND s.selected IS NOT"
             " d.pages",
             kForwardLayers)},
        {"denoise-active", "active counts the tokens of active_set", Concern::Selection, Needs::Nothing,
         "denoise_layer", Form::Selection,
         fmt::format("SELECT id, 'active is ' || active || ', active_set has ' || bits FROM (SELECT id, active, {} AS"
                     " bits FROM denoise_layer WHERE {} AND active_set IS NOT NULL) WHERE active <> bits",
                     bitsOf("active_set"), kForwardLayers)},
        {"denoise-changes", "changes has a number for each token of the block", Concern::Selection, Needs::Nothing,
         "denoise_layer", Form::Selection,
         fmt::format("SELECT id, 'changes has ' || length(changes) || ' bytes, a block ' || {0} || ' tokens' FROM"
                     " denoise_layer WHERE {1} AND length(changes) <> 4 * {0}",
                     kBlockTokens, kForwardLayers)},
        {"denoise-tile",
         "densities has for each query head of the group as many shares of the prefix, at least one and each 0 to 1",
         Concern::Selection, Needs::Nothing, "denoise_tile", Form::Selection,
         fmt::format("SELECT t.id, 'densities is ' || substr(t.densities, 1, 60) FROM denoise_tile t JOIN run r ON"
                     " r.run_id = ?1 WHERE t.{0} AND ((SELECT count(*) FROM {1}) * r.kv_heads <> r.query_heads OR"
                     " (SELECT count(DISTINCT (SELECT count(*) FROM {2})) FROM {1}) <> 1 OR"
                     " EXISTS (SELECT 1 FROM {1} WHERE NOT EXISTS (SELECT 1 FROM {2})) OR"
                     " EXISTS (SELECT 1 FROM {1}, {2} WHERE w.type NOT IN ('real', 'integer') OR w.value NOT BETWEEN 0"
                     " AND 1.0001))",
                     kForwardLayers, kTileHeads, kTileRows)},
        {"denoise-tile-layer", "densities of rows of tiles are of a sparse layer of a forward", Concern::Identity,
         Needs::Nothing, "denoise_tile", Form::Selection,
         fmt::format("SELECT id, 'there is no such sparse layer' FROM denoise_tile WHERE {} AND id NOT IN (SELECT id"
                     " FROM denoise_layer WHERE mode = 1)",
                     kForwardLayers)},
        {"denoise-tile-union", "density is at least that of each row of tiles, and at most all of theirs together",
         Concern::Selection, Needs::Nothing, "denoise_tile", Form::Selection,
         fmt::format("SELECT id, 'density is ' || density || ', of its rows of tiles at most ' || most || ', together '"
                     " || total FROM (SELECT t.id AS id, l.density AS density, (SELECT max(w.value) FROM {1}, {2}) AS"
                     " most, (SELECT sum(w.value) FROM {1}, {2}) AS total FROM denoise_tile t JOIN denoise_layer l ON"
                     " l.id = t.id WHERE t.{0}) WHERE density NOT BETWEEN most - 0.0001 AND total + 0.0001",
                     kForwardLayers, kTileHeads, kTileRows)},
        {"denoise-kv-changes", "key_changes and value_changes have a number for each token of the block",
         Concern::Selection, Needs::Nothing, "denoise_change", Form::Selection,
         fmt::format(
             "SELECT id, 'there are ' || length(key_changes) || ' and ' || length(value_changes) || ' bytes, a"
             " block has ' || {0} || ' tokens' FROM denoise_change WHERE {1} AND (length(key_changes) <> 4 * {0}"
             " OR length(value_changes) <> 4 * {0})",
             kBlockTokens, kForwardLayers)},
        {"denoise-change-layer", "changes of keys and values are of a layer of a forward", Concern::Identity,
         Needs::Nothing, "denoise_change", Form::Selection,
         fmt::format("SELECT id, 'there is no such layer' FROM denoise_change WHERE {} AND id NOT IN (SELECT id FROM"
                     " denoise_layer)",
                     kForwardLayers)},
    };
    return rules;
}

std::span<const SqlRule> denoiseOrderRules() {
    static const std::vector<SqlRule> rules{
        {"denoise-block", "a forward's block is the position of its tokens divided by the block's length",
         Concern::Tokens, Needs::Nothing, "denoise_token", Form::Token,
         fmt::format("SELECT t.id, 'position is ' || t.position || ', block is ' || d.block || ' of ' || {0} ||"
                     " ' tokens' FROM denoise_token t JOIN denoise d ON d.id = t.id >> 10 << 10 WHERE t.{1} AND"
                     " NOT {2} AND (t.position / {0} <> d.block OR t.position % {0} <> (t.id & 1023))",
                     kBlockTokens, kForwards, kHasCanvas)},
        {"denoise-canvas", "blocks of a canvas follow each other from the end of the prompt", Concern::Tokens,
         Needs::Nothing, "denoise_token", Form::Token,
         fmt::format("SELECT id, 'the canvas begins at ' || begin || ' here and at ' || least || ' elsewhere' FROM"
                     " (SELECT t.id, t.position - d.block * {0} - (t.id & 1023) AS begin, min(t.position - d.block *"
                     " {0} - (t.id & 1023)) OVER (PARTITION BY (t.id >> 10) & 1023) AS least FROM denoise_token t JOIN"
                     " denoise d ON d.id = t.id >> 10 << 10 WHERE t.{1} AND {2}) WHERE begin <> least",
                     kBlockTokens, kForwards, kHasCanvas)},
        {"denoise-order", "denoise_step counts the forwards of a block, in a run that dropped no step", Concern::Tokens,
         Needs::Nothing, "denoise", Form::Token,
         fmt::format("SELECT id, 'denoise_step is ' || denoise_step || ', forwards before it are ' || before FROM"
                     " (SELECT id, denoise_step, row_number() OVER (PARTITION BY (id >> 10) & 1023, block ORDER BY id)"
                     " - 1 AS before FROM denoise WHERE {}) WHERE denoise_step <> before AND {} = 0",
                     kForwards, kDropped)},
        {"denoise-input", "a forward reads at a position what was written or read there before", Concern::Tokens,
         Needs::Nothing, "denoise_token", Form::Token,
         fmt::format("SELECT id, 'input_id is ' || input_id || ', before it ' || before FROM (SELECT id, input_id,"
                     " lag(CASE WHEN written = 1 THEN candidate ELSE input_id END) OVER (PARTITION BY (id >> 10) &"
                     " 1023, position ORDER BY id) AS before FROM denoise_token WHERE {}) WHERE input_id <> before AND"
                     " {} = 0",
                     kForwards, kDropped)},
        {"denoise-density",
         "density is the tokens of the pages divided by those before the block, on a canvas by all or those outside it",
         Concern::Selection, Needs::Nothing, "denoise_layer", Form::Selection,
         fmt::format("SELECT id, 'density is ' || density || ' for ' || pages || ' pages of ' || size || ', of ' ||"
                     " tokens || ' tokens' FROM (SELECT l.id AS id, l.density AS density, l.pages AS pages,"
                     " r.block_size AS size, CASE WHEN {2} THEN (SELECT t.position FROM denoise_token t WHERE t.id ="
                     " d.id) - d.block * {0} + {3} ELSE d.block * {0} END AS tokens, CASE WHEN {2} THEN {0} ELSE 0 END"
                     " AS inside FROM denoise_layer l JOIN run r ON r.run_id = ?1 JOIN denoise d ON d.id = ((l.id >> "
                     "30) << 20) | (l.id & 0xFFC00) WHERE l.{1}) WHERE density * tokens NOT BETWEEN (pages - 1) * size "
                     "- 1 AND pages * size + 1 AND density * (tokens - inside) NOT BETWEEN (pages - 1) * size - 1 AND "
                     "pages * size + 1",
                     kBlockTokens, kForwardLayers, kHasCanvas, kCanvasTokens)},
        {"denoise-opens", "a step opens a block in a block's first forward and in its first one that chose pages",
         Concern::Selection, Needs::Nothing, "denoise", Form::Step,
         fmt::format("SELECT s.id, 'opens_block is ' || s.opens_block || ', forwards that open one are ' || f.opening"
                     " FROM step s JOIN (SELECT d.id >> 20 AS step, count(CASE WHEN d.denoise_step = 0 OR EXISTS"
                     " (SELECT 1 FROM selection c WHERE c.id BETWEEN (d.id >> 20) << 30 AND ((d.id >> 20) << 30) |"
                     " 0x3FFFFFFF AND c.opens_block = 1) THEN 1 END) AS opening FROM denoise d WHERE d.{} GROUP BY"
                     " 1) f ON f.step = s.id WHERE s.opens_block <> (f.opening > 0)",
                     kForwards)},
        {"denoise-selection-opens", "a selection of a forward opens a block where kept is undefined",
         Concern::Selection, Needs::Selections, "denoise", Form::Selection,
         fmt::format("SELECT c.id, 'opens_block is ' || c.opens_block || ', kept is ' || coalesce(c.kept, 'NULL') FROM"
                     " selection c WHERE c.{} AND c.opens_block <> (c.kept IS NULL) AND EXISTS (SELECT 1 FROM denoise"
                     " WHERE {})",
                     kForwardLayers, kForwards)},
        {"denoise-result", "a token of a sequence is the one that a forward wrote there", Concern::Tokens,
         Needs::Nothing, "denoise_token", Form::Token,
         fmt::format("SELECT t.id, 'token_id is ' || t.token_id || ', written is ' || w.candidate FROM token t JOIN"
                     " (SELECT (id >> 10) & 1023 AS sequence, position, candidate FROM denoise_token WHERE {} AND"
                     " written = 1) w ON w.sequence = (t.id >> 10) & 1023 AND w.position = t.position WHERE t.{} AND"
                     " t.token_id <> w.candidate",
                     kForwards, kTokens)},
    };
    return rules;
}

} // namespace kvscope::check

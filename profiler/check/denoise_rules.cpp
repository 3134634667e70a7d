// Rules about the forwards of block-diffusion runs.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

constexpr const char* kForwards = kTokens; // and their tokens
constexpr const char* kForwardLayers = kSelections;
constexpr const char* kBlockTokens =
    "(SELECT CAST(value AS INTEGER) FROM run_meta WHERE run_id = ?1 AND key = 'denoising_block')";

/// Forwards whose column is not what their token rows come to, where they have any.
std::string sumOfTokens(const char* column, const char* ofTokens) {
    return fmt::format("SELECT d.id, '{0} is ' || d.{0} || ', of its tokens ' || t.value FROM denoise d JOIN (SELECT"
                       " id >> 10 AS forward, {1} AS value FROM denoise_token WHERE {2} GROUP BY id >> 10) t"
                       " ON t.forward = d.id >> 10 WHERE d.{2} AND d.{0} <> t.value",
                       column, ofTokens, kForwards);
}

/// How many bits of a column are 1, in SQL.
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
        {"denoise-block", "a forward's block is the position of its tokens divided by the block's length",
         Concern::Tokens, Needs::Nothing, "denoise_token", Form::Token,
         fmt::format("SELECT t.id, 'position is ' || t.position || ', block is ' || d.block || ' of ' || {0} ||"
                     " ' tokens' FROM denoise_token t JOIN denoise d ON d.id = t.id >> 10 << 10 WHERE t.{1} AND"
                     " (t.position / {0} <> d.block OR t.position % {0} <> (t.id & 1023))",
                     kBlockTokens, kForwards)},
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
        {"denoise-density", "density is the tokens of the pages divided by the tokens before the block",
         Concern::Selection, Needs::Nothing, "denoise_layer", Form::Selection,
         fmt::format("SELECT l.id, 'density is ' || l.density || ' for ' || l.pages || ' pages of ' || r.block_size ||"
                     " ', before the block are ' || d.block * {0} || ' tokens' FROM denoise_layer l JOIN run r ON"
                     " r.run_id = ?1 JOIN denoise d ON d.id = ((l.id >> 30) << 20) | (l.id & 0xFFC00) WHERE l.{1} AND"
                     " l.density * d.block * {0} NOT BETWEEN (l.pages - 1) * r.block_size - 1 AND l.pages *"
                     " r.block_size + 1",
                     kBlockTokens, kForwardLayers)},
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

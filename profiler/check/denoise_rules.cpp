// Rules about the forwards of block-diffusion runs.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

constexpr const char* kForwards = "id BETWEEN ?1 << 45 AND (?1 << 45) | 0x1FFFFFFFFFFF"; // and their tokens
constexpr const char* kForwardLayers = "id BETWEEN ?1 << 55 AND (?1 << 55) | 0x7FFFFFFFFFFFFF";

/// Forwards whose column is not what their token rows come to, where they have any.
std::string sumOfTokens(const char* column, const char* ofTokens) {
    return fmt::format("SELECT d.id, '{0} is ' || d.{0} || ', of its tokens ' || t.value FROM denoise d JOIN (SELECT"
                       " id >> 10 AS forward, {1} AS value FROM denoise_token WHERE {2} GROUP BY id >> 10) t"
                       " ON t.forward = d.id >> 10 WHERE d.{2} AND d.{0} <> t.value",
                       column, ofTokens, kForwards);
}

} // namespace

std::span<const SqlRule> denoiseRules() {
    static const std::vector<SqlRule> rules{
        {"denoise-step", "a denoising forward has a step", Concern::Identity, Needs::Nothing, "denoise", Form::Token,
         fmt::format(
             "SELECT id, 'there is no such step' FROM denoise WHERE {} AND id >> 20 NOT IN (SELECT id FROM step)",
             kForwards)},
        {"denoise-counts", "a forward writes at most what is masked, a clean one nothing, and its kind is 0 or 1",
         Concern::Tokens, Needs::Nothing, "denoise", Form::Token,
         fmt::format(
             "SELECT id, 'kind is ' || kind || ', masked ' || masked || ', written ' || written FROM denoise WHERE"
             " {} AND (kind NOT IN (0, 1) OR block < 0 OR denoise_step < 0 OR masked < 0 OR written < 0 OR written >"
             " masked OR (kind = 1 AND masked > 0))",
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
    };
    return rules;
}

} // namespace kvscope::check

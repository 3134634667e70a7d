// Rules about tokens: their ids, their positions, and the blocks that begin with them.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {
namespace {

/// SQL for a number of run_meta; NULL where the run does not state it.
std::string metaNumber(const char* key) {
    return fmt::format("(SELECT CAST(value AS INTEGER) FROM run_meta WHERE run_id = ?1 AND key = '{}')", key);
}

std::string vocab() {
    return "(SELECT CASE WHEN json_valid(value) THEN json_extract(value, '$.vocab') END FROM run_meta WHERE run_id = ?1"
           " AND key = 'model_shape')";
}

std::string beyondVocab(const char* table, const char* range, const char* column) {
    return fmt::format("SELECT id, '{1} is ' || {1} || ', the vocabulary has ' || vocab FROM {0}, (SELECT {3} AS vocab)"
                       " WHERE {2} AND {1} >= vocab",
                       table, column, range, vocab());
}

std::string bytesOfText(const char* table, const char* range) {
    return fmt::format("SELECT id, 'bytes begin with ' || hex(substr(bytes, 1, 8)) || ', text with ' || substr(text, 1,"
                       " 60) FROM {} WHERE {} AND bytes IS NOT NULL AND instr(text, char(65533)) = 0",
                       table, range);
}

/// SQL for the generated tokens of the run, with the number of the prompt that their sequence had begun by then: a
/// piece may begin one, and so does the first step of a request of another engine.
std::string tokensOfPrompts() {
    return fmt::format("(SELECT id, position, sequence, prompt FROM (SELECT id, position, sequence, sum(begins) OVER"
                       " (PARTITION BY sequence ORDER BY id, position IS NOT NULL ROWS UNBOUNDED PRECEDING) AS prompt"
                       " FROM (SELECT id, position, (id >> 10) & 1023 AS sequence, 0 AS begins FROM token WHERE {0}"
                       " UNION ALL SELECT id, NULL, (id >> 10) & 1023, begins = 1 FROM prompt_piece WHERE {0} UNION ALL"
                       " SELECT (?1 << 25 | first_step) << 20 | (row << 10), NULL, row, 1 FROM request WHERE {1} AND"
                       " first_step IS NOT NULL AND row IS NOT NULL)) WHERE position IS NOT NULL)",
                       kTokens, kRequests);
}

/// SQL for the tokens of a KV block. The units that are selected may be smaller.
std::string blockTokens() { return fmt::format("coalesce({}, r.block_size)", metaNumber("kv_block_tokens")); }

} // namespace

std::span<const SqlRule> tokenRules() {
    static const std::vector<SqlRule> rules{
        {"token-step", "a token has a step", Concern::Tokens, Needs::Nothing, "token", Form::Token,
         fmt::format("SELECT id, 'there is no such step' FROM token WHERE {} AND id >> 20 NOT IN (SELECT id FROM step)",
                     kTokens)},
        {"token-sequence", "a token's sequence is one of the run's", Concern::Tokens, Needs::Nothing, "token",
         Form::Token,
         fmt::format("SELECT t.id, 'the run has ' || r.sequences || ' sequences' FROM token t, run r WHERE t.{} AND"
                     " r.run_id = ?1 AND ((t.id >> 10) & 1023) >= r.sequences",
                     kTokens)},
        {"token-numbers", "a token's id and position are not negative", Concern::Tokens, Needs::Nothing, "token",
         Form::Token,
         fmt::format("SELECT id, 'token_id is ' || token_id || ', position is ' || position FROM token WHERE {} AND"
                     " (token_id < 0 OR position < 0)",
                     kTokens)},
        {"token-order", "positions of a sequence's tokens grow, behind one prompt", Concern::Tokens, Needs::Nothing,
         "token", Form::Token,
         fmt::format(
             "SELECT id, 'position is ' || position || ', that of the token before it ' || before FROM (SELECT id,"
             " position, lag(position) OVER (PARTITION BY sequence, prompt ORDER BY id) AS before FROM {}) WHERE"
             " position <= before",
             tokensOfPrompts())},
        {"prompt-sequence", "a prompt's sequence is one of the run's", Concern::Tokens, Needs::Nothing, "prompt",
         Form::Prompt,
         fmt::format("SELECT p.id, 'the run has ' || r.sequences || ' sequences' FROM prompt p, run r WHERE p.{} AND"
                     " r.run_id = ?1 AND ((p.id >> 45) & 1023) >= r.sequences",
                     kSelections)},
        {"prompt-numbers", "a prompt token's id is not negative", Concern::Tokens, Needs::Nothing, "prompt",
         Form::Prompt,
         fmt::format("SELECT id, 'token_id is ' || token_id FROM prompt WHERE {} AND token_id < 0", kSelections)},
        {"token-vocab", "a token's id is in the vocabulary of model_shape", Concern::Tokens, Needs::Nothing, "token",
         Form::Token, beyondVocab("token", kTokens, "token_id")},
        {"prompt-vocab", "a prompt token's id is in the vocabulary of model_shape", Concern::Tokens, Needs::Nothing,
         "prompt", Form::Prompt, beyondVocab("prompt", kSelections, "token_id")},
        {"denoise-vocab", "ids that a forward reads and writes are in the vocabulary of model_shape", Concern::Tokens,
         Needs::Nothing, "denoise_token", Form::Token,
         beyondVocab("denoise_token", kTokens, "input_id") + " UNION ALL " +
             beyondVocab("denoise_token", kTokens, "candidate")},
        {"prompt-positions", "positions of a sequence's prompt are 0, 1, 2, ...", Concern::Tokens, Needs::Nothing,
         "prompt", Form::None,
         fmt::format("SELECT NULL, 'sequence ' || ((id >> 45) & 1023) || ' has ' || count(*) || ' tokens, the last one"
                     " at position ' || (max(id) & 0x1FFFFFFFFFFF) FROM prompt WHERE {} GROUP BY id >> 45 HAVING"
                     " (max(id) & 0x1FFFFFFFFFFF) + 1 <> count(*)",
                     kSelections)},
        {"prompt-sequences", "every sequence has a prompt, where one has and none is read in pieces", Concern::Tokens,
         Needs::Nothing, "prompt", Form::None,
         fmt::format("SELECT NULL, 'there are prompts of ' || p.count || ' sequences, the run has ' || r.sequences FROM"
                     " run r, (SELECT count(DISTINCT id >> 45) AS count FROM prompt WHERE {}) p WHERE r.run_id = ?1"
                     " AND p.count > 0 AND p.count < r.sequences AND NOT EXISTS (SELECT 1 FROM prompt_piece WHERE {})",
                     kSelections, kTokens)},
        {"token-index", "the index of a token counts its sequence's tokens within the step", Concern::Tokens,
         Needs::Nothing, "token", Form::Token,
         fmt::format("SELECT id, 'index is ' || (id & 1023) || ', tokens before it are ' || before FROM (SELECT id,"
                     " row_number() OVER (PARTITION BY id >> 10 ORDER BY id) - 1 AS before FROM token WHERE {}) WHERE"
                     " (id & 1023) <> before",
                     kTokens)},
        {"token-positions",
         "a sequence's tokens follow each other, the first one behind the prompt, in a run that dropped no step",
         Concern::Tokens, Needs::Nothing, "token", Form::Token,
         fmt::format("SELECT id, 'position is ' || position || ', expected is ' || expected FROM (SELECT id, position,"
                     " coalesce(before + 1, CASE WHEN prompt = 0 THEN (SELECT (max(p.id) & 0x1FFFFFFFFFFF) + 1 FROM"
                     " prompt p WHERE p.id BETWEEN (?1 << 55) + (sequence << 45) AND (?1 << 55) + (sequence << 45) +"
                     " 0x1FFFFFFFFFFF) END) AS expected FROM (SELECT id, position, sequence, prompt, lag(position) OVER"
                     " (PARTITION BY sequence, prompt ORDER BY id) AS before FROM {})) WHERE position <> expected AND"
                     " {} = 0",
                     tokensOfPrompts(), kDropped)},
        {"step-token-rows", "a decode step feeds as many tokens as it makes, or more in another engine than KVScope's",
         Concern::Tokens, Needs::Nothing, "token", Form::Step,
         fmt::format("SELECT id, 'tokens is ' || tokens || ', its rows are ' || made FROM (SELECT id, tokens, (SELECT"
                     " count(*) FROM token WHERE id BETWEEN s.id << 20 AND (s.id << 20) | 0xFFFFF) AS made FROM step s"
                     " WHERE s.{} AND s.phase = 1) WHERE (tokens < made OR (tokens <> made AND {})) AND NOT EXISTS"
                     " (SELECT 1 FROM denoise WHERE {}) AND EXISTS (SELECT 1 FROM token WHERE {})",
                     kSteps, kOfOurs, kTokens, kTokens)},
        {"text-bytes", "a token has bytes of its own only where its text has U+FFFD", Concern::Tokens, Needs::Nothing,
         "token", Form::Token, bytesOfText("token", kTokens)},
        {"prompt-bytes", "a prompt token has bytes of its own only where its text has U+FFFD", Concern::Tokens,
         Needs::Nothing, "prompt", Form::Prompt, bytesOfText("prompt", kSelections)},
        {"prefill-tokens", "tokens of the prefill of KVScope's engine are those of the prompts", Concern::Tokens,
         Needs::Nothing, "prompt", Form::Step,
         fmt::format("SELECT s.id, 'tokens is ' || s.tokens || ', the prompts have ' || p.count FROM step s, (SELECT"
                     " count(*) AS count FROM prompt WHERE {}) p WHERE s.id = ?1 << 25 AND p.count > 0 AND s.tokens <>"
                     " p.count AND {}",
                     kSelections, kOfOurs)},
        {"selection-opens", "a selection opens a block if the token that its sequence is fed is a block's first one",
         Concern::Selection, Needs::Selections, "selection", Form::Selection,
         fmt::format("SELECT c.id, 'opens_block is ' || c.opens_block || ', the token fed is at ' || (t.position - 1)"
                     " FROM selection c JOIN token t ON t.id = ((c.id >> 30) << 20) | (c.id & 0xFFC00) JOIN run r ON"
                     " r.run_id = ?1 WHERE c.{} AND {} > 0 AND c.opens_block <> ((t.position - 1) % {} = 0) AND NOT"
                     " EXISTS (SELECT 1 FROM denoise WHERE {})",
                     kSelections, blockTokens(), blockTokens(), kTokens)},
        {"step-opens-token", "a decode step opens a block only if a sequence is fed a block's first token",
         Concern::Selection, Needs::Nothing, "token", Form::Step,
         fmt::format("SELECT s.id, 'opens_block is 1, and no token fed is a block''s first' FROM step s, run r WHERE"
                     " s.{} AND s.phase = 1 AND r.run_id = ?1 AND s.opens_block = 1 AND {} > 0 AND EXISTS (SELECT 1"
                     " FROM token WHERE id BETWEEN s.id << 20 AND (s.id << 20) | 0xFFFFF) AND NOT EXISTS (SELECT 1"
                     " FROM token WHERE id BETWEEN s.id << 20 AND (s.id << 20) | 0xFFFFF AND (position - 1) % {} = 0)"
                     " AND NOT EXISTS (SELECT 1 FROM denoise WHERE {})",
                     kSteps, blockTokens(), blockTokens(), kTokens)},
    };
    return rules;
}

} // namespace kvscope::check

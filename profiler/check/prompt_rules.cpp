// Rules about prompts that are read in several steps, or beside decoding sequences.
#include "profiler/check/rule.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope::check {

std::span<const SqlRule> pieceRules() {
    static const std::vector<SqlRule> rules{
        {"piece-step", "a piece of a prompt has a step", Concern::Tokens, Needs::Nothing, "prompt_piece", Form::Token,
         fmt::format("SELECT id, 'there is no such step' FROM prompt_piece WHERE {} AND id >> 20 NOT IN (SELECT id FROM"
                     " step)",
                     kTokens)},
        {"piece-sequence", "a piece's sequence is one of the run's, and has one piece in a step", Concern::Tokens,
         Needs::Nothing, "prompt_piece", Form::Token,
         fmt::format("SELECT p.id, 'the run has ' || r.sequences || ' sequences, the index is ' || (p.id & 1023) FROM"
                     " prompt_piece p, run r WHERE p.{} AND r.run_id = ?1 AND (((p.id >> 10) & 1023) >= r.sequences OR"
                     " p.id & 1023 <> 0)",
                     kTokens)},
        {"piece-numbers", "begins is 0 or 1, a piece has tokens, and its position is not negative", Concern::Tokens,
         Needs::Nothing, "prompt_piece", Form::Token,
         fmt::format("SELECT id, 'begins is ' || begins || ', first is ' || first || ', tokens is ' || tokens FROM"
                     " prompt_piece WHERE {} AND (begins NOT IN (0, 1) OR first < 0 OR tokens < 1)",
                     kTokens)},
        {"piece-tokens", "a step that decodes feeds more tokens than its pieces have, another one as many",
         Concern::Tokens, Needs::Nothing, "prompt_piece", Form::Step,
         fmt::format("SELECT s.id, 'tokens is ' || s.tokens || ', its pieces have ' || CAST(p.tokens AS INTEGER) FROM"
                     " (SELECT id >> 20 AS step, total(tokens) AS tokens FROM prompt_piece WHERE {} GROUP BY 1) p JOIN"
                     " step s ON s.id = p.step WHERE CASE s.phase WHEN 0 THEN s.tokens <> p.tokens ELSE s.tokens <="
                     " p.tokens END",
                     kTokens)},
        {"piece-order", "a piece that begins no prompt does not begin before the end of the one before it",
         Concern::Tokens, Needs::Nothing, "prompt_piece", Form::Token,
         fmt::format("SELECT id, 'first is ' || first || ', the piece before ends at ' || before FROM (SELECT id,"
                     " begins, first, lag(first + tokens) OVER (PARTITION BY (id >> 10) & 1023 ORDER BY id) AS before"
                     " FROM prompt_piece WHERE {}) WHERE begins = 0 AND first < before",
                     kTokens)},
        {"piece-token",
         "the first token behind a piece has the position where the piece ends, in a run that dropped no step",
         Concern::Tokens, Needs::Nothing, "prompt_piece", Form::Token,
         fmt::format("SELECT id, 'position is ' || position || ', the prompt ends at ' || before FROM (SELECT id,"
                     " position, lag(ends) OVER (PARTITION BY (id >> 10) & 1023 ORDER BY id, position IS NOT NULL) AS"
                     " before FROM (SELECT id, position, NULL AS ends FROM token WHERE {0} UNION ALL SELECT id, NULL,"
                     " first + tokens FROM prompt_piece WHERE {0})) WHERE position <> before AND {1} = 0",
                     kTokens, kDropped)},
        {"piece-selects", "a sequence that reads its prompt in a step selects nothing there", Concern::Selection,
         Needs::Nothing, "prompt_piece", Form::Token,
         fmt::format("SELECT p.id, 'it has a selection' FROM prompt_piece p WHERE p.{} AND EXISTS (SELECT 1 FROM"
                     " layer_step l JOIN selection c ON c.id BETWEEN (l.id << 20) | (p.id & 0xFFC00) AND (l.id << 20) |"
                     " (p.id & 0xFFC00) | 1023 WHERE l.id BETWEEN (p.id >> 20) << 10 AND ((p.id >> 20) << 10) | 1023)",
                     kTokens)},
    };
    return rules;
}

} // namespace kvscope::check

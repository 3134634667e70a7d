// Inside of the check: the rules, each an entry of a table with an SQL statement that finds the rows which break the
// rule. A new rule takes an entry in the file of its family, and its id in the table of docs/trace-format.md.
#pragma once

#include "profiler/check/check.h"
#include "profiler/sqlite/sqlite.h"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvscope::check {

/// What a run must know for a rule to apply: a group of Known.
enum class Needs : std::uint8_t {
    Nothing,
    Selections,
    Hits,
    Bytes,
    TransferTimes,
    ExposedTimes,
    StepTimes,
    StageTimes
};

/// Of which table a packed key is.
enum class Form : std::uint8_t { None, Step, Layer, Selection, Token, Prompt, Request, Iteration, Member };
/// Each row that the statement finds breaks the rule. Its columns are `key`, a packed key of the form `form` or NULL
/// where the row belongs to no step, and `what`, the violation in words.
struct SqlRule {
    const char* id;
    const char* says;
    Concern concern;
    Needs needs;
    const char* table; // the table that the rule is about; where the trace lacks it, the rule is not tested
    Form form;
    std::string sql; // SELECT key, what FROM ...; ?1: run
};

/// SQL: the ranges of packed keys that belong to run ?1.
inline constexpr const char* kSteps = "id BETWEEN ?1 << 25 AND (?1 << 25) | 0x1FFFFFF";
inline constexpr const char* kLayers = "id BETWEEN ?1 << 35 AND (?1 << 35) | 0x7FFFFFFFF";
inline constexpr const char* kTokens = "id BETWEEN ?1 << 45 AND (?1 << 45) | 0x1FFFFFFFFFFF";
inline constexpr const char* kSelections = "id BETWEEN ?1 << 55 AND (?1 << 55) | 0x7FFFFFFFFFFFFF"; // prompts, too
inline constexpr const char* kRequests = "id BETWEEN ?1 << 40 AND (?1 << 40) | 0xFFFFFFFFFF"; // spans, events, too
inline constexpr const char* kIterations = "id BETWEEN ?1 << 25 AND (?1 << 25) | 0x1FFFFFF";
inline constexpr const char* kMembers = "id BETWEEN ?1 << 35 AND (?1 << 35) | 0x7FFFFFFFF";
/// SQL: whether KVScope's engine decoded run ?1.
inline constexpr const char* kOfOurs = "EXISTS (SELECT 1 FROM run_meta WHERE run_id = ?1 AND key = 'engine' AND value ="
                                       " 'kvscope')";
/// SQL: how many steps of run ?1 never reached the file.
inline constexpr const char* kDropped = "coalesce((SELECT dropped_steps FROM health WHERE run_id = ?1), 0)";

std::span<const SqlRule> fileRules(); // of the file as a whole; their statements have no ?1
std::span<const SqlRule> runRules();
std::span<const SqlRule> metaRules(); // run_meta
std::span<const SqlRule> stepRules();
std::span<const SqlRule> layerRules();
std::span<const SqlRule> selectionRules();
std::span<const SqlRule> selectionDetailRules(); // of what a selection's rows in the tables lookahead and oracle say
std::span<const SqlRule> denoiseRules();         // forwards and their tokens, each row by itself
std::span<const SqlRule> denoiseLayerRules();    // what KV heads attended to in a forward, each row by itself
std::span<const SqlRule> denoiseOrderRules();    // forwards of a block one after the other, and what they leave behind
std::span<const SqlRule> timelineRules();
std::span<const SqlRule> sumRules();
std::span<const SqlRule> timeRules();
std::span<const SqlRule> tokenRules();
std::span<const SqlRule> pieceRules(); // prompts that are read in several steps, or beside decoding sequences
std::span<const SqlRule> servingRules();
std::span<const SqlRule> queueRules();            // who waits for a row, and when rows change hands
std::span<const SqlRule> agreementRules();        // what two tables say of the same thing
std::span<const SqlRule> servingAgreementRules(); // the same of serving runs

/// Rules about the blobs of selections: a blob can be decoded, and agrees with the counts of its row and with the blob
/// of the step before.
struct BlobRule {
    const char* id;
    const char* says;
    Concern concern;
    Needs needs;
};
inline constexpr int kBlobRules = 6;
std::span<const BlobRule> blobRules();
/// Calls `broken` for every violation: the rule's index, the key of the selection, what.
void checkBlobs(Connection& connection, int runId,
                const std::function<void(int rule, std::int64_t key, const std::string& what)>& broken,
                const Progress& progress);

/// "step 5, layer 2"
std::string placeOf(Form form, std::int64_t key);

} // namespace kvscope::check

// Rules that only the selections' blobs can tell.
#include "profiler/check/rule.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/prompt_steps.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <unordered_map>

namespace kvscope::check {
namespace {

enum Rule { kDecodes, kCount, kHits, kKept, kRange, kScores };
constexpr std::array<BlobRule, kBlobRules> kRules{
    {{"blob", "the blocks of a selection are one valid blob", Concern::Selection, Needs::Selections},
     {"blob-count", "a selection has as many blocks as selected says", Concern::Selection, Needs::Selections},
     {"blob-hits", "hits and misses of a selection are those of its blocks", Concern::Hits, Needs::Hits},
     {"blob-kept", "kept is how many blocks the step before that decodes has selected, too", Concern::Selection,
      Needs::Selections},
     {"blob-range", "blocks begin within their sequence or request, as far as its length is in the trace",
      Concern::Selection, Needs::Selections},
     {"blob-scores", "blobs hold scores at level full only", Concern::Identity, Needs::Selections}}};

struct Before {
    std::int64_t step = -2;
    std::vector<PackedBlock> blocks;
};

/// The length of each sequence, by its number: the first position behind its last token in the trace, or behind its
/// prompt and the canvas, whichever is larger. A denoising run has its whole canvas before the trace has tokens of it.
/// Prompts that are read in pieces may be in the trace in part, so that only tokens tell then.
std::unordered_map<std::int64_t, std::int64_t> lengths(Connection& connection, int runId) {
    std::unordered_map<std::int64_t, std::int64_t> result;
    Statement ends(connection, fmt::format("SELECT (id >> 10) & 1023, max(position) + 1 FROM token WHERE {0} GROUP BY 1"
                                           " UNION ALL SELECT (id >> 45) & 1023, (max(id) & 0x1FFFFFFFFFFF) + 1 +"
                                           " coalesce((SELECT CAST(value AS INTEGER) FROM run_meta WHERE run_id = ?1"
                                           " AND key = 'denoising_canvas'), 0) FROM prompt WHERE {1} AND NOT EXISTS"
                                           " (SELECT 1 FROM prompt_piece WHERE {0}) GROUP BY 1",
                                           kTokens, kSelections));
    ends.bindAll(runId);
    while (ends.step()) {
        std::int64_t& length = result[ends.int64(0)];
        length = std::max(length, ends.int64(1));
    }
    return result;
}

/// For every row that decodes in an iteration, by iteration << 10 | row: how many tokens the request in that row has,
/// which are its prompt and the tokens that it was fed.
std::unordered_map<std::int64_t, std::int64_t> servedLengths(Connection& connection, int runId) {
    std::unordered_map<std::int64_t, std::int64_t> result;
    Statement members(connection, "SELECT m.id & 0x7FFFFFFFF, q.prompt_tokens + row_number() OVER (PARTITION BY"
                                  " m.request ORDER BY m.id) FROM member m JOIN request q ON q.id = (?1 << 40 |"
                                  " m.request) WHERE m.id BETWEEN ?1 << 35 AND (?1 << 35) | 0x7FFFFFFFF AND"
                                  " m.kind = 0");
    members.bindAll(runId);
    while (members.step()) result[members.int64(0)] = members.int64(1);
    return result;
}

/// What the row of the run says about all blobs of the run.
struct RunLimits {
    RunLimits(Connection& connection, int runId)
        : lengthOf(lengths(connection, runId)), servedLengthOf(servedLengths(connection, runId)) {
        Statement row(connection, "SELECT block_size, level FROM run WHERE run_id = ?");
        if (!row.bind(1, runId).step()) return;
        blockSize = row.int64(0);
        scored = row.text(1) == "full";
    }
    /// Whether the block begins behind the end of the sequence, or of the request that has its row; false where the
    /// length is not known.
    bool isBehind(std::int64_t block, std::int64_t sequence, std::int64_t step) const {
        const auto behind = [&](const auto& lengths, std::int64_t key) {
            const auto length = lengths.find(key);
            return length != lengths.end() && length->second > 0 && blockSize > 0 &&
                   block > (length->second - 1) / blockSize;
        };
        return behind(lengthOf, sequence) || behind(servedLengthOf, step << 10 | sequence);
    }
    std::unordered_map<std::int64_t, std::int64_t> lengthOf, servedLengthOf;
    std::int64_t blockSize = 0;
    bool scored = false;
};

} // namespace

std::span<const BlobRule> blobRules() { return kRules; }

void checkBlobs(Connection& connection, int runId,
                const std::function<void(int rule, std::int64_t key, const std::string& what)>& broken,
                const Progress& progress) {
    constexpr int kRowsPerReport = 4096;
    Statement rows(connection, "SELECT id, selected, kept, hits, misses, blocks FROM selection WHERE id BETWEEN ? AND ?"
                               " AND blocks IS NOT NULL ORDER BY id");
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    rows.bindAll(low, high);
    const RunLimits limits(connection, runId);
    const PromptSteps prompts(connection, runId);
    std::unordered_map<std::int64_t, Before> heads; // by layer, sequence and KV head
    std::vector<PackedBlock> now;
    std::vector<float> scores;
    for (std::int64_t count = 0; rows.step(); ++count) {
        if (count % kRowsPerReport == 0)
            report(progress, double(count) / double(count + 32 * kRowsPerReport),
                   fmt::format("checking blocks: {} selections", count));
        const std::int64_t key = rows.int64(0), selected = rows.int64(1), hits = rows.int64(3), misses = rows.int64(4);
        const std::int64_t step = trace::stepOf(key, trace::kSelectionShift);
        if (!decodeSelection(rows.blob(5), now, scores)) {
            broken(kDecodes, key, "the blob cannot be decoded");
            continue;
        }
        const auto blocks = std::int64_t(now.size());
        if (blocks != selected)
            broken(kCount, key, fmt::format("the blob has {} blocks, selected is {}", blocks, selected));
        const auto resident =
            std::int64_t(std::count_if(now.begin(), now.end(), [](PackedBlock block) { return block.hit(); }));
        if (resident != hits || blocks - resident != misses)
            broken(kHits, key,
                   fmt::format("of the blocks {} were resident and {} not, hits is {}, misses is {}", resident,
                               blocks - resident, hits, misses));
        if (!now.empty() && limits.isBehind(now.back().id(), (key >> 10) & 1023, step))
            broken(kRange, key,
                   fmt::format("block {} of {} tokens begins behind the sequence's end", now.back().id(),
                               limits.blockSize));
        if (!limits.scored && !scores.empty()) broken(kScores, key, "the blob holds scores, the level is not full");
        Before& before = heads[key & ((std::int64_t(1) << trace::kSelectionShift) - 1)];
        if (!rows.isNull(2) && before.step == prompts.decodeBefore(int(step)))
            if (const std::int64_t kept = commonBlocks(before.blocks, now); kept != rows.int64(2))
                broken(kKept, key,
                       fmt::format("{} blocks were selected one step before, kept is {}", kept, rows.int64(2)));
        const int sequence = int((key >> 10) & 1023);
        if (!rows.isNull(2) && before.step >= 0 &&
            prompts.promptAt(sequence, int(before.step)) != prompts.promptAt(sequence, int(step)))
            broken(kKept, key, "kept is not NULL in the first selection behind another prompt");
        before.step = step;
        before.blocks.swap(now);
    }
}

} // namespace kvscope::check

// Rules that only the selections' blobs can tell.
#include "profiler/check/rule.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"

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
     {"blob-kept", "kept is how many blocks the step before has selected, too", Concern::Selection, Needs::Selections},
     {"blob-range", "blocks begin within their sequence, as far as its tokens are in the trace", Concern::Selection,
      Needs::Selections},
     {"blob-scores", "blobs hold scores at level full only", Concern::Identity, Needs::Selections}}};

struct Before {
    std::int64_t step = -2;
    std::vector<std::int32_t> blocks;
};

std::int64_t inBoth(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
    std::int64_t count = 0;
    for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
        count += *x == *y;
        const bool first = *x <= *y, second = *y <= *x;
        x += first;
        y += second;
    }
    return count;
}

/// The first position that is not within a sequence, as far as the trace tells: by number of the sequence.
std::unordered_map<std::int64_t, std::int64_t> lengths(Connection& connection, int runId) {
    std::unordered_map<std::int64_t, std::int64_t> result;
    Statement ends(connection, fmt::format("SELECT (id >> 10) & 1023, max(position) + 1 FROM token WHERE {0} GROUP BY 1"
                                           " UNION ALL SELECT (id >> 45) & 1023, (max(id) & 0x1FFFFFFFFFFF) + 1 FROM"
                                           " prompt WHERE {1} GROUP BY 1",
                                           kTokens, kSelections));
    ends.bindAll(runId);
    while (ends.step()) {
        std::int64_t& length = result[ends.int64(0)];
        length = std::max(length, ends.int64(1));
    }
    return result;
}

/// What the run's row says of all its blobs.
struct RunLimits {
    RunLimits(Connection& connection, int runId) : lengthOf(lengths(connection, runId)) {
        Statement row(connection, "SELECT block_size, level FROM run WHERE run_id = ?");
        if (!row.bind(1, runId).step()) return;
        blockSize = row.int64(0);
        scored = row.text(1) == "full";
    }
    /// Whether the sequence ends before this block; never where its length is not known.
    bool isBehind(std::int64_t block, std::int64_t sequence) const {
        const auto length = lengthOf.find(sequence);
        return length != lengthOf.end() && blockSize > 0 && block > (length->second - 1) / blockSize;
    }
    std::unordered_map<std::int64_t, std::int64_t> lengthOf;
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
    std::unordered_map<std::int64_t, Before> heads; // by layer, sequence and KV head
    DecodedSelection now;
    for (std::int64_t count = 0; rows.step(); ++count) {
        if (count % kRowsPerReport == 0)
            report(progress, double(count) / double(count + 32 * kRowsPerReport),
                   fmt::format("checking blocks: {} selections", count));
        const std::int64_t key = rows.int64(0), selected = rows.int64(1), hits = rows.int64(3), misses = rows.int64(4);
        const std::int64_t step = trace::stepOf(key, trace::kSelectionShift);
        if (!decodeSelection(rows.blob(5), now)) {
            broken(kDecodes, key, "the blob cannot be decoded");
            continue;
        }
        const auto blocks = std::int64_t(now.blocks.size());
        if (blocks != selected)
            broken(kCount, key, fmt::format("the blob has {} blocks, selected is {}", blocks, selected));
        const auto resident = std::int64_t(std::count(now.hit.begin(), now.hit.end(), 1));
        if (resident != hits || blocks - resident != misses)
            broken(kHits, key,
                   fmt::format("of the blocks {} were resident and {} not, hits is {}, misses is {}", resident,
                               blocks - resident, hits, misses));
        if (!now.blocks.empty() && limits.isBehind(now.blocks.back(), (key >> 10) & 1023))
            broken(kRange, key,
                   fmt::format("block {} of {} tokens begins behind the sequence's end", now.blocks.back(),
                               limits.blockSize));
        if (!limits.scored && !now.scores.empty()) broken(kScores, key, "the blob holds scores, the level is not full");
        Before& before = heads[key & ((std::int64_t(1) << trace::kSelectionShift) - 1)];
        if (!rows.isNull(2) && before.step == step - 1)
            if (const std::int64_t kept = inBoth(before.blocks, now.blocks); kept != rows.int64(2))
                broken(kKept, key,
                       fmt::format("{} blocks were selected one step before, kept is {}", kept, rows.int64(2)));
        before.step = step;
        before.blocks.swap(now.blocks);
    }
}

} // namespace kvscope::check

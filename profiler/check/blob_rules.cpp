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

enum Rule { kDecodes, kCount, kHits, kKept };
constexpr std::array<BlobRule, kBlobRules> kRules{
    {{"blob", "the blocks of a selection are one valid blob", Concern::Selection, Needs::Selections},
     {"blob-count", "a selection has as many blocks as selected says", Concern::Selection, Needs::Selections},
     {"blob-hits", "hits and misses of a selection are those of its blocks", Concern::Hits, Needs::Hits},
     {"blob-kept", "kept is how many blocks the step before has selected, too", Concern::Selection,
      Needs::Selections}}};

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

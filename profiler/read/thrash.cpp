#include "profiler/read/thrash.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <unordered_map>

namespace kvscope {
namespace {

constexpr int kMostWindow = 64; // of the knob `window`

/// One decode row of an iteration.
struct DecodeMember {
    int iteration = 0, row = 0;
    std::int64_t request = 0, misses = 0;
};

std::vector<DecodeMember> readDecodeMembers(Connection& connection, int runId) {
    std::vector<DecodeMember> members;
    Statement rows(connection,
                   "SELECT iteration, row, request, misses FROM v_member WHERE run_id = ? AND kind = 'decode'"
                   " ORDER BY iteration");
    rows.bindAll(runId);
    while (rows.step())
        members.push_back({rows.int32(0), rows.int32(1), rows.int64(2), std::max<std::int64_t>(0, rows.int64(3))});
    return members;
}

ThrashRow& rowOf(Thrash& thrash, int iteration) {
    if (thrash.rows.empty() || thrash.rows.back().iteration != iteration) thrash.rows.push_back({iteration, 0, 0});
    return thrash.rows.back();
}

/// Counts block by block. @return whether the trace has blocks
bool countBlocks(const ReaderAccess::Impl& impl, int runId, const std::vector<DecodeMember>& members, Thrash& thrash) {
    std::unordered_map<std::int64_t, std::int64_t> owners; // by iteration and row
    for (const DecodeMember& member : members)
        owners[std::int64_t(member.iteration) << 10 | member.row] = member.request;
    struct Pool { // one KV head of one layer of a request
        std::unordered_map<std::int32_t, int> lastStep;
        int steps = 0;
    };
    std::unordered_map<std::int64_t, std::unordered_map<int, Pool>> pools; // by request, then by head
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    Statement rows(*impl.connection, "SELECT id, blocks FROM selection WHERE id BETWEEN ? AND ? AND blocks NOT NULL"
                                     " ORDER BY id");
    rows.bindAll(low, high);
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    bool any = false;
    while (rows.step()) {
        const std::int64_t id = rows.int64(0);
        const int step = trace::stepOf(id, trace::kSelectionShift);
        const auto owner = owners.find(std::int64_t(step) << 10 | (id >> 10 & 1023));
        if (owner == owners.end()) continue; // nobody decoded in the row: only in a damaged file
        if (!decodeSelection(rows.blob(1), blocks, scores))
            impl.damaged(fmt::format("a selection of step {} cannot be decoded", step));
        any = true;
        ThrashRow& row = rowOf(thrash, step);
        Pool& pool = pools[owner->second][int(id >> 20 & 1023) << 10 | int(id & 1023)];
        for (const PackedBlock block : blocks) {
            const auto [last, isNew] = pool.lastStep.try_emplace(block.id(), pool.steps);
            if (!block.hit()) {
                ++row.misses;
                if (!isNew && pool.steps - last->second <= thrash.window) ++row.again;
            }
            last->second = pool.steps;
        }
        ++pool.steps;
    }
    return any;
}

/// Estimates the counts without blocks, from numbers of members and iterations that every serving trace has: the misses
/// of a request that decoded in the iteration before, too, count as again, but for the iteration's surprises.
void countMembers(Connection& connection, int runId, const std::vector<DecodeMember>& members, Thrash& thrash) {
    std::unordered_map<int, std::int64_t> surprises;
    Statement rows(connection, "SELECT iteration, surprises FROM v_iteration WHERE run_id = ?");
    rows.bindAll(runId);
    while (rows.step()) surprises[rows.int32(0)] = std::max<std::int64_t>(0, rows.int64(1));
    std::unordered_map<std::int64_t, int> lastIteration; // by request
    for (const DecodeMember& member : members) {
        ThrashRow& row = rowOf(thrash, member.iteration);
        row.misses += member.misses;
        const auto [last, isNew] = lastIteration.try_emplace(member.request, member.iteration);
        if (!isNew && last->second == member.iteration - 1) row.again += member.misses;
        last->second = member.iteration;
    }
    for (ThrashRow& row : thrash.rows) row.again = std::max<std::int64_t>(0, row.again - surprises[row.iteration]);
}

} // namespace

Thrash readThrash(const TraceReader& reader, int runId, bool selections) {
    const ReaderAccess::Impl& impl = ReaderAccess::of(reader);
    const RunRow run = impl.known(runId);
    Thrash thrash;
    if (!run.serves() || !impl.hasTable("member")) return thrash;
    const nlohmann::json knobs = parseJson(run.metaOr(run_meta::kServing));
    const nlohmann::json& window = member(knobs, "window");
    if (window.is_number_integer() && window >= 1 && window <= kMostWindow) thrash.window = window.get<int>();
    const std::vector<DecodeMember> members = readDecodeMembers(*impl.connection, runId);
    if (selections && countBlocks(impl, runId, members, thrash)) {
        thrash.basis = Thrash::Basis::Selections;
    } else if (run.sharesPool()) {
        countMembers(*impl.connection, runId, members, thrash);
        thrash.basis = Thrash::Basis::Counters;
    }
    return thrash;
}

std::vector<double> thrashOverTime(const std::vector<ThrashRow>& rows, const std::vector<double>& iterationEnd,
                                   double spanNs) {
    std::vector<double> shares;
    shares.reserve(rows.size());
    std::int64_t misses = 0, again = 0;
    std::size_t first = 0; // place of the first row within the span
    for (std::size_t i = 0; i < rows.size(); ++i) {
        misses += rows[i].misses, again += rows[i].again;
        for (; iterationEnd[first] <= iterationEnd[i] - spanNs; ++first)
            misses -= rows[first].misses, again -= rows[first].again;
        shares.push_back(misses > 0 ? double(again) / double(misses) : std::numeric_limits<double>::quiet_NaN());
    }
    return shares;
}

} // namespace kvscope

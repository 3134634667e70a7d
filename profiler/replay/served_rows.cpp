#include "profiler/replay/served_rows.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>

namespace kvscope {

ServedRows::ServedRows(Connection& connection, const RunRow& run, int lastStep) {
    const auto [low, high] = trace::keysOfSteps(run.runId, 0, lastStep, trace::kLayerShift);
    Statement members(connection,
                      "SELECT m.id, m.request, q.prompt_tokens FROM member m JOIN request q ON q.id = (?1 << 40 |"
                      " m.request) WHERE m.id BETWEEN ?2 AND ?3 AND m.kind = 0 ORDER BY m.id");
    members.bindAll(run.runId, low, high);
    std::unordered_map<std::int64_t, std::int64_t> steps; // that a request has made
    while (members.step()) {
        const std::int64_t id = members.int64(0), request = members.int64(1);
        requestAt_[id & (trace::memberKey(1, 0, 0) - 1)] = request;
        rowOf_[request] = int(id & (trace::kMaxSequences - 1));
        constexpr std::int64_t kLongest = std::int64_t(1) << 40; // a damaged number must not overflow the sum
        const std::int64_t prompt = std::clamp<std::int64_t>(members.int64(2), -kLongest, kLongest);
        decoded_.push_back({trace::stepOf(id, trace::kLayerShift), request, prompt + steps[request]++});
    }
    Statement events(connection, "SELECT iteration, request FROM row_event WHERE id BETWEEN ?1 << 40 AND (?1 << 40) |"
                                 " 0xFFFFFFFFFF AND kind IN ('paused', 'released') ORDER BY id");
    events.bindAll(run.runId);
    while (events.step()) leaves_.push_back({std::clamp(events.int32(0), 0, trace::kMaxStep), events.int64(1)});
    std::ranges::stable_sort(leaves_, {}, &RequestLeave::step); // of a damaged file, too
}

std::int64_t ServedRows::requestAt(int step, int row) const {
    const auto found = requestAt_.find(trace::memberKey(0, step, row));
    return found == requestAt_.end() ? -1 : found->second;
}

int ServedRows::rowOf(std::int64_t request) const {
    const auto found = rowOf_.find(request);
    return found == rowOf_.end() ? -1 : found->second;
}

} // namespace kvscope

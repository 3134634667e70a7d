#include "profiler/read/window_overlap.h"

#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <unordered_set>

namespace kvscope {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? double(part) / double(whole) : std::numeric_limits<double>::quiet_NaN();
}

/// Which request decoded in a row of a serving run's batch, by the key of a member without its run.
std::unordered_map<std::int64_t, std::int64_t> readOwners(const ReaderAccess::Impl& impl, int runId) {
    std::unordered_map<std::int64_t, std::int64_t> owners;
    if (!impl.hasTable("member")) return owners;
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kLayerShift);
    Statement members(*impl.connection, "SELECT id, request FROM member WHERE id BETWEEN ? AND ? AND kind = 0");
    members.bindAll(low, high);
    while (members.step()) owners[members.int64(0) & (trace::memberKey(1, 0, 0) - 1)] = members.int64(1);
    return owners;
}

} // namespace

double WindowOverlap::overlap(int w) const { return ratio(windows[w - 1].found, blocks); }

double WindowOverlap::workingSet(int w) const {
    const Window& window = windows[w - 1];
    return ratio(window.held, window.last);
}

double WindowOverlap::heldByPool(int w) const {
    const Window& window = windows[w - 1];
    return ratio(window.held, window.steps);
}

void WindowCounter::add(std::span<const std::int32_t> blocks, WindowOverlap& sums) {
    const int longest = sums.windows.count();
    if (longest == 0) return;
    lastIn_.resize(longest);
    returned_.assign(longest, 0);
    const auto place = [&](std::int64_t step) { return int(step % longest); };
    lastIn_[place(steps_)] = 0; // the step that had this place is in no window that ends here
    for (const std::int32_t block : blocks) {
        const auto [entry, isNew] = lastStep_.try_emplace(block, steps_);
        ++lastIn_[place(steps_)];
        if (isNew) continue;
        const std::int64_t distance = steps_ - entry->second;
        if (distance <= longest) ++returned_[int(distance) - 1];
        if (distance < longest) --lastIn_[place(entry->second)];
        entry->second = steps_;
    }
    const auto size = std::int64_t(blocks.size());
    if (steps_ > 0) sums.blocks += size;
    std::int64_t found = 0, held = 0;
    for (int before = 0; before < longest; ++before) { // the window of before + 1 steps
        WindowOverlap::Window& window = sums.windows[before];
        found += returned_[before];
        if (steps_ > 0) window.found += found;
        if (before > steps_) continue;
        held += lastIn_[place(steps_ - before)];
        window.held += held;
        window.last += size;
        ++window.steps;
    }
    ++steps_;
}

WindowOverlap readWindowOverlap(const TraceReader& reader, int runId, int longest) {
    const ReaderAccess::Impl& impl = ReaderAccess::of(reader);
    const RunRow run = impl.known(runId);
    WindowOverlap sums(longest);
    std::unordered_set<int> prefill;
    for (const StepRow& step : reader.steps(runId))
        if (step.phase != Phase::Decode) prefill.insert(step.step);
    const bool serves = run.serves();
    const auto owners = serves ? readOwners(impl, runId) : std::unordered_map<std::int64_t, std::int64_t>();
    std::unordered_map<std::int64_t, std::unordered_map<std::int64_t, WindowCounter>> pools; // by owner, then by head
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    Statement rows(*impl.connection, "SELECT id, blocks FROM selection WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(low, high);
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    std::vector<std::int32_t> ids;
    while (rows.step()) {
        const std::int64_t id = rows.int64(0);
        const int step = trace::stepOf(id, trace::kSelectionShift), layer = int(id >> 20 & 1023),
                  sequence = int(id >> 10 & 1023), kvHead = int(id & 1023);
        if (rows.isNull(1) || prefill.contains(step)) continue;
        if (!decodeSelection(rows.blob(1), blocks, scores))
            impl.damaged(fmt::format("the selection of step {}, layer {}, sequence {}, KV head {} cannot be decoded",
                                     step, layer, sequence, kvHead));
        std::int64_t owner = sequence;
        if (serves) {
            const auto found = owners.find(trace::memberKey(0, step, sequence));
            if (found == owners.end()) continue; // nobody decoded in the row: only in a damaged file
            owner = found->second;
        }
        ids.clear();
        for (const PackedBlock block : blocks) ids.push_back(block.id());
        pools[owner][std::int64_t(layer) << 10 | kvHead].add(ids, sums);
    }
    while (!sums.windows.empty() && sums.windows.back().steps == 0) sums.windows.pop_back();
    return sums;
}

} // namespace kvscope

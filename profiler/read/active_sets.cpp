#include "profiler/read/active_sets.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <cmath>

namespace kvscope {

std::vector<ActiveSets> readActiveSets(const TraceReader& reader, int runId) {
    std::vector<ActiveSets> out;
    const auto& impl = ReaderAccess::of(reader);
    if (runId < 1 || runId > trace::kMaxRuns || !impl.hasTable("denoise_layer")) return out;
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    // a damaged file may hold shares that are none
    Statement rows(*impl.connection, "SELECT active, count(*), avg(pages), avg(density) FROM denoise_layer"
                                     " WHERE id BETWEEN ? AND ? AND mode = 1 AND active > 0 AND active <= 64"
                                     " AND density BETWEEN 0 AND 1 GROUP BY active ORDER BY active");
    rows.bindAll(low, high);
    while (rows.step()) out.push_back({rows.int32(0), rows.int64(1), rows.real(2), rows.real(3)});
    return out;
}

ActiveSets together(const std::vector<ActiveSets>& sets) {
    ActiveSets all;
    double active = 0;
    for (const ActiveSets& one : sets) {
        all.rows += one.rows;
        active += double(one.rows) * one.active;
        all.pages += double(one.rows) * one.pages;
        all.density += double(one.rows) * one.density;
    }
    if (all.rows == 0) return all;
    all.active = int(std::lround(active / double(all.rows)));
    all.pages /= double(all.rows);
    all.density /= double(all.rows);
    return all;
}

} // namespace kvscope

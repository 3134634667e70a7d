#include "profiler/read/link_clock.h"

#include "core/trace/run_meta.h"
#include "core/trace/trace_sink.h"
#include "profiler/format/run_fact.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/run_knowledge.h"
#include "profiler/read/sane_times.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope {
namespace {

constexpr int kMostKernels = 512;
/// Two clocks of one GPU differ by a constant. A larger spread means that the kernels do not belong to the stages that
/// they are compared with, for example because blocks travel while another layer computes.
constexpr std::int64_t kLargestSpreadNs = 5'000;

std::int64_t median(std::vector<std::int64_t> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

bool hasSpans(Connection& connection) {
    Statement found(connection, "SELECT count(*) FROM sqlite_schema WHERE type='table' AND name IN ('span', 'text')");
    return found.step() && found.int64(0) == 2;
}

/// Whether KVScope's own engine made the run. Older traces do not say it and count as made by it.
bool isOurs(Connection& connection, int runId) {
    if (!hasRunMeta(connection)) return true;
    Statement engine(connection, "SELECT value FROM run_meta WHERE run_id = ? AND key = ?");
    engine.bindAll(runId, std::string_view(run_meta::kEngine));
    return !engine.step() || engine.text(0) == "kvscope";
}

} // namespace

const char* LinkClock::name() const {
    constexpr const char* names[] = {"modelled", "engine's clock", "GPU timer", "CUPTI's clock"};
    return names[int(source)];
}

LinkClock linkClockOf(Connection& connection, int runId) {
    LinkClock clock;
    Statement run(connection, "SELECT timing, backend FROM run WHERE run_id = ?");
    run.bindAll(runId);
    if (!run.step() || RunFact<Timing>::parse(run.text(0)) != Timing::Measured) return clock;
    const bool own = RunFact<RunBackend>::parse(run.text(1)) == RunBackend::Cuda && isOurs(connection, runId);
    clock.source = own ? LinkClock::Source::GpuTimer : LinkClock::Source::Engine;
    if (!own || !hasSpans(connection)) return clock;
    // First the names, of which there are few: without the kernel, the long table of spans is not read at all.
    // Older traces have the stage in the name.
    std::vector<std::pair<std::int64_t, bool>> names; // and whether they are such
    Statement texts(connection, "SELECT id, value LIKE 'offloading: %' FROM text WHERE value LIKE 'gather%'"
                                " OR value LIKE 'offloading: gather%' LIMIT 16");
    while (texts.step()) names.emplace_back(texts.int64(0), texts.int64(1) != 0);
    std::vector<std::int64_t> apart;
    for (const auto& [name, isWhole] : names) {
        Statement kernels(
            connection,
            fmt::format("SELECT step, layer, start_ns, duration_ns FROM span"
                        " WHERE run_id = ? AND kind = 1 AND name = ? AND layer >= 0 AND {}"
                        " ORDER BY id LIMIT ?",
                        isWhole ? "stage IS NULL" : "stage = (SELECT id FROM text WHERE value = 'offloading')"));
        kernels.bindAll(runId, name, kMostKernels);
        Statement stage(connection,
                        "SELECT start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns"
                        " + offloading_ns FROM layer_step WHERE id = ? AND h2d_bytes + d2h_bytes > 0");
        while (kernels.step()) {
            const std::int64_t step = kernels.int64(0), layer = kernels.int64(1);
            if (step < 0 || step > trace::kMaxStep || layer >= trace::kMaxLayers) continue;
            stage.reset();
            stage.bindAll(trace::layerKey(runId, int(step), int(layer)));
            if (!stage.step()) continue;
            const std::int64_t end = saneTime(saneTime(kernels.int64(2)) + saneDuration(kernels.int64(3)));
            apart.push_back(end - saneTime(stage.int64(0)));
        }
    }
    if (apart.empty()) return clock;
    const std::int64_t offset = median(apart);
    for (std::int64_t& each : apart) each = std::abs(each - offset);
    const std::int64_t spread = median(apart);
    if (spread > kLargestSpreadNs) return clock;
    clock.source = LinkClock::Source::Cupti;
    clock.offsetNs = offset;
    clock.spreadNs = spread;
    clock.samples = int(apart.size());
    return clock;
}

std::int64_t transferStart(const LinkClock& clock, std::int64_t stageStartNs, std::int64_t stageNs, std::int64_t h2dNs,
                           std::int64_t d2hNs) {
    if (clock.source == LinkClock::Source::Modelled || clock.source == LinkClock::Source::Engine) return stageStartNs;
    const std::int64_t end = saneTime(stageStartNs + saneDuration(stageNs)),
                       moved = saneDuration(saneDuration(h2dNs) + saneDuration(d2hNs));
    return saneTime(end - moved + clock.offsetNs);
}

} // namespace kvscope

// A 1 GB trace in the window, in every view: time to the first picture, to the whole of it, the longest moment in which
// nothing else is answered, frame times once it is there, and memory; the locality once more with its tiles in the
// cache.
#include "bench/selection_trace_file.h"
#include "bench/ui/shown_view.h"
#include "bench/ui/ui_bench.h"
#include "ui/views/view.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::bench {

namespace {

constexpr int kLayersRun = 1, kMaskRun = 2; // of the generated file

nlohmann::ordered_json measure(const std::string& id, const char* cache, const BenchFolder& folder, const Log& log) {
    const std::int64_t before = residentBytes();
    ShownView shown(id.c_str(), {1600, 1000});
    const bool mask = id == "selection", compares = id == "compare";
    const auto opening = shown.open(folder.trace(), mask ? kMaskRun : kLayersRun, compares ? kMaskRun : 0);
    nlohmann::ordered_json result{{"first_picture_ms", opening.firstPicture},
                                  {"everything_read_ms", opening.everything},
                                  {"longest_stall_ms", opening.longestStall},
                                  {"resident_mb", double(residentBytes() - before) / 1e6}};
    std::string frames = "no plot";
    if (const auto* plot = shown.plot(); plot && plot->emptyText().isEmpty()) {
        result["frames"] = frameTimes(shown.tour(1));
        frames = fmt::format("frame median {:.1f} ms, 99th percentile {:.1f} ms",
                             result["frames"]["median_ms"].get<double>(), result["frames"]["p99_ms"].get<double>());
    }
    log(fmt::format("{}, cache {}: first picture {:.0f} ms, everything {:.0f} ms, longest stall {:.0f} ms; {}", id,
                    cache, opening.firstPicture, opening.everything, opening.longestStall, frames));
    return result;
}

} // namespace

nlohmann::ordered_json traceOpen(const Settings& settings, const Log& log) {
    HeatTraceShape shape = heatTraceShape(settings);
    if (!settings.contains("layers")) shape.layers = 135; // 1 GB with 100,000 steps
    const BenchFolder folder;
    const auto bytes = writeHeatTrace(folder.trace(), shape, log);
    nlohmann::ordered_json result{{"trace_mb", double(bytes) / 1e6}, {"steps", shape.steps}, {"layers", shape.layers}};
    for (const ui::ViewEntry& view : ui::views()) {
        if (const auto only = settings.find("view"); only != settings.end() && only->second != view.id) continue;
        if (shape.blocks == 0 && std::string_view(view.id) == "selection") continue;
        folder.emptyCache();
        result["cache_empty"][view.id] = measure(view.id, "empty", folder, log);
        if (std::string_view(view.id) == "locality")
            result["cache_filled"][view.id] = measure(view.id, "filled", folder, log);
    }
    result["tiles_in_cache_mb"] = double(folder.cacheBytes()) / 1e6;
    return result;
}

} // namespace kvscope::bench

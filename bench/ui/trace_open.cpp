// Opens a trace of 1 GB in every view and measures the time to the first picture, the time until all is read, the
// longest time in which the window answers nothing else, frame times after that, and memory. The locality view is
// opened a second time with its tiles in the cache. With --set trace=FILE the trace is that file.
#include "bench/selection_trace_file.h"
#include "bench/ui/shown_view.h"
#include "bench/ui/ui_bench.h"
#include "ui/frame/view.h"

#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::bench {

namespace {

constexpr int kLayersRun = 1, kMaskRun = 2; // of the generated file

/// A trace that is opened, and the runs of it that are shown.
struct Opened {
    std::string trace;
    int run = kLayersRun, mask = kMaskRun, compared = kMaskRun;
};

nlohmann::ordered_json measure(const std::string& id, const char* cache, const Opened& what, const Log& log) {
    const std::int64_t before = residentBytes();
    ShownView shown(id.c_str(), {1600, 1000});
    const bool mask = id == "selection", compares = id == "compare";
    const auto opening = shown.open(what.trace, mask ? what.mask : what.run, compares ? what.compared : 0);
    nlohmann::ordered_json result{{"first_picture_ms", opening.firstPicture},
                                  {"everything_read_ms", opening.everything},
                                  {"longest_stall_ms", opening.longestStall},
                                  {"resident_mb", double(residentBytes() - before) / 1e6}};
    std::string frames = "no plot";
    if (shown.drawsFrames()) {
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
    const BenchFolder folder;
    Opened what{folder.trace()};
    nlohmann::ordered_json result;
    const auto given = settings.find("trace");
    bool masks = true;
    if (given != settings.end()) { // a person's own file: its first run is opened
        what = {given->second, 1, 1, 0};
        result["trace_mb"] = double(std::filesystem::file_size(given->second)) / 1e6;
    } else {
        HeatTraceShape shape = heatTraceShape(settings);
        if (!settings.contains("layers")) shape.layers = 135; // 1 GB with 100,000 steps
        masks = shape.blocks > 0;
        const auto bytes = writeHeatTrace(what.trace, shape, log);
        result = {{"trace_mb", double(bytes) / 1e6}, {"steps", shape.steps}, {"layers", shape.layers}};
    }
    for (const ui::ViewEntry& view : ui::views()) {
        if (const auto only = settings.find("view"); only != settings.end() && only->second != view.id) continue;
        if (!masks && std::string_view(view.id) == "selection") continue;
        folder.emptyCache();
        result["cache_empty"][view.id] = measure(view.id, "empty", what, log);
        if (std::string_view(view.id) == "locality")
            result["cache_filled"][view.id] = measure(view.id, "filled", what, log);
    }
    result["tiles_in_cache_mb"] = double(folder.cacheBytes()) / 1e6;
    return result;
}

} // namespace kvscope::bench

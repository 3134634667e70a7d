// A 1 GB trace in the window: time to the first picture, to the whole of it, the longest moment in which nothing else
// is answered, and memory; then once more, with its tiles in the cache.
#include "bench/selection_trace_file.h"
#include "bench/ui/shown_view.h"
#include "bench/ui/ui_bench.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {

nlohmann::ordered_json traceOpen(const Settings& settings, const Log& log) {
    HeatTraceShape shape = heatTraceShape(settings);
    if (!settings.contains("blocks")) shape.blocks = 0;   // one run of many layers
    if (!settings.contains("layers")) shape.layers = 135; // 1 GB with 100,000 steps
    const BenchFolder folder;
    const auto bytes = writeHeatTrace(folder.trace(), shape, log);
    nlohmann::ordered_json result{{"trace_mb", double(bytes) / 1e6}, {"steps", shape.steps}, {"layers", shape.layers}};
    for (const char* cache : {"empty", "filled"}) {
        const std::int64_t before = residentBytes();
        ShownView shown("locality", {1600, 1000});
        const auto opening = shown.open(folder.trace(), 1);
        log(fmt::format("cache {}: first picture after {:.0f} ms, everything after {:.0f} ms", cache,
                        opening.firstPicture, opening.everything));
        result[std::string("cache_") + cache] = {{"first_picture_ms", opening.firstPicture},
                                                 {"everything_read_ms", opening.everything},
                                                 {"longest_stall_ms", opening.longestStall},
                                                 {"resident_mb", double(residentBytes() - before) / 1e6}};
    }
    result["tiles_in_cache_mb"] = double(folder.cacheBytes()) / 1e6;
    return result;
}

} // namespace kvscope::bench

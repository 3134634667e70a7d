#include "bench/ui/ui_bench.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace kvscope::bench {

nlohmann::ordered_json traceOpen(const Settings& settings, const Log& log);
nlohmann::ordered_json uiHeatmap(const Settings& settings, const Log& log);
nlohmann::ordered_json uiTimeline(const Settings& settings, const Log& log);
nlohmann::ordered_json uiLive(const Settings& settings, const Log& log);

std::span<const UiBenchEntry> uiBenchmarks() {
    static const std::vector<UiBenchEntry> table{
        {"ui-live", uiLive},
        {"ui-timeline", uiTimeline},
        {"trace-open", traceOpen},
        {"ui-heatmap", uiHeatmap},
    };
    return table;
}

} // namespace kvscope::bench

#include "bench/ui/ui_bench.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace kvscope::bench {

nlohmann::ordered_json traceOpen(const Settings& settings, const Log& log);
nlohmann::ordered_json uiHeatmap(const Settings& settings, const Log& log);

std::span<const UiBenchEntry> uiBenchmarks() {
    static const std::vector<UiBenchEntry> table{
        UiBenchEntry{"trace-open", traceOpen},
        UiBenchEntry{"ui-heatmap", uiHeatmap},
    };
    return table;
}

} // namespace kvscope::bench

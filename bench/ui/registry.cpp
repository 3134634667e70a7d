#include "bench/ui/ui_bench.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace kvscope::bench {

nlohmann::ordered_json uiTimeline(const Settings& settings, const Log& log);

std::span<const UiBenchEntry> uiBenchmarks() {
    static const std::vector<UiBenchEntry> table{
        UiBenchEntry{"ui-timeline", uiTimeline},
    };
    return table;
}

} // namespace kvscope::bench

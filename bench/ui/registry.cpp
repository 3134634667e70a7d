#include "bench/ui/ui_bench.h"

#include <nlohmann/json.hpp>

#include <vector>

namespace kvscope::bench {

std::span<const UiBenchEntry> uiBenchmarks() {
    static const std::vector<UiBenchEntry> table{};
    return table;
}

} // namespace kvscope::bench

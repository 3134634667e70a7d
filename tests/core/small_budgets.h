// Parameters so small that every method has to choose in prompts of some hundred tokens.
#pragma once

#include "core/select/method.h"

#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

/// Small values for those of the method's parameters that have one.
inline std::vector<std::pair<std::string, std::string>> smallBudgets(const ParameterValues& values) {
    const std::pair<const char*, const char*> small[] = {
        {"block_size", "16"},   {"kernel_size", "8"},    {"kernel_stride", "4"},   {"window_blocks", "2"},
        {"total_blocks", "9"},  {"select_blocks", "3"},  {"heavy_tokens", "60"},   {"recent_tokens", "40"},
        {"k_b", "8"},           {"k_t", "48"},           {"window_tokens", "8"},   {"capacity_tokens", "80"},
        {"page_budget", "8"},   {"local_tokens", "64"},  {"init_tokens", "16"},    {"topk_blocks", "3"},
        {"cached_blocks", "6"}, {"budget_tokens", "96"}, {"outlier_tokens", "16"}, {"local_chunks", "2"},
        {"rank", "24"},         {"stabilizers", "24"},   {"prefill_chunk", "128"}, {"local_len", "12"},
        {"max_num_kv", "40"},   {"exc_block", "96"},     {"warmup_tokens", "600"}};
    std::vector<std::pair<std::string, std::string>> settings;
    for (const auto& [key, value] : small)
        if (values.has(key)) settings.emplace_back(key, value);
    return settings;
}

} // namespace kvscope::test

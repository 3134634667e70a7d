// How ShadowKV divides a prompt into chunks, and its rank; shared by its forms on both backends.
#pragma once

#include "core/select/parameters.h"

#include <algorithm>

namespace kvscope::select {

struct ChunkBudget {
    int chunk, chosen, outliers, local; // tokens, then chunks
    explicit ChunkBudget(const ParameterValues& values)
        : chunk(values.integer("chunk_tokens")), local(values.integer("local_chunks")) {
        const int tokens = values.integer("budget_tokens"), outlierTokens = values.integer("outlier_tokens");
        chosen = (tokens + chunk - 1) / chunk;
        outliers = (outlierTokens + chunk - 1) / chunk;
    }
};

/// The rank of keys that are `width` numbers wide, all KV heads side by side. asked 0: as the paper's 160 of 1024.
inline int rankOf(int asked, int width) { return std::clamp(asked > 0 ? asked : width * 5 / 32, 1, width); }

} // namespace kvscope::select

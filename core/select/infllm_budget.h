// How InfLLM divides its context into blocks; shared by its forms on both backends.
#pragma once

#include "core/select/parameters.h"

#include <algorithm>

namespace kvscope::select {

struct ContextBudget {
    int initBlocks, localTokens, localBlocks, topk, cached;
    explicit ContextBudget(const ParameterValues& values) {
        const int size = values.integer("block_size");
        initBlocks = (values.integer("init_tokens") + size - 1) / size;
        localTokens = values.integer("local_tokens");
        localBlocks = (localTokens + size - 1) / size + 1; // the window begins anywhere in its oldest block
        topk = values.integer("topk_blocks");
        cached = std::max(topk, values.integer("cached_blocks"));
    }
};

} // namespace kvscope::select

// How InfLLM divides its context into blocks; shared by its forms on both backends.
#pragma once

#include "core/select/parameters.h"
#include "kernels/block_worth.h"

#include <algorithm>
#include <cmath>

namespace kvscope::select {

struct ContextBudget {
    int initBlocks, localTokens, localBlocks, topk, cached;
    float usesPerDoubling; // of what a block is worth, see kUsesPerStep
    explicit ContextBudget(const ParameterValues& values) {
        const int size = values.integer("block_size");
        initBlocks = (values.integer("init_tokens") + size - 1) / size;
        localTokens = values.integer("local_tokens");
        localBlocks = (localTokens + size - 1) / size + 1; // the window begins anywhere in its oldest block
        topk = values.integer("topk_blocks");
        cached = std::max(topk, values.integer("cached_blocks"));
        usesPerDoubling = float(kUsesPerStep / -std::log2(values.number("score_decay")));
    }
};

} // namespace kvscope::select

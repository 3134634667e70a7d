// NOSA: query-aware blocks first, the rest of the budget by the eviction head, which bounds the locality from below.
#include "core/select/common_parameters.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {

MethodEntry nosaMethod() {
    MethodEntry entry;
    entry.name = "nosa";
    entry.title = "NOSA";
    entry.source = "NOSA: Native and Offloadable Sparse Attention";
    entry.needs = "an eviction head (self_attn.A and self_attn.delta.weight)";
    entry.needsEvictionHead = true;
    entry.summary =
        "InfLLM-V2's score takes a small query-aware share, the eviction head takes the rest. Only the query-aware "
        "share can change between steps, so locality has a guaranteed lower bound.";
    entry.parameters = {
        select::blockSize(),
        select::sinkBlocks(),
        select::windowBlocks(16),
        select::windowAddsCurrent(),
        select::totalBlocks(),
        {"select_blocks",
         ParameterType::Integer,
         "16",
         0,
         65536,
         "blocks",
         "Query-aware blocks (k_q). With window_adds_current the current block takes one of them, as in the "
         "public code.",
         {},
         select::trainedSelectBlocks},
        select::kernelSize(),
        select::kernelStride(),
        select::denseLen(0),
        select::bias(),
        select::biasScale(),
        select::prefill()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.queryScore = QueryScore::PooledSoftmax;
        spec.agnosticScore = values.text("bias") == "dma" ? AgnosticScore::ExpEviction : AgnosticScore::Eviction;
        const int wanted = values.integer("select_blocks");
        spec.budget.queryAware = std::max(0, spec.budget.windowAddsCurrent ? wanted - 1 : wanted);
        spec.budget.queryAgnostic = select::remainingBlocks(values, spec, spec.budget.queryAware);
        return spec;
    };
    return entry;
}

} // namespace kvscope

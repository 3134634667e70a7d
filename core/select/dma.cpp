// DMA in NOSA's block form: an eviction head alone chooses the blocks, whatever the query (NOSA, Table 7).
#include "core/select/common_parameters.h"

namespace kvscope {

MethodEntry dmaMethod() {
    MethodEntry entry;
    entry.name = "dma";
    entry.title = "DMA (query-agnostic)";
    entry.source = "Trainable Dynamic Mask Sparse Attention, in the block form of NOSA";
    entry.needs = "an eviction head (self_attn.A and self_attn.delta.weight)";
    entry.needsEvictionHead = true;
    entry.summary =
        "The eviction head's score of each token, pooled to blocks, chooses all dynamic blocks. The choice changes "
        "only when a block opens: hardly any transfers, and what is left out never comes back.";
    entry.parameters = {select::blockSize(),         select::sinkBlocks(),  select::windowBlocks(16),
                        select::windowAddsCurrent(), select::totalBlocks(), select::kernelSize(),
                        select::kernelStride(),      select::denseLen(0),   select::bias(),
                        select::biasScale(),         select::prefill()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.agnosticScore = values.text("bias") == "dma" ? AgnosticScore::ExpEviction : AgnosticScore::Eviction;
        spec.budget.queryAgnostic = select::remainingBlocks(values, spec, 0);
        return spec;
    };
    return entry;
}

} // namespace kvscope

// InfLLM-V2 (MiniCPM4): group scores over mean-pooled keys choose the blocks.
#include "core/select/common_parameters.h"

namespace kvscope {

MethodEntry infllmV2Method() {
    MethodEntry entry;
    entry.name = "infllmv2";
    entry.title = "InfLLM-V2";
    entry.source = "MiniCPM4: Ultra-Efficient LLMs on End Devices";
    entry.summary =
        "Mean-pools keys over a fine grid, sums each query head's softmax over it, max-pools to blocks and takes "
        "the best: all dynamic blocks depend on the query.";
    entry.parameters = {select::blockSize(),         select::sinkBlocks(),  select::windowBlocks(16),
                        select::windowAddsCurrent(), select::totalBlocks(), select::kernelSize(),
                        select::kernelStride(),      select::denseLen(0),   select::bias(),
                        select::biasScale(),         select::prefill()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.queryScore = QueryScore::PooledSoftmax;
        spec.budget.queryAware = select::remainingBlocks(values, spec, 0);
        return spec;
    };
    return entry;
}

} // namespace kvscope

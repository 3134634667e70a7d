// Quest (Tang et al., ICML 2024): per-channel key ranges bound q.k of a block from above.
#include "core/select/common_parameters.h"

namespace kvscope {

MethodEntry questMethod() {
    MethodEntry entry;
    entry.name = "quest";
    entry.title = "Quest";
    entry.source = "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference";
    entry.summary =
        "Keeps the smallest and largest key of every channel per block and takes the blocks whose upper bound of "
        "q.k is highest, scores of a group's heads combined. The first layers attend to everything.";
    entry.parameters = {select::blockSize(),
                        select::sinkBlocks(),
                        select::windowBlocks(1),
                        select::windowAddsCurrent(),
                        select::totalBlocks(),
                        {"skip_layers",
                         ParameterType::Integer,
                         "2",
                         0,
                         1024,
                         "layers",
                         "First layers that use full attention and keep their whole cache on the device.",
                         {}},
                        {"group",
                         ParameterType::Choice,
                         "sum",
                         0,
                         0,
                         "",
                         "How the bounds of the query heads that share a KV head are combined.",
                         {"sum", "max"}},
                        select::bias(),
                        select::biasScale(),
                        select::prefill()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.queryScore = QueryScore::RangeBound;
        spec.rangeReduce = values.text("group") == "max" ? GroupReduce::Max : GroupReduce::Sum;
        spec.denseLayers = values.integer("skip_layers");
        spec.budget.queryAware = select::remainingBlocks(values, spec, 0);
        return spec;
    };
    return entry;
}

} // namespace kvscope

// StreamingLLM: attention sinks plus a sliding window (Xiao et al., ICLR 2024), in blocks.
#include "core/select/common_parameters.h"

namespace kvscope {

MethodEntry streamingMethod() {
    MethodEntry entry;
    entry.name = "streaming";
    entry.title = "StreamingLLM";
    entry.source = "Efficient Streaming Language Models with Attention Sinks";
    entry.summary =
        "Attends to the first blocks and the most recent ones; everything between is never read again. Rotary "
        "positions stay those of the text, so that it compares with the other methods on the same cache.";
    // Sink and window are all it has: the same number of blocks as the other methods, for a fair comparison.
    const Parameter window = select::windowBlocks(62).withScale([](const SparseConfig& c) {
        if (c.totalBlocks == 0) return std::optional(std::to_string(c.windowBlocks));
        return std::optional(std::to_string(c.totalBlocks - c.sinkBlocks - (c.windowAddsCurrent ? 1 : 0)));
    });
    entry.parameters = {select::blockSize(), select::sinkBlocks(), window,           select::windowAddsCurrent(),
                        select::bias(),      select::biasScale(),  select::prefill()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        return select::commonSpec(values, config);
    };
    return entry;
}

} // namespace kvscope

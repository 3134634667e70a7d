// The registry: one line per method. The command line, the session form, docs/methods.md and the tests read this table.
#include "core/select/method.h"

#include "core/model/model.h"
#include "kernels/base/error.h"

#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {

MethodEntry fullMethod();
MethodEntry streamingMethod();
MethodEntry questMethod();
MethodEntry infllmV2Method();
MethodEntry dmaMethod();
MethodEntry nosaMethod();
MethodEntry spardaMethod();
MethodEntry infinigenMethod();
MethodEntry infinigenTokenMethod();
MethodEntry doubleSparsityMethod();
MethodEntry asyncTlsMethod();
MethodEntry h2oMethod();
MethodEntry snapKvMethod();
MethodEntry arkValeMethod();
MethodEntry infLlmMethod();
MethodEntry shadowKvMethod();
MethodEntry dmaTokenMethod();
MethodEntry locretMethod();

std::span<const MethodEntry> methods() {
    static const std::array table{
        fullMethod(),    streamingMethod(),      questMethod(),          infllmV2Method(), dmaMethod(),
        nosaMethod(),    doubleSparsityMethod(), asyncTlsMethod(),       h2oMethod(),      snapKvMethod(),
        arkValeMethod(), infLlmMethod(),         shadowKvMethod(),       dmaTokenMethod(), locretMethod(),
        spardaMethod(),  infinigenMethod(),      infinigenTokenMethod(),
    };
    return table;
}

const MethodEntry& findMethod(std::string_view name) {
    std::vector<std::string> known;
    for (const MethodEntry& entry : methods()) {
        if (entry.name == name) return entry;
        known.push_back(entry.name);
    }
    throw Error(ErrorKind::BadInput, fmt::format("unknown method '{}'", name),
                fmt::format("known methods: {}", fmt::join(known, ", ")));
}

ParameterValues resolveDefaults(const MethodEntry& method, const ModelConfig& config) {
    ParameterValues values;
    for (const Parameter& parameter : method.parameters)
        values.set(method.parameters, parameter.key, parameter.defaultValue);
    if (!config.sparse) return values;
    const SparseConfig& sparse = *config.sparse;
    const auto assign = [&](const char* key, const std::string& value) {
        if (values.has(key)) values.set(method.parameters, key, value);
    };
    assign("block_size", std::to_string(sparse.blockSize));
    assign("kernel_size", std::to_string(sparse.kernelSize));
    assign("kernel_stride", std::to_string(sparse.kernelStride));
    // Checkpoints trained for short contexts: budgets in proportion, or a method would keep everything.
    if (sparse.totalBlocks > 0) {
        const int dynamic = std::max(1, sparse.totalBlocks - sparse.sinkBlocks - sparse.windowBlocks);
        assign("k_b", std::to_string(sparse.totalBlocks));
        assign("page_budget", std::to_string(sparse.totalBlocks));
        assign("init_tokens", std::to_string(sparse.sinkBlocks * sparse.blockSize));
        assign("local_tokens", std::to_string(std::max(1, sparse.windowBlocks) * sparse.blockSize));
        assign("topk_blocks", std::to_string(dynamic));
        assign("cached_blocks", std::to_string(2 * dynamic));
        assign("budget_tokens", std::to_string(dynamic * sparse.blockSize));
        assign("stabilizers", std::to_string(dynamic * sparse.blockSize * 5 / 12));     // Locret's 2500 of 6000
        assign("prefill_chunk", std::to_string(dynamic * sparse.blockSize * 64 / 125)); // and 3072
        assign("outlier_tokens", std::to_string(dynamic * sparse.blockSize * 3 / 16));  // the paper's share
    }
    assign("window_adds_current", sparse.windowAddsCurrent ? "true" : "false");
    assign("dense_len", std::to_string(std::max(0, sparse.denseLen)));
    // A checkpoint trained with sparse attention in every layer has no dense layers to keep (Quest keeps two by
    // default).
    assign("skip_layers", "0");
    if (method.ownWindow) return values;
    assign("sink_blocks", std::to_string(sparse.sinkBlocks));
    if (sparse.totalBlocks > 0) assign("total_blocks", std::to_string(sparse.totalBlocks));
    if (sparse.queryAwareBlocks > 0) assign("select_blocks", std::to_string(sparse.queryAwareBlocks));
    if (values.has("total_blocks") || sparse.totalBlocks == 0)
        assign("window_blocks", std::to_string(sparse.windowBlocks));
    else // StreamingLLM has sink and window only: the same number of blocks as the other methods, for a fair comparison
        assign("window_blocks",
               std::to_string(sparse.totalBlocks - sparse.sinkBlocks - (sparse.windowAddsCurrent ? 1 : 0)));
    return values;
}

bool hasWeightsFor(const MethodEntry& method, const Model& model) {
    return (!method.needsEvictionHead || model.hasEvictionHead()) &&
           (!method.needsForecastHeads || model.hasForecastHeads()) &&
           (method.hasOwnWeights == nullptr || method.hasOwnWeights(model));
}

} // namespace kvscope

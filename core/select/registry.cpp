// The registry: one line per method. The command line, the session form, docs/methods.md and the tests read this table.
#include "core/select/method.h"

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

std::span<const MethodEntry> methods() {
    static const std::array table{
        fullMethod(), streamingMethod(), questMethod(),  infllmV2Method(),
        dmaMethod(),  nosaMethod(),      spardaMethod(), infinigenMethod(),
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
    assign("sink_blocks", std::to_string(sparse.sinkBlocks));
    assign("window_adds_current", sparse.windowAddsCurrent ? "true" : "false");
    assign("dense_len", std::to_string(std::max(0, sparse.denseLen)));
    // A checkpoint trained with sparse attention in every layer has no dense layers to keep (Quest keeps two by
    // default).
    assign("skip_layers", "0");
    if (sparse.totalBlocks > 0) assign("total_blocks", std::to_string(sparse.totalBlocks));
    if (sparse.queryAwareBlocks > 0) assign("select_blocks", std::to_string(sparse.queryAwareBlocks));
    if (values.has("total_blocks") || sparse.totalBlocks == 0)
        assign("window_blocks", std::to_string(sparse.windowBlocks));
    else // StreamingLLM has sink and window only: the same number of blocks as the other methods, for a fair comparison
        assign("window_blocks",
               std::to_string(sparse.totalBlocks - sparse.sinkBlocks - (sparse.windowAddsCurrent ? 1 : 0)));
    return values;
}

} // namespace kvscope

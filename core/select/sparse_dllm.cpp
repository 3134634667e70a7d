// Sparse-dLLM: what a block of a canvas attends to is chosen once, by the block's own queries, and the rest is evicted.
#include "core/model/model.h"
#include "core/select/canvas.h"
#include "core/select/method.h"

#include "base/error.h"

namespace kvscope {

MethodEntry sparseDllmMethod() {
    MethodEntry entry;
    entry.name = "sparse-dllm";
    entry.title = "Sparse-dLLM";
    entry.source = "Sparse-dLLM: Accelerating Diffusion LLMs with Dynamic Cache Eviction";
    entry.needs = "weights trained for masked diffusion";
    entry.summary =
        "For masked-diffusion models. The first two forwards of a block compute everything. In the second one every "
        "layer keeps the keys and values of the tokens outside the block that the block's mean query agrees with most. "
        "The forwards that follow compute the block alone, which attends to these and to itself.";
    entry.parameters = select::evictingCanvasParameters(false);
    entry.canvasParameters = entry.parameters;
    entry.shiftedCanvasParameters = select::evictingCanvasParameters(true);
    entry.decodesTokens = false;
    entry.hasOwnWeights = [](const Model& model) {
        const auto& diffusion = model.config().diffusion;
        return diffusion.has_value() && diffusion->canvas;
    };
    entry.blocksTravel = false;
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (!config.diffusion || !config.diffusion->canvas)
            throw Error(ErrorKind::Unsupported, "method sparse-dllm needs weights trained for masked diffusion",
                        "use a checkpoint of the families LLaDA and Dream");
        return select::evictingCanvasSpec(values);
    };
    return entry;
}

} // namespace kvscope

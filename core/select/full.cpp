// Full causal attention: every block, everything resident.
#include "core/select/canvas.h"
#include "core/select/common_parameters.h"
#include "core/select/denoising.h"

namespace kvscope {

MethodEntry fullMethod() {
    MethodEntry entry;
    entry.name = "full";
    entry.title = "Full attention";
    entry.source = "exact causal attention";
    entry.summary =
        "Attends to every cached token; all KV blocks stay on the device. The reference every other method is "
        "measured against.";
    entry.parameters = {select::blockSize(), select::bias(), select::biasScale()};
    entry.denoisingParameters = select::denoisingParameters();
    entry.canvasParameters = select::canvasParameters(false);
    entry.shiftedCanvasParameters = select::canvasParameters(true);
    entry.blocksTravel = false;
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (config.diffusion && config.diffusion->canvas) return select::canvasSpec(values);
        if (config.diffusion) return select::denoisingSpec(values);
        SelectionSpec spec = select::commonSpec(values, config);
        spec.dense = true;
        return spec;
    };
    return entry;
}

} // namespace kvscope

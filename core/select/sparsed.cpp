// SparseD: a mask of tiles for every query head, made once and kept while a block is denoised.
#include "core/model/model.h"
#include "core/select/canvas.h"
#include "core/select/denoising.h"
#include "core/select/method.h"

#include "base/error.h"

namespace kvscope {

MethodEntry sparsedMethod() {
    MethodEntry entry;
    entry.name = "sparsed";
    entry.title = "SparseD";
    entry.source = "SparseD: Sparse Attention for Diffusion Language Models";
    entry.needs = "weights trained for block diffusion or masked diffusion";
    entry.summary =
        "For models that denoise. The first forwards, of a block or of a canvas, attend to everything. In the last one "
        "of them every query head chooses, for each tile of tokens, the tiles that hold most of its attention: of the "
        "prefix of a block, where attention inside the block is exact, or of prompt and canvas. The forwards that "
        "follow attend to these.";
    entry.parameters = select::tileDenoisingParameters();
    entry.denoisingParameters = entry.parameters;
    entry.canvasParameters = select::tileCanvasParameters(false);
    entry.shiftedCanvasParameters = select::tileCanvasParameters(true);
    entry.decodesTokens = false;
    entry.hasOwnWeights = [](const Model& model) { return model.config().diffusion.has_value(); };
    entry.blocksTravel = false;
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (!config.diffusion)
            throw Error(ErrorKind::Unsupported,
                        "method sparsed needs weights trained for block diffusion or masked diffusion",
                        "use a checkpoint of the families SDAR, such as losa-tiny, LLaDA or Dream");
        return config.diffusion->canvas ? select::tileCanvasSpec(values) : select::denoisingSpec(values);
    };
    return entry;
}

} // namespace kvscope

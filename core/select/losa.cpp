// LoSA: locality-aware sparse attention for block diffusion. From one denoising forward to the next the queries of few
// tokens change. Those attend to pages of the prefix anew; the others keep their outputs.
#include "core/model/model.h"
#include "core/select/denoising.h"
#include "core/select/method.h"

#include "base/error.h"

namespace kvscope {

MethodEntry losaMethod() {
    MethodEntry entry;
    entry.name = "losa";
    entry.title = "LoSA";
    entry.source = "LoSA: Locality Aware Sparse Attention in Diffusion Language Models";
    entry.needs = "weights trained for block diffusion";
    entry.summary =
        "For block-diffusion models. In a block's first forward every token attends to the whole prefix. In each later "
        "one "
        "only the tokens whose queries changed most do so anew: each chooses pages of the prefix by Quest's bound, all "
        "of "
        "them attend to the union, and the other tokens' outputs are reused. Attention inside the block is exact.";
    entry.parameters = select::pageDenoisingParameters(true);
    entry.denoisingParameters = entry.parameters;
    entry.decodesTokens = false;
    entry.hasOwnWeights = [](const Model& model) { return model.config().diffusion.has_value(); };
    entry.blocksTravel = false; // unless the session's options size the device tier
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (!config.diffusion)
            throw Error(ErrorKind::Unsupported, "method losa needs weights trained for block diffusion",
                        "use a checkpoint of the family SDAR, such as losa-tiny");
        return select::denoisingSpec(values);
    };
    return entry;
}

} // namespace kvscope

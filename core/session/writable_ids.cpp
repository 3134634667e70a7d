#include "core/session/writable_ids.h"

#include "base/error.h"
#include "base/indexed.h"
#include "core/model/ids_only.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {

std::vector<std::uint8_t> writableIds(const Model& model) {
    const ModelConfig& config = model.config();
    const std::int32_t maskId = config.diffusion->maskId;
    const bool idsOnly = !model.embedded() && !hasTokenizer(model.folder());
    Numbered<std::uint8_t> writable(config.vocab, 0);
    for (std::int32_t id = 0; id < config.vocab; ++id)
        writable[id] = id != maskId && (idsOnly ? id < maskId : !model.tokenizer().written(id).empty());
    if (std::find(writable.begin(), writable.end(), std::uint8_t(1)) == writable.end())
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} has no token that could be written beside the mask", model.name()),
                    "check mask_token_id in its config.json");
    return writable;
}

} // namespace kvscope

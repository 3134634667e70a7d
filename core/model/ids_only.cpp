#include "core/model/ids_only.h"

#include <fmt/format.h>

namespace kvscope {

bool hasTokenizer(const std::filesystem::path& folder) {
    std::error_code ignored;
    return std::filesystem::exists(folder / "tokenizer.json", ignored) ||
           std::filesystem::exists(folder / "tokenizer.model", ignored);
}

TextFiles idsOnlyText(const std::filesystem::path& folder, int vocab) {
    TokenizerArrays arrays;
    arrays.model = "none";
    for (int id = 0; id < vocab; ++id) arrays.tokens.push_back(fmt::format("<{}>", id));
    return {Tokenizer::fromArrays(std::move(arrays), folder.string()), nullptr, {}};
}

} // namespace kvscope

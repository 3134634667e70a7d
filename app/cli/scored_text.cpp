#include "app/cli/scored_text.h"

#include "base/error.h"
#include "core/eval/eval.h"

#include <fmt/format.h>
#include <fstream>
#include <iterator>

namespace kvscope::cli {

std::vector<std::int32_t> scoredText(const Model& model, const std::string& file, int tokens,
                                     const std::string& shorter) {
    if (file.empty()) return evalText(model.tokenizer(), tokens);
    std::ifstream in(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (!in.is_open() || in.bad())
        throw Error(ErrorKind::BadInput, fmt::format("cannot read the text file {}", file),
                    "check its name and permissions");
    auto ids = model.tokenizer().encode(text);
    if (int(ids.size()) < tokens)
        throw Error(ErrorKind::BadInput, fmt::format("{} has {} tokens, {} are needed", file, ids.size(), tokens),
                    shorter);
    return ids;
}

} // namespace kvscope::cli

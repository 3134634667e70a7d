#include "app/cli/scored_text.h"

#include "app/terminal/interruption.h"
#include "base/error.h"
#include "base/text_file.h"
#include "core/eval/eval.h"

#include <fmt/format.h>

namespace kvscope::cli {

std::vector<std::int32_t> scoredText(const Model& model, const std::string& file, int tokens,
                                     const std::string& shorter) {
    if (file.empty()) return evalText(model.tokenizer(), tokens);
    auto ids = model.tokenizer().encode(readTextFile(file, "the text", kLongestText, Interruption::token()));
    if (int(ids.size()) < tokens)
        throw Error(ErrorKind::BadInput, fmt::format("{} has {} tokens, {} are needed", file, ids.size(), tokens),
                    shorter);
    return ids;
}

} // namespace kvscope::cli

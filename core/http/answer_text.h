// The text of an answer, token by token, up to a stop text.
#pragma once

#include "core/model/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::http {

/// Holds back bytes of a character that is not complete, and text with which a stop text may begin. What push and
/// finish return is valid UTF-8 and, joined, the answer without the stop text and what follows it.
class AnswerText {
public:
    /// The tokenizer must outlive it. stop: none is empty
    AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stop);

    std::string push(std::int32_t token);
    /// Nothing follows: what was held back.
    std::string finish();
    /// A stop text was found; push then returns nothing.
    bool stopped() const { return stopped_; }

private:
    std::string release(bool last);

    TokenStream stream_;
    std::vector<std::string> stop_;
    std::string held_;
    bool stopped_ = false;
};

} // namespace kvscope::http

// The text of an answer, token by token, up to a stop text.
#pragma once

#include "core/model/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::http {

/// Makes the text of an answer from its tokens. It holds back the bytes of a character that is not complete, and text
/// with which a stop text may begin. What push and finish return is valid UTF-8; joined, it is the answer up to the
/// stop text.
class AnswerText {
public:
    /// The tokenizer must outlive this object. stop: the stop texts, none of them empty.
    AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stop);

    std::string push(std::int32_t token);
    /// Called after the last token: returns the text that was held back.
    std::string finish();
    /// Whether a stop text was found. push then returns nothing.
    bool stopped() const { return stopped_; }

private:
    std::string release(bool last);

    TokenStream stream_;
    std::vector<std::string> stop_;
    std::string held_;
    bool stopped_ = false;
};

} // namespace kvscope::http

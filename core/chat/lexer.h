// Cuts a template into text and the tokens between {{ }} and {% %}. As transformers asks for, the newline behind a
// block and the blanks before it are part of the block (trim_blocks, lstrip_blocks).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::chat {

struct Token {
    enum class Kind { Text, PrintBegin, PrintEnd, BlockBegin, BlockEnd, Name, String, Integer, Float, Operator, End };
    Kind kind = Kind::End;
    std::string text;
    int line = 0;
};

/// @throws TemplateError
std::vector<Token> lex(std::string_view text);

} // namespace kvscope::chat

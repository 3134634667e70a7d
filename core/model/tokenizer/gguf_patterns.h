// The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`.
#pragma once

#include <span>
#include <string_view>

namespace kvscope::tokenizing {

struct NamedPattern {
    const char* names;                 // separated by spaces
    std::span<const char* const> cuts; // regular expressions, each cutting what the one before left
    bool ignoreMerges = false;         // a piece that is a token is not taken apart
    bool composed = false;             // texts are brought to NFC first
    bool addsBos = false;              // unless the file says otherwise
};

/// nullptr when the name is unknown.
const NamedPattern* findGgufPattern(std::string_view name);

} // namespace kvscope::tokenizing

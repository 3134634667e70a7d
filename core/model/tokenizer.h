// Byte-level BPE from tokenizer.json, compatible with the Hugging Face `tokenizers` library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// Immutable after construction; encode and decode may be called from several threads.
class Tokenizer {
public:
    /// @throws Error(BadInput | Unsupported) naming `origin` and what is wrong
    Tokenizer(std::string_view tokenizerJson, const std::string& origin);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    /// Ids of `text` (UTF-8; malformed bytes become U+FFFD). addSpecial applies the post-processor (e.g. <|bos|>
    /// first); parseSpecial recognises added tokens written in the text.
    std::vector<std::int32_t> encode(std::string_view text, bool addSpecial = true, bool parseSpecial = true) const;
    /// Text of ids; special tokens are skipped; incomplete UTF-8 becomes U+FFFD.
    std::string decode(const std::vector<std::int32_t>& ids) const;
    /// Raw bytes one token stands for (specials: their written form); may be part of a character. Empty if out of
    /// range.
    std::string bytesOf(std::int32_t id) const;
    bool isSpecial(std::int32_t id) const;
    int vocabSize() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Replaces malformed UTF-8 by U+FFFD, one per maximal ill-formed part, like Unicode's recommended practice.
std::string toValidUtf8(std::string_view bytes);

} // namespace kvscope

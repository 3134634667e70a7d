// Text to token ids and back, compatible with the Hugging Face `tokenizers` library, SentencePiece and GGUF files.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

namespace tokenizing {
struct TokenizerParts;
class DecodeStep;
} // namespace tokenizing

/// What tokenizer_config.json adds to tokenizer.json. A value that is absent leaves the rule of tokenizer.json.
struct SpecialTokenRules {
    std::string bosToken, eosToken;
    std::optional<bool> addBos, addEos;
};

/// A tokenizer as plain arrays, the way GGUF metadata (`tokenizer.ggml.*`) and SentencePiece files hold it.
struct TokenizerArrays {
    enum class Type : std::int32_t { Normal = 1, Unknown, Control, UserDefined, Unused, Byte };
    std::string model; // "gpt2": byte-level BPE; "llama": SentencePiece BPE; "t5": SentencePiece unigram
    std::string pre;   // name of the pre-tokenizer's pattern, for "gpt2"
    Numbered<std::string> tokens;
    std::vector<float> scores;       // of "llama" and "t5", one per token
    std::vector<std::int32_t> types; // Type; empty: all normal
    std::vector<std::string> merges; // of "gpt2": "left right", best first
    std::optional<std::int32_t> bosId, eosId, unknownId;
    std::optional<bool> addBos, addEos, addSpacePrefix, removeExtraWhitespaces;
    bool byteFallback = true;        // when the tokens <0x00>.. are there
    bool prefixAfterSpecials = true; // the space prefix also follows special tokens; false: only at the start
};

/// Immutable after construction; encode and decode may be called from several threads.
class Tokenizer {
public:
    /// Reads tokenizer.json. @throws Error(BadInput | Unsupported) naming `origin` and what is wrong
    Tokenizer(std::string_view tokenizerJson, const std::string& origin, const SpecialTokenRules& rules = {});
    /// Reads a SentencePiece file (tokenizer.model).
    static Tokenizer fromSentencePiece(std::string_view file, const std::string& origin);
    static Tokenizer fromArrays(TokenizerArrays arrays, const std::string& origin);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    /// Ids of `text` (UTF-8; malformed bytes become U+FFFD). addSpecial applies the post-processor (e.g. <|bos|>
    /// first); parseSpecial recognises special tokens written in the text;
    /// other added tokens always are.
    std::vector<std::int32_t> encode(std::string_view text, bool addSpecial = true, bool parseSpecial = true) const;
    /// Text of ids; special tokens are skipped; incomplete UTF-8 becomes U+FFFD.
    std::string decode(const std::vector<std::int32_t>& ids) const;
    /// Raw bytes one token stands for (specials: their written form); may be part of a character. Empty if out of
    /// range.
    std::string bytesOf(std::int32_t id) const;
    /// The token as the vocabulary writes it. Empty if out of range.
    std::string written(std::int32_t id) const;
    /// Id of a token as the vocabulary writes it.
    std::optional<std::int32_t> find(std::string_view written) const;
    bool isSpecial(std::int32_t id) const;
    int vocabSize() const;

private:
    friend class TokenStream;
    explicit Tokenizer(std::unique_ptr<tokenizing::TokenizerParts> parts);
    std::unique_ptr<tokenizing::TokenizerParts> parts_;
};

/// Decodes ids as they come: what push and finish return is, joined, what decode gives for all of them. Text is held
/// back only while a later token may still change it. The tokenizer must outlive it.
class TokenStream {
public:
    explicit TokenStream(const Tokenizer& tokenizer);
    ~TokenStream();
    TokenStream(TokenStream&&) noexcept;
    TokenStream& operator=(TokenStream&&) noexcept;
    std::string push(std::int32_t id);
    std::string finish();

private:
    void pushThrough(std::size_t step, std::string_view text, std::string& out);
    const Tokenizer* tokenizer_;
    std::vector<std::unique_ptr<tokenizing::DecodeStep>> steps_;
};

} // namespace kvscope

// A tokenizer put together; made by the readers (from_json.cpp, from_arrays.cpp), used by tokenizer.cpp.
#pragma once

#include "base/indexed.h"
#include "core/model/tokenizer/added_tokens.h"
#include "core/model/tokenizer/components.h"
#include "core/model/tokenizer/models.h"
#include "core/model/tokenizer/tokenizer.h"
#include "core/model/tokenizer/vocabulary.h"

namespace kvscope::tokenizing {

/// Must not be moved, because the model refers to the vocabulary.
struct TokenizerParts {
    struct Token {
        std::string written, bytes; // bytes: what it stands for in a text
        bool special = false;
    };
    Numbered<Token> tokens; // by id, added ones included
    Vocabulary vocabulary;  // of the model
    AddedTokens rawAdded, normalizedAdded;
    std::vector<std::unique_ptr<Normalizer>> wholeText; // before added tokens are looked for
    std::vector<std::unique_ptr<Normalizer>> normalizers;
    std::vector<std::unique_ptr<PreTokenizer>> preTokenizers;
    std::unique_ptr<TokenModel> model;
    std::vector<std::unique_ptr<DecodeStep>> decoders;
    std::vector<std::int32_t> before, after; // ids put around a text

    std::string normalize(std::string_view text) const;
    void encodeSegment(std::string_view raw, bool startsPrompt, bool parseSpecial,
                       std::vector<std::int32_t>& ids) const;
    std::int32_t find(std::string_view written) const;
    /// Enters tokens that are looked for in texts, and fills `tokens` from the vocabulary and them.
    void finish(const std::vector<AddedToken>& added);

private:
    void encodePieces(std::string text, bool startsPrompt, std::vector<std::int32_t>& ids) const;
    std::unordered_map<std::string, std::int32_t> addedIds_;
};

/// Whether texts may be cut before each run of U+2581 without changing any id: no merge result goes on behind a word.
bool joinsAcrossWords(std::string_view token);
/// The cut that keeps the pieces of SentencePiece models short.
std::unique_ptr<PreTokenizer> makeWordCut();

} // namespace kvscope::tokenizing

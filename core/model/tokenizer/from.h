// The readers of tokenizer files.
#pragma once

#include "core/model/tokenizer/parts.h"

namespace kvscope::tokenizing {

std::unique_ptr<TokenizerParts> partsFromJson(std::string_view json, const std::string& origin,
                                              const SpecialTokenRules& rules);
std::unique_ptr<TokenizerParts> partsFromArrays(TokenizerArrays arrays, const std::string& origin);

/// The arrays of a SentencePiece file (sentencepiece_model.proto). @throws Error(BadInput | Unsupported)
TokenizerArrays readSentencePiece(std::string_view file, const std::string& origin);

} // namespace kvscope::tokenizing

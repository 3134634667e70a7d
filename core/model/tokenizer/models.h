// The models that turn pieces into ids. Each is immutable, and refers to a vocabulary that outlives it.
#pragma once

#include "core/model/tokenizer/components.h"
#include "core/model/tokenizer/vocabulary.h"

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::tokenizing {

/// What a model makes of characters that no token covers.
struct UnknownText {
    bool byteFallback = false;       // <0x00> to <0xFF>, when the vocabulary has those needed
    std::int32_t unknown = kNoToken; // else this token; kNoToken: they are dropped
    bool fuse = false;               // one token for a run of them
};

/// Ids of the tokens <0x00> .. <0xFF>; kNoToken where the vocabulary has none.
std::array<std::int32_t, 256> fallbackBytes(const Vocabulary& vocabulary);

/// Byte pair encoding with ranked merges (Sennrich et al., 2016), on characters or on bytes.
struct BpeOptions {
    UnknownText unknown;
    bool onBytes = false;      // tokens are written in the alphabet of byteAlphabet()
    bool ignoreMerges = false; // a piece that is a token is not taken apart
};
/// Merges in order of rank, as pairs of written tokens. @throws Error naming a merge that joins unknown tokens
std::unique_ptr<TokenModel> makeBpe(const Vocabulary& vocabulary,
                                    const std::vector<std::pair<std::string_view, std::string_view>>& merges,
                                    const BpeOptions& options, const std::string& origin);

/// SentencePiece's BPE: any two neighbours whose text is a token may be joined, the highest score first. Only
/// tokens that are `mergeable` come of it; those in `unused` join further but are taken apart again at the end.
std::unique_ptr<TokenModel> makeScoredBpe(const Vocabulary& vocabulary, std::vector<float> scores,
                                          std::vector<bool> mergeable, std::vector<bool> unused, UnknownText unknown);

/// SentencePiece's unigram model (Kudo, 2018): the segmentation with the highest sum of scores.
std::unique_ptr<TokenModel> makeUnigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                        std::vector<bool> usable, UnknownText unknown);

} // namespace kvscope::tokenizing

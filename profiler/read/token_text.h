// The text of many tokens as one, in which words are found that several tokens make up.
#pragma once

#include "profiler/read/trace_reader.h"

#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// The joined bytes of the tokens of a sequence, and the KV blocks that they lie in.
class TokenText {
public:
    static constexpr std::size_t kNowhere = std::string::npos;

    /// blockSize: tokens of a block, at least 1.
    explicit TokenText(int blockSize) : blockSize_(blockSize) {}
    /// Appends a token; tokens come in the order of their positions. A position that no sequence has is left out.
    void add(const TokenRow& token);
    /// [block]: the byte at which the first match begins that touches the block; kNowhere: none does. One entry per
    /// block that has begun. A match across a border touches all of its blocks. The case of A to Z does not matter. An
    /// empty text is found nowhere.
    std::vector<std::size_t> firstMatches(const std::string& text) const;
    /// The `length` bytes of a match at `at`, and up to about `before` bytes before and `after` bytes after it: whole
    /// characters, and whole words where spaces part them; malformed UTF-8 is replaced. An ellipsis stands where
    /// something is left out.
    std::string around(std::size_t at, std::size_t length, std::size_t before, std::size_t after) const;

private:
    int blockSize_;
    std::string bytes_, lower_;                       // the latter with A to Z in lower case
    std::vector<std::pair<std::size_t, int>> begins_; // where a token's bytes begin, and its block
    std::size_t blocks_ = 0;                          // that have begun
};

} // namespace kvscope

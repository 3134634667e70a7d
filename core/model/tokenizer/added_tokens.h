// Tokens that are looked for in the text before it is cut: special ones and those a fine-tuner added.
#pragma once

#include "base/indexed.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::tokenizing {

struct AddedToken {
    std::string content;
    std::int32_t id = 0;
    bool special = false;
    bool stripLeft = false, stripRight = false; // takes the white space beside it
    bool singleWord = false;                    // only where no word goes on
    bool normalized = false;                    // looked for in the normalised text
};

/// Finds added tokens, the leftmost first and at one place the longest.
class AddedTokens {
public:
    void insert(const AddedToken& token, std::string_view lookedFor);
    bool empty() const { return tokens_.empty(); }
    /// Calls between(begin, end) for text that is no token, empty ranges left out, and token(id) in its place. Without
    /// `specials` special tokens count as text.
    void split(std::string_view text, bool specials, const std::function<void(std::size_t, std::size_t)>& between,
               const std::function<void(std::int32_t)>& token) const;

private:
    struct Edge {
        std::uint32_t node;
        char byte;
    };
    struct Node {
        std::vector<Edge> edges;
        int token = -1; // index
    };
    /// Longest token at `at`; nullptr when none begins there.
    const AddedToken* longestAt(std::string_view text, std::size_t at, std::size_t& size) const;

    Numbered<AddedToken> tokens_;
    std::vector<Node> nodes_{1};
    std::array<bool, 256> begins_{};
};

} // namespace kvscope::tokenizing

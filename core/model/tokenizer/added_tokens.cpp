#include "core/model/tokenizer/added_tokens.h"

#include "core/model/tokenizer/unicode.h"

namespace kvscope::tokenizing {

void AddedTokens::insert(const AddedToken& token, std::string_view lookedFor) {
    if (lookedFor.empty()) return;
    std::uint32_t node = 0;
    for (const char c : lookedFor) {
        std::uint32_t next = 0;
        for (const Edge& edge : nodes_[node].edges)
            if (edge.byte == c) next = edge.node;
        if (next == 0) {
            next = std::uint32_t(nodes_.size());
            nodes_[node].edges.push_back({next, c});
            nodes_.emplace_back();
        }
        node = next;
    }
    if (nodes_[node].token >= 0) return; // the same text twice: the first stays
    nodes_[node].token = int(tokens_.size());
    tokens_.push_back(token);
    begins_[static_cast<unsigned char>(lookedFor[0])] = true;
}

const AddedToken* AddedTokens::longestAt(std::string_view text, std::size_t at, std::size_t& size) const {
    const AddedToken* longest = nullptr;
    const Node* node = &nodes_[0];
    for (std::size_t end = at; end < text.size(); ++end) {
        const Node* next = nullptr;
        for (const Edge& edge : node->edges)
            if (edge.byte == text[end]) next = &nodes_[edge.node];
        if (!next) break;
        node = next;
        if (node->token >= 0) longest = &tokens_[node->token], size = end + 1 - at;
    }
    return longest;
}

void AddedTokens::split(std::string_view text, bool specials,
                        const std::function<void(std::size_t, std::size_t)>& between,
                        const std::function<void(std::int32_t)>& token) const {
    const auto wordEndsAt = [&](std::size_t end) {
        std::size_t at = end;
        while (at > 0 && (static_cast<unsigned char>(text[--at]) & 0xC0) == 0x80) {
        }
        return end > 0 && isWordCharacter(nextCodePoint(text, at));
    };
    const auto wordBeginsAt = [&](std::size_t at) {
        return at < text.size() && isWordCharacter(nextCodePoint(text, at));
    };
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
        std::size_t size = 0;
        const AddedToken* found = begins_[static_cast<unsigned char>(text[at])] ? longestAt(text, at, size) : nullptr;
        if (!found) {
            ++at;
            continue;
        }
        std::size_t begin = at, end = at + size;
        at = end;
        if (found->special && !specials) continue;
        if (found->singleWord && (wordEndsAt(begin) || wordBeginsAt(end))) continue;
        if (found->stripLeft) begin = std::max(done, begin - trailingWhiteSpace(text.substr(0, begin)));
        // Spaces that are taken so may still begin the next token, as in the library.
        if (found->stripRight) end += leadingWhiteSpace(text.substr(end));
        if (begin > done) between(done, begin);
        token(found->id);
        done = end;
    }
    if (done < text.size()) between(done, text.size());
}

} // namespace kvscope::tokenizing

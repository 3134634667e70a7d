#include "base/indexed.h"
#include "core/model/tokenizer/models.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <limits>

namespace kvscope::tokenizing {
namespace {

constexpr double kUnknownPenalty = 10; // below the worst token, as SentencePiece has it

/// A trie of the tokens' bytes: sorted edges in one array, so that a node is two numbers.
class ByteTrie {
public:
    static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
    ByteTrie() : nodes_(1) {}
    void insert(std::string_view text, std::int32_t id) {
        std::uint32_t node = 0;
        for (const char c : text) {
            std::uint32_t child = find(node, c);
            if (child == kNone) {
                child = std::uint32_t(nodes_.size());
                nodes_.push_back({kNoToken, kNone, nodes_[node].firstChild, c});
                nodes_[node].firstChild = child;
            }
            node = child;
        }
        nodes_[node].id = id;
    }
    /// Called once all are in: children of the root by byte.
    void seal() {
        roots_.fill(kNone);
        for (std::uint32_t child = nodes_[0].firstChild; child != kNone; child = nodes_[child].sibling)
            roots_[static_cast<unsigned char>(nodes_[child].byte)] = child;
    }
    std::uint32_t root(char c) const { return roots_[static_cast<unsigned char>(c)]; }
    std::uint32_t find(std::uint32_t node, char c) const {
        for (std::uint32_t child = nodes_[node].firstChild; child != kNone; child = nodes_[child].sibling)
            if (nodes_[child].byte == c) return child;
        return kNone;
    }
    std::int32_t idAt(std::uint32_t node) const { return nodes_[node].id; }

private:
    struct Node {
        std::int32_t id = kNoToken;
        std::uint32_t firstChild = kNone, sibling = kNone;
        char byte = 0;
    };
    std::vector<Node> nodes_;
    std::array<std::uint32_t, 256> roots_{};
};

class Unigram final : public TokenModel {
public:
    Unigram(const Vocabulary& vocabulary, std::vector<double> scores, const std::vector<bool>& usable,
            UnknownText unknown)
        : scores_(std::move(scores)), unknown_(unknown), byteIds_(fallbackBytes(vocabulary)) {
        double lowest = std::numeric_limits<double>::infinity();
        for (std::size_t id = 0; id < vocabulary.size(); ++id) {
            if (vocabulary.at(std::int32_t(id)).empty() || !usable[id]) continue;
            lowest = std::min(lowest, scores_[id]);
            trie_.insert(vocabulary.at(std::int32_t(id)), std::int32_t(id));
        }
        trie_.seal();
        unknownScore_ = (std::isfinite(lowest) ? lowest : 0) - kUnknownPenalty;
    }

    void encode(std::string_view piece, std::vector<std::int32_t>& ids) const override {
        struct Best { // way to reach a byte
            double score = -std::numeric_limits<double>::infinity();
            std::size_t from = 0;
            std::int32_t id = kNoToken;
        };
        std::vector<Best> best(piece.size() + 1);
        best[0].score = 0;
        for (std::size_t at = 0; at < piece.size();) {
            const std::size_t length = std::min(utf8Length(piece[at]), piece.size() - at);
            const double here = best[at].score;
            bool single = false; // whether a token covers this character alone
            std::uint32_t node = trie_.root(piece[at]);
            for (std::size_t end = at + 1; node != ByteTrie::kNone; ++end) {
                if (const std::int32_t id = trie_.idAt(node); id != kNoToken) {
                    const double score = here + scores_[id];
                    if (score > best[end].score) best[end] = {score, at, id};
                    single = single || end == at + length;
                }
                if (end == piece.size()) break;
                node = trie_.find(node, piece[end]);
            }
            if (!single && here + unknownScore_ > best[at + length].score)
                best[at + length] = {here + unknownScore_, at, kNoToken};
            at += length;
        }
        std::vector<std::pair<std::string_view, std::int32_t>> path;
        for (std::size_t end = piece.size(); end > 0; end = best[end].from)
            path.emplace_back(piece.substr(best[end].from, end - best[end].from), best[end].id);
        std::reverse(path.begin(), path.end());
        bool afterUnknown = false;
        for (const auto& [text, id] : path) {
            const auto covered = [this](char c) { return byteIds_[static_cast<unsigned char>(c)] != kNoToken; };
            const bool known = id != kNoToken && id != unknown_.unknown;
            if (known)
                ids.push_back(id);
            else if (unknown_.byteFallback && std::all_of(text.begin(), text.end(), covered))
                for (const char c : text) ids.push_back(byteIds_[static_cast<unsigned char>(c)]);
            else if (unknown_.unknown != kNoToken && !(unknown_.fuse && afterUnknown))
                ids.push_back(unknown_.unknown);
            afterUnknown = !known;
        }
    }

private:
    Numbered<double> scores_;
    UnknownText unknown_;
    std::array<std::int32_t, 256> byteIds_;
    ByteTrie trie_;
    double unknownScore_ = 0;
};

} // namespace

std::unique_ptr<TokenModel> makeUnigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                        std::vector<bool> usable, UnknownText unknown) {
    return std::make_unique<Unigram>(vocabulary, std::move(scores), usable, unknown);
}

} // namespace kvscope::tokenizing

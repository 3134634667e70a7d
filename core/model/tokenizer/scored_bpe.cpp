#include "base/indexed.h"
#include "core/model/tokenizer/merge_symbols.h"
#include "core/model/tokenizer/models.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>

namespace kvscope::tokenizing {
namespace {

class ScoredBpe final : public TokenModel {
public:
    ScoredBpe(const Vocabulary& vocabulary, std::vector<float> scores, std::vector<bool> mergeable,
              std::vector<bool> unused, UnknownText unknown)
        : vocabulary_(vocabulary), scores_(std::move(scores)), mergeable_(std::move(mergeable)),
          unused_(std::move(unused)), unknown_(unknown), byteIds_(fallbackBytes(vocabulary)),
          hasUnused_(std::find(unused_.begin(), unused_.end(), true) != unused_.end()) {}

    void encode(std::string_view piece, std::vector<std::int32_t>& ids) const override {
        std::vector<Symbol> symbols;
        for (std::size_t at = 0; at < piece.size();) {
            const std::size_t size = std::min(utf8Length(piece[at]), piece.size() - at);
            symbols.push_back({std::uint32_t(at), std::uint32_t(size), find(piece.substr(at, size))});
            at += size;
        }
        mergeSymbols(symbols, [&](const Symbol& left, const Symbol& right, Join& join) {
            const std::size_t size = left.size + right.size;
            if (size > vocabulary_.longest()) return false;
            const std::int32_t id = find(piece.substr(left.begin, size));
            if (id == kNoToken) return false;
            join = {-double(scores_[id]), id};
            return true;
        });
        bool afterUnknown = false;
        for (const Symbol& symbol : symbols)
            emit(piece.substr(symbol.begin, symbol.size), symbol.id, ids, afterUnknown, 0);
    }

private:
    std::int32_t find(std::string_view text) const {
        const std::int32_t id = vocabulary_.find(text);
        return id != kNoToken && mergeable_[id] ? id : kNoToken;
    }

    /// Appends the id of a token. A token in unused_ is cut in two, where the lower of the scores of both parts is
    /// highest, and each part is appended in the same way.
    void emit(std::string_view text, std::int32_t id, std::vector<std::int32_t>& ids, bool& afterUnknown,
              int depth) const {
        if (id != kNoToken && hasUnused_ && unused_[std::size_t(id)] && depth < 64) {
            std::size_t best = 0;
            double highest = 0;
            const std::size_t first = std::min(utf8Length(text[0]), text.size());
            for (std::size_t cut = first; cut < text.size();
                 cut += std::min(utf8Length(text[cut]), text.size() - cut)) {
                const std::int32_t left = find(text.substr(0, cut)), right = find(text.substr(cut));
                if (left == kNoToken || right == kNoToken) continue;
                const double lowest = std::min(scores_[left], scores_[right]);
                if (best == 0 || lowest > highest) best = cut, highest = lowest;
            }
            if (best > 0) {
                emit(text.substr(0, best), find(text.substr(0, best)), ids, afterUnknown, depth + 1);
                emit(text.substr(best), find(text.substr(best)), ids, afterUnknown, depth + 1);
                return;
            }
        }
        if (id != kNoToken) {
            ids.push_back(id);
            afterUnknown = false;
            return;
        }
        const auto covered = [this](char c) { return byteIds_[static_cast<unsigned char>(c)] != kNoToken; };
        if (unknown_.byteFallback && std::all_of(text.begin(), text.end(), covered)) {
            for (const char c : text) ids.push_back(byteIds_[static_cast<unsigned char>(c)]);
            afterUnknown = false;
        } else if (unknown_.unknown != kNoToken && !(unknown_.fuse && afterUnknown)) {
            ids.push_back(unknown_.unknown);
            afterUnknown = true;
        }
    }

    const Vocabulary& vocabulary_;
    Numbered<float> scores_;
    Numbered<bool> mergeable_, unused_;
    UnknownText unknown_;
    std::array<std::int32_t, 256> byteIds_;
    bool hasUnused_;
};

} // namespace

std::unique_ptr<TokenModel> makeScoredBpe(const Vocabulary& vocabulary, std::vector<float> scores,
                                          std::vector<bool> mergeable, std::vector<bool> unused, UnknownText unknown) {
    return std::make_unique<ScoredBpe>(vocabulary, std::move(scores), std::move(mergeable), std::move(unused), unknown);
}

} // namespace kvscope::tokenizing

#include "core/model/tokenizer/parts.h"

namespace kvscope::tokenizing {
namespace {

class WordCut final : public PreTokenizer {
    void apply(Pieces& pieces) const override {
        std::vector<Pieces::Range> out;
        for (const Pieces::Range piece : pieces.ranges) {
            const std::string_view text = pieces.view(piece);
            std::size_t begin = 0;
            for (std::size_t at = text.find(kMetaspace); at != text.npos; at = text.find(kMetaspace, at)) {
                if (at > begin) {
                    out.push_back({piece.begin + begin, piece.begin + at});
                    begin = at;
                }
                while (text.substr(at).starts_with(kMetaspace)) at += kMetaspace.size();
            }
            out.push_back({piece.begin + begin, piece.end});
        }
        pieces.ranges = std::move(out);
    }
};

} // namespace

bool joinsAcrossWords(std::string_view token) {
    while (token.starts_with(kMetaspace)) token.remove_prefix(kMetaspace.size());
    return token.find(kMetaspace) != token.npos;
}

std::unique_ptr<PreTokenizer> makeWordCut() { return std::make_unique<WordCut>(); }

} // namespace kvscope::tokenizing

#include "core/model/tokenizer/byte_alphabet.h"
#include "core/model/tokenizer/merge_symbols.h"
#include "core/model/tokenizer/models.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::tokenizing {

std::array<std::int32_t, 256> fallbackBytes(const Vocabulary& vocabulary) {
    std::array<std::int32_t, 256> ids{};
    for (std::size_t b = 0; b < 256; ++b) ids[b] = vocabulary.find(fmt::format("<0x{:02X}>", b));
    return ids;
}

namespace {

/// Open addressing: a merge is looked up for every pair of neighbours, so this is the encoder's inner loop.
class MergeTable {
public:
    struct Merge {
        std::int32_t rank, result;
    };
    explicit MergeTable(std::size_t count) {
        std::size_t size = 16;
        while (size < count * 2) size *= 2;
        slots_.resize(size);
    }
    void insert(std::int32_t left, std::int32_t right, Merge merge) {
        Slot& slot = slots_[place(keyOf(left, right))];
        slot = {keyOf(left, right), merge};
    }
    const Merge* find(std::int32_t left, std::int32_t right) const {
        const std::uint64_t key = keyOf(left, right);
        const Slot& slot = slots_[place(key)];
        return slot.key == key ? &slot.merge : nullptr;
    }

private:
    struct Slot {
        std::uint64_t key = ~std::uint64_t(0); // no pair of ids
        Merge merge{};
    };
    static std::uint64_t keyOf(std::int32_t left, std::int32_t right) {
        return std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
    }
    std::size_t place(std::uint64_t key) const {
        std::uint64_t hash = key * 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 32;
        std::size_t at = hash & (slots_.size() - 1);
        while (slots_[at].key != key && slots_[at].key != ~std::uint64_t(0)) at = (at + 1) & (slots_.size() - 1);
        return at;
    }
    std::vector<Slot> slots_;
};

class Bpe final : public TokenModel {
public:
    Bpe(const Vocabulary& vocabulary, const std::vector<std::pair<std::string_view, std::string_view>>& pairs,
        const BpeOptions& options, const std::string& origin)
        : vocabulary_(vocabulary), options_(options), merges_(pairs.size()) {
        std::string both;
        for (std::size_t rank = 0; rank < pairs.size(); ++rank) {
            both.assign(pairs[rank].first).append(pairs[rank].second);
            const std::int32_t left = vocabulary.find(pairs[rank].first), right = vocabulary.find(pairs[rank].second),
                               joined = vocabulary.find(both);
            if (left == kNoToken || right == kNoToken || joined == kNoToken)
                refuseMalformed(origin, fmt::format("merge {} joins tokens that are not in the vocabulary", rank));
            merges_.insert(left, right, {std::int32_t(rank), joined});
        }
        if (options.unknown.byteFallback) byteIds_ = fallbackBytes(vocabulary);
        if (options.onBytes)
            for (std::size_t b = 0; b < 256; ++b) byteIds_[b] = vocabulary.find(byteAlphabet()[b]);
    }

    void encode(std::string_view piece, std::vector<std::int32_t>& ids) const override {
        if (options_.ignoreMerges) {
            thread_local std::string written;
            written.clear();
            if (options_.onBytes)
                for (const char c : piece) written += byteAlphabet()[static_cast<unsigned char>(c)];
            const std::int32_t whole = vocabulary_.find(options_.onBytes ? std::string_view(written) : piece);
            if (whole != kNoToken) return ids.push_back(whole);
        }
        thread_local std::vector<Symbol> symbols;
        symbols.clear();
        if (options_.onBytes)
            addBytes(piece, symbols);
        else
            addCharacters(piece, symbols);
        mergeSymbols(symbols, [this](const Symbol& left, const Symbol& right, Join& join) {
            const auto* merge = merges_.find(left.id, right.id);
            if (merge) join = {double(merge->rank), merge->result};
            return merge != nullptr;
        });
        for (const Symbol& symbol : symbols) ids.push_back(symbol.id);
        if (symbols.capacity() > (1U << 20)) std::vector<Symbol>().swap(symbols);
    }

private:
    void addBytes(std::string_view piece, std::vector<Symbol>& symbols) const {
        for (std::size_t i = 0; i < piece.size(); ++i) {
            const std::int32_t id = byteIds_[static_cast<unsigned char>(piece[i])];
            if (id != kNoToken)
                symbols.push_back({std::uint32_t(i), 1, id});
            else
                addUnknown(std::uint32_t(i), 1, symbols);
        }
    }

    void addCharacters(std::string_view piece, std::vector<Symbol>& symbols) const {
        for (std::size_t at = 0; at < piece.size();) {
            const std::size_t size = std::min(utf8Length(piece[at]), piece.size() - at);
            const std::string_view character = piece.substr(at, size);
            const std::int32_t id = vocabulary_.find(character);
            const auto covered = [this](char c) { return byteIds_[static_cast<unsigned char>(c)] != kNoToken; };
            if (id != kNoToken)
                symbols.push_back({std::uint32_t(at), std::uint32_t(size), id});
            else if (options_.unknown.byteFallback && std::all_of(character.begin(), character.end(), covered))
                for (std::size_t i = 0; i < size; ++i)
                    symbols.push_back({std::uint32_t(at + i), 1, byteIds_[static_cast<unsigned char>(character[i])]});
            else
                addUnknown(std::uint32_t(at), std::uint32_t(size), symbols);
            at += size;
        }
    }

    void addUnknown(std::uint32_t at, std::uint32_t size, std::vector<Symbol>& symbols) const {
        const std::int32_t unknown = options_.unknown.unknown;
        if (unknown == kNoToken) return;
        if (options_.unknown.fuse && !symbols.empty() && symbols.back().id == unknown)
            symbols.back().size += size;
        else
            symbols.push_back({at, size, unknown});
    }

    const Vocabulary& vocabulary_;
    BpeOptions options_;
    MergeTable merges_;
    std::array<std::int32_t, 256> byteIds_{};
};

} // namespace

std::unique_ptr<TokenModel> makeBpe(const Vocabulary& vocabulary,
                                    const std::vector<std::pair<std::string_view, std::string_view>>& merges,
                                    const BpeOptions& options, const std::string& origin) {
    return std::make_unique<Bpe>(vocabulary, merges, options, origin);
}

} // namespace kvscope::tokenizing

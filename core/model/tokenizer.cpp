#include "core/model/tokenizer.h"

#include "core/model/json_text.h"
#include "kernels/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <pcre2.h>
#include <queue>
#include <unordered_map>

namespace kvscope {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLargestId = (1 << 22) - 1;

// The split that byte-level BPE applies when it is told to use its own pattern (GPT-2).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void appendUtf8(std::string& out, std::uint32_t c) {
    if (c < 0x80)
        out += char(c);
    else if (c < 0x800)
        out += char(0xC0 | c >> 6), out += char(0x80 | (c & 63));
    else if (c < 0x10000)
        out += char(0xE0 | c >> 12), out += char(0x80 | (c >> 6 & 63)), out += char(0x80 | (c & 63));
    else
        out += char(0xF0 | c >> 18), out += char(0x80 | (c >> 12 & 63)), out += char(0x80 | (c >> 6 & 63)),
            out += char(0x80 | (c & 63));
}

/// The reversible byte -> character table of byte-level BPE: printable Latin-1 stands for itself, the rest follows
/// U+0100.
const std::array<std::string, 256>& byteAlphabet() {
    static const auto alphabet = [] {
        std::array<std::string, 256> table;
        std::uint32_t next = 256;
        for (std::uint32_t b = 0; b < 256; ++b) {
            const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            appendUtf8(table[b], printable ? b : next++);
        }
        return table;
    }();
    return alphabet;
}

/// One compiled pattern; matching is thread-safe.
class Splitter {
public:
    Splitter(const std::string& pattern, const std::string& origin) {
        int code = 0;
        PCRE2_SIZE where = 0;
        code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                  &code, &where, nullptr));
        if (!code_)
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{}: the split pattern does not compile at character {}", origin, where),
                        "this tokenizer is not supported");
        pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE); // without it the interpreter matches the same
        limits_.reset(pcre2_match_context_create(nullptr));
        if (!limits_) throw Error(ErrorKind::OutOfMemory, origin + ": there is no memory for the split pattern");
        pcre2_set_match_limit(limits_.get(), 1'000'000'000); // long runs are no mistake
    }
    /// Pieces of valid UTF-8, isolated: the matches and what lies between them.
    void split(std::string_view text, std::vector<std::string_view>& pieces) const {
        const std::unique_ptr<pcre2_match_data, MatchFree> match(
            pcre2_match_data_create_from_pattern(code_.get(), nullptr));
        std::size_t at = 0, done = 0;
        while (at <= text.size()) {
            const auto find = [&](std::uint32_t options) {
                return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                   PCRE2_NO_UTF_CHECK | options, match.get(), limits_.get());
            };
            int found = find(0);
            if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = find(PCRE2_NO_JIT); // its stack is on the heap
            if (found == PCRE2_ERROR_NOMATCH) break;
            if (found < 0)
                throw Error(ErrorKind::OutOfMemory, "the tokenizer's pattern ran out of memory on this text");
            const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
            if (range[0] > done) pieces.push_back(text.substr(done, range[0] - done));
            if (range[1] > range[0]) pieces.push_back(text.substr(range[0], range[1] - range[0]));
            done = range[1];
            at = range[1] > range[0] ? range[1] : range[1] + 1;
            while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
        }
        if (done < text.size()) pieces.push_back(text.substr(done));
    }

private:
    struct CodeFree {
        void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    };
    struct LimitsFree {
        void operator()(pcre2_match_context* limits) const { pcre2_match_context_free(limits); }
    };
    struct MatchFree {
        void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
    };
    std::unique_ptr<pcre2_code, CodeFree> code_;
    std::unique_ptr<pcre2_match_context, LimitsFree> limits_;
};

struct PairHash {
    std::size_t operator()(const std::pair<std::int32_t, std::int32_t>& pair) const {
        return std::hash<std::uint64_t>()(std::uint64_t(std::uint32_t(pair.first)) << 32 | std::uint32_t(pair.second));
    }
};

struct Merge {
    std::int32_t rank, result;
};

struct AddedToken {
    std::string content;
    std::int32_t id = 0;
    bool special = false;
};

} // namespace

struct Tokenizer::Impl {
    std::string origin;
    std::vector<std::string> bytes; // by id: what the token stands for
    std::vector<bool> special, added;
    std::unordered_map<std::string, std::int32_t> vocab; // written form -> id
    std::unordered_map<std::pair<std::int32_t, std::int32_t>, Merge, PairHash> merges;
    std::array<std::int32_t, 256> byteId{};
    std::vector<Splitter> splitters;
    bool prefixSpace = false, ignoreMerges = false;
    std::vector<AddedToken> addedTokens;     // longest first
    std::vector<std::int32_t> before, after; // ids the post-processor puts around the text

    [[noreturn]] void refuse(const std::string& what, ErrorKind kind = ErrorKind::BadInput) const {
        throw Error(kind, origin + ": " + what,
                    kind == ErrorKind::Unsupported ? "this version reads byte-level BPE tokenizers"
                                                   : "the file is damaged: download it again");
    }
    void readModel(const Json& model);
    void readAdded(const Json& tokens);
    void readPreTokenizer(const Json& spec);
    void readPostProcessor(const Json& spec);
    void encodePiece(std::string_view piece, std::vector<std::int32_t>& ids) const;
    void encodeText(std::string_view text, std::vector<std::int32_t>& ids) const;
    void merge(std::vector<std::int32_t>& symbols) const;
};

void Tokenizer::Impl::readModel(const Json& model) {
    if (!model.is_object()) refuse("there is no model");
    if (const Json& type = member(model, "type"); !type.is_null() && type != "BPE")
        refuse(fmt::format("the model type {} is not BPE", shownJson(type)), ErrorKind::Unsupported);
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
        if (const Json& value = member(model, key); !value.is_null() && value != Json("") && value != 0.0)
            refuse(fmt::format("'{}' is set", key), ErrorKind::Unsupported);
    if (member(model, "byte_fallback") == true) refuse("it uses byte fallback", ErrorKind::Unsupported);
    ignoreMerges = member(model, "ignore_merges") == true;
    const Json &entries = member(model, "vocab"), &pairs = member(model, "merges");
    if (!entries.is_object() || entries.empty()) refuse("the vocabulary is missing");
    if (!pairs.is_array()) refuse("the merges are missing");
    std::int64_t largest = 0;
    for (const auto& [text, id] : entries.items()) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kLargestId)
            refuse(fmt::format("the entry '{}' has no proper id", shown(text)));
        largest = std::max(largest, id.get<std::int64_t>());
        vocab.emplace(text, id.get<std::int32_t>());
    }
    bytes.resize(std::size_t(largest) + 1);
    std::vector<bool> taken(bytes.size());
    const auto& alphabet = byteAlphabet();
    std::unordered_map<std::string, char> toByte;
    for (int b = 0; b < 256; ++b) toByte[alphabet[std::size_t(b)]] = char(b);
    for (const auto& [text, id] : vocab) {
        if (taken[std::size_t(id)]) refuse(fmt::format("two entries have the id {}", id));
        taken[std::size_t(id)] = true;
        std::string& out = bytes[std::size_t(id)];
        bool written = true;
        for (std::size_t i = 0; i < text.size() && written;) {
            const auto lead = static_cast<unsigned char>(text[i]);
            const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
            const auto found = toByte.find(text.substr(i, length));
            written = found != toByte.end();
            if (written) out += found->second;
            i += length;
        }
        if (!written) out = text; // an added token outside the byte alphabet stands for itself
    }
    for (int b = 0; b < 256; ++b) {
        const auto found = vocab.find(alphabet[std::size_t(b)]);
        byteId[std::size_t(b)] = found == vocab.end() ? -1 : found->second;
    }
    std::int32_t rank = 0;
    for (const Json& entry : pairs) {
        std::string left, right;
        if (entry.is_string()) {
            const auto text = entry.get<std::string>();
            const auto space = text.find(' ');
            if (space == std::string::npos) refuse(fmt::format("merge {} is no pair", rank));
            left = text.substr(0, space), right = text.substr(space + 1);
        } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
            left = entry[0].get<std::string>(), right = entry[1].get<std::string>();
        } else {
            refuse(fmt::format("merge {} is no pair", rank));
        }
        const auto a = vocab.find(left), b = vocab.find(right), both = vocab.find(left + right);
        if (a == vocab.end() || b == vocab.end() || both == vocab.end())
            refuse(fmt::format("merge {} joins tokens that are not in the vocabulary", rank));
        merges.insert_or_assign(std::pair(a->second, b->second), Merge{rank, both->second});
        ++rank;
    }
}

void Tokenizer::Impl::readAdded(const Json& tokens) {
    special.assign(bytes.size(), false);
    added.assign(bytes.size(), false);
    if (tokens.is_null()) return;
    if (!tokens.is_array()) refuse("added_tokens is no list");
    for (const Json& entry : tokens) {
        const Json &id = member(entry, "id"), &content = member(entry, "content");
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kLargestId || !content.is_string() ||
            content.get_ref<const std::string&>().empty())
            refuse("an added token lacks its id or text");
        for (const char* key : {"lstrip", "rstrip", "single_word"})
            if (member(entry, key) == true)
                refuse(fmt::format("the added token {} uses '{}'", shownJson(content), key), ErrorKind::Unsupported);
        AddedToken token{content.get<std::string>(), id.get<std::int32_t>(), member(entry, "special") == true};
        const auto index = std::size_t(token.id);
        if (index >= bytes.size()) bytes.resize(index + 1), special.resize(index + 1), added.resize(index + 1);
        bytes[index] = token.content;
        special[index] = token.special;
        added[index] = true;
        addedTokens.push_back(std::move(token));
    }
    std::stable_sort(addedTokens.begin(), addedTokens.end(),
                     [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
}

void Tokenizer::Impl::readPreTokenizer(const Json& spec) {
    if (spec.is_null()) refuse("there is no pre-tokenizer", ErrorKind::Unsupported);
    const Json& type = member(spec, "type");
    if (type == "Sequence") {
        const Json& parts = member(spec, "pretokenizers");
        if (!parts.is_array() || parts.empty()) refuse("the pre-tokenizer sequence is empty");
        for (const Json& part : parts) readPreTokenizer(part);
    } else if (type == "Split") {
        const Json& pattern = member(member(spec, "pattern"), "Regex");
        if (!pattern.is_string() || member(spec, "behavior") != "Isolated" || member(spec, "invert") == true)
            refuse("its split is no isolating regular expression", ErrorKind::Unsupported);
        splitters.emplace_back(pattern.get<std::string>(), origin);
    } else if (type == "ByteLevel") {
        if (member(spec, "add_prefix_space") != false) {
            if (!splitters.empty()) refuse("it adds a space before every piece", ErrorKind::Unsupported);
            prefixSpace = true;
        }
        if (member(spec, "use_regex") != false) splitters.emplace_back(kByteLevelPattern, origin);
    } else if (type == "Digits") {
        splitters.emplace_back(member(spec, "individual_digits") == true ? "\\p{N}" : "\\p{N}+", origin);
    } else if (type.is_string()) {
        refuse(fmt::format("the pre-tokenizer {} is unknown", shownJson(type)), ErrorKind::Unsupported);
    } else {
        refuse("the pre-tokenizer has no type");
    }
}

void Tokenizer::Impl::readPostProcessor(const Json& spec) {
    if (spec.is_null()) return;
    const Json& type = member(spec, "type");
    if (type == "ByteLevel") return;
    if (type == "Sequence" && member(spec, "processors").is_array()) {
        for (const Json& part : member(spec, "processors")) readPostProcessor(part);
        return;
    }
    if (!type.is_string()) refuse("the post-processor has no type");
    const Json& pieces = member(spec, "single");
    if (type != "TemplateProcessing" || !pieces.is_array())
        refuse(fmt::format("the post-processor {} is unknown", shownJson(type)), ErrorKind::Unsupported);
    bool seenText = false;
    for (const Json& piece : pieces) {
        if (!member(piece, "Sequence").is_null()) {
            seenText = true;
            continue;
        }
        const Json& name = member(member(piece, "SpecialToken"), "id");
        if (!name.is_string()) refuse("the post-processor's template is malformed");
        const auto token = std::find_if(addedTokens.begin(), addedTokens.end(),
                                        [&](const AddedToken& t) { return name == t.content; });
        if (token == addedTokens.end())
            refuse(fmt::format("the post-processor names the unknown token {}", shownJson(name)));
        (seenText ? after : before).push_back(token->id);
    }
}

/// Merges in rank order, leftmost first; a priority queue over a linked list keeps long words near-linear.
void Tokenizer::Impl::merge(std::vector<std::int32_t>& symbols) const {
    struct Candidate {
        std::int32_t rank, left, expectLeft, expectRight, result;
        bool operator<(const Candidate& other) const { // priority_queue keeps the largest on top
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    const auto count = std::int32_t(symbols.size());
    std::vector<std::int32_t> next(symbols.size()), previous(symbols.size());
    for (std::int32_t i = 0; i < count; ++i)
        next[std::size_t(i)] = i + 1 < count ? i + 1 : -1, previous[std::size_t(i)] = i - 1;
    std::priority_queue<Candidate> queue;
    const auto consider = [&](std::int32_t left) {
        if (left < 0 || next[std::size_t(left)] < 0) return;
        const std::int32_t a = symbols[std::size_t(left)], b = symbols[std::size_t(next[std::size_t(left)])];
        const auto found = merges.find({a, b});
        if (found != merges.end()) queue.push({found->second.rank, left, a, b, found->second.result});
    };
    for (std::int32_t i = 0; i + 1 < count; ++i) consider(i);
    while (!queue.empty()) {
        const Candidate best = queue.top();
        queue.pop();
        const auto left = std::size_t(best.left);
        if (symbols[left] != best.expectLeft || next[left] < 0) continue; // an earlier merge took a part of it
        const auto right = std::size_t(next[left]);
        if (symbols[right] != best.expectRight) continue;
        symbols[left] = best.result;
        symbols[right] = -1;
        next[left] = next[right];
        if (next[left] >= 0) previous[std::size_t(next[left])] = best.left;
        consider(previous[left]);
        consider(best.left);
    }
    std::erase(symbols, -1);
}

void Tokenizer::Impl::encodePiece(std::string_view piece, std::vector<std::int32_t>& ids) const {
    thread_local std::vector<std::int32_t> symbols;
    symbols.clear();
    for (const char c : piece) symbols.push_back(byteId[static_cast<unsigned char>(c)]);
    if (std::find(symbols.begin(), symbols.end(), -1) != symbols.end()) {
        std::erase(symbols, -1); // without an unknown token, bytes outside the vocabulary are dropped
    }
    if (ignoreMerges) {
        const auto& alphabet = byteAlphabet();
        std::string written;
        for (const char c : piece) written += alphabet[static_cast<unsigned char>(c)];
        if (const auto whole = vocab.find(written); whole != vocab.end()) {
            ids.push_back(whole->second);
            return;
        }
    }
    merge(symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Tokenizer::Impl::encodeText(std::string_view text, std::vector<std::int32_t>& ids) const {
    if (text.empty()) return;
    std::string spaced;
    if (prefixSpace && text.front() != ' ') spaced = " " + std::string(text), text = spaced;
    std::vector<std::string_view> pieces{text}, finer;
    for (const Splitter& splitter : splitters) {
        finer.clear();
        for (const std::string_view piece : pieces) splitter.split(piece, finer);
        pieces.swap(finer);
    }
    for (const std::string_view piece : pieces) encodePiece(piece, ids);
}

Tokenizer::Tokenizer(std::string_view text, const std::string& origin) : impl_(std::make_unique<Impl>()) {
    impl_->origin = origin;
    const Json json = parseJson(text);
    if (json.is_discarded() || !json.is_object()) impl_->refuse("this is not valid JSON");
    if (!member(json, "normalizer").is_null()) impl_->refuse("it has a normalizer", ErrorKind::Unsupported);
    impl_->readModel(member(json, "model"));
    impl_->readAdded(member(json, "added_tokens"));
    impl_->readPreTokenizer(member(json, "pre_tokenizer"));
    impl_->readPostProcessor(member(json, "post_processor"));
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view raw, bool addSpecial, bool parseSpecial) const {
    const std::string text = toValidUtf8(raw);
    std::vector<std::int32_t> ids;
    if (addSpecial) ids = impl_->before;
    std::size_t from = 0;
    std::vector<std::size_t> places; // of each added token at or behind `from`
    if (parseSpecial)
        for (const AddedToken& token : impl_->addedTokens) places.push_back(text.find(token.content));
    while (true) {
        std::size_t best = std::string::npos;
        const AddedToken* which = nullptr;
        for (std::size_t i = 0; i < places.size(); ++i) { // longest first: at one place the longest wins
            const AddedToken& token = impl_->addedTokens[i];
            if (places[i] < from) places[i] = text.find(token.content, from);
            if (places[i] < best) best = places[i], which = &token;
        }
        if (!which) break;
        impl_->encodeText(std::string_view(text).substr(from, best - from), ids);
        ids.push_back(which->id);
        from = best + which->content.size();
    }
    impl_->encodeText(std::string_view(text).substr(from), ids);
    if (addSpecial) ids.insert(ids.end(), impl_->after.begin(), impl_->after.end());
    return ids;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
    std::string out;
    for (const std::int32_t id : ids)
        if (!isSpecial(id)) out += bytesOf(id);
    return toValidUtf8(out);
}

std::string Tokenizer::bytesOf(std::int32_t id) const {
    return id >= 0 && std::size_t(id) < impl_->bytes.size() ? impl_->bytes[std::size_t(id)] : std::string();
}

bool Tokenizer::isSpecial(std::int32_t id) const {
    return id >= 0 && std::size_t(id) < impl_->special.size() && impl_->special[std::size_t(id)];
}

int Tokenizer::vocabSize() const { return int(impl_->bytes.size()); }

std::string toValidUtf8(std::string_view bytes) {
    std::string out;
    out.reserve(bytes.size());
    for (std::size_t i = 0; i < bytes.size();) {
        const auto lead = static_cast<unsigned char>(bytes[i]);
        // Allowed range of the second byte (Unicode, table 3-7); the following ones are 80..BF.
        const std::size_t length = lead < 0x80   ? 1
                                   : lead < 0xC2 ? 0
                                   : lead < 0xE0 ? 2
                                   : lead < 0xF0 ? 3
                                   : lead < 0xF5 ? 4
                                                 : 0;
        const unsigned low = lead == 0xE0   ? 0xA0
                             : lead == 0xF0 ? 0x90
                                            : 0x80,
                       high = lead == 0xED   ? 0x9F
                              : lead == 0xF4 ? 0x8F
                                             : 0xBF;
        std::size_t good = length == 0 ? 0 : 1;
        while (good > 0 && good < length && i + good < bytes.size()) {
            const auto c = static_cast<unsigned char>(bytes[i + good]);
            if (good == 1 ? c < low || c > high : c < 0x80 || c > 0xBF) break;
            ++good;
        }
        if (length > 0 && good == length)
            out += bytes.substr(i, length), i += length;
        else
            out += "\xEF\xBF\xBD", i += std::max<std::size_t>(good, 1);
    }
    return out;
}

} // namespace kvscope

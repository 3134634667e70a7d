#include "core/prompt/prompts.h"

#include "base/error.h"
#include "resources/resources.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <random>
#include <set>
#include <string_view>

namespace kvscope {
namespace {

constexpr int kLargestPrompt = 1 << 22; // tokens
constexpr int kMostNeedles = 500;       // there are 900 names to choose from
constexpr std::array kAdjectives{"amber", "brisk",  "cobalt", "dusty",   "eager",  "faded",  "gentle",  "hollow",
                                 "ivory", "jolly",  "kindly", "lofty",   "marble", "narrow", "olive",   "patient",
                                 "quiet", "rustic", "silver", "tidy",    "upper",  "velvet", "winding", "yellow",
                                 "ashen", "bright", "copper", "distant", "frosty", "golden"};
constexpr std::array kNouns{"anchor",  "beacon", "cedar",  "dagger",  "engine",  "ferry",  "garden",  "harbor",
                            "inkwell", "jacket", "kettle", "lantern", "meadow",  "needle", "orchard", "pillar",
                            "quarry",  "ribbon", "saddle", "temple",  "urn",     "valley", "whistle", "yarn",
                            "acorn",   "bridge", "castle", "dolphin", "feather", "glacier"};

std::vector<std::string> paragraphs() {
    const std::string_view text = resources::text("prompts/long_document.txt").value_or("");
    std::vector<std::string> out;
    for (std::size_t from = 0; from < text.size();) {
        const std::size_t end = std::min(text.find("\n\n", from), text.size());
        if (end > from) out.emplace_back(text.substr(from, end - from));
        from = end + 2;
    }
    return out;
}

/// Uniform in [0, n), the same on every machine.
std::size_t below(std::mt19937_64& random, std::size_t n) { return std::size_t(random() % n); }

/// Gives the document's paragraphs one after the other without end, shuffled anew each time all have been given. The
/// first time they may come in the document's own order, with its title.
class Haystack {
public:
    Haystack(std::uint64_t seed, bool inOrderFirst) : random_(seed), paragraphs_(paragraphs()) {
        if (!inOrderFirst) shuffle();
    }
    const std::string& next() {
        if (at_ == paragraphs_.size()) shuffle();
        return paragraphs_[at_++];
    }

private:
    void shuffle() {
        if (!titleDropped_) paragraphs_.erase(paragraphs_.begin());
        titleDropped_ = true;
        for (std::size_t i = paragraphs_.size(); i > 1; --i)
            std::swap(paragraphs_[i - 1], paragraphs_[below(random_, i)]);
        at_ = 0;
    }
    std::mt19937_64 random_;
    std::vector<std::string> paragraphs_;
    bool titleDropped_ = false;
    std::size_t at_ = 0;
};

int count(const Tokenizer& tokenizer, const std::string& text) {
    return int(tokenizer.encode(text, false, false).size());
}

/// The longest prefix of `text`, cut between words, of at most `tokens` tokens.
std::string cutToTokens(const Tokenizer& tokenizer, const std::string& text, int tokens) {
    const auto ids = tokenizer.encode(text, false, false);
    if (int(ids.size()) <= tokens) return text;
    std::size_t end = 0;
    for (int i = 0; i < tokens; ++i) end += tokenizer.bytesOf(ids[std::size_t(i)]).size();
    const std::size_t space = text.rfind(' ', end); // no token lies on both sides of the space in front of a word
    return text.substr(0, space == std::string::npos ? 0 : space);
}

/// As many words of the haystack as fit into `tokens` tokens.
std::string fill(const Tokenizer& tokenizer, Haystack& haystack, int tokens) {
    std::string text;
    int used = 0;
    while (used < tokens) {
        const std::string piece = haystack.next() + "\n\n";
        const int size = count(tokenizer, piece);
        if (used + size <= tokens)
            text += piece, used += size;
        else {
            text += cutToTokens(tokenizer, piece, tokens - used);
            break;
        }
    }
    return text;
}

void checkLength(int tokens) {
    if (tokens < 2 || tokens > kLargestPrompt)
        throw Error(ErrorKind::BadInput, fmt::format("a prompt of {} tokens is out of range", tokens),
                    fmt::format("use 2 to {}", kLargestPrompt));
}

struct Needle {
    double place; // 0 = start of the text, 1 = its end
    std::string text;
    bool asked;
    std::string name, value;
};

/// Makes facts about different names, in the order of their places, and sets the prompt's question and answer.
std::vector<Needle> makeNeedles(std::mt19937_64& random, const NeedleOptions& options, NeedlePrompt& prompt) {
    std::set<std::string> names, values;
    std::vector<Needle> needles;
    for (int i = 0; i < options.needles; ++i) {
        std::string name, value;
        do
            name = fmt::format("{} {}", kAdjectives[below(random, kAdjectives.size())],
                               kNouns[below(random, kNouns.size())]);
        while (!names.insert(name).second);
        do value = std::to_string(10000 + below(random, 90000));
        while (!values.insert(value).second);
        const bool asked = i == 0;
        const double place = asked ? options.depth : double(random() >> 11) * 0x1p-53;
        if (asked && options.passKey) {
            needles.push_back({place, fmt::format("\nThe pass key is {0}. Remember it. {0} is the pass key.\n", value),
                               asked, "the pass key", value});
            prompt.question = "\nWhat is the pass key? The pass key is ";
            prompt.answer = value;
            continue;
        }
        needles.push_back({place, fmt::format("\nThe magic number for {} is {}.\n", name, value), asked, name, value});
        if (!asked) continue;
        prompt.question = fmt::format("\nWhat is the magic number for {}? The magic number for {} is ", name, name);
        prompt.answer = value;
    }
    std::stable_sort(needles.begin(), needles.end(),
                     [](const Needle& a, const Needle& b) { return a.place < b.place; });
    return needles;
}

/// Index of the token that holds byte `offset` of `text`.
int tokenAt(const Tokenizer& tokenizer, const std::string& text, std::size_t offset) {
    std::size_t end = 0;
    int index = 0;
    for (const std::int32_t id : tokenizer.encode(text)) {
        if (!tokenizer.isSpecial(id)) end += tokenizer.bytesOf(id).size(); // special tokens have no bytes in the text
        if (end > offset) break;
        ++index;
    }
    return index;
}

} // namespace

SplicedPrompts::SplicedPrompts(const Model& model) : tokenizer_(model.tokenizer()), vocab_(model.config().vocab) {
    try {
        for (const std::string& paragraph : paragraphs())
            paragraphs_.push_back(tokenizer_.encode(paragraph + "\n\n", false, false));
    } catch (const Error&) { // the model came without a tokenizer
        paragraphs_.clear();
    }
}

std::vector<std::int32_t> SplicedPrompts::beginning(std::int64_t number, std::uint64_t seed) const {
    if (paragraphs_.empty()) return {};
    return tokenizer_.encode(fmt::format("Request {} of seed {}.\n\n", number, seed), true, false);
}

std::vector<std::int32_t> SplicedPrompts::prompt(int tokens, std::int64_t number, std::uint64_t seed) const {
    if (tokens < 1 || tokens > kLargestPrompt)
        throw Error(ErrorKind::BadInput, fmt::format("a prompt of {} tokens is out of range", tokens),
                    fmt::format("use 1 to {}", kLargestPrompt));
    std::mt19937_64 random(seed * 0x9E3779B97F4A7C15 + std::uint64_t(number));
    std::vector<std::int32_t> ids = beginning(number, seed);
    while (ids.size() < std::size_t(tokens)) {
        if (paragraphs_.empty()) {
            ids.push_back(std::int32_t(below(random, std::size_t(vocab_))));
            continue;
        }
        const std::vector<std::int32_t>& next = paragraphs_[below(random, paragraphs_.size())];
        ids.insert(ids.end(), next.begin(), next.end());
    }
    ids.resize(std::size_t(tokens));
    return ids;
}

NeedlePrompt makeNeedlePrompt(const Tokenizer& tokenizer, const NeedleOptions& options) {
    checkLength(options.tokens);
    if (options.needles < 1 || options.needles > kMostNeedles)
        throw Error(ErrorKind::BadInput, fmt::format("{} needles are out of range", options.needles),
                    fmt::format("use 1 to {}", kMostNeedles));
    if (!(options.depth >= 0 && options.depth <= 1))
        throw Error(ErrorKind::BadInput, fmt::format("the needle depth {} is out of range", options.depth),
                    "use 0 (start) to 1 (end)");
    std::mt19937_64 random(options.seed);
    NeedlePrompt prompt;
    const std::vector<Needle> needles = makeNeedles(random, options, prompt);
    int fixedTokens = int(tokenizer.encode("").size()) + count(tokenizer, prompt.question) + 1;
    for (const Needle& needle : needles) fixedTokens += count(tokenizer, needle.text) + 1; // 1 where texts are joined
    const int room = options.tokens - fixedTokens;
    if (room < 0)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} {} not fit a prompt of {} tokens", options.needles,
                                options.needles == 1 ? "needle does" : "needles do", options.tokens),
                    fmt::format("use at least {} tokens or fewer needles", fixedTokens));

    // There is a stretch of text before every needle and one behind the last. The longest stretch is filled last.
    // Cutting between words has left the others short; the longest makes up for that, so that the prompt has the length
    // asked for.
    std::vector<int> budgets;
    double done = 0;
    for (const Needle& needle : needles) {
        budgets.push_back(int((needle.place - done) * room));
        done = needle.place;
    }
    budgets.push_back(int((1 - done) * room));
    const auto longest = std::size_t(std::max_element(budgets.begin(), budgets.end()) - budgets.begin());
    std::vector<std::string> stretches(budgets.size());
    Haystack haystack(options.seed * 0x9E3779B97F4A7C15ull + 1, false);
    for (std::size_t i = 0; i < budgets.size(); ++i)
        if (i != longest) stretches[i] = fill(tokenizer, haystack, budgets[i]);
    const auto assemble = [&] {
        std::string text;
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            text += stretches[i];
            if (i < needles.size()) text += needles[i].text;
        }
        return text + prompt.question;
    };
    const auto total = [&] { return int(tokenizer.encode(assemble()).size()); };
    const std::string source = fill(tokenizer, haystack, budgets[longest] + options.tokens - total());
    for (int budget = options.tokens - total(); budget > 0;) {
        stretches[longest] = cutToTokens(tokenizer, source, budget);
        const int excess = total() - options.tokens;
        if (excess <= 0) break;
        budget -= excess;
        stretches[longest].clear();
    }
    prompt.text = assemble();
    for (const Needle& needle : needles)
        prompt.facts.push_back(
            {needle.text.substr(1, needle.text.size() - 2), needle.name, needle.value, needle.asked});

    std::size_t asked = 0;
    for (std::size_t i = 0; i < needles.size() && !(asked += stretches[i].size(), needles[i].asked); ++i)
        asked += needles[i].text.size();
    prompt.needleToken = tokenAt(tokenizer, prompt.text, asked + 1); // + 1: the needle begins with a line break
    return prompt;
}

std::vector<NeedlePlace> placesOf(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                                  const NeedlePrompt& prompt, int sequence) {
    std::string text;
    std::vector<std::size_t> ends; // [token]
    for (const std::int32_t id : ids) {
        text += tokenizer.bytesOf(id);
        ends.push_back(text.size());
    }
    const auto tokenOf = [&ends](std::size_t byte) {
        return int(std::upper_bound(ends.begin(), ends.end(), byte) - ends.begin());
    };
    std::vector<NeedlePlace> places;
    for (const HiddenFact& fact : prompt.facts) {
        const std::size_t at = text.find(fact.sentence);
        if (at == std::string::npos || fact.sentence.empty()) continue;
        const int first = tokenOf(at), last = tokenOf(at + fact.sentence.size() - 1);
        places.push_back({sequence, first, last - first + 1, fact.name, fact.value, fact.asked});
    }
    return places;
}

std::string longDocumentPrompt(const Tokenizer& tokenizer, int tokens) {
    checkLength(tokens);
    Haystack haystack(1, true);
    return fill(tokenizer, haystack, tokens - int(tokenizer.encode("").size()));
}

} // namespace kvscope

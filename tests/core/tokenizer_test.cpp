// The tokenizer against the reference library (tests/golden), on malformed text, and on damaged files.
#include "base/utf8.h"
#include "core/model/tokenizer/tokenizer.h"

#include "base/error.h"
#include "tests/support/places.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::json;

std::string contentsOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
}

const std::string& tokenizerText() {
    static const auto text = contentsOf(test::source("resources/models/nosa-tiny/tokenizer.json"));
    return text;
}

const Tokenizer& tokenizer() {
    static const Tokenizer tokenizer(tokenizerText(), "tokenizer.json");
    return tokenizer;
}

const std::string kFixture = test::source("tests/golden/tokenizer_fixture.jsonl");

struct Case {
    std::string text;
    std::vector<std::int32_t> ids;
};

const std::vector<Case>& fixture() {
    static const auto cases = [] {
        std::vector<Case> out;
        std::ifstream file(kFixture);
        for (std::string line; std::getline(file, line);) {
            const auto json = Json::parse(line);
            out.push_back({json.at("text").get<std::string>(), json.at("ids").get<std::vector<std::int32_t>>()});
        }
        return out;
    }();
    return cases;
}

std::string rewritten(const std::function<void(Json&)>& change) {
    static const auto original = Json::parse(tokenizerText());
    Json json = original;
    change(json);
    return json.dump();
}

/// The refusal of a damaged file as one line; empty when it loads. Anything but an Error fails the test.
std::string refusalOf(const std::string& text) {
    try {
        const Tokenizer damaged(text, "x/tokenizer.json");
        damaged.decode(damaged.encode("Some text <|bos|> and more"));
        return {};
    } catch (const Error& error) {
        const std::string line = oneLine(error);
        EXPECT_EQ(line.find('\n'), std::string::npos) << line;
        EXPECT_NE(line.find("x/tokenizer.json"), std::string::npos) << line;
        EXPECT_LT(line.size(), 400u) << line;
        return line;
    }
}

TEST(Tokenizer, GivesTheIdsOfTheReferenceLibrary) {
    if (!std::filesystem::exists(kFixture)) GTEST_SKIP() << "this checkout leaves out " << kFixture;
    ASSERT_GE(fixture().size(), 10'000u);
    int wrong = 0;
    for (const Case& c : fixture()) {
        const auto ids = tokenizer().encode(c.text);
        if (ids == c.ids || ++wrong > 10) continue;
        EXPECT_EQ(ids, c.ids) << Json(c.text).dump();
    }
    EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, GivesTheGoldenIdsWithoutSpecialTokens) {
    const auto cases = Json::parse(contentsOf(test::source("tests/golden/tokenizer_cases.json")));
    ASSERT_FALSE(cases.empty());
    for (const Json& c : cases)
        EXPECT_EQ(tokenizer().encode(c.at("text").get<std::string>(), false, false),
                  c.at("ids").get<std::vector<std::int32_t>>())
            << c.at("text").dump();
}

TEST(Tokenizer, DecodesWhatItEncoded) {
    if (!std::filesystem::exists(kFixture)) GTEST_SKIP() << "this checkout leaves out " << kFixture;
    for (const Case& c : fixture()) {
        EXPECT_EQ(tokenizer().decode(tokenizer().encode(c.text, true, false)), c.text) << Json(c.text).dump();
        if (c.text.find("<|bos|>") == std::string::npos && c.text.find("<|eos|>") == std::string::npos) {
            EXPECT_EQ(tokenizer().decode(c.ids), c.text) << Json(c.text).dump();
        }
    }
}

TEST(Tokenizer, BytesOfTheTokensSpellTheText) {
    if (!std::filesystem::exists(kFixture)) GTEST_SKIP() << "this checkout leaves out " << kFixture;
    for (const Case& c : fixture()) {
        std::string spelled;
        for (const std::int32_t id : tokenizer().encode(c.text, false)) spelled += tokenizer().bytesOf(id);
        EXPECT_EQ(spelled, c.text) << Json(c.text).dump();
    }
}

TEST(Tokenizer, SpecialTokensAreMarkedAndSkippedByDecoding) {
    const auto ids = tokenizer().encode("a<|eos|>b");
    ASSERT_EQ(ids.size(), 4u);
    EXPECT_TRUE(tokenizer().isSpecial(ids[0]));
    EXPECT_TRUE(tokenizer().isSpecial(ids[2]));
    EXPECT_FALSE(tokenizer().isSpecial(ids[1]));
    EXPECT_EQ(tokenizer().bytesOf(ids[0]), "<|bos|>");
    EXPECT_EQ(tokenizer().decode(ids), "ab");
    EXPECT_GT(tokenizer().encode("<|eos|>", false, false).size(), 1u);
    EXPECT_EQ(tokenizer().vocabSize(), 4096);
}

TEST(Tokenizer, IdsOutsideTheVocabularyStandForNothing) {
    for (const std::int32_t id : {-1, INT32_MIN, tokenizer().vocabSize(), INT32_MAX}) {
        EXPECT_EQ(tokenizer().bytesOf(id), "") << id;
        EXPECT_FALSE(tokenizer().isSpecial(id)) << id;
    }
    EXPECT_EQ(tokenizer().decode({-7, 66, INT32_MAX}), "a");
}

TEST(Tokenizer, ReplacesMalformedUtf8LikePython) {
    const std::string r = "\xEF\xBF\xBD"; // the expectations are those of bytes.decode("utf-8", "replace")
    const std::pair<std::string, std::string> cases[] = {
        {"", ""},
        {"abc", "abc"},
        {"\x80", r},
        {"\xbf\xbf", r + r},
        {"\xc0\x80", r + r},
        {"\xc1\xbf", r + r},
        {"\xc2", r},
        {"\xc2z", r + "z"},
        {"\xe0\x80\x80", r + r + r},
        {"\xe0\xa0", r},
        {"\xe0\xa0z", r + "z"},
        {"\xed\xa0\x80", r + r + r},
        {"\xed\x9f\xbf", "\xed\x9f\xbf"},
        {"\xf0\x80\x80\x80", r + r + r + r},
        {"\xf0\x90\x80", r},
        {"\xf0\x90\x80z", r + "z"},
        {"\xf0\x90", r},
        {"\xf4\x90\x80\x80", r + r + r + r},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xf5\x80\x80\x80", r + r + r + r},
        {"\xff\xfe", r + r},
        {"\xe2\x82\xe2\x82\xac", r + "\xe2\x82\xac"},
        {"z\xf1\x80\x80\xe1\x80\xc2z\x80z\x80\xbfz", "z" + r + r + r + "z" + r + "z" + r + r + "z"},
        {"\xf8\x88\x80\x80\x80", r + r + r + r + r},
        {"\xef\xbf", r},
        {"\xc3\xa9\xc3", "\xc3\xa9" + r},
    };
    for (const auto& [bytes, want] : cases) {
        EXPECT_EQ(toValidUtf8(bytes), want) << testing::PrintToString(bytes);
        EXPECT_EQ(tokenizer().encode(bytes), tokenizer().encode(want)) << testing::PrintToString(bytes);
    }
}

TEST(Tokenizer, RandomBytesEncodeAsTheirReplacement) {
    std::mt19937 random(2026);
    for (int round = 0; round < 2000; ++round) {
        std::string bytes(random() % 40, '\0');
        for (char& c : bytes) c = char(random());
        const std::string valid = toValidUtf8(bytes);
        EXPECT_EQ(toValidUtf8(valid), valid);
        EXPECT_EQ(tokenizer().decode(tokenizer().encode(bytes, true, false)), valid) << testing::PrintToString(bytes);
    }
}

TEST(Tokenizer, IncompleteCharactersDecodeToTheReplacement) {
    const auto ids = tokenizer().encode("\xE5\xAD\x97", false); // falls apart into bytes
    ASSERT_GT(ids.size(), 1u);
    EXPECT_EQ(tokenizer().decode({ids.begin(), ids.end() - 1}), "\xEF\xBF\xBD");
}

TEST(Tokenizer, MegabytesOfOneCharacterComplete) {
    constexpr std::size_t mebibyte = 1 << 20;
    for (const std::string unit : {"a", " ", "\n", "=", "1", "\xC3\xA9", "\t a", "<|bos|>", "<|bo"}) {
        std::string text;
        while (text.size() < mebibyte) text += unit;
        const auto ids = tokenizer().encode(text, false);
        std::string spelled;
        for (const std::int32_t id : ids) spelled += tokenizer().bytesOf(id);
        EXPECT_EQ(spelled == text, true) << unit;
    }
}

TEST(Tokenizer, TwoThreadsEncodeAtOnce) {
    if (!std::filesystem::exists(kFixture)) GTEST_SKIP() << "this checkout leaves out " << kFixture;
    const auto encodeAll = [](int& wrong) {
        for (const Case& c : fixture())
            if (tokenizer().encode(c.text) != c.ids) ++wrong;
    };
    int first = 0, second = 0;
    std::thread other([&] { encodeAll(second); });
    encodeAll(first);
    other.join();
    EXPECT_EQ(first, 0);
    EXPECT_EQ(second, 0);
}

TEST(Tokenizer, TruncatedFilesAreRefused) {
    const std::string& text = tokenizerText();
    const std::size_t last = text.find_last_of('}');
    for (std::size_t length = 0; length < 200; ++length) EXPECT_NE(refusalOf(text.substr(0, length)), "") << length;
    for (int i = 0; i < 100; ++i) {
        const std::size_t length = last * std::size_t(i) / 100;
        EXPECT_NE(refusalOf(text.substr(0, length)), "") << length;
    }
    for (std::size_t length = last - 20; length <= last; ++length)
        EXPECT_NE(refusalOf(text.substr(0, length)), "") << length;
}

TEST(Tokenizer, WrongTypesAnywhereAreRefusedOrHarmless) {
    const std::vector<Json> values = {
        nullptr,          true, -1, 0, 4.5, 1e300, "text", "", Json::array(), Json::object(), Json::array({1}),
        std::uint64_t(-1)};
    const char* places[] = {"/version",
                            "/added_tokens",
                            "/added_tokens/0",
                            "/added_tokens/0/id",
                            "/added_tokens/0/content",
                            "/added_tokens/0/special",
                            "/added_tokens/0/lstrip",
                            "/normalizer",
                            "/pre_tokenizer",
                            "/pre_tokenizer/type",
                            "/pre_tokenizer/pretokenizers",
                            "/pre_tokenizer/pretokenizers/0",
                            "/pre_tokenizer/pretokenizers/0/pattern",
                            "/pre_tokenizer/pretokenizers/0/pattern/Regex",
                            "/pre_tokenizer/pretokenizers/0/behavior",
                            "/pre_tokenizer/pretokenizers/0/invert",
                            "/pre_tokenizer/pretokenizers/1/type",
                            "/pre_tokenizer/pretokenizers/1/add_prefix_space",
                            "/post_processor",
                            "/post_processor/type",
                            "/post_processor/single",
                            "/post_processor/single/0",
                            "/post_processor/single/0/SpecialToken",
                            "/post_processor/single/0/SpecialToken/id",
                            "/model",
                            "/model/type",
                            "/model/dropout",
                            "/model/ignore_merges",
                            "/model/vocab",
                            "/model/vocab/a",
                            "/model/merges",
                            "/model/merges/0",
                            "/model/merges/0/1"};
    Json slim = Json::parse(tokenizerText()); // few merges, so that each attempt is quick
    slim["model"]["merges"].erase(slim["model"]["merges"].begin() + 50, slim["model"]["merges"].end());
    int refused = 0;
    for (const char* place : places)
        for (const Json& value : values) {
            Json changed = slim;
            changed[Json::json_pointer(place)] = value;
            SCOPED_TRACE(std::string(place) + " = " + value.dump());
            if (!refusalOf(changed.dump()).empty()) ++refused;
        }
    EXPECT_GT(refused, int(std::size(places) * values.size()) / 2);
}

TEST(Tokenizer, RandomlyDamagedFilesAreRefusedOrHarmless) {
    Json slim = Json::parse(tokenizerText());
    slim["model"]["merges"].erase(slim["model"]["merges"].begin() + 20, slim["model"]["merges"].end());
    for (auto entry = slim["model"]["vocab"].begin(); entry != slim["model"]["vocab"].end();)
        entry = entry.value() < 300 ? std::next(entry) : slim["model"]["vocab"].erase(entry);
    const std::string text = slim.dump();
    ASSERT_EQ(refusalOf(text), "");
    std::mt19937 random(7);
    for (int round = 0; round < 1500; ++round) {
        std::string damaged = text;
        for (std::size_t changes = 1 + random() % 3; changes > 0; --changes)
            damaged[random() % damaged.size()] = char(random());
        SCOPED_TRACE(round);
        refusalOf(damaged);
    }
}

TEST(Tokenizer, DeepNestingIsRefusedNotFollowed) {
    const std::string open(1'000'000, '['), close(1'000'000, ']');
    EXPECT_NE(refusalOf(open), "");
    EXPECT_NE(refusalOf("{\"model\": " + open + close + "}"), "");
    std::string sequence = "{\"pre_tokenizer\": ";
    for (int i = 0; i < 100'000; ++i) sequence += R"({"type":"Sequence","pretokenizers":[)";
    EXPECT_NE(refusalOf(sequence), "");
}

TEST(Tokenizer, NamesWhatItDoesNotSupport) {
    const auto expectNamed = [](const std::function<void(Json&)>& change, const std::string& what) {
        EXPECT_NE(refusalOf(rewritten(change)).find(what), std::string::npos) << what;
    };
    expectNamed([](Json& json) { json["model"]["type"] = "WordPiece"; }, "WordPiece");
    expectNamed([](Json& json) { json["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix");
    expectNamed([](Json& json) { json["normalizer"] = {{"type", "BertNormalizer"}}; }, "BertNormalizer");
    expectNamed([](Json& json) { json["pre_tokenizer"] = {{"type", "UnicodeScripts"}}; }, "UnicodeScripts");
    expectNamed([](Json& json) { json["decoder"] = {{"type", "CTC"}}; }, "CTC");
    expectNamed(
        [](Json& json) {
            json["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
        },
        "ByteLevel");
    expectNamed([](Json& json) { json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z&&[^b]]"; },
                "intersects");
    expectNamed([](Json& json) { json["post_processor"]["type"] = "BertProcessing"; }, "BertProcessing");
    expectNamed([](Json& json) { json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }, "pattern");
    expectNamed([](Json& json) { json["model"]["vocab"]["a"] = json["model"]["vocab"]["b"]; }, "two entries");
    expectNamed([](Json& json) { json["model"]["merges"][3][0] = "not a token\n"; }, "merge 3");
}

TEST(Tokenizer, ReadsMergesWrittenAsOneText) {
    if (!std::filesystem::exists(kFixture)) GTEST_SKIP() << "this checkout leaves out " << kFixture;
    const Tokenizer joined(rewritten([](Json& json) {
                               for (Json& merge : json["model"]["merges"])
                                   merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
                           }),
                           "joined");
    for (std::size_t i = 0; i < fixture().size(); i += 50)
        EXPECT_EQ(joined.encode(fixture()[i].text), fixture()[i].ids) << Json(fixture()[i].text).dump();
}

TEST(Tokenizer, PutsTheTemplatesTokensAroundTheText) {
    const Tokenizer both(rewritten([](Json& json) {
                             json["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "<|eos|>"}}}});
                         }),
                         "both");
    EXPECT_EQ(both.encode("a"), (std::vector<std::int32_t>{0, 66, 1}));
    EXPECT_EQ(both.encode("a", false), std::vector<std::int32_t>{66});
    const Tokenizer none(rewritten([](Json& json) { json["post_processor"] = nullptr; }), "none");
    EXPECT_EQ(none.encode("a"), std::vector<std::int32_t>{66});
}

/// The library numbers added tokens itself and warns where the file states another id, so that a model's rows are those
/// of the library's ids.
TEST(Tokenizer, RefusesIdsThatTheLibraryGivesToOtherTokens) {
    Json json{{"model", {{"type", "BPE"}, {"merges", Json::array()}, {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}}}}}};
    const auto added = [&](std::initializer_list<std::pair<const char*, int>> tokens) {
        json["added_tokens"] = Json::array();
        for (const auto& [content, id] : tokens)
            json["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
        try {
            (void)Tokenizer(json.dump(), "added");
        } catch (const Error& error) {
            return oneLine(error);
        }
        return std::string();
    };
    EXPECT_EQ(added({{"<x>", 3}, {"<y>", 4}}), "");
    EXPECT_EQ(added({{"b", 1}, {"<x>", 3}, {"c", 2}, {"<y>", 4}}), "") << "tokens of the vocabulary keep their ids";
    EXPECT_EQ(added({{"<x>", 3}, {"<x>", 3}, {"<y>", 4}}), "");
    for (const auto& wrong :
         {added({{"<x>", 4}}), added({{"<y>", 4}, {"<x>", 3}}), added({{"b", 3}}), added({{"<x>", 2}})})
        EXPECT_NE(wrong.find("and the tokenizers library gives it"), wrong.npos) << wrong;
}

TEST(Tokenizer, RefusesASecondTemplateWhichTakesAPairOfTexts) {
    const Json once = {{"type", "TemplateProcessing"},
                       {"single", {{{"SpecialToken", {{"id", "a"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
    Json json{{"model", {{"type", "BPE"}, {"merges", Json::array()}, {"vocab", {{"a", 0}, {"b", 1}}}}},
              {"post_processor", {{"type", "Sequence"}, {"processors", {once}}}}};
    EXPECT_EQ(Tokenizer(json.dump(), "one").encode("b"), (std::vector<std::int32_t>{0, 1}));
    json["post_processor"]["processors"].push_back(once);
    EXPECT_THROW(Tokenizer(json.dump(), "two"), Error);
}

/// What the tokenizers library makes of them: a mark, a fraction of Latin-1 and another one, a circled letter.
TEST(Tokenizer, WordCharactersAreTheLibrarys) {
    Json json{
        {"model",
         {{"type", "BPE"},
          {"unk_token", "<unk>"},
          {"merges", Json::array()},
          {"vocab", {{"x", 0}, {"\u0e37", 1}, {"\u00be", 2}, {"\u2153", 3}, {"\u24d0", 4}, {"=", 5}, {"<unk>", 6}}}}}};
    using Ids = std::vector<std::int32_t>;
    const auto without = [&](const char* expression) {
        json["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Removed"}, {"invert", false}};
        return Tokenizer(json.dump(), "words").encode("x\u0e37\u00be\u2153\u24d0=x=");
    };
    EXPECT_EQ(without("\\w+"), (Ids{3, 5, 5}));
    EXPECT_EQ(without("\\W+"), (Ids{0, 1, 2, 4, 0}));
    EXPECT_EQ(without("[^\\w]"), (Ids{0, 1, 4, 0}));
    EXPECT_EQ(without("\\b"), (Ids{0, 1, 2, 3, 4, 5, 0, 5}));
    EXPECT_EQ(without("x\\b"), (Ids{0, 1, 2, 3, 4, 5, 5}));
    EXPECT_EQ(without("\\Bx"), (Ids{0, 1, 2, 3, 4, 5, 0, 5}));
    json["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
    json["added_tokens"] = {{{"id", 7},
                             {"content", "=="},
                             {"single_word", true},
                             {"normalized", true},
                             {"special", false},
                             {"lstrip", false},
                             {"rstrip", false}}};
    EXPECT_EQ(Tokenizer(json.dump(), "words").encode("x== ==x \u24d0== == \u2153== \u00be=="),
              (Ids{0, 5, 5, 5, 5, 0, 4, 5, 5, 7, 3, 7, 2, 7}));
    json["added_tokens"][0].update({{"single_word", false}, {"rstrip", true}});
    json["added_tokens"].push_back(json["added_tokens"][0]);
    json["added_tokens"][1].update({{"id", 8}, {"content", " x"}});
    EXPECT_EQ(Tokenizer(json.dump(), "words").encode("==  x"), (Ids{7, 8}))
        << "a space that was stripped begins a token";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

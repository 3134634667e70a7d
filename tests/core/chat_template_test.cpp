// Chat templates against transformers (tools/make_chat_cases.py), and templates that mean harm.
#include "base/error.h"
#include "core/chat/chat_template.h"
#include "core/model/text_files.h"
#include "core/prompt/chat_prompt.h"
#include "tests/support/places.h"

#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;
const std::map<std::string, std::string> kTokens = {
    {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};

/// KVSCOPE_CHAT_CASES names a file with more of them.
std::vector<Json> cases() {
    std::vector<Json> out;
    const char* more = std::getenv("KVSCOPE_CHAT_CASES");
    for (const std::string& path : {test::source("tests/golden/chat_cases.jsonl"), std::string(more ? more : "")}) {
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
    }
    return out;
}

/// The refusal in one line; empty when the template renders.
std::string refusalOf(const std::string& text, const std::string& names = "{}") {
    try {
        ChatTemplate(text, kTokens, "m/chat_template.jinja").renderJson(names);
        return {};
    } catch (const Error& error) {
        const std::string line = oneLine(error);
        EXPECT_EQ(line.find('\n'), std::string::npos) << line;
        EXPECT_LT(line.size(), 300u);
        EXPECT_NE(line.find("m/chat_template.jinja"), std::string::npos) << line;
        return line;
    }
}

TEST(ChatTemplate, GivesTheTextOfTransformersOrFailsAsItDoes) {
    if (!fs::exists(test::source("tests/golden/chat_cases.jsonl")))
        GTEST_SKIP() << "this checkout leaves out tests/golden/chat_cases.jsonl";
    const auto all = cases();
    ASSERT_GE(all.size(), 140u);
    int failing = 0;
    for (const Json& c : all) {
        const auto text = c.at("template").get<std::string>();
        SCOPED_TRACE(c.at("name").get<std::string>() + ": " + text.substr(0, 200) + "\n" + c.at("names").dump());
        if (c.at("result").is_null()) {
            ++failing;
            EXPECT_NE(refusalOf(text, c.at("names").dump()), "");
            continue;
        }
        try {
            EXPECT_EQ(ChatTemplate(text, kTokens, "t").renderJson(c.at("names").dump()),
                      c.at("result").get<std::string>());
        } catch (const Error& error) {
            ADD_FAILURE() << oneLine(error);
        }
    }
    EXPECT_GE(failing, 15);
}

TEST(ChatTemplate, HarmfulTemplatesAreStopped) {
    const std::string many(100'000, '(');
    std::string sum = "{{ 1", blocks, elifs = "{% if x %}";
    for (int i = 0; i < 100'000; ++i) sum += " + 1", blocks += "{% if true %}", elifs += "{% elif x %}";
    for (const std::string& text :
         {std::string("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
          std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
          std::string(
              "{% set ns = namespace(x='a') %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
          std::string(
              "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
          std::string(
              "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"),
          std::string("{% set ns = namespace() %}{% set ns.me = [ns] %}"),
          std::string("{{ 'a' * 9999999999 }}"),
          std::string("{{ range(10 ** 9) }}"),
          std::string("{{ 9 ** 99 }}"),
          std::string("{{ 9223372036854775807 + 1 }}"),
          std::string("{{ (-9223372036854775807 - 1) // -1 }}"),
          std::string("{% set x = 'ab' %}{% for i in range(9999) %}{{ x.replace('', x * 99999) }}{% endfor %}"),
          "{{ " + many,
          "{{ " + std::string(100'000, '[') + std::string(100'000, ']') + " }}",
          sum + " }}",
          blocks,
          elifs + "{% endif %}",
          "{{ x" + std::string(100'000, '|') + " }}",
          "{{ " + std::string(200'000, '-') + "1 }}",
          std::string(2 << 20, 'a')}) {
        SCOPED_TRACE(text.substr(0, 60));
        EXPECT_NE(refusalOf(text), "");
    }
}

/// A list that holds another one twice, to a depth of 60: printing, comparing or searching it would visit 2^60 values.
TEST(ChatTemplate, ListsWithinListsAreVisitedWithinTheBudget) {
    const std::string grown = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
                              "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
    for (const char* use : {"{{ ns.x }}",
                            "{{ ns.x ~ '' }}",
                            "{{ ns.x | string }}",
                            "{{ ns.x | tojson }}",
                            "{{ ns.x | tojson(indent=2) }}",
                            "{{ [ns.x] | join }}",
                            "{{ ns.x | upper }}",
                            "{{ ns.x | e }}",
                            "{{ ns.x | indent }}",
                            "{{ ns.x == ns.y }}",
                            "{{ ns.x != ns.y }}",
                            "{{ ns.x in [ns.y] }}",
                            "{{ ns.x not in [ns.y] }}",
                            "{{ ns.x is eq ns.y }}",
                            "{{ ns.x is ne(ns.y) }}",
                            "{{ ns.x is in [ns.y] }}",
                            "{{ ns.x is lower }}",
                            "{{ [ns.x, ns.y] | unique }}",
                            "{{ [ns.x].count(ns.y) }}",
                            "{{ [ns.x].index(ns.y) }}",
                            "{{ {'a': ns.x} == {'a': ns.y} }}",
                            "{{ [[ns.x]] | selectattr(0, 'eq', ns.y) | list }}",
                            "{{ {}[ns.x] }}",
                            "{{ raise_exception(ns.x) }}"}) {
        SCOPED_TRACE(use);
        EXPECT_NE(refusalOf(grown + use).find("it takes too many steps"), std::string::npos) << refusalOf(grown + use);
    }
    EXPECT_EQ(refusalOf(grown + "{{ ns.x | length }}{{ ns.x is sequence }}"), "");
}

/// What a template searches, copies and compares counts too.
TEST(ChatTemplate, WorkOnLongTextsAndListsIsWithinTheBudget) {
    const std::string text = "{% set s = 'a' * 9999999 %}{% set n = range(99999) | list %}";
    for (const char* use :
         {"{% if 'b' in s %}{% endif %}", "{% if s == s ~ '' %}{% endif %}", "{% set x = s.find('ab') %}",
          "{% set x = s.rfind('ba') %}", "{% set x = s.replace('b', '') %}", "{% set x = n | last %}",
          "{% set x = n.index(99998) %}", "{% set x = s.count('b') %}", "{% if s < s %}{% endif %}",
          "{% set x = s.rsplit() %}"}) {
        SCOPED_TRACE(use);
        EXPECT_NE(refusalOf(text + "{% for i in range(99999) %}" + use + "{% endfor %}").find("it "),
                  std::string::npos);
    }
    // A search that compares the whole of a long text at every place of a longer one.
    EXPECT_EQ(refusalOf("{% set s = 'a' * 2000000 %}{{ s.find('a' * 999999 ~ 'b') }}{{ s.rfind('b' ~ 'a' * 999999) }}"),
              "");
}

/// Rounds of a loop count by themselves: its body may be empty.
TEST(ChatTemplate, LoopsWithoutABodyAreWithinTheBudget) {
    for (const char* text : {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                             "{% set n = range(99999) %}{% for i in n %}{% for j in n %}{% endfor %}{% endfor %}"}) {
        SCOPED_TRACE(text);
        EXPECT_NE(refusalOf(text).find("it takes too many steps"), std::string::npos) << refusalOf(text);
    }
}

/// A text that would become far larger, or a list of its characters, is refused before it is made.
TEST(ChatTemplate, TextsAndTheirCharactersAreCountedBeforeTheyAreMade) {
    for (const char* use : {"'a'.replace('', 'b' * 1000000).replace('', 'c' * 1000000)",
                            "('a' * 90000000) | list | length", "('a' * 90000000) | reverse",
                            "('a' * 90000000).title()", "('a' * 90000000)[::-1]", "('a' * 90000000) | first"}) {
        SCOPED_TRACE(use);
        EXPECT_NE(refusalOf("{{ " + std::string(use) + " }}").find("it "), std::string::npos);
    }
    EXPECT_EQ(refusalOf("{% set s = 'ä' * 9000000 %}{{ s | length }}{{ (s ~ 'x').find('x') }}{{ s.count('') }}"), "");
}

TEST(ChatTemplate, RandomlyDamagedTemplatesAreRefusedOrHarmless) {
    if (!fs::exists(test::source("tests/golden/chat_cases.jsonl")))
        GTEST_SKIP() << "this checkout leaves out tests/golden/chat_cases.jsonl";
    const auto all = cases();
    std::mt19937 random(5);
    for (int round = 0; round < 3000; ++round) {
        const Json& c = all[random() % all.size()];
        auto text = c.at("template").get<std::string>();
        if (text.empty()) continue;
        for (std::size_t changes = 1 + random() % 3; changes > 0; --changes)
            random() % 2 ? void(text[random() % text.size()] = char(random()))
                         : void(text.insert(random() % text.size(), 1, "{}%[]()'|.-"[random() % 11]));
        SCOPED_TRACE(round);
        refusalOf(text, c.at("names").dump());
    }
}

TEST(ChatTemplate, ErrorsNameTheLineAndTheCause) {
    EXPECT_NE(refusalOf("a\n{{ x.y }}").find("line 2: 'x' is undefined"), std::string::npos);
    EXPECT_NE(refusalOf("{{ raise_exception('no system') }}").find("refuses this conversation: no system"),
              std::string::npos);
    EXPECT_NE(refusalOf("{% include 'f' %}").find("'include' is not supported"), std::string::npos);
    EXPECT_NE(refusalOf("{{ 1 | magic }}").find("the filter 'magic' is not supported"), std::string::npos);
    EXPECT_NE(refusalOf("{{ raise_exception('two\nlines') }}").find("two?lines"), std::string::npos);
}

class ModelFolder : public testing::Test {
protected:
    ModelFolder() {
        std::string name = (fs::temp_directory_path() / "kvscope-text-XXXXXX").string();
        folder = mkdtemp(name.data());
        fs::copy_file(test::source("tests/golden/tokenizers/llama2.json"), folder / "tokenizer.json");
    }
    ~ModelFolder() override { fs::remove_all(folder); }
    void write(const char* name, const std::string& text) const {
        std::ofstream(folder / name, std::ios::binary) << text;
    }
    fs::path folder;
};

TEST_F(ModelFolder, ReadsTemplateAndSpecialTokensFromTokenizerConfig) {
    write("tokenizer_config.json",
          R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": false,
              "chat_template": [{"name": "tool_use", "template": "x"},
              {"name": "default", "template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"}]})");
    const TextFiles text = readTextFiles(folder);
    ASSERT_TRUE(text.chat);
    EXPECT_NE(text.tokenizer.encode("a").front(), 1);
    const std::string prompt = chatPrompt(text, "m", {"hi", "be kind"});
    EXPECT_EQ(prompt, "<s>[system]be kind[user]hi");
    const auto ids = encodeChatPrompt(text.tokenizer, prompt);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 1) << "the template wrote the only BOS";
    write("chat_template.jinja", "newer: {{ messages[0].content }}");
    EXPECT_EQ(chatPrompt(readTextFiles(folder), "m", {"hi"}), "newer: hi");
}

TEST_F(ModelFolder, ABaseModelHasNoTemplateAndABadOneIsNoReasonToRefuseTheModel) {
    const auto refusal = [&] {
        try {
            chatPrompt(readTextFiles(folder), "tiny", {"hi"});
        } catch (const Error& error) {
            return oneLine(error);
        }
        return std::string();
    };
    EXPECT_NE(refusal().find("tiny has no chat template"), std::string::npos) << refusal();
    write("chat_template.jinja", "{% if %}");
    EXPECT_NE(refusal().find("chat_template.jinja"), std::string::npos) << refusal();
    fs::remove(folder / "chat_template.jinja");
    write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": 4}]})");
    EXPECT_NE(refusal().find("(tool_use) none is named 'default'"), std::string::npos) << refusal();
    write("tokenizer_config.json", "{");
    EXPECT_NE(refusal().find("tokenizer_config.json: this is not valid JSON"), std::string::npos) << refusal();
}

TEST_F(ModelFolder, FallsBackToSentencePiece) {
    fs::remove(folder / "tokenizer.json");
    fs::copy_file(test::source("tests/golden/tokenizers/spm-bpe.model"), folder / "tokenizer.model");
    const Tokenizer tokenizer = std::move(readTextFiles(folder).tokenizer);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("memory cache")), "memory cache");
}

// The ids are those of transformers 5.17 (AutoTokenizer of the same folder, its class LlamaTokenizer).
TEST_F(ModelFolder, ASentencePieceModelObeysTheFlagsOfTokenizerConfig) {
    fs::remove(folder / "tokenizer.json");
    fs::copy_file(test::source("tests/golden/tokenizers/spm-unigram.model"), folder / "tokenizer.model");
    const std::vector<std::int32_t> text{261, 270, 306};
    for (const bool bos : {false, true})
        for (const bool eos : {false, true}) {
            write("tokenizer_config.json", fmt::format(R"({{"add_bos_token": {}, "add_eos_token": {}}})", bos, eos));
            std::vector<std::int32_t> expected = text;
            if (bos) expected.insert(expected.begin(), 1);
            if (eos) expected.push_back(2);
            EXPECT_EQ(readTextFiles(folder).tokenizer.encode("a b"), expected) << bos << eos;
        }
    write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "</s>"})");
    EXPECT_EQ(readTextFiles(folder).tokenizer.encode("a b"), (std::vector<std::int32_t>{2, 261, 270, 306}));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

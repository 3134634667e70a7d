// Bodies of /tokenize and /detokenize in the forms of vLLM's and llama.cpp's clients, and the answers.
#include "core/http/api_request.h"
#include "core/http/token_request.h"
#include "core/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope::http {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using ::testing::ElementsAre;

const Tokenizer& tokenizer() {
    static const TextFiles files = Model::loadText(kDefaultModel);
    return files.tokenizer;
}
template <class Read> std::string refusalOf(Read read, const std::string& body) {
    try {
        read(body);
        return {};
    } catch (const ApiError& error) {
        return std::to_string(error.status) + " " + error.parameter;
    }
}

TEST(TokenRequest, ReadsTheFormsOfBothServers) {
    const TokenizeRequest text = readTokenizeRequest(R"({"model": "m", "prompt": "a", "return_token_strs": true})");
    EXPECT_EQ(text.model, "m");
    EXPECT_EQ(text.text, "a");
    EXPECT_TRUE(text.addSpecial && text.parseSpecial && text.strings && text.messages.empty());
    EXPECT_FALSE(text.pieces);
    EXPECT_FALSE(readTokenizeRequest(R"({"prompt": "", "add_special_tokens": false})").addSpecial);

    const TokenizeRequest chat = readTokenizeRequest(
        R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false, "unknown": 1})");
    ASSERT_EQ(chat.messages.size(), 1u);
    EXPECT_FALSE(chat.addSpecial || chat.addGenerationPrompt);

    const TokenizeRequest pieces = readTokenizeRequest(R"({"content": "b", "with_pieces": true, "prompt": null})");
    EXPECT_EQ(pieces.text, "b");
    EXPECT_TRUE(pieces.pieces);
    EXPECT_FALSE(pieces.addSpecial) << "llama.cpp adds none unless it is asked to";
    EXPECT_TRUE(readTokenizeRequest(R"({"content": "b", "add_special": true})").addSpecial);

    EXPECT_THAT(readDetokenizeRequest(R"({"tokens": [3, 1, 2]})").tokens, ElementsAre(3, 1, 2));
    EXPECT_TRUE(readDetokenizeRequest(R"({"tokens": []})").tokens.empty());
}

TEST(TokenRequest, RefusesWhatItCannotRead) {
    for (const char* body : {"{}", R"({"prompt": "a", "content": "b"})",
                             R"({"prompt": "a", "messages": [{"role": "user", "content": "a"}]})"})
        EXPECT_EQ(refusalOf(readTokenizeRequest, body), "400 prompt") << body;
    EXPECT_EQ(refusalOf(readTokenizeRequest, R"({"prompt": ["a"]})"), "400 prompt");
    EXPECT_EQ(refusalOf(readTokenizeRequest, R"({"content": 1})"), "400 content");
    EXPECT_EQ(refusalOf(readTokenizeRequest, R"({"messages": []})"), "400 messages");
    EXPECT_EQ(refusalOf(readTokenizeRequest, R"({"prompt": "a", "add_special_tokens": 1})"), "400 add_special_tokens");
    EXPECT_EQ(refusalOf(readTokenizeRequest, "[1]"), "400 ");
    for (const char* tokens : {R"("a")", "5", "[-1]", "[1.5]", R"(["a"])", "[4294967296]", "null"})
        EXPECT_EQ(refusalOf(readDetokenizeRequest, std::string(R"({"tokens": )") + tokens + "}"), "400 tokens")
            << tokens;
}

TEST(TokenRequest, AnswersWithTheTokensInEachForm) {
    const std::string text = "caf\u00e9 \U0001F600";
    const std::vector<std::int32_t> ids = tokenizer().encode(text);
    TokenizeRequest asked;
    json answer = json::parse(tokenizeJson(tokenizer(), ids, 77, asked));
    EXPECT_EQ(answer.at("tokens"), json(ids));
    EXPECT_EQ(answer.at("count"), ids.size());
    EXPECT_EQ(answer.at("max_model_len"), 77);
    EXPECT_TRUE(answer.at("token_strs").is_null());

    asked.strings = true;
    answer = json::parse(tokenizeJson(tokenizer(), ids, 77, asked));
    ASSERT_EQ(answer.at("token_strs").size(), ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(answer["token_strs"][i], tokenizer().written(ids[i]));

    asked.pieces = true;
    std::string bytes;
    bool cut = false;
    answer = json::parse(tokenizeJson(tokenizer(), ids, 77, asked));
    for (const json& token : answer.at("tokens")) {
        const json& piece = token.at("piece");
        cut |= piece.is_array(); // a part of a character is no text
        if (piece.is_array())
            for (const json& byte : piece) bytes += char(byte.get<int>());
        else
            bytes += piece.get<std::string>();
    }
    EXPECT_TRUE(cut) << "the face has no token of its own in this vocabulary";
    EXPECT_TRUE(bytes.ends_with(text)) << bytes;
}

TEST(TokenRequest, TextOfTokensHasWhatSpecialTokensAreWrittenAs) {
    const std::string text = "Once upon a time, caf\u00e9";
    const auto textOfIds = [](const std::vector<std::int32_t>& ids) {
        const json answer = json::parse(detokenizeJson(tokenizer(), ids));
        EXPECT_EQ(answer.at("prompt"), answer.at("content"));
        return answer.at("prompt").get<std::string>();
    };
    EXPECT_EQ(textOfIds(tokenizer().encode(text, false)), text);
    const std::vector<std::int32_t> around = tokenizer().encode(text);
    ASSERT_TRUE(tokenizer().isSpecial(around.front()));
    EXPECT_EQ(textOfIds(around), tokenizer().written(around.front()) + text);
    EXPECT_EQ(textOfIds({}), "");
    const auto unknown = [](const std::string&) { detokenizeJson(tokenizer(), {1, 1 << 30}); };
    EXPECT_EQ(refusalOf(unknown, ""), "400 tokens");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::http

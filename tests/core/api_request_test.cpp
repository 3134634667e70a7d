// Bodies of requests, answers byte by byte, and the text of an answer up to a stop text.
#include "core/http/answer_text.h"
#include "core/http/api_request.h"
#include "core/http/api_response.h"
#include "core/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope::http {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// "status parameter" of what is thrown; empty: the body is read.
std::string refusalOf(const std::string& body, ApiKind kind = ApiKind::Completion) {
    try {
        readApiRequest(kind, body);
        return {};
    } catch (const ApiError& error) {
        return std::to_string(error.status) + " " + error.parameter;
    }
}
std::string with(const std::string& member) { return R"({"prompt": "a", )" + member + "}"; }
std::string chatWith(const std::string& messages) { return R"({"messages": )" + messages + "}"; }

TEST(ApiRequest, ReadsWhatIsSaid) {
    const ApiRequest request = readApiRequest(
        ApiKind::Completion,
        R"({"model": "m", "prompt": ["a\u00e4"], "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5.0,
            "seed": 18446744073709551, "stop": ["x", "yz"], "stream": true, "stream_options": {"include_usage": true},
            "ignore_eos": true, "metadata": {"class": "short"}, "n": 1, "echo": false, "priority": 3, "new": [1],
            "logprobs": null, "presence_penalty": 0, "suffix": "", "logit_bias": {}, "tools": []})");
    EXPECT_EQ(request.model, "m");
    EXPECT_EQ(request.prompt, "a\u00e4");
    EXPECT_FALSE(request.ids.has_value());
    EXPECT_EQ(request.maxTokens, 7);
    EXPECT_EQ(request.temperature, 0.5);
    EXPECT_EQ(request.topP, 0.9);
    EXPECT_EQ(request.topK, 5);
    EXPECT_EQ(request.seed, 18446744073709551u);
    EXPECT_THAT(request.stop, ElementsAre("x", "yz"));
    EXPECT_TRUE(request.stream && request.includeUsage && request.ignoreEos);
    EXPECT_EQ(request.requestClass, "short");
    EXPECT_EQ(request.ignored, 1);
    const ApiRequest plain = readApiRequest(ApiKind::Completion, R"({"prompt": [3, 1, 2], "top_k": -1, "stop": "a"})");
    EXPECT_THAT(*plain.ids, ElementsAre(3, 1, 2));
    EXPECT_EQ(plain.temperature, 1);
    EXPECT_EQ(plain.topK, 0);
    EXPECT_FALSE(plain.maxTokens || plain.seed || plain.stream);
    EXPECT_THAT(plain.stop, ElementsAre("a"));
    EXPECT_THAT(*readApiRequest(ApiKind::Completion, R"({"prompt": [[4, 5]]})").ids, ElementsAre(4, 5));
}

TEST(ApiRequest, ReadsMessagesAsTextsAndAsParts) {
    const ApiRequest request = readApiRequest(
        ApiKind::Chat, R"({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content":
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "max_completion_tokens": 3})");
    ASSERT_EQ(request.messages.size(), 2u);
    EXPECT_EQ(request.messages[0].role, "system");
    EXPECT_EQ(request.messages[1].content, "ab");
    EXPECT_EQ(request.maxTokens, 3);
    for (const char* messages :
         {"[]", "3", "[1]", R"([{"role": "user"}])", R"([{"content": "a"}])", R"([{"role": "", "content": "a"}])",
          R"([{"role": "user", "content": null}])", R"([{"role": "user", "content": [{"type": "image_url"}]}])",
          R"([{"role": "user", "content": [{"type": "text"}]}])",
          R"([{"role": "a", "content": "", "tool_calls": [1]}])"})
        EXPECT_EQ(refusalOf(chatWith(messages), ApiKind::Chat), "400 messages") << messages;
}

TEST(ApiRequest, RefusesWhatIsNoDocument) {
    EXPECT_EQ(refusalOf(""), "400 ");
    EXPECT_EQ(refusalOf("[1]"), "400 ");
    EXPECT_EQ(refusalOf(R"({"prompt": "a"} x)"), "400 ");
    EXPECT_EQ(refusalOf(std::string(R"({"prompt": "a"})") + '\0'), "400 ") << "the text goes on behind the document";
    EXPECT_EQ(refusalOf(std::string(R"({"prompt": "a"})") + '\0' + R"(, "n": 5})"), "400 ");
    EXPECT_EQ(refusalOf("{\"prompt\": \"\xff\"}"), "400 ");
    EXPECT_EQ(refusalOf(R"({"prompt": "\ud800"})"), "400 ");
    EXPECT_EQ(refusalOf(R"({"prompt": "a", "temperature": 1e999})"), "400 ");
    EXPECT_EQ(refusalOf(R"({"prompt": "a", "prompt": "b"})"), "400 prompt");
    EXPECT_EQ(refusalOf(with(R"("x": {"y": 1, "y": 2})")), "400 y");
    EXPECT_EQ(refusalOf(with(R"("x": [{"y": 1}, {"y": 2}])")), "");
    EXPECT_EQ(refusalOf(with("\"x\": " + std::string(31, '[') + std::string(31, ']'))), "");
    EXPECT_EQ(refusalOf(with("\"x\": " + std::string(32, '[') + std::string(32, ']'))), "400 ");
    EXPECT_EQ(refusalOf(std::string(1 << 20, '[')), "400 ");
}

TEST(ApiRequest, RefusesWhatIsWrongAndWhatWouldChangeTheAnswer) {
    const struct {
        const char *member, *parameter;
    } cases[] = {{R"("max_tokens": 0)", "max_tokens"},
                 {R"("max_tokens": 1.5)", "max_tokens"},
                 {R"("max_tokens": "5")", "max_tokens"},
                 {R"("max_tokens": 99999999999)", "max_tokens"},
                 {R"("max_tokens": 1, "max_completion_tokens": 2)", "max_completion_tokens"},
                 {R"("temperature": -0.1)", "temperature"},
                 {R"("temperature": 2.1)", "temperature"},
                 {R"("top_p": 0)", "top_p"},
                 {R"("top_p": 1.1)", "top_p"},
                 {R"("top_k": -2)", "top_k"},
                 {R"("seed": 1.5)", "seed"},
                 {R"("seed": 18446744073709551615)", "seed"},
                 {R"("seed": -9223372036854775809)", "seed"}, // no double says which whole number it is
                 {R"("seed": 9007199254740994.0)", "seed"},
                 {R"("stop": ["a", "b", "c", "d", "e"])", "stop"},
                 {R"("stop": "")", "stop"},
                 {R"("stop": [1])", "stop"},
                 {R"("stream": 1)", "stream"},
                 {R"("stream_options": true)", "stream_options"},
                 {R"("model": 3)", "model"},
                 {R"("metadata": "a")", "metadata"},
                 {R"("n": 2)", "n"},
                 {R"("best_of": 2)", "best_of"},
                 {R"("suffix": "a")", "suffix"},
                 {R"("echo": true)", "echo"},
                 {R"("logprobs": 0)", "logprobs"},
                 {R"("logprobs": true)", "logprobs"},
                 {R"("logit_bias": {"5": 1})", "logit_bias"},
                 {R"("repetition_penalty": 1.1)", "repetition_penalty"},
                 {R"("presence_penalty": -1)", "presence_penalty"},
                 {R"("tools": [{}])", "tools"},
                 {R"("tool_choice": "required")", "tool_choice"},
                 {R"("response_format": {"type": "json_object"})", "response_format"},
                 {R"("guided_json": {"a": 1})", "guided_json"},
                 {R"("dry_multiplier": 0.8)", "dry_multiplier"},
                 {R"("dry_base": 1.75)", "dry_base"},
                 {R"("xtc_threshold": 0.1)", "xtc_threshold"},
                 {R"("min_p": 0.1)", "min_p"},
                 {R"("web_search_options": {})", "web_search_options"},
                 {R"("moderation": {"mode": "input"})", "moderation"},
                 {R"("min_tokens": 3)", "min_tokens"},
                 {R"("stop_token_ids": [3])", "stop_token_ids"},
                 {R"("modalities": ["audio"])", "modalities"},
                 {R"("include_stop_str_in_output": true)", "include_stop_str_in_output"},
                 {R"("skip_special_tokens": false)", "skip_special_tokens"},
                 {R"("add_special_tokens": false)", "add_special_tokens"},
                 {R"("allowed_token_ids": [1])", "allowed_token_ids"},
                 {R"("prompt_embeds": "AA==")", "prompt_embeds"},
                 {R"("n_predict": 5)", "n_predict"},
                 {R"("max_new_tokens": 5)", "max_new_tokens"},
                 {R"("do_sample": false)", "do_sample"},
                 {R"("num_beams": 4)", "num_beams"},
                 {R"("no_repeat_ngram_size": 3)", "no_repeat_ngram_size"},
                 {R"("regex": "a+")", "regex"},
                 {R"("dynatemp_range": 0.5)", "dynatemp_range"},
                 {R"("tfs_z": 0.5)", "tfs_z"},
                 {R"("return_indexer_topk": true)", "return_indexer_topk"},
                 {R"("continue_final_message": true)", "continue_final_message"},
                 {R"("add_generation_prompt": false)", "add_generation_prompt"}};
    for (const auto& one : cases)
        EXPECT_EQ(refusalOf(with(one.member)), std::string("400 ") + one.parameter) << one.member;
    for (const char* member :
         {R"("repetition_penalty": 1.0)", R"("tool_choice": "none")", R"("response_format": {"type": "text"})",
          R"("modalities": ["text"])", R"("guided_json": null)", R"("dry_multiplier": 0)",
          R"("dry_sequence_breakers": [])", R"("xtc_probability": 0.0)", R"("best_of": 1)", R"("logprobs": false)",
          R"("skip_special_tokens": true)", R"("add_special_tokens": true)", R"("do_sample": true)",
          R"("num_beams": 1)", R"("include_stop_str_in_output": false)", R"("allowed_token_ids": null)",
          R"("tfs_z": 1)", R"("regex": null)", R"("web_search_options": null)"})
        EXPECT_EQ(refusalOf(with(member)), "") << member;
    for (const char* prompt : {R"({})", R"({"prompt": ""})", R"({"prompt": []})", R"({"prompt": ["a", "b"]})",
                               R"({"prompt": [[1], [2]]})", R"({"prompt": [1, -1]})", R"({"prompt": [1, 2.5]})",
                               R"({"prompt": [1, 9999999999]})", R"({"prompt": 3})", R"({"prompt": {"a": 1}})"})
        EXPECT_EQ(refusalOf(prompt), "400 prompt") << prompt;
}

TEST(ApiResponse, IsWrittenByteByByte) {
    const Answer completion{ApiKind::Completion, "cmpl-1", "m", 5, false},
        chat{ApiKind::Chat, "chatcmpl-2", "m", 5, true};
    EXPECT_EQ(
        answerJson(completion, "a\"\n", "stop", {2, 3}),
        R"({"id":"cmpl-1","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":"a\"\n",)"
        R"("logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3,)"
        R"("total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}})");
    EXPECT_EQ(
        answerJson(chat, "a", "length", {2, 3}),
        R"({"id":"chatcmpl-2","object":"chat.completion","created":5,"model":"m","choices":[{"index":0,"message":)"
        R"({"role":"assistant","content":"a"},"logprobs":null,"finish_reason":"length"}],"usage":)"
        R"({"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}})");
    EXPECT_EQ(chunkJson(completion, "a", true, ""),
              R"({"id":"cmpl-1","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":"a",)"
              R"("logprobs":null,"finish_reason":null}]})");
    EXPECT_EQ(chunkJson(chat, "", true, ""),
              R"({"id":"chatcmpl-2","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,)"
              R"("delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null})");
    EXPECT_EQ(
        usageJson(chat, {2, 3}),
        R"({"id":"chatcmpl-2","object":"chat.completion.chunk","created":5,"model":"m","choices":[],"usage":)"
        R"({"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}})");
    EXPECT_EQ(errorJson(ApiError(404, "no", "model", "model_not_found")),
              R"({"error":{"message":"no","type":"not_found_error","param":"model","code":"model_not_found"}})");
    EXPECT_EQ(errorJson(ApiError(503, "Loading model")),
              R"({"error":{"message":"Loading model","type":"unavailable_error","param":null,"code":503}})");
    EXPECT_EQ(response(404, "text/plain", "no", false, {{"x-a", "b"}}),
              "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\nx-a: "
              "b\r\n\r\nno");
    EXPECT_EQ(streamHead(true, true, {}), "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: "
                                          "no-cache\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(chunk(event("0123456789")), "12\r\ndata: 0123456789\n\n\r\n");
    EXPECT_EQ(chunk({}), "0\r\n\r\n");
}

TEST(ApiResponse, EveryPartHasTheUsageSoFarWhereItIsAskedFor) {
    const auto answerTo = [](const std::string& options) {
        const ApiRequest request = readApiRequest(ApiKind::Completion, with(R"("stream_options": {)" + options + "}"));
        return Answer{request.kind, "cmpl-1", "m", 5, request.includeUsage, request.usageInParts};
    };
    const Answer asked = answerTo(R"("include_usage": true, "continuous_usage_stats": true)");
    AnswerParts parts;
    for (int tokens = 1; tokens <= 4; ++tokens)
        EXPECT_THAT(parts.next(asked, "a", tokens == 4 ? "length" : "", {2, tokens}),
                    HasSubstr(R"(,"usage":{"prompt_tokens":2,"completion_tokens":)" + std::to_string(tokens) +
                              R"(,"total_tokens":)" + std::to_string(tokens + 2)));
    // As with vLLM, there is none in the parts where none is asked for at the end.
    for (const char* options :
         {R"("continuous_usage_stats": true)", R"("continuous_usage_stats": true, "include_usage": false)"})
        EXPECT_EQ(AnswerParts().next(answerTo(options), "a", "", {2, 1}).find("usage"), std::string::npos) << options;
    EXPECT_EQ(refusalOf(with(R"("stream_options": {"continuous_usage_stats": 1})")), "400 continuous_usage_stats");
}

TEST(ApiResponse, PartsOfAStreamAreTheDocumentsOfEachToken) {
    const std::string names[] = {"m", R"("text":"")", R"("content":"")", "\xff\xfe"};
    const std::string texts[] = {"",           " a",           R"("text":"")", R"(\"content":"")",
                                 "\n\r\t\x01", "\xc3\xa9\xff", "</script>"};
    for (const ApiKind kind : {ApiKind::Completion, ApiKind::Chat})
        for (const std::string& name : names)
            for (const auto& [usage, inParts] : {std::pair{false, false}, {true, false}, {true, true}}) {
                const Answer answer{kind, "id-1", name, 5, usage, inParts};
                AnswerParts parts;
                bool first = true;
                for (int round = 0; round < 2; ++round)
                    for (const std::string& text : texts) {
                        EXPECT_EQ(parts.next(answer, text), event(chunkJson(answer, text, first, ""))) << name << text;
                        first = false;
                    }
                EXPECT_EQ(parts.next(answer, "b", "stop"), event(chunkJson(answer, "b", false, "stop")));
                EXPECT_EQ(AnswerParts().next(answer, "b", "length"), event(chunkJson(answer, "b", true, "length")));
            }
}

/// Pieces of the text as its tokens come, and at the end what was held back.
std::vector<std::string> piecesOf(const std::string& text, const std::vector<std::string>& stop,
                                  bool* stopped = nullptr) {
    static const TextFiles files = Model::loadText(kDefaultModel);
    AnswerText answer(files.tokenizer, stop);
    std::vector<std::string> pieces;
    for (const std::int32_t id : files.tokenizer.encode(text, false)) pieces.push_back(answer.push(id));
    pieces.push_back(answer.finish());
    if (stopped) *stopped = answer.stopped();
    return pieces;
}
std::string joined(const std::vector<std::string>& pieces) {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    return all;
}

TEST(AnswerText, EndsBeforeAStopTextWhereverTokensAreCut) {
    const std::string text = "The river runs to the sea, and the sea is never full.";
    EXPECT_EQ(joined(piecesOf(text, {})), text);
    for (std::size_t from = 1; from < text.size(); ++from)
        for (const std::size_t length : {std::size_t(1), std::size_t(2), std::size_t(9)}) {
            const std::string stop = text.substr(from, length);
            bool stopped = false;
            EXPECT_EQ(joined(piecesOf(text, {"never there", stop}, &stopped)), text.substr(0, text.find(stop)));
            EXPECT_TRUE(stopped);
        }
    bool stopped = true; // what only began is text after all
    EXPECT_EQ(joined(piecesOf(text, {"full. And more"}, &stopped)), text);
    EXPECT_FALSE(stopped);
}

TEST(AnswerText, HoldsBackHalfACharacter) {
    const std::string text = "caf\u00e9 \U0001F600\u4e2d\u6587!";
    const std::vector<std::string> pieces = piecesOf(text, {});
    EXPECT_EQ(joined(pieces), text);
    EXPECT_GT(pieces.size(), 6u);
    for (const std::string& piece : pieces) EXPECT_EQ(piece.find("\uFFFD"), std::string::npos) << piece;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::http

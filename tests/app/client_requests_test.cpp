// Replays what real clients sent to a server, byte by byte (tests/golden/clients), and reads the answers by the rules
// by which these clients read them.
#include "tests/app/serve_fixture.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <iterator>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using ::testing::HasSubstr;

/// A request as a client sent it.
struct Captured {
    std::string name, bytes;
    std::string requestLine() const { return bytes.substr(0, bytes.find("\r\n")); }
    json body() const { return json::parse(bytes.substr(bytes.find("\r\n\r\n") + 4)); }
    bool isGeneration() const { return bytes.rfind("POST ", 0) == 0; }
    bool isChat() const { return requestLine().find("/chat/") != std::string::npos; }
};

std::vector<Captured> captured() {
    std::vector<Captured> requests;
    for (const auto& file : std::filesystem::directory_iterator(test::source("tests/golden/clients"))) {
        if (file.path().extension() != ".http") continue;
        std::ifstream stream(file.path(), std::ios::binary);
        requests.push_back({file.path().stem().string(), {std::istreambuf_iterator<char>(stream), {}}});
    }
    std::sort(requests.begin(), requests.end(), [](const Captured& a, const Captured& b) { return a.name < b.name; });
    return requests;
}

/// What vLLM's benchmark and AIPerf read from a stream: an event with choices counts as a token; an event without
/// choices gives the usage's counts.
struct Read {
    int tokens = 0, promptTokens = -1, completionTokens = -1;
    std::string text;
};
Read readAsClientsDo(const std::string& body, bool chat) {
    Read read;
    for (std::size_t at = 0, end = 0; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
        const std::string message = body.substr(at, end - at);
        if (message[0] == ':') continue;
        EXPECT_EQ(message.rfind("data: ", 0), 0u) << message;
        if (message == "data: [DONE]") continue;
        const json data = json::parse(message.substr(6));
        if (!data.at("choices").empty()) {
            const json& choice = data["choices"][0];
            read.text +=
                chat ? choice.at("delta").at("content").get<std::string>() : choice.at("text").get<std::string>();
            ++read.tokens;
        } else if (data.contains("usage")) {
            read.promptTokens = data["usage"].at("prompt_tokens");
            read.completionTokens = data["usage"].at("completion_tokens");
        }
    }
    return read;
}

void expectAnswer(const Captured& request, const test::HttpAnswer& answer, const json& models) {
    SCOPED_TRACE(request.name);
    ASSERT_EQ(answer.status, 200) << answer.head << answer.body;
    if (request.bytes.rfind("HEAD ", 0) == 0) {
        EXPECT_EQ(answer.body, "");
        return;
    }
    if (!request.isGeneration()) {
        EXPECT_EQ(json::parse(answer.body), models);
        return;
    }
    const json body = request.body();
    const int asked = body.contains("max_completion_tokens") ? body["max_completion_tokens"].get<int>()
                                                             : body.at("max_tokens").get<int>();
    const Read read = readAsClientsDo(answer.body, request.isChat());
    EXPECT_EQ(read.tokens, asked) << "an event for every token";
    EXPECT_EQ(read.completionTokens, asked);
    EXPECT_GT(read.promptTokens, 0);
    EXPECT_THAT(answer.body, ::testing::EndsWith("\n\ndata: [DONE]\n\n"));
    if (!request.isChat() && body.contains("temperature") && body["temperature"] == 0) {
        const test::Finished run =
            test::cli({"run", "--prompt", body.at("prompt").get<std::string>(), "--max-new-tokens",
                       std::to_string(asked), "--ignore-eos", "--threads", "1", "--json"});
        EXPECT_EQ(read.text, json::parse(run.out).at("text").get<std::string>());
    }
}

class ClientRequests : public test::ServeFixture {};

TEST_F(ClientRequests, OfVllmsBenchmarkAndOfAiperfAreAnsweredAsTheyExpect) {
    start({"--model", chatty(), "--benchmark"});
    if (IsSkipped()) return;
    const json models = json::parse(test::askHttp(port_, "GET", "/v1/models").body);
    EXPECT_TRUE(models.at("data").at(0).contains("root")) << "vLLM's benchmark reads it without a default";
    const std::vector<Captured> requests = captured();
    int chats = 0, completions = 0, others = 0;
    for (const Captured& request : requests) {
        (!request.isGeneration() ? others : request.isChat() ? chats : completions) += 1;
        // The client keeps the connection open, so that only the answer's own marks end the answer.
        test::HttpClient client(port_);
        client.send(request.bytes);
        ASSERT_TRUE(client.readUntil(request.isGeneration() ? "\r\n0\r\n\r\n" : "\r\n\r\n")) << request.name;
        if (!request.isGeneration()) { // the next request of the connection fails if the body before it was too long
            client.send(test::httpRequest("GET", "/health"));
            const std::string both = client.readAll();
            const std::size_t second = both.rfind("HTTP/1.1 200 OK");
            ASSERT_NE(second, std::string::npos) << request.name << ": " << both;
            ASSERT_GT(second, 0u) << request.name << ": " << both;
            EXPECT_THAT(both.substr(second), HasSubstr("{\"status\":\"ok\"}"));
            expectAnswer(request, test::httpAnswer(both.substr(0, second)), models);
            continue;
        }
        expectAnswer(request, test::httpAnswer(client.text()), models);
    }
    EXPECT_GE(chats, 2);
    EXPECT_GE(completions, 2);
    EXPECT_GE(others, 2);
    EXPECT_TRUE(becomes("vllm:num_requests_running", 0));
}

/// The same bytes in pieces of any size, as a network may hand them over.
TEST_F(ClientRequests, MayComeInPieces) {
    start({"--model", chatty()});
    if (IsSkipped()) return;
    const json models = json::parse(test::askHttp(port_, "GET", "/v1/models").body);
    for (const Captured& request : captured()) {
        if (!request.isGeneration()) continue;
        test::HttpClient client(port_);
        for (std::size_t at = 0; at < request.bytes.size(); at += 97) {
            client.send(request.bytes.substr(at, 97));
            if (at % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        ASSERT_TRUE(client.readUntil("\r\n0\r\n\r\n")) << request.name;
        expectAnswer(request, test::httpAnswer(client.text()), models);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

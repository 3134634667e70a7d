// kvscope-cli serve as clients find it, over sockets of their own.
#include "tests/app/serve_fixture.h"

#include <array>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <future>
#include <gmock/gmock.h>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::askHttp;
using test::bodyOf;
using test::eventsOf;
using test::HttpAnswer;
using test::HttpClient;
using test::httpRequest;
using test::kPath;
using Serve = test::ServeFixture;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Serve, AnswersWithTheTokensOfRunStreamedOrNot) {
    start();
    if (IsSkipped()) return;
    const std::string prompt = "The history of the river begins";
    const std::string expected = textOfRun(prompt, 24);
    const HttpAnswer answer = complete(bodyOf(prompt, 24), "x-request-id: mine\r\n");
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_THAT(answer.head, HasSubstr("x-request-id: mine\r\n"));
    const json whole = json::parse(answer.body);
    EXPECT_EQ(whole.at("choices").at(0).at("text"), expected);
    EXPECT_EQ(whole.at("choices").at(0).at("finish_reason"), "length");
    EXPECT_EQ(whole.at("usage").at("completion_tokens"), 24);
    EXPECT_EQ(whole.at("usage").at("prompt_tokens_details").at("cached_tokens"), 0);

    json body = bodyOf(prompt, 24, true);
    body["stream_options"] = {{"include_usage", true}};
    const HttpAnswer streamed = complete(body);
    ASSERT_EQ(streamed.status, 200);
    EXPECT_THAT(streamed.head, HasSubstr("Content-Type: text/event-stream\r\n"));
    EXPECT_THAT(streamed.body, ::testing::EndsWith("}\n\ndata: [DONE]\n\n"));
    const std::vector<json> events = eventsOf(streamed);
    ASSERT_EQ(events.size(), 25u); // one per token and the usage
    std::string joined;
    for (std::size_t i = 0; i < 24; ++i) {
        joined += events[i].at("choices").at(0).at("text").get<std::string>();
        EXPECT_EQ(events[i].at("id"), events[0].at("id"));
        EXPECT_EQ(events[i].at("choices").at(0).at("finish_reason"), i == 23 ? json("length") : json(nullptr));
    }
    EXPECT_EQ(joined, expected);
    EXPECT_EQ(events.back().at("choices"), json::array());
    EXPECT_EQ(events.back().at("usage").at("total_tokens"), whole["usage"]["total_tokens"]);

    // A stop text ends the answer before it, and the engine hears of it.
    const std::string stop = expected.substr(expected.size() / 2, 3);
    json stopped = bodyOf(prompt, 1000);
    stopped["stop"] = stop;
    const json cut = json::parse(complete(stopped).body);
    EXPECT_EQ(cut.at("choices").at(0).at("text"), expected.substr(0, expected.find(stop)));
    EXPECT_EQ(cut.at("choices").at(0).at("finish_reason"), "stop");
    EXPECT_TRUE(becomes("vllm:num_requests_running", 0));

    const json lifecycle = json::parse(askHttp(port_, "GET", "/v1/requests/mine").body);
    EXPECT_EQ(lifecycle.at("id"), whole.at("id"));
    EXPECT_EQ(lifecycle.at("state"), "finished");
    EXPECT_EQ(lifecycle.at("output_tokens"), 24);
    // A client cannot give its request the name that the server gave to another one.
    const std::string ours = whole.at("id");
    ASSERT_EQ(complete(bodyOf(prompt, 2), "x-request-id: " + ours + "\r\n").status, 200);
    EXPECT_EQ(json::parse(askHttp(port_, "GET", "/v1/requests/" + ours).body).at("output_tokens"), 24);
    EXPECT_EQ(metric("vllm:generation_tokens_total") >= 48, true);
    EXPECT_EQ(stop.empty(), false);
    EXPECT_EQ(this->stop().status, 0);
}

TEST_F(Serve, CountsWhatGoesToTheHostAndWhatWaitsForTransfers) {
    start({});
    if (IsSkipped()) return;
    EXPECT_EQ(metric("kvscope:d2h_bytes_total"), 0);
    std::string prompt;
    while (prompt.size() < 4000) prompt += "Once upon a time there was a small house behind the hill. ";
    ASSERT_EQ(complete(bodyOf(prompt, 4)).status, 200);
    EXPECT_GT(metric("kvscope:d2h_bytes_total"), 0) << "the prompt has full blocks";
    EXPECT_GE(metric("kvscope:exposed_transfer_seconds_total"), 0);
    EXPECT_EQ(metric("kvscope:recorder_drops_total"), 0);
    EXPECT_EQ(stop().status, 0);
}

TEST_F(Serve, ChatsByTheTemplateOfTheModel) {
    start({"--model", chatty(), "--alias", "other"});
    if (IsSkipped()) return;
    const json models = json::parse(askHttp(port_, "GET", "/v1/models").body);
    ASSERT_EQ(models.at("data").size(), 2u);
    EXPECT_EQ(models["data"][0].at("id"), "chatty");
    EXPECT_EQ(models["data"][0].at("root"), "chatty");
    for (const json& model : models["data"])
        EXPECT_EQ(json::parse(askHttp(port_, "GET", "/v1/models/" + model.at("id").get<std::string>()).body), model);

    json body = bodyOf("", 6, true);
    body.erase("prompt");
    body["model"] = "other";
    body["messages"] = {
        {{"role", "system"}, {"content", "Be brief"}},
        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hel"}}, {{"type", "text"}, {"text", "lo"}}}}}};
    const HttpAnswer streamed = askHttp(port_, "POST", "/v1/chat/completions", body.dump());
    const std::vector<json> events = eventsOf(streamed);
    ASSERT_EQ(events.size(), 6u) << streamed.body;
    EXPECT_EQ(events[0].at("object"), "chat.completion.chunk");
    EXPECT_EQ(events[0].at("choices").at(0).at("delta").at("role"), "assistant"); // with the first token
    EXPECT_EQ(events[1].at("choices").at(0).at("delta").contains("role"), false);
    std::string joined;
    for (const json& event : events) joined += event["choices"][0]["delta"].at("content").get<std::string>();

    body["stream"] = false;
    const json whole = json::parse(askHttp(port_, "POST", "/v1/chat/completions", body.dump()).body);
    EXPECT_EQ(whole.at("object"), "chat.completion");
    EXPECT_EQ(whole.at("model"), "other");
    EXPECT_EQ(whole.at("choices").at(0).at("message").at("role"), "assistant");
    EXPECT_EQ(whole.at("choices").at(0).at("message").at("content"), joined);
    // The same prompt as a text has the same tokens.
    const json completion = json::parse(complete(bodyOf("system: Be brief\nuser: Hello\nassistant:", 6)).body);
    EXPECT_LE(std::abs(completion.at("usage").at("prompt_tokens").get<int>() -
                       whole.at("usage").at("prompt_tokens").get<int>()),
              1); // the beginning-of-text token may be counted once more

    body["messages"][0]["role"] = "wizard";
    const HttpAnswer refused = askHttp(port_, "POST", "/v1/chat/completions", body.dump());
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(json::parse(refused.body).at("error").at("message"),
              "the chat template refuses this conversation: no wizards")
        << "where the file of the template lies is nobody's matter";
}

TEST_F(Serve, TokensOfATextAndTextOfTokens) {
    start({"--model", chatty()});
    if (IsSkipped()) return;
    const auto post = [&](const char* where, const json& body) { return askHttp(port_, "POST", where, body.dump()); };
    const HttpAnswer answer = post("/tokenize", {{"prompt", "Once upon a time"}, {"model", "chatty"}});
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json tokens = json::parse(answer.body);
    const json completion = json::parse(complete(bodyOf("Once upon a time", 1)).body);
    EXPECT_EQ(tokens.at("count"), completion.at("usage").at("prompt_tokens"));
    const int longest = json::parse(askHttp(port_, "GET", "/v1/models").body)["data"][0]["max_model_len"].get<int>();
    EXPECT_EQ(tokens.at("max_model_len"), longest);
    const json text = json::parse(post("/detokenize", {{"tokens", tokens.at("tokens")}}).body);
    EXPECT_THAT(text.at("prompt").get<std::string>(), ::testing::EndsWith("Once upon a time"));

    const json messages = json::array({{{"role", "user"}, {"content", "Hello"}}});
    const json chat = json::parse(post("/tokenize", {{"messages", messages}}).body);
    EXPECT_EQ(json::parse(post("/detokenize", {{"tokens", chat.at("tokens")}}).body).at("prompt"),
              "user: Hello\nassistant:");
    const json more = json::parse(post("/tokenize", {{"messages", messages}, {"add_special_tokens", true}}).body);
    EXPECT_EQ(more.at("count"), chat.at("count").get<int>() + 1);

    // A large body is read beside the connections.
    std::string large;
    while (large.size() < 200'000) large += "Once upon a time there was a small house behind the hill. ";
    EXPECT_GT(json::parse(post("/tokenize", {{"content", large}}).body).at("tokens").size(), 20'000u);
    EXPECT_EQ(post("/tokenize", {{"prompt", "a"}, {"model", "gpt-4"}}).status, 404);
    EXPECT_EQ(post("/tokenize", {{"prompt", 5}}).status, 400);
    EXPECT_EQ(post("/detokenize", {{"tokens", {1 << 30}}}).status, 400);
    EXPECT_EQ(askHttp(port_, "GET", "/tokenize").status, 405);
    EXPECT_EQ(stop().status, 0);
}

TEST_F(Serve, ItsModelIsThereByItsName) {
    start({"--alias", "org/a b"});
    if (IsSkipped()) return;
    const auto get = [&](const std::string& name) { return askHttp(port_, "GET", "/v1/models/" + name); };
    EXPECT_EQ(json::parse(get("nosa-tiny").body).at("object"), "model");
    for (const char* name : {"org%2Fa%20b", "org%2fa%20b", "org/a%20b"}) { // as clients write a name in a path
        const HttpAnswer answer = get(name);
        ASSERT_EQ(answer.status, 200) << name;
        EXPECT_EQ(json::parse(answer.body).at("id"), "org/a b");
        EXPECT_EQ(json::parse(answer.body).at("root"), "nosa-tiny");
    }
    for (const char* name : {"gpt-4", "", "nosa-tiny/", "nosa-tiny%", "nosa-tiny%2", "%zz", "%00%FF"}) {
        const HttpAnswer answer = get(name);
        ASSERT_EQ(answer.status, 404) << name;
        EXPECT_EQ(json::parse(answer.body).at("error").at("code"), "model_not_found") << name;
    }
    EXPECT_EQ(askHttp(port_, "HEAD", "/v1/models/nosa-tiny").status, 200);
    const HttpAnswer other = askHttp(port_, "DELETE", "/v1/models/nosa-tiny");
    EXPECT_EQ(other.status, 405);
    EXPECT_THAT(other.head, HasSubstr("Allow: GET, HEAD"));
    json body = bodyOf("Once", 2);
    body["model"] = "org/a b";
    ASSERT_EQ(complete(body, "x-request-id: a/b%c\r\n").status, 200);
    EXPECT_EQ(json::parse(askHttp(port_, "GET", "/v1/requests/a%2Fb%25c").body).at("x_request_id"), "a/b%c");
}

TEST_F(Serve, RefusesWithTheStatusThatSaysWhy) {
    std::ofstream(path("keys")) << "# keys\nsecret\nother-secret\n";
    start({"--api-key-file", path("keys"), "--allow-host", "Box.local", "--deadline", "5"});
    if (IsSkipped()) return;
    const std::string key = "Authorization: Bearer secret\r\n";
    EXPECT_EQ(askHttp(port_, "GET", "/health").status, 200);
    EXPECT_EQ(askHttp(port_, "GET", "/v1/models").status, 401);
    EXPECT_EQ(askHttp(port_, "GET", "/v1/models", "", "Authorization: Bearer secre\r\n").status, 401);
    EXPECT_EQ(askHttp(port_, "GET", "/v1/models", "", "Authorization: bearer other-secret\r\n").status, 200);
    EXPECT_EQ(askHttp(port_, "GET", "/nothing", "", key).status, 404);
    EXPECT_THAT(askHttp(port_, "POST", kPath, "{}", key).head, HasSubstr("\r\nx-request-id: refused-"))
        << "an answer that is an error has an id as well";
    EXPECT_THAT(askHttp(port_, "POST", kPath, "{}", key + "x-request-id: mine\r\n").head,
                HasSubstr("\r\nx-request-id: mine\r\n"));
    EXPECT_EQ(askHttp(port_, "GET", kPath, "", key).status, 405);
    EXPECT_EQ(askHttp(port_, "HEAD", kPath, "", key).status, 405);
    EXPECT_EQ(askHttp(port_, "HEAD", kPath, "", key).body, "") << "the answer of a HEAD has no body";
    EXPECT_THAT(askHttp(port_, "POST", "/v1/responses", "{}", key).body, HasSubstr("/v1/chat/completions"));
    EXPECT_EQ(askHttp(port_, "DELETE", "/v1/requests/none", "", key).status, 404);
    const auto status = [&](const json& more) {
        json body = bodyOf("Once", 2);
        body.update(more);
        return complete(body, key).status;
    };
    EXPECT_EQ(status({{"unknown", 1}}), 200);
    EXPECT_EQ(status({{"model", "gpt-4"}}), 404);
    json stranger = bodyOf("Once", 2);
    stranger["model"] = std::string(100'000, 'm');
    const HttpAnswer unknown = complete(stranger, key);
    EXPECT_THAT(unknown.body, HasSubstr("there is no model '" + std::string(80, 'm') + "...'"));
    EXPECT_LT(unknown.body.size(), 400u) << "no name is repeated at any length";
    for (const std::string place : {"/", "/v1/requests/", "/v1/completions/"})
        EXPECT_LT(askHttp(port_, "GET", place + std::string(9000, 'x'), "", key).body.size(), 400u) << place;
    EXPECT_EQ(status({{"max_tokens", 0}}), 400);
    EXPECT_EQ(status({{"logit_bias", {{"1", 2}}}}), 400);
    EXPECT_EQ(status({{"prompt", json::array({1, 2, 1 << 30})}}), 400);
    EXPECT_EQ(status({{"max_tokens", 1 << 24}}), 400);
    const auto host = [&](const std::string& name) {
        HttpClient client(port_);
        client.send("GET /health HTTP/1.1\r\nConnection: close\r\nHost: " + name + "\r\n\r\n");
        return test::httpAnswer(client.readAll()).status;
    };
    EXPECT_EQ(host("127.0.0.1:8000"), 200);
    EXPECT_EQ(host("[::1]:1"), 200);
    EXPECT_EQ(host("box.LOCAL"), 200);
    for (const char* other : {"evil.example", "127.0.0.1.evil.example", "localhost.evil", "127.0.0.1:x", ""})
        EXPECT_EQ(host(other), 403) << other;
    EXPECT_EQ(test::cli({"serve", "--host", "0.0.0.0"}).status, 1);
    EXPECT_THAT(test::cli({"serve", "--host", "0.0.0.0"}).err, HasSubstr("--api-key-file"));
    EXPECT_THAT(test::cli({"serve", "--limit", "head_s=x"}).err, HasSubstr("head_s=x"));
}

TEST_F(Serve, HalfRequestsAndSilentClientsAreCutOff) {
    start({"--limit", "head_s=0.5", "--limit", "body_s=0.5", "--limit", "idle_s=1.5"});
    if (IsSkipped()) return;
    HttpClient silent(port_), head(port_), body(port_), garbage(port_), huge(port_), tls(port_), lines(port_);
    head.send("POST /v1/comp");
    body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{\"a\"");
    garbage.send(std::string("\x16\x03\x01\x02\x00\r\n\r\n", 9));
    huge.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n");
    tls.send(std::string("\x16\x03\x01\x00\xC8\x01\x00\x00\xC4", 9)); // how a client of https:// begins
    lines.send("GET /health HTTP/1.1\nHost: localhost\n\n");
    EXPECT_THAT(tls.readAll(), HasSubstr("use http://"));
    EXPECT_THAT(tls.text(), HasSubstr("\r\nx-request-id: refused-"));
    EXPECT_EQ(test::httpAnswer(tls.text()).status, 400) << "and not 408, when the time for headers is over";
    EXPECT_EQ(test::httpAnswer(lines.readAll()).status, 400);
    EXPECT_EQ(test::httpAnswer(garbage.readAll()).status, 400);
    EXPECT_EQ(test::httpAnswer(huge.readAll()).status, 413);
    EXPECT_EQ(test::httpAnswer(head.readAll()).status, 408);
    EXPECT_EQ(test::httpAnswer(body.readAll()).status, 408);
    EXPECT_EQ(silent.readAll(), "");
    EXPECT_TRUE(silent.ended());
    EXPECT_EQ(askHttp(port_, "GET", "/health").status, 200);
}

TEST_F(Serve, PipelinedRequestsAreAnsweredInTheirOrder) {
    start();
    if (IsSkipped()) return;
    HttpClient client(port_);
    client.send(httpRequest("POST", kPath, bodyOf("One", 3).dump(), "x-request-id: a\r\n", false) +
                httpRequest("GET", "/health", "", "x-request-id: b\r\n", false) +
                httpRequest("POST", kPath, bodyOf("Two", 2, true).dump(), "x-request-id: c\r\n", false) +
                httpRequest("GET", "/v1/models", "", "x-request-id: d\r\n"));
    const std::string& all = client.readAll();
    std::size_t last = 0;
    for (const char* name : {"x-request-id: a", "x-request-id: b", "x-request-id: c", "x-request-id: d"}) {
        const std::size_t at = all.find(name);
        ASSERT_NE(at, std::string::npos) << name << all;
        EXPECT_GE(at, last);
        last = at;
    }
    // A client that asks with Expect: 100-continue hears that its body is wanted, and sends it then.
    HttpClient careful(port_);
    const std::string body = bodyOf("Three", 1).dump();
    careful.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: "
                 "close\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n");
    ASSERT_TRUE(careful.readUntil("HTTP/1.1 100 Continue\r\n\r\n"));
    careful.send(body);
    EXPECT_THAT(careful.readAll(), HasSubstr("HTTP/1.1 200 OK"));
}

TEST_F(Serve, ADisconnectCancelsWhateverTheRequestDoes) {
    start();
    if (IsSkipped()) return;
    const std::string expected = textOfRun("A quiet village", 40);
    HttpClient stays(port_);
    stays.send(httpRequest("POST", kPath, bodyOf("A quiet village", 40).dump()));
    std::string longPrompt;
    for (int i = 0; i < 250; ++i) longPrompt += "word " + std::to_string(i) + " ";
    {
        HttpClient streams(port_), waits(port_), prefills(port_);
        streams.send(httpRequest("POST", kPath, bodyOf("Once", 3000, true).dump()));
        waits.send(httpRequest("POST", kPath, bodyOf("Once", 3000).dump(), "x-request-id: waits\r\n"));
        ASSERT_TRUE(streams.readUntil("data: "));
        prefills.send(httpRequest("POST", kPath, bodyOf(longPrompt, 100).dump()));
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    EXPECT_TRUE(becomes("kvscope:requests_ended_total{model_name=\"nosa-tiny\",ending=\"cancelled\"}", 3));
    EXPECT_TRUE(becomes("vllm:num_requests_running", 0));
    EXPECT_EQ(metric("kvscope:host_bytes"), 0);
    EXPECT_EQ(json::parse(askHttp(port_, "GET", "/v1/requests/waits").body).at("cancelled_by"), "disconnect");
    EXPECT_EQ(json::parse(test::httpAnswer(stays.readAll()).body).at("choices").at(0).at("text"), expected);
    // By its name, too.
    HttpClient deleted(port_);
    deleted.send(httpRequest("POST", kPath, bodyOf("Once", 3000, true).dump(), "x-request-id: gone\r\n"));
    ASSERT_TRUE(deleted.readUntil("data: "));
    EXPECT_EQ(askHttp(port_, "DELETE", "/v1/requests/gone").status, 200);
    EXPECT_THAT(deleted.readAll(), HasSubstr("data: {\"error\":{\"message\":\"request cmpl-"));
    EXPECT_EQ(askHttp(port_, "DELETE", "/v1/requests/gone").status, 404);
}

TEST_F(Serve, AClientThatReadsNothingIsCutOffAndNobodyElse) {
    start({"--limit", "buffer_bytes=16384", "--limit", "write_s=1"});
    if (IsSkipped()) return;
    HttpClient slow(port_, 1024);
    slow.send(httpRequest("POST", kPath, bodyOf("Once", 3000, true).dump(), "x-request-id: slow\r\n"));
    ASSERT_EQ(complete(bodyOf("Twice", 5)).status, 200);
    EXPECT_TRUE(becomes("vllm:num_requests_running", 0));
    const json seen = json::parse(askHttp(port_, "GET", "/v1/requests/slow").body);
    EXPECT_EQ(seen.at("cancelled_by"), "disconnect") << seen;
    EXPECT_LT(seen.at("output_tokens"), 3000);
}

TEST_F(Serve, AThousandConnectionsAtOnceEachGetAnAnswer) {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 1100) GTEST_SKIP() << "this system allows " << files.rlim_cur << " open files";
    start();
    if (IsSkipped()) return;
    std::vector<HttpClient> clients;
    clients.reserve(1000);
    for (int i = 0; i < 1000; ++i) clients.emplace_back(port_);
    for (std::size_t i = 0; i < clients.size(); ++i) {
        ASSERT_TRUE(clients[i].connected()) << i;
        clients[i].send(i % 10 == 0 ? httpRequest("POST", kPath, bodyOf("Hello", 2).dump())
                                    : httpRequest("GET", "/health"));
    }
    for (std::size_t i = 0; i < clients.size(); ++i)
        ASSERT_EQ(test::httpAnswer(clients[i].readAll()).status, 200) << i << clients[i].text();
    EXPECT_EQ(stop().status, 0);
}

TEST_F(Serve, MoreConnectionsThanMayBeAreTurnedAway) {
    start({"--limit", "connections=2"});
    if (IsSkipped()) return;
    HttpClient one(port_), two(port_);
    one.send(httpRequest("GET", "/health", "", "", false));
    two.send(httpRequest("GET", "/health", "", "", false));
    ASSERT_TRUE(one.readUntil("ok") && two.readUntil("ok"));
    HttpClient three(port_);
    EXPECT_EQ(test::httpAnswer(three.readAll()).status, 503);
}

TEST_F(Serve, ASignalBeforeItIsReadySaysWhatBecameOfTheTrace) {
    const std::string trace = path("a.kvtrace");
    start({"--trace", trace}, false);
    if (IsSkipped()) return;
    const auto ended = [&] {
        server_->signal(SIGHUP);
        const test::Finished finished = server_->wait();
        server_.reset();
        return finished.err;
    };
    EXPECT_THAT(ended(),
                HasSubstr("nothing was recorded, because the server was not ready yet: " + trace + " was not made"));
    EXPECT_FALSE(std::filesystem::exists(trace));
    record(trace, {"--prompt", "Once", "--max-new-tokens", "2"});
    start({"--trace", trace, "--overwrite"}, false);
    EXPECT_THAT(ended(), HasSubstr(trace + " is as it was"));
    EXPECT_EQ(jsonOf({"info", trace}).at("runs").size(), 1u);
}

TEST_F(Serve, ATerminationLetsRequestsEnd) {
    start();
    if (IsSkipped()) return;
    HttpClient client(port_), kept(port_);
    kept.send(httpRequest("GET", "/health", "", "", false));
    ASSERT_TRUE(kept.readUntil("ok"));
    kept.forget();
    client.send(httpRequest("POST", kPath, bodyOf("Once upon a time", 300, true).dump()));
    ASSERT_TRUE(client.readUntil("data: "));
    server_->signal(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kept.send(httpRequest("POST", kPath, bodyOf("Late", 3).dump()));
    const HttpAnswer refused = test::httpAnswer(kept.readAll());
    EXPECT_TRUE(refused.status == 503 || refused.status == 0) << refused.body; // 0: the connection was closed first
    EXPECT_THAT(client.readAll(), HasSubstr("data: [DONE]"));
    EXPECT_EQ(server_->wait().status, 0);
    server_.reset();
}

TEST_F(Serve, ATerminationCancelsWhatDoesNotEndInTime) {
    start({"--limit", "drain_s=0.3"});
    if (IsSkipped()) return;
    HttpClient client(port_);
    client.send(httpRequest("POST", kPath, bodyOf("Once upon a time", 3500, true).dump()));
    ASSERT_TRUE(client.readUntil("data: "));
    EXPECT_EQ(stop().status, 0);
    EXPECT_THAT(client.readAll(), HasSubstr("the server is stopping"));
}

TEST_F(Serve, RecordsEveryRequestWhileItServes) {
    const std::string trace = path("s.kvtrace");
    start({"--trace", trace, "--name", "watched", "--knob", "max_waiting=1", "--knob", "rows=1", "--deadline", "20"},
          true, "64M");
    if (IsSkipped()) return;
    const auto requests = [&] {
        const test::Finished out = test::cli({"export", trace, "--what", "requests", "--format", "jsonl"});
        EXPECT_EQ(out.status, 0) << out.err;
        std::vector<json> all;
        for (const std::string& line : test::linesOf(out.out)) all.push_back(json::parse(line));
        return all;
    };
    const json whole = json::parse(complete(bodyOf("The history of", 9), "x-request-class: short\r\n").body);
    const std::string text = whole.at("choices").at(0).at("text");
    json stops = bodyOf("The history of", 1000);
    stops["stop"] = text.substr(text.size() / 2, 3);
    ASSERT_EQ(complete(stops).status, 200);
    EXPECT_EQ(complete(bodyOf("Once", 15000)).status, 507);
    ASSERT_TRUE(becomes("vllm:num_requests_running", 0));
    HttpClient runs(port_), waits(port_);
    runs.send(httpRequest("POST", kPath, bodyOf("Once", 3000, true).dump(), "x-request-id: runs\r\n"));
    ASSERT_TRUE(runs.readUntil("data: "));
    waits.send(httpRequest("POST", kPath, bodyOf("Once", 3000).dump()));
    ASSERT_TRUE(becomes("vllm:num_requests_waiting", 1));
    EXPECT_EQ(complete(bodyOf("Twice", 3)).status, 429);
    EXPECT_EQ(metric("kvscope:requests_ended_total{model_name=\"nosa-tiny\",ending=\"refused\"}"), 2);

    // The file grows while the server runs.
    std::vector<json> seen;
    for (int i = 0; i < 200 && seen.size() < 6; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        seen = requests();
    }
    ASSERT_EQ(seen.size(), 6u);
    EXPECT_EQ(seen[3].at("status"), "decode");
    EXPECT_EQ(seen[4].at("status"), "queued");

    waits.close();
    EXPECT_TRUE(becomes("vllm:num_requests_waiting", 0));
    EXPECT_EQ(askHttp(port_, "DELETE", "/v1/requests/runs").status, 200);
    EXPECT_TRUE(becomes("vllm:num_requests_running", 0));
    const test::Finished ended = stop();
    EXPECT_EQ(ended.status, 0) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("recorded in " + trace));

    const std::vector<json> last = requests();
    ASSERT_EQ(last.size(), 6u);
    const std::vector<std::pair<const char*, const char*>> ends{{"length", ""},
                                                                {"stop", ""},
                                                                {"refused", "can never run"},
                                                                {"cancelled", "client"},
                                                                {"cancelled", "disconnect"},
                                                                {"refused", "1 requests wait"}};
    for (std::size_t i = 0; i < last.size(); ++i) {
        EXPECT_EQ(last[i].at("status"), ends[i].first) << i;
        EXPECT_THAT(last[i].at("reason").get<std::string>(), HasSubstr(ends[i].second)) << i;
        EXPECT_FALSE(last[i].at("end_ns").is_null()) << i;
    }
    EXPECT_EQ(last[0].at("class"), "short");
    EXPECT_EQ(last[0].at("output_tokens"), 9);
    EXPECT_EQ(last[0].at("prompt_tokens"), whole.at("usage").at("prompt_tokens"));
    EXPECT_TRUE(last[4].at("first_sched_ns").is_null()) << "it had no row yet";
    const json info = json::parse(test::cli({"info", trace, "--json"}).out).at("runs").at(0);
    EXPECT_EQ(info.at("name"), "watched");
    EXPECT_EQ(info.at("status"), "finished");
    const test::Finished checked = test::cli({"check", trace});
    EXPECT_EQ(checked.status, 0) << checked.out;
}

/// A request ends with the token that completes a stop text, also where its length would end it a token later: the
/// answers, the trace and the metrics count the same tokens.
TEST_F(Serve, AStopTextEndsARequestWithTheTokenThatCompletesIt) {
    const std::string trace = path("s.kvtrace");
    start({"--trace", trace}, true, "64M");
    if (IsSkipped()) return;
    const json first = json::parse(complete(bodyOf("The history of", 12)).body);
    std::vector<int> tokens{first.at("usage").at("completion_tokens").get<int>()};
    const int promptTokens = first.at("usage").at("prompt_tokens");
    std::vector<std::string> parts;
    for (const json& event : eventsOf(complete(bodyOf("The history of", 12, true))))
        parts.push_back(event.at("choices").at(0).at("text"));
    ASSERT_EQ(parts.size(), 12u);
    tokens.push_back(12);
    for (int last = 2; last < 10; ++last)
        for (const int more : {0, 1, 5}) {
            json body = bodyOf("The history of", last + 1 + more);
            body["stop"] = parts[std::size_t(last) - 1] + parts[std::size_t(last)];
            const json answer = json::parse(complete(body).body);
            EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "stop") << body;
            tokens.push_back(answer.at("usage").at("completion_tokens"));
        }
    EXPECT_EQ(complete(bodyOf("Once", 15000)).status, 507);
    tokens.push_back(0);
    ASSERT_TRUE(becomes("vllm:num_requests_running", 0));
    const int answers = int(tokens.size()) - 1;
    EXPECT_EQ(metric("vllm:generation_tokens_total"), std::accumulate(tokens.begin(), tokens.end(), 0));
    EXPECT_EQ(metric("vllm:prompt_tokens_total"), promptTokens * answers) << "of prompts that were read";
    EXPECT_EQ(metric("vllm:request_success_total{model_name=\"nosa-tiny\",finished_reason=\"stop\"}"), answers - 2);
    EXPECT_EQ(stop().status, 0);
    const test::Finished out = test::cli({"export", trace, "--what", "requests", "--format", "jsonl"});
    const std::vector<std::string> lines = test::linesOf(out.out);
    ASSERT_EQ(lines.size(), tokens.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const json request = json::parse(lines[i]);
        EXPECT_EQ(request.at("output_tokens"), tokens[i]) << i;
        EXPECT_EQ(request.at("status"), i < 2 ? "length" : i + 1 < lines.size() ? "stop" : "refused") << i;
    }
}

/// The blocks of a sequence by its decode step, layer and KV head, of requests whose prompt is read in one step.
using Chosen = std::map<std::array<int, 3>, std::set<int>>;

TEST_F(Serve, RecordsTheSelectionsOfRowsWhereThatIsAskedFor) {
    const std::string trace = path("s.kvtrace"), alone = path("alone.kvtrace");
    const std::vector<std::string> method{"--method", "quest", "--set", "total_blocks=8", "--set", "block_size=16"};
    const auto rows = [&](const std::string& file, const char* what) {
        const test::Finished out = test::cli({"export", file, "--what", what, "--format", "jsonl"});
        EXPECT_EQ(out.status, 0) << out.err;
        std::vector<json> all;
        for (const std::string& line : test::linesOf(out.out)) all.push_back(json::parse(line));
        return all;
    };
    const auto record = [&](const std::string& level, const std::vector<std::string>& prompts) {
        std::vector<std::string> more{"--trace", trace, "--record", level, "--overwrite"};
        more.insert(more.end(), method.begin(), method.end());
        start(more);
        if (IsSkipped() || HasFatalFailure()) return;
        std::vector<std::unique_ptr<HttpClient>> clients; // at once, so that they share iterations
        for (const std::string& prompt : prompts)
            clients.emplace_back(std::make_unique<HttpClient>(port_))
                ->send(httpRequest("POST", kPath, bodyOf(prompt, 8).dump()));
        for (const auto& client : clients) EXPECT_EQ(test::httpAnswer(client->readAll()).status, 200);
        EXPECT_EQ(stop().status, 0);
        EXPECT_EQ(test::cli({"check", trace}).status, 0) << test::cli({"check", trace}).out;
    };
    std::string text;
    for (int i = 0; i < 60; ++i) text += "The river ran past house " + std::to_string(i) + ". ";
    record("selections", {text, "Before all that, " + text});
    if (IsSkipped() || HasFatalFailure()) return;

    std::map<std::pair<int, int>, int> requestOf; // by step and row
    std::map<int, std::vector<int>> stepsOf;      // of a request
    for (const json& member : rows(trace, "members"))
        if (member.at("kind") == "decode") {
            requestOf[{member["iteration"], member["row"]}] = member["request"];
            stepsOf[member["request"]].push_back(member["iteration"]);
        }
    std::map<int, Chosen> served;
    for (const json& row : rows(trace, "selections")) {
        const int step = row.at("step"), request = requestOf.at({step, row["seq"]});
        const std::vector<int>& steps = stepsOf.at(request);
        const int number = int(std::find(steps.begin(), steps.end(), step) - steps.begin());
        served[request][{number, row["layer"], row["kv_head"]}].insert(row["block"].get<int>());
    }
    ASSERT_EQ(served.size(), 2u);
    std::map<int, std::pair<int, int>> sums; // hits and misses
    for (const json& selection : rows(trace, "served-selections")) {
        auto& [hits, misses] = sums[selection["request"]];
        hits += selection["hits"].get<int>(), misses += selection["misses"].get<int>();
    }
    int first = -1; // the request whose prompt is the shorter one
    std::int64_t fewest = 1 << 20;
    for (const json& request : rows(trace, "requests")) {
        EXPECT_EQ(sums.at(request["request"]).first, request["hits"]) << request;
        EXPECT_EQ(sums.at(request["request"]).second, request["misses"]) << request;
        if (request.at("prompt_tokens") < fewest) first = request["request"], fewest = request["prompt_tokens"];
    }
    std::vector<std::string> run{"run",          "--prompt", text,  "--max-new-tokens", "8",
                                 "--ignore-eos", "--trace",  alone, "--threads",        "1"};
    run.insert(run.end(), method.begin(), method.end());
    ASSERT_EQ(test::cli(run).status, 0);
    Chosen expected;
    for (const json& row : rows(alone, "selections"))
        if (const int step = row.at("step"); step > 0) // step 0 is the prompt
            expected[{step - 1, row["layer"], row["kv_head"]}].insert(row["block"].get<int>());
    EXPECT_GT(expected.size(), 7u);
    EXPECT_EQ(served.at(first), expected) << "a request selects what it selects alone";

    record("counters", {text});
    EXPECT_FALSE(rows(trace, "steps").empty());
    EXPECT_FALSE(rows(trace, "served-selections").empty());
    EXPECT_TRUE(rows(trace, "selections").empty()) << "there are no blocks";
    record("full", {text});
    EXPECT_FALSE(rows(trace, "selections").empty());
    record("serving", {text});
    EXPECT_TRUE(rows(trace, "steps").empty());
    EXPECT_EQ(rows(trace, "requests").size(), 1u);
    EXPECT_THAT(test::cli({"serve", "--record", "selections"}).err, HasSubstr("--trace"));
    EXPECT_THAT(test::cli({"serve", "--trace", trace, "--record", "everything"}).err, HasSubstr("serving"));
}

TEST_F(Serve, ATerminationEndsTheTraceWithTheRequestsThatItCancels) {
    const std::string trace = path("s.kvtrace");
    start({"--limit", "drain_s=0.2", "--trace", trace});
    if (IsSkipped()) return;
    HttpClient client(port_);
    client.send(httpRequest("POST", kPath, bodyOf("Once upon a time", 3500, true).dump()));
    ASSERT_TRUE(client.readUntil("data: "));
    EXPECT_EQ(stop().status, 0);
    const json request = json::parse(test::cli({"export", trace, "--what", "requests", "--format", "jsonl"}).out);
    EXPECT_EQ(request.at("status"), "cancelled");
    EXPECT_EQ(request.at("reason"), "server");
    EXPECT_EQ(test::cli({"check", trace}).status, 0);
}

TEST_F(Serve, ATraceThatCannotBeWrittenEndsTheServer) {
    if (test::cli({"serve", "--port", "1", "--limit", "nothing"}).err.find("without Asio") != std::string::npos)
        GTEST_SKIP() << "this build has no server";
    const test::Finished refused = test::cli({"serve", "--port", "0", "--trace", path("no/folder.kvtrace")});
    EXPECT_NE(refused.status, 0);
    EXPECT_THAT(refused.err, HasSubstr("folder.kvtrace"));
    EXPECT_THAT(test::cli({"serve", "--overwrite"}).err, HasSubstr("--trace"));
}

TEST_F(Serve, AModelThatIsWrittenMeanwhileEndsTheServer) {
    namespace fs = std::filesystem;
    const fs::path model = folder_ / "model", weights = model / "model.safetensors";
    fs::copy(test::source("resources/models/nosa-tiny"), model);
    fs::permissions(weights, fs::perms::owner_write, fs::perm_options::add);
    start({"--model", model.string()});
    ASSERT_EQ(utimensat(AT_FDCWD, weights.c_str(), nullptr, 0), 0); // as `touch` does
    EXPECT_EQ(complete(bodyOf("one two", 4)).status, 200) << "its time alone is another";
    std::fstream(weights, std::ios::in | std::ios::out | std::ios::binary).seekp(20'000'000).write("other", 5);
    EXPECT_EQ(complete(bodyOf("one two", 4)).status, 503);
    const test::Finished ended = server_->wait();
    server_.reset();
    EXPECT_EQ(ended.status, 1);
    EXPECT_THAT(ended.err, HasSubstr("another program wrote to " + weights.string() + " while it was read"));
}

TEST_F(Serve, AModelThatIsCutOffMeanwhileEndsAnswersWithAnError) {
    namespace fs = std::filesystem;
    const fs::path model = folder_ / "model", weights = model / "model.safetensors";
    const std::string trace = path("cut.kvtrace");
    fs::copy(test::source("resources/models/nosa-tiny"), model);
    fs::permissions(weights, fs::perms::owner_write, fs::perm_options::add);
    start({"--model", model.string(), "--trace", trace});
    std::future<HttpAnswer> streamed =
        std::async(std::launch::async, [&] { return complete(bodyOf("one two", 8000, true)); });
    std::future<HttpAnswer> whole = std::async(std::launch::async, [&] { return complete(bodyOf("one two", 8000)); });
    for (int i = 0; i < 300 && metric("vllm:num_requests_running") < 2; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fs::resize_file(weights, 4096);
    const std::vector<nlohmann::json> events = eventsOf(streamed.get());
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().at("error").at("message"), "the engine has failed");
    EXPECT_EQ(whole.get().status, 503);
    const test::Finished ended = server_->wait();
    server_.reset();
    EXPECT_EQ(ended.status, 1);
    EXPECT_THAT(ended.err, HasSubstr(weights.string() + " was cut short by another program while it was read"));
    const nlohmann::json run = jsonOf({"info", trace}).at("runs").at(0);
    EXPECT_EQ(run.at("status"), "failed");
    EXPECT_THAT(run.at("status_message").get<std::string>(), HasSubstr("was cut short"));
}

TEST_F(Serve, ThePageOfServingHasEveryLimit) {
    std::ifstream file(test::source("docs/serving.md"));
    const std::string page((std::istreambuf_iterator<char>(file)), {});
    const std::vector<std::string> lines = test::linesOf(test::cli({"serve", "--list-limits"}).out);
    EXPECT_GE(lines.size(), 9u);
    for (const std::string& line : lines) {
        std::istringstream words(line);
        std::string key, value;
        words >> key >> value >> std::ws;
        std::string meaning;
        std::getline(words, meaning);
        EXPECT_THAT(page, HasSubstr("| `" + key + "` | " + value + " | " + meaning + " |\n"));
    }
}

/// The default table is of another model's shape, and a server planned by it without a word.
TEST_F(Serve, SaysWhereItsCostsAreOfAnotherModel) {
    start();
    if (IsSkipped()) return;
    EXPECT_THAT(stop().err, HasSubstr("costs of another model: the shape in " + path("costs.json")));
}

TEST_F(Serve, SaysThatItLoadsUntilItCanServe) {
    start({}, false); // measures its costs first
    if (IsSkipped()) return;
    const HttpAnswer health = askHttp(port_, "GET", "/health");
    EXPECT_EQ(health.status, 503);
    EXPECT_EQ(json::parse(health.body).at("error").at("message"), "Loading model");
    EXPECT_EQ(complete(bodyOf("Early", 1)).status, 503);
    EXPECT_EQ(stop().status, 0);
}

TEST_F(Serve, WhatCanNeverRunAndWhatTakesTooLongIsSaid) {
    start({"--deadline", "1", "--benchmark"}, true, "64M");
    if (IsSkipped()) return;
    const HttpAnswer large = complete(bodyOf("Once", 15000));
    EXPECT_EQ(large.status, 507) << large.body;
    EXPECT_THAT(large.body, HasSubstr("15000 new ones"));
    EXPECT_THAT(large.body, HasSubstr("--host-kv"));
    EXPECT_THAT(large.head, HasSubstr("x-should-retry: false\r\n"));
    HttpClient streams(port_), waits(port_);
    streams.send(httpRequest("POST", kPath, bodyOf("Once", 3000, true).dump()));
    waits.send(httpRequest("POST", kPath, bodyOf("Once", 3000).dump()));
    EXPECT_EQ(test::httpAnswer(waits.readAll()).status, 504);
    EXPECT_THAT(streams.readAll(), HasSubstr("\"type\":\"timeout_error\""));
    EXPECT_TRUE(streams.ended());
    EXPECT_TRUE(becomes("vllm:num_requests_running", 0));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

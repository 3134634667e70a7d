// A server in a process of its own, and the requests of its tests.
#pragma once

#include "core/http/testing/http_client.h"
#include "tests/app/cli_fixture.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace kvscope::test {

inline const std::string kPath = "/v1/completions";

/// A request for a completion of this length, with the likeliest tokens.
inline nlohmann::json bodyOf(const std::string& prompt, int tokens, bool stream = false) {
    return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0},
            {"stream", stream}, {"ignore_eos", true},   {"model", ""}};
}
/// The JSON of each event but the last, which is [DONE].
inline std::vector<nlohmann::json> eventsOf(const HttpAnswer& answer) {
    std::vector<nlohmann::json> events;
    for (const std::string& line : linesOf(answer.body))
        if (line.rfind("data: {", 0) == 0) events.push_back(nlohmann::json::parse(line.substr(6)));
    return events;
}

class ServeFixture : public CliFixture {
protected:
    /// Starts a server whose costs are known and waits until it is ready.
    void start(std::vector<std::string> more = {}, bool measured = true, const char* hostKv = "256M") {
        if (whyNot_.empty() &&
            cli({"serve", "--port", "1", "--limit", "nothing"}).err.find("without Asio") != std::string::npos)
            whyNot_ = "this build has no server";
        if (!whyNot_.empty()) GTEST_SKIP() << whyNot_;
        std::vector<std::string> command{kCommandLine, "serve", "--port",      "0",   "--threads", "1",
                                         "--host-kv",  hostKv,  "--device-kv", "64M", "--scratch", "64M"};
        if (measured) {
            const Finished costs = cli({"simulate", "--print-costs"});
            std::ofstream(path("costs.json")) << costs.out;
            command.insert(command.end(), {"--costs", path("costs.json")});
        }
        command.insert(command.end(), more.begin(), more.end());
        server_ = std::make_unique<Process>(command);
        ASSERT_TRUE(server_->waitForOutput(measured ? "ready: " : "\n")) << server_->wait().err;
        const std::string said = server_->output();
        port_ = std::atoi(said.c_str() + said.rfind(':', said.find('\n')) + 1);
        ASSERT_GT(port_, 0) << said;
    }
    ~ServeFixture() override {
        if (server_) server_->signal(SIGKILL);
    }
    Finished stop() {
        server_->signal(SIGTERM);
        const Finished finished = server_->wait();
        server_.reset();
        return finished;
    }
    HttpAnswer complete(const nlohmann::json& body, const std::string& headers = {}) const {
        return askHttp(port_, "POST", kPath, body.dump(), headers);
    }
    /// A number of the metrics' page.
    double metric(const std::string& name) const {
        for (const std::string& line : linesOf(askHttp(port_, "GET", "/metrics").body))
            if (line.rfind(name, 0) == 0) return std::atof(line.substr(line.rfind(' ')).c_str());
        return -1;
    }
    bool becomes(const std::string& name, double value) const {
        for (int i = 0; i < 300; ++i) {
            if (metric(name) == value) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        return false;
    }
    /// The folder of a model that can chat: nosa-tiny with a template.
    std::string chatty() const {
        const std::filesystem::path model = folder_ / "chatty";
        std::filesystem::create_directory(model);
        for (const auto& file : std::filesystem::directory_iterator(source("resources/models/nosa-tiny")))
            std::filesystem::create_symlink(file.path(), model / file.path().filename());
        std::ofstream(model / "chat_template.jinja")
            << "{% for m in messages %}{% if m.role == 'wizard' %}{{ raise_exception('no wizards') }}{% endif %}"
               "{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
        return model.string();
    }
    static std::string textOfRun(const std::string& prompt, int tokens) {
        const Finished run = cli({"run", "--prompt", prompt, "--max-new-tokens", std::to_string(tokens), "--ignore-eos",
                                  "--threads", "1", "--json"});
        return nlohmann::json::parse(run.out).at("text");
    }

    std::unique_ptr<Process> server_;
    int port_ = 0;
    static inline std::string whyNot_;
};

} // namespace kvscope::test

// What does HTTP add to the time to the first token and to the time between tokens? Streams ask a server over loopback;
// the client's clock is compared with what the engine recorded in the same run.
#include "bench/serving.h"
#include "bench/started_server.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/http/testing/http_client.h"
#include "core/prompt/prompts.h"
#include "core/serve/random_draws.h"
#include "core/serve/serving_metrics.h"
#include "profiler/read/open_trace.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <fmt/format.h>
#include <map>
#include <poll.h>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using serve::percentile;

constexpr int kStreamsOfAThread = 8;
constexpr double kTtftAimMs = 1, kTbtAimMs = 0.2;

/// The times of one answer, on one clock: the client's, or that of the engine's run.
struct AnswerTimes {
    std::int64_t askedNs = 0; // the client: before it sends the request; the engine: its arrival
    std::vector<std::int64_t> tokenNs;
};

/// A client that asks one request after the other on one connection.
class Stream {
public:
    Stream(int port, std::vector<std::string> requests) : client_(port), requests_(std::move(requests)) {
        if (!client_.connected()) throw Error(ErrorKind::Unsupported, "a client cannot connect to the server");
    }

    int handle() const { return client_.handle(); }
    const std::vector<AnswerTimes>& answers() const { return answers_; }
    void ask() {
        answers_.emplace_back().askedNs = steadyNowNs();
        client_.send(requests_[answers_.size() - 1]);
    }
    /// Takes what has come; behind the end of an answer it asks the next request. @return false: no request is left.
    /// @throws Error where the answer is not what was asked for
    bool take() {
        constexpr std::string_view kEvent = "\ndata: {", kEnd = "\r\n0\r\n\r\n"; // an event has a token
        const bool came = client_.receive();
        const std::int64_t ns = steadyNowNs();
        const std::string& text = client_.text();
        if (!came || !std::string_view(text).starts_with(std::string_view("HTTP/1.1 200").substr(0, text.size())))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("the server did not stream an answer: {}", text.substr(0, 600)));
        for (std::size_t at; (at = text.find(kEvent, scanned_)) != std::string::npos; scanned_ = at + kEvent.size())
            answers_.back().tokenNs.push_back(ns);
        if (text.find(kEnd, scanned_) == std::string::npos) {
            // what may be the beginning of either stays
            scanned_ = std::max(scanned_, text.size() - std::min(text.size(), kEvent.size() - 1));
            return true;
        }
        client_.forget();
        scanned_ = 0;
        if (answers_.size() == requests_.size()) return false;
        ask();
        return true;
    }

private:
    test::HttpClient client_;
    const std::vector<std::string> requests_;
    std::vector<AnswerTimes> answers_; // the last one is under way
    std::size_t scanned_ = 0;          // in what has come of it
};

/// Asks until the streams have all their answers.
void serveStreams(std::span<Stream> streams) {
    std::vector<pollfd> waits;
    for (Stream& stream : streams) {
        waits.push_back({stream.handle(), POLLIN, 0});
        stream.ask();
    }
    for (std::size_t open = streams.size(); open > 0;) {
        if (poll(waits.data(), waits.size(), 60'000) <= 0)
            throw Error(ErrorKind::Unsupported, "the server sent nothing for 60 s");
        for (std::size_t i = 0; i < streams.size(); ++i)
            if (waits[i].revents != 0 && !streams[i].take()) waits[i].fd = -1, --open;
    }
}

/// The class of a request in the trace.
std::string classOf(int stream, int request) { return fmt::format("{}-{}", stream, request); }

/// Requests of one stream. Their answers have several lengths, so that streams do not ask together.
std::vector<std::string> requestsOf(const ServingJob& job, const SplicedPrompts& prompts, int stream) {
    std::vector<std::string> requests;
    serve::Draws draws{std::uint64_t(stream)};
    for (int i = 0; i < job.requests; ++i) {
        const int tokens = job.tokens / 2 + int(draws.below(std::uint64_t(job.tokens / 2 + 1)));
        const Json body{{"prompt", prompts.prompt(job.prompt, stream * job.requests + i, 1)},
                        {"max_tokens", tokens},
                        {"temperature", 0},
                        {"stream", true},
                        {"ignore_eos", true}};
        requests.push_back(test::httpRequest("POST", "/v1/completions", body.dump(),
                                             fmt::format("x-request-class: {}\r\n", classOf(stream, i)), false));
    }
    return requests;
}

/// The client's times by class. Every thread has a few streams, so that none waits long until its bytes are read.
std::map<std::string, AnswerTimes> clientTimes(const ServingJob& job, const SplicedPrompts& prompts, int port) {
    std::vector<Stream> streams;
    streams.reserve(std::size_t(job.streams));
    for (int i = 0; i < job.streams; ++i) streams.emplace_back(port, requestsOf(job, prompts, i));
    const std::size_t parts = (streams.size() + kStreamsOfAThread - 1) / kStreamsOfAThread;
    std::vector<std::exception_ptr> failures(parts);
    {
        std::vector<std::jthread> threads;
        for (std::size_t part = 0; part < parts; ++part)
            threads.emplace_back([&, part] {
                const std::size_t from = part * kStreamsOfAThread;
                try {
                    serveStreams(std::span(streams).subspan(
                        from, std::min<std::size_t>(kStreamsOfAThread, streams.size() - from)));
                } catch (...) {
                    failures[part] = std::current_exception();
                }
            });
    }
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    std::map<std::string, AnswerTimes> times;
    for (int i = 0; i < job.streams; ++i)
        for (int request = 0; request < job.requests; ++request)
            times[classOf(i, request)] = streams[std::size_t(i)].answers()[std::size_t(request)];
    return times;
}

struct Recorded {
    std::map<std::string, AnswerTimes> times; // by class
    double decodeRows = 0;                    // mean of the iterations that decode
};

Recorded readTrace(const std::string& file) {
    const OpenTrace trace = openTrace(file);
    std::map<std::int64_t, std::string> classes;
    Recorded recorded;
    Statement requests(*trace.connection, "SELECT request, class, arrival_ns FROM v_request");
    while (requests.step()) {
        const std::string name(requests.text(1));
        classes[requests.int64(0)] = name;
        recorded.times[name].askedNs = requests.int64(2);
    }
    Statement tokens(*trace.connection, "SELECT request, token_ns FROM v_member WHERE token_ns IS NOT NULL");
    while (tokens.step()) recorded.times[classes.at(tokens.int64(0))].tokenNs.push_back(tokens.int64(1));
    for (auto& entry : recorded.times) std::sort(entry.second.tokenNs.begin(), entry.second.tokenNs.end());
    Statement rows(*trace.connection, "SELECT avg(decode_rows) FROM v_iteration WHERE decode_rows > 0");
    if (rows.step()) recorded.decodeRows = rows.real(0);
    return recorded;
}

double ms(std::int64_t ns) { return double(ns) / 1e6; }

/// Latencies of the client and of the engine, in ms, request by request and token by token.
struct Comparison {
    std::vector<double> engineTtft, clientTtft, addedTtft, engineTbt, clientTbt, changedTbt;
    std::vector<double> longer; // by how much the time from the first token to the last is longer for the client

    void add(const AnswerTimes& engine, const AnswerTimes& client) {
        engineTtft.push_back(ms(engine.tokenNs.front() - engine.askedNs));
        clientTtft.push_back(ms(client.tokenNs.front() - client.askedNs));
        addedTtft.push_back(clientTtft.back() - engineTtft.back());
        longer.push_back(ms(client.tokenNs.back() - client.tokenNs.front()) -
                         ms(engine.tokenNs.back() - engine.tokenNs.front()));
        for (std::size_t i = 1; i < engine.tokenNs.size(); ++i) {
            engineTbt.push_back(ms(engine.tokenNs[i] - engine.tokenNs[i - 1]));
            clientTbt.push_back(ms(client.tokenNs[i] - client.tokenNs[i - 1]));
            changedTbt.push_back(std::abs(clientTbt.back() - engineTbt.back()));
        }
    }
    void sort() {
        for (auto* list : {&engineTtft, &clientTtft, &addedTtft, &engineTbt, &clientTbt, &changedTbt, &longer})
            std::sort(list->begin(), list->end());
    }
};

/// What is added to the time to the first token is the difference of a request's two times; what is added to the time
/// between tokens is the difference of a percentile of all gaps, because what delays one token makes the next gap
/// shorter by as much.
Json reportOf(Comparison& times, const Log& log) {
    times.sort();
    const auto added = [&](double p) { return percentile(times.clientTbt, p) - percentile(times.engineTbt, p); };
    const Json ttft50 = besideAim(percentile(times.addedTtft, 0.5), kTtftAimMs);
    const Json ttft99 = besideAim(percentile(times.addedTtft, 0.99), kTtftAimMs);
    const Json tbt50 = besideAim(added(0.5), kTbtAimMs), tbt99 = besideAim(added(0.99), kTbtAimMs);
    log(fmt::format("time to the first token: {:.2f} ms in the engine in the median; HTTP adds {} ms in the median, {} "
                    "at P99, {:.3g} at most",
                    percentile(times.engineTtft, 0.5), inWords(ttft50), inWords(ttft99), times.addedTtft.back()));
    log(fmt::format("time between tokens: {:.3f} ms in the engine in the median, {:.3f} at P99; HTTP adds {} ms to the "
                    "median, {} to the P99; single gaps differ by {:.3f} ms in the median, {:.3f} at P99",
                    percentile(times.engineTbt, 0.5), percentile(times.engineTbt, 0.99), inWords(tbt50), inWords(tbt99),
                    percentile(times.changedTbt, 0.5), percentile(times.changedTbt, 0.99)));
    log(fmt::format("from the first token to the last an answer takes {:.3f} ms longer over HTTP in the median, {:.3f} "
                    "at P99: where that grows with the length of answers, the server's thread of connections is behind "
                    "the engine",
                    percentile(times.longer, 0.5), percentile(times.longer, 0.99)));
    return {{"requests", times.engineTtft.size()},
            {"gaps", times.engineTbt.size()},
            {"ttft_engine_p50_ms", percentile(times.engineTtft, 0.5)},
            {"ttft_engine_p99_ms", percentile(times.engineTtft, 0.99)},
            {"ttft_client_p50_ms", percentile(times.clientTtft, 0.5)},
            {"ttft_client_p99_ms", percentile(times.clientTtft, 0.99)},
            {"ttft_added_p50_ms", ttft50},
            {"ttft_added_p99_ms", ttft99},
            {"ttft_added_max_ms", times.addedTtft.back()},
            {"tbt_engine_p50_ms", percentile(times.engineTbt, 0.5)},
            {"tbt_engine_p99_ms", percentile(times.engineTbt, 0.99)},
            {"tbt_client_p50_ms", percentile(times.clientTbt, 0.5)},
            {"tbt_client_p99_ms", percentile(times.clientTbt, 0.99)},
            {"tbt_added_p50_ms", tbt50},
            {"tbt_added_p99_ms", tbt99},
            {"gap_difference_p50_ms", percentile(times.changedTbt, 0.5)},
            {"gap_difference_p99_ms", percentile(times.changedTbt, 0.99)},
            {"answer_longer_p50_ms", percentile(times.longer, 0.5)},
            {"answer_longer_p99_ms", percentile(times.longer, 0.99)}};
}

} // namespace

Json servingHttp(const ServingJob& job, const Log& log) {
    const TemporaryFolder folder;
    const std::string trace = folder.path() + "/serving.kvtrace";
    const auto model = Model::load(job.model);
    const SplicedPrompts prompts(*model);
    StartedServer server(job, {"--trace", trace});
    const std::map<std::string, AnswerTimes> client = clientTimes(job, prompts, server.port());
    server.stop();
    const Recorded engine = readTrace(trace);
    Comparison times;
    for (int stream = 0; stream < job.streams; ++stream)
        for (int request = 0; request < job.requests; ++request) {
            const AnswerTimes& at = client.at(classOf(stream, request));
            const auto recorded = engine.times.find(classOf(stream, request));
            if (recorded == engine.times.end() || recorded->second.tokenNs.empty() ||
                recorded->second.tokenNs.size() != at.tokenNs.size())
                throw Error(
                    ErrorKind::Unsupported,
                    fmt::format("the client of request {} got {} tokens, and the engine recorded another number",
                                classOf(stream, request), at.tokenNs.size()));
            // All streams begin together, and end one after the other.
            if (request > 0 && request + 1 < job.requests) times.add(recorded->second, at);
        }
    log(fmt::format("{} streams, {:.1f} rows decode in the mean", job.streams, engine.decodeRows));
    Json out = reportOf(times, log);
    out["mean_decode_rows"] = engine.decodeRows;
    return out;
}

} // namespace kvscope::bench

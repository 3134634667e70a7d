// Does everybody get an answer where many clients connect at once?
#include "bench/serving.h"
#include "bench/started_server.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/http/testing/http_client.h"
#include "core/serve/serving_metrics.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <poll.h>
#include <string>
#include <sys/resource.h>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPatienceMs = 60'000;

/// Lets this process open so many files more than it has. @throws Error(Unsupported) where the system does not
void allowFiles(int count) {
    constexpr int kOthers = 256;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < rlim_t(count + kOthers))
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("this system allows {} open files, and {} connections need more", limit.rlim_cur, count),
            "set connects to a smaller number");
}

/// Reads every connection to its end. @return the times when they ended, in the order of the clients; 0: it did not,
/// because nothing came for a minute
std::vector<std::int64_t> readAll(std::vector<test::HttpClient>& clients) {
    std::vector<std::int64_t> ended(clients.size(), 0);
    std::vector<pollfd> waits;
    for (const test::HttpClient& client : clients) waits.push_back({client.handle(), POLLIN, 0});
    for (std::size_t open = clients.size(); open > 0 && poll(waits.data(), waits.size(), kPatienceMs) > 0;)
        for (std::size_t i = 0; i < clients.size(); ++i)
            if (waits[i].revents != 0 && !clients[i].receive()) ended[i] = steadyNowNs(), waits[i].fd = -1, --open;
    return ended;
}

} // namespace

Json servingConnects(const ServingJob& job, const Log& log) {
    allowFiles(job.connects);
    StartedServer server(job);
    const Json body{{"prompt", "Once upon a time"}, {"max_tokens", 4}, {"temperature", 0}, {"ignore_eos", true}};
    const std::string request = test::httpRequest("POST", "/v1/completions", body.dump());
    std::vector<test::HttpClient> clients;
    clients.reserve(std::size_t(job.connects));
    const std::int64_t began = steadyNowNs();
    for (int i = 0; i < job.connects; ++i) clients.emplace_back(server.port());
    const std::int64_t connected = steadyNowNs();
    for (const test::HttpClient& client : clients) client.send(request);
    const std::vector<std::int64_t> ended = readAll(clients);
    std::map<int, int> statuses;
    std::vector<double> ms;
    for (std::size_t i = 0; i < clients.size(); ++i) {
        const test::HttpAnswer answer = test::httpAnswer(clients[i].text());
        const bool whole = ended[i] > 0 && Json::accept(answer.body);
        if (whole) ++statuses[answer.status];
        if (whole) ms.push_back(double(ended[i] - connected) / 1e6);
    }
    server.stop();
    std::sort(ms.begin(), ms.end());
    Json counts = Json::object();
    for (const auto& [status, count] : statuses) counts[fmt::format("{}", status)] = count;
    const bool missed = int(ms.size()) < job.connects;
    log(fmt::format(
        "{} connects within {:.0f} ms: {} answers (aim: all{}), by status {}; the last came after {:.0f} ms",
        job.connects, double(connected - began) / 1e6, ms.size(), missed ? ", missed" : "", counts.dump(),
        ms.empty() ? 0 : ms.back()));
    return {{"connects", job.connects},
            {"connecting_ms", double(connected - began) / 1e6},
            {"answers", {{"value", ms.size()}, {"aim", job.connects}, {"missed", missed}}},
            {"answers_by_status", counts},
            {"answer_p50_ms", ms.empty() ? Json(nullptr) : Json(serve::percentile(ms, 0.5))},
            {"answer_max_ms", ms.empty() ? Json(nullptr) : Json(ms.back())}};
}

} // namespace kvscope::bench

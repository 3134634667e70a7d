// How long does the scheduler take for a plan while 64 requests have rows and 1,000 wait?
#include "bench/serving.h"

#include "base/clock.h"
#include "core/serve/scheduler.h"
#include "core/serve/serving_metrics.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve;

constexpr int kRunning = 64, kWaiting = 1000, kPlans = 2000;
constexpr double kAimUs = 100;
constexpr std::int64_t kPlenty = std::int64_t(1) << 44;

/// A server that admits nobody, or only short prompts.
struct FullServer {
    const char* full; // in words: what keeps requests waiting
    const char* cache;
    int rows;
    std::int64_t device = kPlenty, host = kPlenty; // free bytes
    bool read = false;                             // a long prompt is being read, and only long ones wait
    bool arrived = false;                          // no plan has looked at the waiting requests before
    bool over = false;                             // working sets have exceeded the device for long
};

const FullServer kServers[] = {
    {.full = "every row is taken", .cache = "partition", .rows = kRunning},
    {.full = "index and slots fill the device", .cache = "partition", .rows = 2 * kRunning, .device = 8 * kMi},
    {.full = "working sets fill the device", .cache = "global-lru", .rows = 2 * kRunning, .device = 8 * kMi},
    {.full = "the host store is full", .cache = "partition", .rows = 2 * kRunning, .host = 8 * kMi},
    {.full = "a long prompt is read", .cache = "partition", .rows = 2 * kRunning, .read = true},
    {.full = "all waiting requests have just arrived",
     .cache = "global-lru",
     .rows = 2 * kRunning,
     .device = 8 * kMi,
     .arrived = true},
    {.full = "requests must be paused", .cache = "global-lru", .rows = 2 * kRunning, .device = 0, .over = true},
};

ServeRequest requestOf(const FullServer& server, const SchedulerOptions& options, const MemoryShape& shape, int i) {
    ServeRequest request;
    request.id = i;
    request.promptTokens = (server.read ? 4000 : 1000) + 37 * (i % 500), request.maxTokens = 500;
    request.needs = shape.needsOf(options, request.promptTokens, request.maxTokens);
    request.workingSetBytes = shape.firstWorkingSet(options, std::int64_t(request.promptTokens) + request.maxTokens);
    request.checked = !server.arrived;
    return request;
}

Json timePlans(const FullServer& server, const Log& log) {
    ParameterValues knobs = schedulerDefaults();
    knobs.set(schedulerParameters(), "cache", server.cache);
    knobs.set(schedulerParameters(), "rows", fmt::format("{}", server.rows));
    const SchedulerOptions options = schedulerOptions(knobs);
    const ServiceCosts costs;
    std::vector<ServeRequest> running, waiting;
    Amounts used;
    for (int i = 0; i < kRunning + kWaiting; ++i) {
        ServeRequest request = requestOf(server, options, costs.shape, i);
        if (i >= kRunning) {
            waiting.push_back(request);
            continue;
        }
        const bool reads = server.read && i == kRunning - 1;
        request.state = reads ? RequestState::Prefilling : RequestState::Decoding;
        request.generated = reads ? 0 : 100;
        request.lastSegmentNs = 0;
        used += request.fixed() + request.elastic();
        if (reads) used += request.scratch();
        running.push_back(request);
    }
    Snapshot snapshot;
    snapshot.nowNs = 1'000'000;
    snapshot.running = running, snapshot.waiting = waiting, snapshot.used = used;
    // Where requests must be paused, half of their working sets have no place.
    const std::int64_t places = server.over ? used.workingSets / 2 : used.workingSets;
    snapshot.budget = {server.rows, used.host + server.host, used.device + places + server.device, kPlenty, true};
    snapshot.iterationsOver = server.over ? options.pauseAfter : 0;
    const Scheduler scheduler(options, costs);
    IterationPlan plan;
    std::vector<double> us;
    for (int i = 0; i < kPlans; ++i) {
        const std::int64_t began = threadNowNs(); // a busy machine does other work meanwhile
        scheduler.plan(snapshot, plan);
        us.push_back(double(threadNowNs() - began) / 1e3);
    }
    std::sort(us.begin(), us.end());
    const Json median = besideAim(percentile(us, 0.5), kAimUs), p99 = besideAim(percentile(us, 0.99), kAimUs);
    log(fmt::format("{}: a plan takes {} us in the median, {} at P99; {} rows decode, {} are paused, {} requests are "
                    "admitted, the others wait for {}",
                    server.full, inWords(median), inWords(p99), plan.decodeRows(), plan.paused.size(),
                    plan.admitted.size(), nameOf(plan.limitedBy)));
    return {{"full", server.full},
            {"plan_p50_us", median},
            {"plan_p99_us", p99},
            {"decode_rows", plan.decodeRows()},
            {"paused", plan.paused.size()},
            {"admitted", plan.admitted.size()},
            {"refused", plan.refused.size()},
            {"limited_by", nameOf(plan.limitedBy)}};
}

} // namespace

Json servingPlans(const ServingJob&, const Log& log) {
    Json out{{"clock", "processor time of one thread"}, {"rows", kRunning}, {"waiting", kWaiting}, {"plans", kPlans}};
    for (const FullServer& server : kServers) out["servers"].push_back(timePlans(server, log));
    return out;
}

} // namespace kvscope::bench

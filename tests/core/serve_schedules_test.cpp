// What holds of every schedule, on 10,000 random ones: arrivals, lengths, budgets, knobs, estimates that jump,
// iterations that last as they like, and cancellations at any moment.
#include "tests/core/serve_server.h"

#include "core/serve/random_draws.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <set>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

using small::Server;
using small::smallCosts;

/// One random schedule; every check names its seed.
class Schedule {
public:
    explicit Schedule(std::uint64_t seed)
        : draws_(seed), options_(randomOptions()), server_(options_, costsOf(), randomBudget()) {}

    /// @return what was wrong first; empty: nothing
    std::string run() {
        makeArrivals();
        for (int iteration = 0; iteration < 20000; ++iteration) {
            while (!arrivals_.empty() && arrivals_.front().queuedNs <= server_.now) {
                server_.table.arrive(arrivals_.front());
                arrivals_.erase(arrivals_.begin());
            }
            if (server_.table.idle()) {
                if (arrivals_.empty()) return atTheEnd();
                server_.now = arrivals_.front().queuedNs;
                continue;
            }
            if (std::string wrong = step(); !wrong.empty()) return fmt::format("iteration {}: {}", iteration, wrong);
        }
        return "it does not end";
    }
    int pauses() const { return pauses_; }
    int skips() const { return mostSkips_; }
    int alone() const { return over_; }

private:
    template <class T> T oneOf(std::initializer_list<T> values) { return values.begin()[draws_.below(values.size())]; }
    bool chance(double p) { return draws_.uniform() < p; }
    int between(int low, int high) { return low + int(draws_.below(std::uint64_t(high - low + 1))); }

    SchedulerOptions randomOptions() {
        SchedulerOptions o;
        o.rows = between(1, 8);
        o.iterationTokens = oneOf<std::int64_t>({10, 60, 262144});
        o.tbtBoundMs = oneOf({5.0, 40.0, 500.0});
        o.ttftBoundMs = oneOf({20.0, 1e6});
        o.offload = chance(0.85), o.workingSetControl = chance(0.8);
        o.cache = chance(0.4) ? CachePlan::Partition : CachePlan::GlobalLru;
        o.partitionBlocks = oneOf({0, 4, 6});
        o.prefill = chance(0.6) ? PrefillPlan::Layers : PrefillPlan::Chunks;
        o.chunkTokens = oneOf({4, 16, 64});
        o.tokenLayers = chance(0.2) ? 60 : 0;
        o.parking = oneOf({Parking::Device, Parking::DeviceBf16, Parking::Host});
        o.longPrefills = between(1, 3), o.shortTokens = oneOf({0, 8, 20}), o.shortTurns = between(1, 4);
        o.agingMs = oneOf({0.0, 50.0, 1e6}), o.maxSuspendMs = oneOf({0.0, 30.0, 1e5});
        o.maxSkips = oneOf({1, 3, 100}), o.pauseAfter = between(1, 4), o.resumeTokens = oneOf({0, 2, 16});
        o.maxWaiting = oneOf({3, 1024});
        return o;
    }
    ServiceCosts costsOf() {
        ServiceCosts costs = smallCosts();
        costs.shape.layers = between(1, 4), costs.shape.pausesInLayer = chance(0.7);
        if (chance(0.3)) costs.admitMs = oneOf({0.5, 30.0}), costs.admitUsPerToken = oneOf({0, 400});
        if (chance(0.3)) costs.gapUsPerRow = 200, costs.offloadMs[2] = 0.7, costs.offloadUsPerRow[2] = 90;
        return costs;
    }
    Budget randomBudget() {
        return {options_.rows, between(500, 4000), between(300, 3000), between(200, 1500), options_.workingSetControl};
    }
    void makeArrivals() {
        const int count = between(1, 14);
        std::int64_t ns = 0;
        for (int id = 0; id < count; ++id) {
            if (chance(0.6)) ns += std::int64_t(draws_.exponential() * 30e6);
            server_.now = ns; // requestOf stamps it
            const int prompt = chance(0.3) ? between(1, 120) : between(1, 24);
            arrivals_.push_back(server_.requestOf(id, prompt, between(1, 40)));
        }
        server_.now = 0;
        arrived_ = count;
    }

    std::string step() {
        const RequestTable& table = server_.table;
        const Snapshot before = table.snapshot(server_.now, draws_.uniform());
        IterationPlan& plan = server_.plan;
        server_.scheduler.plan(before, plan);
        if (std::string wrong = lookAt(before, plan); !wrong.empty()) return wrong;
        for (const Refusal& refusal : plan.refused) ended_.insert(refusal.request.id);
        pauses_ += int(plan.paused.size());
        server_.table.begin(plan, server_.now);
        if (std::string wrong = lookAtLedger(plan); !wrong.empty()) return wrong;
        if (plan.empty()) return table.idle() ? "" : "requests wait and nothing runs";
        if (chance(0.02)) cancelOne(); // while it runs
        server_.now += std::int64_t(plan.predictedMs * 1e6 * (0.5 + draws_.uniform())) + 1;
        std::vector<RequestId> done;
        for (const RequestTable::Token& token : server_.table.end(plan, server_.now)) {
            const ServeRequest& request = *table.find(token.id);
            if (token.generated > request.maxTokens) return "too many tokens";
            if (token.first && !complete(request)) return "a first token before its prompt was read";
            if (token.generated == request.maxTokens) done.push_back(token.id);
        }
        for (const RequestId id : done) finish(id);
        if (chance(0.3)) jump();
        if (chance(0.02)) cancelOne();
        return {};
    }

    bool complete(const ServeRequest& request) const {
        if (options_.prefill == PrefillPlan::Chunks) return request.position.token == request.promptTokens;
        return request.position == PromptPosition{server_.scheduler.costs().shape.layers, 0};
    }
    void finish(RequestId id) {
        if (!ended_.insert(id).second) ADD_FAILURE() << "request " << id << " ended twice";
        server_.table.finish(id);
    }
    void cancelOne() {
        const RequestTable& table = server_.table;
        const auto* list = oneOf({&table.waiting(), &table.running(), &table.paused()});
        if (!list->empty()) finish((*list)[draws_.below(list->size())].id);
    }
    /// Selections drift: estimates jump with global-lru; the part of a partition stays.
    void jump() {
        if (!options_.offload || options_.cache == CachePlan::Partition) return;
        for (const ServeRequest& request : server_.table.running())
            if (request.state == RequestState::Decoding && chance(0.5)) {
                const std::int64_t step = request.needs.stepBytes;
                server_.table.setWorkingSet(request.id, step + std::int64_t(draws_.below(std::uint64_t(3 * step + 1))));
            }
    }

    std::string lookAt(const Snapshot& before, const IterationPlan& plan) {
        std::set<RequestId> seen;
        const auto known = [&](const std::vector<Member>& list, std::span<const ServeRequest> of) {
            for (const Member& member : list)
                if (member.index < 0 || member.index >= int(of.size()) ||
                    of[std::size_t(member.index)].id != member.id || !seen.insert(member.id).second)
                    return false;
            return true;
        };
        if (!known(plan.decode, before.running) || !known(plan.paused, before.running) ||
            !known(plan.resumed, before.paused) || !known(plan.admitted, before.waiting))
            return "a request that is not there, or twice";
        for (const Member& member : plan.decode)
            if (before.running[std::size_t(member.index)].state != RequestState::Decoding) return "decodes too early";
        std::size_t decoding = plan.decode.size() + plan.paused.size();
        for (const ServeRequest& request : before.running) decoding -= request.state == RequestState::Decoding ? 1 : 0;
        if (decoding != 0) return "a decoding request was left out";
        // Pauses: after so many iterations over, none that has just come back, nobody joins beside them.
        if (!plan.paused.empty()) {
            if (before.iterationsOver < options_.pauseAfter) return "paused too early";
            if (!plan.admitted.empty() || !plan.resumed.empty()) return "somebody joins while another is paused";
            if (plan.decodeRows() == 0 && before.running.size() == plan.paused.size()) return "everybody is paused";
        }
        for (const Member& member : plan.paused) {
            const ServeRequest& request = before.running[std::size_t(member.index)];
            if (request.pauses > 0 && request.tokensSinceResume < options_.resumeTokens)
                return "paused again too early";
        }
        for (std::size_t i = 0; i < plan.resumed.size(); ++i)
            if (plan.resumed[i].index != int(i)) return "resumed out of order";
        if (!plan.admitted.empty() && plan.resumed.size() < before.paused.size()) return "admitted before a paused one";
        // Overtaking ends at the barrier.
        const int last = plan.admitted.empty() ? -1 : plan.admitted.back().index;
        std::set<int> admitted, refused;
        for (const Member& member : plan.admitted) admitted.insert(member.index);
        for (const Refusal& refusal : plan.refused) refused.insert(refusal.request.index);
        for (int i = 0; i < last; ++i) {
            const ServeRequest& request = before.waiting[std::size_t(i)];
            mostSkips_ = std::max(mostSkips_, request.skips + 1);
            if (admitted.contains(i) || refused.contains(i)) continue;
            if (request.skips >= options_.maxSkips) return "a barrier was passed";
            if (double(server_.now - request.queuedNs) / 1e6 > options_.ttftBoundMs)
                return "one beyond its bound was passed";
        }
        int waiting = 0;
        for (const int count : plan.waitingFor) waiting += count;
        if (waiting != int(before.waiting.size() - admitted.size() - refused.size())) return "who waits is miscounted";
        return lookAtSegments(before, plan);
    }

    std::string lookAtSegments(const Snapshot& before, const IterationPlan& plan) {
        std::int64_t tokens = plan.decodeRows();
        const ServiceCosts& costs = server_.scheduler.costs();
        double admissions = 0;
        for (const Member& member : plan.admitted)
            admissions += costs.admission(before.waiting[std::size_t(member.index)].promptTokens);
        if (std::abs(admissions - plan.admissionsMs) > 1e-9) return "admissions are not priced by their prompts";
        double ms = plan.decodeMs + plan.decodeRows() * costs.gapUsPerRow * 1e-3;
        bool readsAdmitted = false;
        int longs = 0, shorts = 0;
        bool forced = plan.decodeRows() == 0;
        std::set<RequestId> read;
        for (const PrefillSegment& segment : plan.segments) {
            const auto& list = segment.admitted ? before.waiting : before.running;
            const ServeRequest& request = list[std::size_t(segment.index)];
            if (request.id != segment.id || !read.insert(segment.id).second) return "a prompt is read twice at once";
            if (!(request.position == segment.from)) return "a part of a prompt is left out";
            if (segment.to == segment.from) return "a segment without a part";
            tokens += request.promptTokens, ms += segment.ms;
            readsAdmitted |= segment.admitted;
            ++(request.promptTokens <= options_.shortTokens ? shorts : longs);
            forced |= double(server_.now - request.lastSegmentNs) / 1e6 >= options_.maxSuspendMs;
        }
        if (longs > 1 || shorts > options_.shortTurns) return "too many prompts at once";
        if (plan.segments.size() > 1 && tokens > options_.iterationTokens) return "more tokens than T_max";
        if (std::abs(ms + admissions - plan.predictedMs) > 1e-9) return "the prediction is not the sum of its parts";
        // Whoever is admitted costs what it costs; prompts have what the step leaves, and new ones what admissions do.
        if (!forced && options_.tokenLayers == 0 && !plan.segments.empty() &&
            ms + (readsAdmitted ? admissions : 0) > options_.budgetMs() + 1e-9)
            return "an iteration longer than its budget";
        return {};
    }

    /// Sums of parts, budgets, and what holds at every joining.
    std::string lookAtLedger(const IterationPlan& plan) {
        const RequestTable& table = server_.table;
        const Ledger& ledger = table.ledger();
        Amounts sum;
        for (const ServeRequest& request : table.running()) {
            Amounts its = request.fixed() + request.elastic();
            if (request.state == RequestState::Prefilling) its += request.scratch();
            if (!(ledger.of(request.id) == its)) return "a running request's account is not what it takes";
            sum += its;
        }
        for (const ServeRequest& request : table.paused()) {
            if (!(ledger.of(request.id) == request.fixed())) return "a paused request's account is not what it takes";
            sum += request.fixed();
        }
        for (const ServeRequest& request : table.waiting())
            if (!(ledger.of(request.id) == Amounts{})) return "a waiting request has something";
        if (!(sum == ledger.used())) return "the sum of parts is not what is used";
        const Budget& budget = ledger.budget();
        if (sum.rows > budget.rows || sum.host > budget.host || sum.device > budget.device ||
            sum.scratch > budget.scratch)
            return "above a budget";
        if (sum.device + sum.hard > budget.device) return "the hard need exceeds the device";
        if (plan.hardBytes > plan.availableBytes) return "the plan's hard need exceeds M_avl";
        if (options_.cache == CachePlan::Partition && options_.offload && sum.device + sum.workingSets > budget.device)
            return "partitions exceed the device";
        const bool joined = !plan.admitted.empty() || !plan.resumed.empty();
        if (joined && options_.workingSetControl && table.running().size() > 1 &&
            sum.device + sum.workingSets > budget.device)
            return "somebody joined though the working sets do not fit";
        over_ += plan.over ? 1 : 0;
        return {};
    }

    std::string atTheEnd() {
        if (!(server_.table.ledger().used() == Amounts{}) || server_.table.ledger().entries() != 0)
            return "something is still reserved";
        if (int(ended_.size()) != arrived_) return "not every request ended";
        return {};
    }

    Draws draws_;
    SchedulerOptions options_;
    Server server_;
    std::vector<ServeRequest> arrivals_;
    std::set<RequestId> ended_;
    int arrived_ = 0, pauses_ = 0, mostSkips_ = 0, over_ = 0;
};

TEST(RandomSchedules, KeepEveryPropertyTenThousandTimes) {
    int pauses = 0, skips = 0, over = 0;
    for (std::uint64_t seed = 1; seed <= 10000; ++seed) {
        Schedule schedule(seed);
        const std::string wrong = schedule.run();
        ASSERT_EQ(wrong, "") << "seed " << seed;
        pauses += schedule.pauses(), over += schedule.alone(), skips = std::max(skips, schedule.skips());
    }
    // The schedules reach what they are to test.
    EXPECT_GT(pauses, 1000);
    EXPECT_GT(over, 3000);
    EXPECT_GE(skips, 5);
}

TEST(RandomSchedules, ALongPromptAmongEndlessShortOnesStartsWithinItsAgeAndOnePass) {
    const SchedulerOptions options = small::optionsOf(
        {{"aging_ms", "200"}, {"short_tokens", "8"}, {"max_skips", "1000000"}, {"ttft_bound_ms", "1e7"}});
    Budget budget = small::plenty(options);
    budget.host = 2000;
    Server server(options, smallCosts(), budget);
    Draws draws(3);
    RequestId id = 1;
    const auto fill = [&] {
        while (server.table.waiting().size() < 20) server.arrive(id++, 4, 5 + int(draws.below(30)));
    };
    fill();
    for (int i = 0; i < 50; ++i) server.step(), fill();
    server.arrive(0, 400, 20); // nearly all of the host
    const std::int64_t arrived = server.now;
    while (server.table.find(0) && server.table.find(0)->state == RequestState::Queued) server.step(), fill();
    const double waited = double(server.now - arrived) / 1e6, longestPass = 35 * 200; // tokens of those before it
    EXPECT_GE(waited, 200);
    EXPECT_LT(waited, 200 + longestPass);
}

TEST(RandomSchedules, SubmitAndCancelLeavesNothingBehindAHundredThousandTimes) {
    Server server(small::optionsOf({}), smallCosts(), {8, 4000, 3000, 1500});
    Draws draws(1);
    for (RequestId id = 0; id < 100000; ++id) {
        server.arrive(id, 1 + int(draws.below(60)), 1 + int(draws.below(20)));
        for (std::uint64_t i = draws.below(4); i > 0; --i)
            if (!server.table.idle()) server.step();
        if (server.table.find(id)) server.table.finish(id);
        ASSERT_EQ(server.table.ledger().entries(), server.table.running().size() + server.table.paused().size());
    }
    ASSERT_NE(server.drain(), -1);
    EXPECT_EQ(server.table.ledger().used(), Amounts{});
    EXPECT_EQ(server.table.ledger().entries(), 0u);
}

// What a plan costs: printed, and checked with a wide margin only, because the machine may be busy.
TEST(RandomSchedules, APlanOfSixtyFourRowsAndAThousandWaitingIsFast) {
    SchedulerOptions options = small::optionsOf(
        {{"cache", "global-lru"}, {"short_tokens", "0"}, {"long_prefills", "64"}, {"iteration_ms", "100"}});
    options.rows = 65, options.longPrefills = 66;
    Budget budget = small::plenty(options);
    budget.host = 64 * 160 + 100; // the last row stays free: every one that waits is looked at
    Server server(options, smallCosts(), budget);
    for (int id = 0; id < 64; ++id) server.arrive(id, 4, 30);
    while (server.table.running().size() < 64) server.step();
    for (int id = 64; id < 1064; ++id) server.arrive(id, 30, 10);
    server.step();
    ASSERT_GE(server.table.running().size(), 60u);
    const Snapshot snapshot = server.table.snapshot(server.now, 0.9);
    IterationPlan plan;
    double best = 1e9;
    for (int i = 0; i < 200; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        server.scheduler.plan(snapshot, plan);
        best =
            std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    std::printf("a plan of %zu rows and %zu waiting: %.1f us\n", snapshot.running.size(), snapshot.waiting.size(),
                best);
    RecordProperty("plan_us", std::to_string(best));
    EXPECT_LT(best, 1000);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve

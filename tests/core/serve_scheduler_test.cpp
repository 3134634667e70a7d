// The scheduler's decisions one by one: who decodes, who is admitted, paused and resumed, and how prompts are cut.
#include "tests/core/serve_server.h"

#include "base/error.h"
#include "tests/support/places.h"

#include <fstream>
#include <gmock/gmock.h>
#include <iterator>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

using small::idsOf;
using small::optionsOf;
using small::plenty;
using small::Server;
using small::smallCosts;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Knobs = std::vector<std::pair<std::string, std::string>>;

Server serverOf(const Knobs& knobs, Budget budget = {}) {
    const SchedulerOptions options = optionsOf(knobs);
    if (budget.rows == 0) budget = plenty(options);
    return {options, smallCosts(), budget};
}

/// Budget of the device alone; everything else is plenty.
Budget deviceOf(const SchedulerOptions& options, std::int64_t bytes) {
    Budget budget = plenty(options);
    budget.device = bytes;
    return budget;
}

TEST(Scheduler, DecodesFirstThenReadsRunningPromptsThenNewOnes) {
    Server server = serverOf({{"iteration_ms", "40"}, {"short_tokens", "0"}, {"long_prefills", "2"}});
    server.arrive(1, 10, 5);
    server.step(); // the whole prompt takes 20 ms
    server.arrive(2, 30, 5);
    server.step(); // a layer takes 30 of the 39 ms that are left
    server.arrive(3, 4, 5);
    const IterationPlan& plan = server.step();
    EXPECT_THAT(idsOf(plan.decode), ElementsAre(1));
    ASSERT_EQ(plan.segments.size(), 1u);
    EXPECT_EQ(plan.segments[0].id, 2);
    EXPECT_EQ(plan.segments[0].from, (PromptPosition{1, 0}));
    EXPECT_TRUE(plan.segments[0].last);
    EXPECT_THAT(idsOf(plan.admitted), ElementsAre(3)) << "its row is there, its turn is the next iteration";
    EXPECT_DOUBLE_EQ(plan.predictedMs, 31);
}

TEST(Scheduler, PricesAdmissionsInTheIterationThatAdmits) {
    const SchedulerOptions options = optionsOf({{"iteration_ms", "40"}, {"short_tokens", "12"}});
    ServiceCosts costs = smallCosts();
    costs.admitMs = 4, costs.admitUsPerToken = 500, costs.gapUsPerRow = 250, costs.offloadMs[2] = 2;
    Server server(options, costs, plenty(options));
    server.arrive(1, 1, 100);
    EXPECT_DOUBLE_EQ(server.step().predictedMs, 4 + 0.5 + 2) << "admission and prompt";
    EXPECT_NEAR(server.step().predictedMs, 0.25 + 3, 1e-5) << "a row and its step, which loads 64 bytes";
    server.arrive(2, 8, 100);  // 8 ms to admit, 16 to read
    server.arrive(3, 10, 100); // 9 ms, 20
    const IterationPlan& plan = server.step();
    EXPECT_THAT(idsOf(plan.admitted), ElementsAre(2, 3));
    EXPECT_DOUBLE_EQ(plan.admissionsMs, 17);
    ASSERT_EQ(plan.segments.size(), 1u)
        << "of 40 ms the step has 3.25 and the admissions 17, and 3.75 behind the first "
           "prompt are too few for a piece of the other";
    EXPECT_TRUE(plan.segments[0].last);
    EXPECT_DOUBLE_EQ(plan.predictedMs, 3.25 + 17 + 16);
    EXPECT_EQ(plan.limitedBy, Limit::TimeBudget);
    server.step();
    EXPECT_EQ(server.plan.admissionsMs, 0) << "priced once";
}

TEST(Scheduler, AnAdmissionThatTakesLongerThanTheIterationEndsAllTheSame) {
    const SchedulerOptions options = optionsOf({{"iteration_ms", "10"}, {"short_tokens", "0"}});
    ServiceCosts costs = smallCosts();
    costs.admitMs = 50;
    Server server(options, costs, plenty(options));
    server.arrive(1, 4, 20);
    EXPECT_EQ(server.step().segments.size(), 1u) << "alone it is read whatever its admission took";
    server.step();
    server.arrive(2, 4, 2);
    const IterationPlan& plan = server.step();
    EXPECT_THAT(idsOf(plan.admitted), ElementsAre(2)) << "nobody waits for time that never comes";
    EXPECT_THAT(plan.segments, IsEmpty()) << "its prompt is for the next iteration";
    EXPECT_EQ(plan.limitedBy, Limit::TimeBudget);
    EXPECT_EQ(server.step().segments.size(), 1u);
    EXPECT_GT(server.drain(), 0);
}

TEST(Scheduler, CutsALayerIntoPiecesWhereNoLayerFits) {
    Server server = serverOf({{"iteration_ms", "20"}, {"short_tokens", "0"}});
    server.arrive(1, 1, 100);
    server.step();
    server.arrive(2, 30, 1); // 30 ms per layer in pieces of 8 tokens, 19 ms left beside the decode
    std::vector<PromptPosition> ends;
    while (server.table.find(2)) ends.push_back(server.step().segments.at(0).to);
    EXPECT_THAT(ends,
                ElementsAre(PromptPosition{0, 16}, PromptPosition{1, 0}, PromptPosition{1, 16}, PromptPosition{2, 0}));
}

TEST(Scheduler, AMethodThatCannotStopInALayerReadsWholeOnes) {
    ServiceCosts costs = smallCosts();
    costs.shape.pausesInLayer = false;
    const SchedulerOptions options = optionsOf({{"iteration_ms", "20"}, {"short_tokens", "0"}});
    Server server(options, costs, plenty(options));
    server.arrive(1, 30, 1);
    EXPECT_EQ(server.step().segments.at(0).to, (PromptPosition{1, 0})) << "alone it runs however long it takes";
}

TEST(Scheduler, ASuspendedPromptGetsAPieceWhateverItTakes) {
    Server server = serverOf({{"iteration_ms", "2"}, {"short_tokens", "0"}, {"max_suspend_ms", "5"}});
    server.arrive(1, 1, 100);
    server.step();
    server.arrive(2, 30, 1); // a piece takes 8 ms, 1 is left
    std::vector<std::size_t> segments;
    for (int i = 0; i < 7; ++i) segments.push_back(server.step().segments.size());
    EXPECT_THAT(segments, ElementsAre(0, 0, 0, 0, 0, 1, 0)) << "5 ms after its admission, and then 5 ms later again";
}

TEST(Scheduler, ThePapersTokenLayersMakeSegmentsOfWholeLayers) {
    ServiceCosts costs = smallCosts();
    costs.shape.layers = 32;
    const SchedulerOptions options = optionsOf({{"token_layers", "65536"}, {"short_tokens", "0"}});
    Server server(options, costs, plenty(options));
    server.arrive(1, 16384, 1); // 65,536 token-layers: 4 layers, 8 iterations
    int iterations = 0;
    for (; !server.table.idle() && iterations < 100; ++iterations) {
        const PrefillSegment& segment = server.step().segments.at(0);
        EXPECT_EQ(segment.to.layer - segment.from.layer, 4);
    }
    EXPECT_EQ(iterations, 8);
}

TEST(Scheduler, TheTokenBudgetCountsWholePromptsAndLetsTheFirstSegmentRun) {
    Server server = serverOf({{"iteration_tokens", "20"}, {"iteration_ms", "100"}, {"short_tokens", "12"}});
    server.arrive(1, 100, 1);
    server.arrive(2, 10, 1);
    EXPECT_EQ(server.step().segments.size(), 1u) << "100 tokens: the first runs, nothing besides";
    Server shorts = serverOf({{"iteration_tokens", "20"}, {"iteration_ms", "100"}, {"short_tokens", "12"}});
    for (int id = 1; id <= 3; ++id) shorts.arrive(id, 10, 1);
    EXPECT_EQ(shorts.step().segments.size(), 2u);
    EXPECT_EQ(shorts.plan.limitedBy, Limit::TokenBudget);
}

TEST(Scheduler, ShortPromptsHaveALaneBesideALongOneAndHalfOfTheTime) {
    Server server = serverOf({{"iteration_ms", "41"}, {"short_tokens", "10"}, {"short_turns", "2"}});
    server.arrive(1, 1, 1000);
    server.step(); // a decode takes 1 ms: 40 are left
    server.arrive(2, 100, 1);
    for (int id = 3; id <= 6; ++id) server.arrive(id, 10, 1);
    EXPECT_THAT(idsOf(server.step().admitted), ElementsAre(2, 3, 4)) << "one long prompt, two short ones";
    const IterationPlan& plan = server.step();
    ASSERT_EQ(plan.segments.size(), 2u);
    EXPECT_EQ(plan.segments[0].id, 2);
    EXPECT_DOUBLE_EQ(plan.segments[0].ms, 16) << "two pieces in the 20 ms that the short ones leave";
    EXPECT_EQ(plan.segments[1].id, 3);
    EXPECT_TRUE(plan.segments[1].last);
}

TEST(Scheduler, ALongPromptThatWasSuspendedTooLongLeavesShortOnesNoTime) {
    Server server = serverOf({{"iteration_ms", "41"}, {"short_tokens", "10"}, {"aging_ms", "0"}});
    server.arrive(1, 1, 1000);
    server.step();
    server.arrive(2, 100, 1);
    server.arrive(3, 10, 1);
    server.step();
    EXPECT_DOUBLE_EQ(server.step().segments.at(0).ms, 40);
    EXPECT_EQ(server.plan.segments.size(), 1u);
}

TEST(Scheduler, AdmissionReservesRowsHostAndDeviceAndSaysWhatIsShort) {
    const SchedulerOptions options = optionsOf({});
    const RequestNeeds needs = smallCosts().shape.needsOf(options, 20, 12); // 32 tokens: 8 blocks, 4 host runs of 2
    EXPECT_EQ(needs.hostBytes, 8 * 2 * 8);
    EXPECT_EQ(needs.deviceBytes, 32 + 2 * 8) << "index, and the newest block of every layer and head";
    EXPECT_EQ(needs.stepBytes, 4 * 2 * 8);
    EXPECT_EQ(needs.hardBytes, 4 * 8);
    EXPECT_EQ(needs.scratchBytes, 20 * 4 + 2 * 20 * 2) << "float activations; one layer's keys and values twice";
    const std::int64_t partition = 2 * 4 * 2 * 8;
    const struct {
        Limit limit;
        Budget budget;
    } cases[] = {{Limit::Rows, {1, 1000, 1000, 1000}},
                 {Limit::HostMemory, {9, 2 * needs.hostBytes - 1, 1000, 1000}},
                 {Limit::PrefillScratch, {9, 1000, 1000, 2 * needs.scratchBytes - 1}},
                 {Limit::WorkingSets, {9, 1000, 2 * (needs.deviceBytes + partition) - 1, 1000}},
                 {Limit::DeviceMemory, {9, 1000, 2 * (32 + 8 * 2 * 8) - 1, 1000}}}; // everything resident
    for (const auto& [limit, budget] : cases) {
        const char* offload = limit == Limit::DeviceMemory ? "false" : "true";
        Server server(
            optionsOf({{"long_prefills", "9"}, {"short_tokens", "0"}, {"iteration_ms", "1"}, {"offload", offload}}),
            smallCosts(), budget);
        server.arrive(1, 20, 12);
        server.arrive(2, 20, 12);
        const IterationPlan& plan = server.step();
        EXPECT_THAT(idsOf(plan.admitted), ElementsAre(1)) << nameOf(limit);
        const Limit got = plan.limitedBy;
        EXPECT_EQ(got, limit) << nameOf(got);
        EXPECT_EQ(plan.waitingFor[std::size_t(got)], 1);
        EXPECT_NE(server.drain(), -1);
        EXPECT_EQ(server.table.ledger().used(), Amounts{});
    }
}

TEST(Scheduler, RefusesAtOnceWhatCanNeverRunWithBothNumbers) {
    Budget budget{9, 100, 10000, 10000};
    Server server(optionsOf({{"max_waiting", "2"}}), smallCosts(), budget);
    server.arrive(1, 1000, 10);
    for (int id = 2; id <= 4; ++id) server.arrive(id, 3000, 1); // too large as well: they do not count as waiting
    for (int id = 5; id <= 7; ++id) server.arrive(id, 10, 1);
    const IterationPlan& plan = server.step();
    ASSERT_EQ(plan.refused.size(), 5u);
    EXPECT_EQ(plan.refused[0].limit, Limit::TooLarge);
    EXPECT_EQ(plan.refused[0].of, Limit::HostMemory);
    EXPECT_EQ(plan.refused[0].needed, (1010 + 3) / 4 / 2 * 2 * 2 * 8 + 2 * 2 * 8 * ((1010 + 3) / 4 % 2 ? 1 : 0));
    EXPECT_EQ(plan.refused[0].available, 100);
    EXPECT_EQ(plan.refused[4].limit, Limit::QueueFull);
    EXPECT_EQ(plan.refused[4].request.id, 7);
    EXPECT_EQ(server.drain() >= 0, true);
}

TEST(Scheduler, LaterOnesPassWhoDoesNotFitUntilItHasBeenSkippedEnough) {
    const Knobs knobs{{"max_skips", "3"},      {"short_tokens", "0"}, {"long_prefills", "64"},
                      {"iteration_ms", "100"}, {"aging_ms", "1e6"},   {"ttft_bound_ms", "1e6"}};
    Server server = serverOf(knobs);
    const RequestNeeds small = server.requestOf(0, 4, 50).needs;
    Budget budget = plenty(server.scheduler.options());
    budget.host = 3 * small.hostBytes; // the large one needs all of it
    Server tight(optionsOf(knobs), smallCosts(), budget);
    tight.arrive(1, 4, 50);
    tight.step();
    tight.arrive(2, 4 + 2 * 54, 50); // the whole host
    std::vector<std::size_t> admitted;
    for (int i = 0; i < 6; ++i) {
        tight.arrive(3 + i, 4, 1);
        admitted.push_back(tight.step().admitted.size());
    }
    EXPECT_THAT(admitted, ElementsAre(1, 1, 1, 0, 0, 0));
    EXPECT_EQ(tight.table.find(2)->skips, 3);
    EXPECT_EQ(tight.plan.waitingFor[std::size_t(Limit::Barrier)], 3);
    EXPECT_NE(tight.drain(), -1);
}

TEST(Scheduler, WhoWaitsLongerThanItsBoundIsPassedNoMore) {
    const Knobs knobs{{"ttft_bound_ms", "5"}, {"short_tokens", "0"}, {"long_prefills", "64"}};
    const SchedulerOptions options = optionsOf(knobs);
    Budget budget = plenty(options);
    budget.host = 1000; // 416 for the first, 896 for the second, 32 for a small one
    Server server(options, smallCosts(), budget);
    server.arrive(1, 4, 100);
    server.step();
    server.arrive(2, 200, 20);
    server.arrive(3, 4, 1);
    EXPECT_THAT(idsOf(server.step().admitted), ElementsAre(3));
    server.now += 10'000'000;
    server.arrive(4, 4, 1);
    EXPECT_THAT(idsOf(server.step().admitted), IsEmpty());
    EXPECT_EQ(server.plan.waitingFor[std::size_t(Limit::Barrier)], 1);
}

TEST(Scheduler, AnAgedLongPromptClosesTheShortLane) {
    const SchedulerOptions options = optionsOf({{"aging_ms", "5"}, {"short_tokens", "8"}});
    Budget budget = plenty(options);
    budget.host = 1000; // 416 for the first, 896 for the second, 32 for a small one
    Server server(options, smallCosts(), budget);
    server.arrive(1, 4, 100);
    server.step();
    server.arrive(2, 200, 20); // host memory keeps it waiting
    server.now += 6'000'000;
    server.arrive(3, 4, 1);
    EXPECT_THAT(idsOf(server.step().admitted), IsEmpty());
    EXPECT_EQ(server.plan.limitedBy, Limit::HostMemory);
}

/// Three rows that decode with global-lru, 100 bytes of M_avl, and estimates that the test sets.
Server threeRows(const Knobs& more = {}) {
    Knobs knobs{{"cache", "global-lru"}, {"short_tokens", "0"}, {"long_prefills", "9"}, {"iteration_ms", "100"}};
    knobs.insert(knobs.end(), more.begin(), more.end());
    const SchedulerOptions options = optionsOf(knobs);
    Server server(options, smallCosts(), deviceOf(options, 1000));
    for (int id = 1; id <= 3; ++id) server.arrive(id, 4, 60);
    while (server.table.running().size() < 3 || server.table.running()[2].state != RequestState::Decoding)
        server.step();
    return server;
}

TEST(Scheduler, PausesOnlyAfterThreeIterationsOverTheDevice) {
    Server server = threeRows();
    const std::int64_t available = server.plan.availableBytes;
    server.table.setWorkingSet(1, available / 2);
    server.table.setWorkingSet(2, available / 2 + 20); // frees most
    std::vector<std::size_t> paused;
    for (int i = 0; i < 4; ++i) paused.push_back(server.step().paused.size());
    EXPECT_THAT(paused, ElementsAre(0, 0, 0, 1));
    EXPECT_THAT(idsOf(server.plan.paused), ElementsAre(2));
    EXPECT_EQ(server.plan.limitedBy, Limit::WorkingSets);
    EXPECT_FALSE(server.plan.over);
    EXPECT_EQ(server.table.find(2)->state, RequestState::Paused);
    EXPECT_GT(server.table.ledger().of(2).device, 0) << "it keeps its index and its host blocks";
    EXPECT_EQ(server.table.ledger().of(2).workingSets, 0);
}

TEST(Scheduler, PausesWhoFreesMostPerTokenLeftAndOfEqualOnesTheNewest) {
    const SchedulerOptions options = optionsOf({{"cache", "global-lru"}});
    const Scheduler scheduler(options, smallCosts());
    const auto pausedOf = [&](std::initializer_list<std::pair<int, int>> bytesAndTokens) {
        std::vector<ServeRequest> running;
        Snapshot snapshot;
        for (const auto& [bytes, tokens] : bytesAndTokens) {
            ServeRequest request;
            request.id = std::int64_t(running.size()) + 1, request.state = RequestState::Decoding;
            request.workingSetBytes = bytes, request.maxTokens = tokens, request.generated = 1;
            snapshot.used += request.elastic();
            running.push_back(request);
        }
        snapshot.running = running, snapshot.iterationsOver = 3;
        snapshot.budget = {8, 100, 100, 100, true};
        IterationPlan plan;
        scheduler.plan(snapshot, plan);
        return idsOf(plan.paused);
    };
    EXPECT_THAT(pausedOf({{40, 11}, {40, 11}, {40, 11}}), ElementsAre(3));
    EXPECT_THAT(pausedOf({{40, 6}, {40, 11}, {40, 11}}), ElementsAre(1));
    EXPECT_THAT(pausedOf({{40, 11}, {50, 11}, {40, 11}}), ElementsAre(2));
    EXPECT_THAT(pausedOf({{90, 11}, {80, 11}, {70, 11}}), ElementsAre(1, 2));
    EXPECT_THAT(pausedOf({{40, 11}, {60, 11}}), IsEmpty()) << "exactly as much as there is";
}

TEST(Scheduler, ResumesInTheOrderOfPausesBeforeAnythingIsAdmitted) {
    Server server = threeRows({{"pause_after", "1"}});
    const std::int64_t available = server.plan.availableBytes;
    for (int id = 1; id <= 3; ++id) server.table.setWorkingSet(id, available * 3 / 4);
    server.step();
    const std::vector<RequestId> paused = idsOf(server.step().paused);
    ASSERT_EQ(paused.size(), 2u);
    server.arrive(9, 4, 2);
    EXPECT_THAT(idsOf(server.step().admitted), IsEmpty());
    EXPECT_EQ(server.plan.waitingFor[std::size_t(Limit::PausedFirst)], 1);
    for (const RequestId id : paused) server.table.setWorkingSet(id, available / 16);
    EXPECT_EQ(idsOf(server.step().resumed), paused);
    EXPECT_THAT(idsOf(server.plan.admitted), ElementsAre(9));
}

TEST(Scheduler, AResumedRequestMakesSixteenTokensBeforeItsNextPause) {
    Server server = threeRows({{"pause_after", "1"}, {"resume_tokens", "16"}});
    const std::int64_t available = server.plan.availableBytes;
    server.table.setWorkingSet(2, available);
    server.step();
    ASSERT_THAT(idsOf(server.step().paused), ElementsAre(2));
    server.table.setWorkingSet(2, 16);
    ASSERT_THAT(idsOf(server.step().resumed), ElementsAre(2));
    for (int i = 1; i < 16; ++i) server.step();
    EXPECT_EQ(server.table.find(2)->tokensSinceResume, 16);
    for (const int tokens : {15, 17}) { // one token before its sixteenth since it came back, and one behind it
        Server again = threeRows({{"pause_after", "1"}, {"resume_tokens", std::to_string(tokens)}});
        again.table.setWorkingSet(2, available);
        again.step(), again.step();
        again.table.setWorkingSet(2, 16);
        for (int i = 0; i < 15; ++i) again.step();
        again.table.setWorkingSet(2, available); // it frees most
        again.step();
        const RequestId paused = idsOf(again.step().paused).at(0);
        EXPECT_EQ(paused == 2, tokens == 15) << "16 tokens since it came back";
    }
}

TEST(Scheduler, ALoneRequestRunsThoughItsEstimateExceedsTheDevice) {
    Server server = threeRows();
    server.table.finish(2);
    server.table.finish(3);
    for (int i = 0; i < 20; ++i) {
        server.table.setWorkingSet(1, 5000);
        EXPECT_THAT(idsOf(server.step().decode), ElementsAre(1));
        EXPECT_TRUE(server.plan.over);
    }
}

TEST(Scheduler, WithoutControlOnlyTheHardNeedBoundsAdmission) {
    const Knobs base{{"cache", "global-lru"}, {"short_tokens", "0"}, {"long_prefills", "64"}, {"iteration_ms", "1000"}};
    const auto admitted = [&](const char* control) {
        Knobs knobs = base;
        knobs.emplace_back("working_set_control", control);
        const SchedulerOptions options = optionsOf(knobs);
        Server server(options, smallCosts(), deviceOf(options, 1000));
        for (int id = 1; id <= 30; ++id) server.arrive(id, 32, 8);
        return std::make_pair(server.step().admitted.size(), server.plan.limitedBy);
    };
    // 40 tokens: 56 bytes fixed; 64 bytes selected by a step, 32 of them in one layer.
    EXPECT_EQ(admitted("true"), std::make_pair(std::size_t(1000 / (56 + 64)), Limit::WorkingSets));
    EXPECT_EQ(admitted("false"), std::make_pair(std::size_t(1000 / (56 + 32)), Limit::HardNeed));
}

TEST(Scheduler, APartitionTakesItsSlotsFromAdmissionOn) {
    const SchedulerOptions options = optionsOf(
        {{"partition_blocks", "8"}, {"short_tokens", "0"}, {"long_prefills", "64"}, {"iteration_ms", "1000"}});
    Server server(options, smallCosts(), deviceOf(options, 1000));
    for (int id = 1; id <= 30; ++id) server.arrive(id, 32, 8);
    EXPECT_EQ(server.step().admitted.size(), std::size_t(1000 / (56 + 8 * 2 * 8)));
    EXPECT_EQ(server.plan.workingSetBytes, std::int64_t(server.plan.admitted.size()) * 128);
    EXPECT_EQ(smallCosts().shape.partitionBlocks(optionsOf({{"partition_blocks", "1"}})), 4) << "at least a selection";
}

// Deadlocks of other schedulers. vllm#45388: two prompts are half read and hold memory that both need to go on.
TEST(SchedulerDeadlock, TwoHalfReadPromptsDoNotWaitForEachOther) {
    for (const char* cache : {"partition", "global-lru"}) {
        const SchedulerOptions options = optionsOf({{"prefill", "chunks"},
                                                    {"chunk_tokens", "16"},
                                                    {"cache", cache},
                                                    {"long_prefills", "2"},
                                                    {"short_tokens", "0"},
                                                    {"iteration_ms", "1"}});
        // 4 bytes of keys and values per token: either prompt fills the device nearly alone, and both fit the host.
        Server server(options, smallCosts(), deviceOf(options, 1400));
        server.arrive(1, 250, 4);
        server.arrive(2, 190, 4);
        int iterations = 0;
        for (; !server.table.idle() && iterations < 1000; ++iterations) {
            server.step();
            EXPECT_LE(server.plan.hardBytes, server.plan.availableBytes) << "going on in memory that is not there";
        }
        EXPECT_LT(iterations, 1000) << cache;
    }
}

// vllm#45387: nothing runs, the head of the queue does not fit, and those that hold the memory stand behind it.
TEST(SchedulerDeadlock, PausedHoldersGoBeforeAHeadThatWaitsForTheirMemory) {
    Server server = threeRows({{"pause_after", "1"}});
    const std::int64_t available = server.plan.availableBytes;
    for (int id = 1; id <= 3; ++id) server.table.setWorkingSet(id, available * 3 / 4);
    server.step();
    ASSERT_EQ(server.step().paused.size(), 2u);
    server.arrive(9, 500, 100); // needs what the paused ones hold
    server.table.finish(idsOf(server.plan.decode).front());
    EXPECT_EQ(server.step().resumed.size(), 1u) << "nothing ran: a holder goes on";
    EXPECT_NE(server.drain(), -1);
}

// vllm#57841: the scan stops at a head that needs 100 of 20 free blocks; behind it a holder needs 5, a small one 10.
TEST(SchedulerDeadlock, AHeadThatDoesNotFitKeepsNobodyBehindItFromWork) {
    const SchedulerOptions options = optionsOf({{"short_tokens", "0"}, {"long_prefills", "4"}});
    Budget budget = plenty(options);
    budget.host = 270 * 16; // of blocks in two layers
    Server server(options, smallCosts(), budget);
    server.arrive(1, 4 * 240, 40); // holds 250 of 270 blocks
    server.step();
    server.arrive(2, 4 * 99, 4); // needs 100
    server.arrive(3, 4 * 9, 4);  // needs 10
    const IterationPlan& plan = server.step();
    EXPECT_FALSE(plan.empty());
    EXPECT_THAT(idsOf(plan.admitted), ElementsAre(3));
    EXPECT_NE(server.drain(), -1);
}

TEST(Scheduler, ChunksChargeWhatWasReadBeforeAndTheirOwn) {
    const SchedulerOptions options = optionsOf({{"prefill", "chunks"},
                                                {"chunk_tokens", "16"},
                                                {"cache", "global-lru"},
                                                {"short_tokens", "0"},
                                                {"iteration_ms", "1000"}});
    Server server(options, smallCosts(), plenty(options));
    server.arrive(1, 100, 4);
    std::vector<std::int64_t> sets;
    while (server.table.idle() || !server.step().segments.empty()) sets.push_back(server.plan.workingSetBytes);
    const std::int64_t token = 4; // bytes: 2 layers, 8 bytes per block of 4 tokens
    const std::int64_t selection = 4 * 2 * 8;
    EXPECT_THAT(sets, ElementsAre(std::max(16 * token, selection), 32 * token, 48 * token, 64 * token, 80 * token,
                                  96 * token, 100 * token));
}

TEST(Scheduler, ThePageOfServingHasEveryKnob) {
    std::ifstream file(test::source("docs/serving.md"));
    const std::string page((std::istreambuf_iterator<char>(file)), {});
    for (const Parameter& p : schedulerParameters()) {
        EXPECT_THAT(page, HasSubstr("| `" + p.key + "` | " + p.defaultValue + " | "))
            << "kvscope-cli simulate --list-knobs";
        EXPECT_THAT(page, HasSubstr(" | " + p.help + " |")) << p.key;
    }
}

TEST(Scheduler, EveryKnobIsDeclaredWithAUsableDefault) {
    EXPECT_GE(schedulerParameters().size(), 20u);
    for (const Parameter& parameter : schedulerParameters()) {
        EXPECT_GT(parameter.help.size(), 20u) << parameter.key;
        ParameterValues values;
        EXPECT_NO_THROW(values.set(schedulerParameters(), parameter.key, parameter.defaultValue)) << parameter.key;
    }
    const SchedulerOptions declared = schedulerOptions(schedulerDefaults()), plain;
    EXPECT_EQ(declared.rows, plain.rows);
    EXPECT_EQ(declared.iterationTokens, plain.iterationTokens);
    EXPECT_EQ(declared.window, plain.window);
    EXPECT_EQ(declared.cache, plain.cache);
    EXPECT_EQ(declared.transfers, plain.transfers);
    EXPECT_EQ(declared.maxSkips, plain.maxSkips);
    EXPECT_DOUBLE_EQ(declared.budgetMs(), 120);
    EXPECT_DOUBLE_EQ(optionsOf({{"iteration_ms", "30"}}).budgetMs(), 30);
    EXPECT_DOUBLE_EQ(optionsOf({{"iteration_ms", "500"}}).budgetMs(), 120) << "never above 0.8 of the bound";
    EXPECT_THROW(optionsOf({{"cache", "lru"}}), Error);
    EXPECT_THROW(optionsOf({{"window", "65"}}), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve

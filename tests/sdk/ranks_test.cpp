// Ranks are processes: each records a file of its own through the C interface, and kvscope-cli merge makes one of them.
#include "tests/sdk/sdk_fixture.h"

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr unsigned kKnown = KVTRACE_KNOWS_SELECTIONS | KVTRACE_KNOWS_HITS | KVTRACE_KNOWS_STEP_TIMES;
constexpr int kHeads = 2, kChosen = 3; // of a rank; blocks of a head
constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t steadyNow() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// What one rank records.
struct Rank {
    int rank = 0;
    std::map<std::string, std::string> meta = {};
    int steps = 6;
    int headFirst = 0;       // of the tensor that is given to the library
    int kvHeads = kHeads;    // of the run
    int request = 0;         // ranks with another one choose other blocks
    std::int64_t lateNs = 0; // added to all times of steps
    bool collectives = false;
};

class SdkRanks : public SdkTest {
protected:
    static constexpr std::int64_t kStepNs = 2'000'000; // a step; one begins every 3 ms

    /// Between which moments of the steady clock the run's times began.
    using Origin = std::array<std::int64_t, 2>;

    /// Tells when the run's clock began, and makes the steps from the moment that it is told then.
    void recordRank(const Rank& rank, int tell, int listen) const {
        auto options = sized<kvtrace_options>();
        options.level = KVTRACE_SELECTIONS;
        options.rank = rank.rank;
        kvtrace_writer writer = 0;
        ASSERT_EQ(kvtrace_open(path("ranks/job-%r.kvtrace").c_str(), &options, &writer), KVTRACE_OK)
            << kvtrace_last_error();
        auto info = runOf(kKnown, 2, rank.kvHeads);
        info.device_slots = 8;
        std::vector<kvtrace_pair> pairs{{"group", "job"}};
        for (const auto& [key, value] : rank.meta) pairs.push_back({key.c_str(), value.c_str()});
        info.meta = pairs.data();
        info.meta_count = std::int64_t(pairs.size());
        const kvtrace_run run = begin(writer, info);
        std::int64_t now = 0, first = 0;
        Origin origin{steadyNow(), 0};
        ASSERT_EQ(kvtrace_run_now(run, &now), KVTRACE_OK);
        origin[1] = steadyNow() - now;
        origin[0] -= now;
        ASSERT_EQ(write(tell, origin.data(), sizeof origin), ssize_t(sizeof origin));
        ASSERT_EQ(::read(listen, &first, sizeof first), ssize_t(sizeof first));
        for (int i = 0; i < rank.steps; ++i) {
            const std::int64_t start = first - origin[1] + rank.lateNs + i * 3'000'000;
            const kvtrace_step step = beginStep(run, KVTRACE_DECODE, start);
            for (int layer = 0; layer < 2; ++layer) {
                std::vector<std::int32_t> ids;
                std::vector<std::uint8_t> hit;
                for (int head = 0; head < kHeads; ++head)
                    for (int k = 0; k < kChosen; ++k) {
                        ids.push_back((rank.request + i + 2 * head + 5 * k) % 30);
                        hit.push_back(k > 0);
                    }
                const std::vector<std::int64_t> positions{480};
                auto selection = selectionOf(ids, positions, layer, kHeads, KVTRACE_BLOCKS);
                selection.head0 = rank.headFirst;
                selection.hit = hit.data();
                select(step, selection);
            }
            ASSERT_EQ(kvtrace_step_commit(step, start + kStepNs), KVTRACE_OK) << kvtrace_last_error();
            if (!rank.collectives) continue;
            ASSERT_EQ(kvtrace_span(run, "collectives", fmt::format("all_reduce {}", i).c_str(), start, 500'000, -1, -1,
                                   0, -1),
                      KVTRACE_OK);
        }
        finish(writer, run);
    }

    /// Records every rank in a process of its own. @return where the clock of each began
    std::vector<Origin> record(const std::vector<Rank>& ranks) const {
        std::filesystem::create_directories(path("ranks"));
        std::vector<Origin> origins;
        std::vector<std::array<int, 3>> children; // process, what it tells, what it is told
        for (const Rank& rank : ranks) {
            std::array<int, 2> told{}, go{};
            if (pipe(told.data()) != 0 || pipe(go.data()) != 0) std::abort();
            const pid_t child = fork();
            if (child == 0) {
                alarm(60);
                recordRank(rank, told[1], go[0]);
                _exit(::testing::Test::HasFailure() ? 1 : 0);
            }
            close(told[1]);
            close(go[0]);
            children.push_back({child, told[0], go[1]});
        }
        for (const auto& [child, told, go] : children) {
            Origin origin{};
            EXPECT_EQ(::read(told, origin.data(), sizeof origin), ssize_t(sizeof origin));
            origins.push_back(origin);
        }
        const std::int64_t first = steadyNow(); // after all of them began
        for (const auto& [child, told, go] : children)
            EXPECT_EQ(write(go, &first, sizeof first), ssize_t(sizeof first));
        for (const auto& [child, told, go] : children) {
            int status = 0;
            waitpid(child, &status, 0);
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
            close(told);
            close(go);
        }
        return origins;
    }

    json merge() const {
        const Finished result = cli({"merge", path("all.kvtrace"), path("ranks"), "--json", "--overwrite"});
        EXPECT_EQ(result.status, 0) << result.err;
        const Finished check = cli({"check", path("all.kvtrace")});
        EXPECT_EQ(check.status, 0) << check.out;
        return json::parse(result.out, nullptr, false);
    }
    json group() const {
        const Finished result = cli({"info", path("all.kvtrace"), "--json"});
        EXPECT_EQ(result.status, 0) << result.err;
        const json groups = json::parse(result.out, nullptr, false)["rank_groups"];
        EXPECT_EQ(groups.size(), 1U);
        return groups.at(0);
    }
    std::string place(int number) const { return path(fmt::format("ranks/job-{}.kvtrace", number)); }
};

TEST_F(SdkRanks, FourProcessesWithShardedHeadsBecomeOneTraceWithTheModelsHeads) {
    std::vector<Rank> ranks;
    for (int i = 0; i < 4; ++i)
        ranks.push_back(
            {.rank = i, .meta = {{"layout", fmt::format("tp={}/4", i)}, {"head_first", std::to_string(2 * i)}}});
    const std::vector<Origin> origins = record(ranks);
    const json merged = merge();
    ASSERT_EQ(merged["runs"].size(), 4U);
    EXPECT_TRUE(merged["remarks"].empty()) << merged["remarks"];
    const auto selections = read(path("all.kvtrace"), "selections");
    std::array<std::array<int, 8>, 5> rows{}; // [run][KV head]
    for (std::size_t i = 0; i < selections.at("kv_head").ints.size(); ++i)
        ++rows.at(std::size_t(selections.at("run").ints[i])).at(std::size_t(selections.at("kv_head").ints[i]));
    for (std::size_t run = 1; run <= 4; ++run)
        for (std::size_t head = 0; head < 8; ++head)
            EXPECT_EQ(rows[run][head], head / 2 == run - 1 ? 12 : 0) << run << " " << head;
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(merged["runs"][i]["rank"], int(i));
        EXPECT_EQ(merged["runs"][i]["clock_by"], i == 0 ? "reference" : "monotonic");
        // Adding the offset to a time of the run gives the same moment as on rank 0.
        const std::int64_t apart = merged["runs"][i]["clock_offset_ns"].get<std::int64_t>() -
                                   merged["runs"][0]["clock_offset_ns"].get<std::int64_t>();
        EXPECT_GE(apart, origins[i][0] - origins[0][1]);
        EXPECT_LE(apart, origins[i][1] - origins[0][0]);
        EXPECT_GE(merged["runs"][i]["clock_offset_ns"].get<std::int64_t>(), 0);
        EXPECT_LT(merged["runs"][i]["clock_error_ns"].get<std::int64_t>(), 1000);
    }
    const json of = group();
    EXPECT_THAT(of["layout"].get<std::string>(), HasSubstr("add up"));
    EXPECT_EQ(of["hits"], 4 * 6 * 2 * kHeads * (kChosen - 1));
    EXPECT_EQ(of["misses"], 4 * 6 * 2 * kHeads);
    EXPECT_EQ(of["common_steps"], 6);
}

TEST_F(SdkRanks, AMissingRankAndAClockThatIsOffByASecondAreASentenceEach) {
    constexpr std::int64_t utc = 1'800'000'000 * kSecond;
    std::vector<Rank> ranks;
    for (int i = 0; i < 4; ++i)
        ranks.push_back(
            {.rank = i,
             .meta = {{"world", "4"},
                      {"layout", fmt::format("dp={}/4", i)},
                      {"clocks", fmt::format("[[\"monotonic:here\",0,{},5],[\"utc\",0,{},5]]", 70 * kSecond + i * 1000,
                                             utc + i * 1000 + (i == 3 ? kSecond : 0))}}});
    record(ranks);
    std::filesystem::remove(place(2));
    const json merged = merge();
    EXPECT_THAT(merged["remarks"].get<std::vector<std::string>>(),
                ElementsAre("rank 2 of 4 is missing from group job",
                            "rank 3 of group job beside rank 0: its clock utc is 1.000 s ahead by monotonic"));
    ASSERT_EQ(merged["runs"].size(), 3U);
    EXPECT_EQ(merged["runs"][2]["rank"], 3);
    EXPECT_EQ(merged["runs"][2]["clock_offset_ns"], 3000);
    EXPECT_EQ(merged["runs"][2]["clock_error_ns"], 10);
    const json of = group();
    EXPECT_EQ(of["missing"], json::array({2}));
    EXPECT_EQ(of["remark"], "rank 2 of 4 is missing from group job");
    EXPECT_EQ(of["ranks"][2]["clock_offset_ns"], 3000);
    const Finished text = cli({"merge", path("text.kvtrace"), path("ranks")});
    EXPECT_THAT(text.out, HasSubstr("clock +0.003000 ms by monotonic, error 0.000010 ms"));
    EXPECT_THAT(text.err, HasSubstr("rank 2 of 4 is missing from group job\n"));
}

TEST_F(SdkRanks, AnOffsetByUtcSaysThatItsErrorIsNotKnown) {
    std::vector<Rank> ranks;
    for (int i = 0; i < 2; ++i)
        ranks.push_back(
            {.rank = i, .meta = {{"clocks", fmt::format("[[\"utc\",0,{},5]]", 1'800'000'000 * kSecond + i)}}});
    record(ranks);
    const Finished text = cli({"merge", path("text.kvtrace"), path("ranks")});
    EXPECT_THAT(text.out, HasSubstr("by utc, error 0.000010 ms of the readings; how far UTC of two machines is apart"));
    const Finished one = cli({"merge", path("one.kvtrace"), place(0)});
    EXPECT_THAT(one.out, HasSubstr("one.kvtrace: 1 run\n"));
}

TEST_F(SdkRanks, StepsThatAllBeginMuchLaterAreSaid) {
    record({{.rank = 0, .meta = {{"clocks", "[[\"monotonic:here\",0,0,0]]"}}},
            {.rank = 1, .meta = {{"clocks", "[[\"monotonic:here\",0,0,0]]"}}, .lateNs = 100 * kSecond}});
    const json merged = merge();
    ASSERT_EQ(merged["remarks"].size(), 1U);
    EXPECT_THAT(merged["remarks"][0].get<std::string>(), HasSubstr("s later than the same steps there, all alike"));
}

TEST_F(SdkRanks, CollectivesAlignRanksWithoutACommonClock) {
    record({{.rank = 0, .meta = {{"clocks", "[]"}}, .collectives = true},
            {.rank = 1, .meta = {{"clocks", "[]"}}, .collectives = true}});
    const auto startOf = [&](int rank) { return read(place(rank), "steps")["start_ns"].ints.at(0); };
    const json merged = merge();
    EXPECT_EQ(merged["runs"][1]["clock_by"], "collectives");
    EXPECT_EQ(merged["runs"][1]["clock_error_ns"], 0);
    EXPECT_EQ(merged["runs"][1]["clock_offset_ns"].get<std::int64_t>() + startOf(1),
              merged["runs"][0]["clock_offset_ns"].get<std::int64_t>() + startOf(0));
}

TEST_F(SdkRanks, ReplicatedHeadsAreCountedOnceAndRequestsOfTheirOwnEach) {
    const std::int64_t hits = 6 * 2 * kHeads * (kChosen - 1); // of one rank
    record({{.rank = 0, .meta = {{"layout", "tp=0/2"}}}, {.rank = 1, .meta = {{"layout", "tp=1/2"}}}});
    merge();
    json of = group();
    EXPECT_EQ(of["ranks"][1]["replica_of"], 0);
    EXPECT_EQ(of["hits"], hits);
    EXPECT_EQ(of["ranks"][1]["hits"], hits);
    EXPECT_FALSE(of.contains("not_replicas"));
    // the same layout, but rank 1 chooses something else: what is said is not what was done
    std::filesystem::remove_all(path("ranks"));
    record({{.rank = 0, .meta = {{"layout", "tp=0/2"}}}, {.rank = 1, .meta = {{"layout", "tp=1/2"}}, .request = 3}});
    merge();
    of = group();
    EXPECT_EQ(of["not_replicas"], json::array({1}));
    EXPECT_EQ(of["hits"], 2 * hits);
    std::filesystem::remove_all(path("ranks"));
    record({{.rank = 0, .meta = {{"layout", "dp=0/2"}}}, {.rank = 1, .meta = {{"layout", "dp=1/2"}}, .steps = 3}});
    merge();
    of = group();
    EXPECT_TRUE(of["ranks"][1]["replica_of"].is_null());
    EXPECT_EQ(of["hits"], hits + hits / 2);
    EXPECT_THAT(of["layout"].get<std::string>(), HasSubstr("compare rates"));
}

TEST_F(SdkRanks, HeadsThatTheEngineNumberedItselfStayAsTheyAre) {
    record({{.rank = 0, .kvHeads = 4}, {.rank = 1, .headFirst = 2, .kvHeads = 4}});
    merge();
    const auto selections = read(path("all.kvtrace"), "selections");
    for (std::size_t i = 0; i < selections.at("run").ints.size(); ++i)
        EXPECT_EQ(selections.at("kv_head").ints[i] / 2, selections.at("run").ints[i] - 1);
}

TEST_F(SdkRanks, OnlyARankHasTheKeys) {
    const std::string file = path("alone.kvtrace");
    const kvtrace_writer writer = open(file);
    finish(writer, begin(writer, runOf(0)));
    const std::vector<std::string> keys = read(file, "meta")["key"].texts;
    for (const char* key : {"rank", "host", "clocks"}) EXPECT_THAT(keys, ::testing::Not(::testing::Contains(key)));
    record({{.rank = 0}});
    EXPECT_THAT(read(place(0), "meta")["key"].texts,
                ::testing::IsSupersetOf({std::string("rank"), std::string("host"), std::string("clocks")}));
    const Finished list = cli({"info", path("ranks"), "--json"});
    EXPECT_EQ(json::parse(list.out, nullptr, false)["runs"][0]["rank"], 0) << list.out;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

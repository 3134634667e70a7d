// The figures of served requests show what SQL says of their traces.
#include "tests/ui/figure_runs.h"

#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class ServedFigures : public test::FigureRuns {};

TEST_F(ServedFigures, OverlapOfServedRequestsIsWhatSetsSay) {
    const FigureData data = make("overlap", {"served"});
    ASSERT_EQ(data.panels[0].series.size(), 2U) << "a series for each rate";
    const FigureSeries& overlap = data.panels[0].series[0];
    std::map<std::vector<std::string>, std::map<int, std::set<int>>> pools; // by request, layer and KV head; by step
    const auto rows =
        test::sql(trace("served"), "SELECT v.request, v.layer, v.kv_head, v.step, v.row FROM v_served_selection v WHERE"
                                   " v.run_id = 1")
            .rows;
    const TraceReader reader(trace("served"));
    for (const auto& row : rows) {
        const auto selection =
            reader.selection(1, std::stoi(row[3]), std::stoi(row[1]), std::stoi(row[4]), std::stoi(row[2]));
        ASSERT_TRUE(selection);
        for (const PackedBlock block : selection->blocks)
            pools[{row[0], row[1], row[2]}][std::stoi(row[3])].insert(block.id());
    }
    std::int64_t blocks = 0, again = 0;
    for (const auto& [pool, steps] : pools) {
        const std::set<int>* before = nullptr;
        for (const auto& [step, ids] : steps) {
            if (before) {
                blocks += std::int64_t(ids.size());
                for (const int id : ids) again += std::int64_t(before->count(id));
            }
            before = &ids;
        }
    }
    ASSERT_GT(blocks, 0);
    EXPECT_NEAR(overlap.y.at(0), double(again) / double(blocks), 1e-12) << "w = 1";
}

TEST_F(ServedFigures, RatesOfRequestsAreWhatSqlSays) {
    const FigureData data = make("request-rate", {"served"});
    ASSERT_GE(data.panels.size(), 2U);
    const FigureSeries& ttft = data.panels[0].series.at(0);
    ASSERT_EQ(ttft.x.size(), 2U);
    EXPECT_EQ(ttft.name, "Quest, partition, by layers") << "runs of one configuration share a series";
    EXPECT_GT(ttft.x[1], 1.5 * ttft.x[0]) << "the same requests, twice as fast";
    for (int run = 1; run <= 2; ++run) {
        const std::string window =
            fmt::format("WITH w AS (SELECT run_id, min(arrival_ns) + 0.2 * (max(arrival_ns) - min(arrival_ns)) AS a,"
                        " max(arrival_ns) AS b FROM v_request WHERE run_id = {} GROUP BY 1) ",
                        run);
        const auto at = std::size_t(run) - 1;
        EXPECT_NEAR(ttft.x[at],
                    sql("served", window + "SELECT 1e9 * count(*) / (SELECT b - a FROM w) FROM v_request JOIN w USING"
                                           " (run_id) WHERE arrival_ns BETWEEN a AND b"),
                    1e-6);
        EXPECT_NEAR(ttft.y[at],
                    sql("served", window + "SELECT avg(first_token_ns - arrival_ns) / 1e6 FROM v_request JOIN w USING"
                                           " (run_id) WHERE arrival_ns BETWEEN a AND b"),
                    1e-6);
        EXPECT_NEAR(data.panels[1].series.at(0).y[at],
                    sql("served", window + "SELECT 1e9 * count(*) / (SELECT b - a FROM w) FROM v_member JOIN w USING"
                                           " (run_id) WHERE token_ns BETWEEN a AND b"),
                    1e-6);
        const std::string loaded =
            window + "SELECT sum(m.h2d_bytes) / 1e6 / count(DISTINCT i.iteration) FROM v_iteration i JOIN w USING"
                     " (run_id) JOIN v_member m ON m.run_id = i.run_id AND m.iteration = i.iteration AND m.kind ="
                     " 'decode' WHERE i.decode_rows > 0 AND i.start_ns BETWEEN a AND b";
        if (test::value(trace("served"), loaded) == "NULL") continue; // no step began in the window of a slow machine
        const FigurePanel& panel = data.panels.back();
        EXPECT_EQ(panel.yTitle, "Loaded an iteration (MB)");
        const auto point = std::find(panel.series.at(0).x.begin(), panel.series.at(0).x.end(), ttft.x[at]);
        ASSERT_NE(point, panel.series[0].x.end());
        EXPECT_NEAR(panel.series[0].y[std::size_t(point - panel.series[0].x.begin())], sql("served", loaded), 1e-9);
    }
}

/// Nanoseconds of iterations that read prompts, over the tokens of those prompts, of a trace with two runs.
constexpr const char* kPromptTime =
    "SELECT avg(t) FROM (SELECT (SELECT 1.0 * sum(prefill_ns) FROM v_iteration i WHERE i.run_id = r.run_id) /"
    " (SELECT sum(prompt_tokens) FROM v_request q WHERE q.run_id = r.run_id AND first_token_ns NOT NULL) AS t"
    " FROM runs r)";

TEST_F(ServedFigures, PromptsInChunksStandBesidePromptsByLayers) {
    const FigureData data = make("prompt-chunks", {"served", "served-chunks"});
    ASSERT_EQ(data.panels.size(), 2U);
    ASSERT_EQ(data.panels[0].series.size(), 2U);
    EXPECT_EQ(data.panels[0].series[0].name, "Quest, partition, by layers");
    EXPECT_EQ(data.panels[0].series[1].name, "Quest, partition, by chunks of 512");
    const FigureSeries& bars = data.panels[1].series.at(0);
    EXPECT_EQ(bars.x.at(0), 1);
    const double ratio = sql("served-chunks", kPromptTime) / sql("served", kPromptTime);
    EXPECT_NEAR(bars.x.at(1), ratio, 1e-9);
    EXPECT_NE(data.note.find(fmt::format("in chunks of 512 a prompt token takes {:.2f}x as long", ratio)),
              std::string::npos)
        << data.note;
    EXPECT_NE(data.note.find("8.68x"), std::string::npos) << "the paper's ratio beside ours";
    EXPECT_NE(test::failureOf([&] { make("prompt-chunks", {"served"}); }).find("all prompts were read by layers"),
              std::string::npos);
}

TEST_F(ServedFigures, WaysToTheHostAreComparedWithTheResidentRun) {
    const FigureData data = make("prompt-stores", {"served", "served-resident"});
    const FigurePanel& panel = data.panels.at(0);
    EXPECT_EQ(panel.names, (std::vector<std::string>{"a copy for each head (Quest, partition, by layers)",
                                                     "resident (Quest, resident)"}));
    EXPECT_NEAR(panel.series.at(0).x.at(0), sql("served", kPromptTime) / sql("served-resident", kPromptTime), 1e-9);
    EXPECT_EQ(panel.series[0].x.at(1), 1);
    // Without a resident run the shortest is the measure. A trace that says another way is a series of its own.
    std::filesystem::copy_file(trace("served"), trace("served-calls"),
                               std::filesystem::copy_options::overwrite_existing);
    test::sql(trace("served-calls"),
              "UPDATE run_meta SET value = replace(value, '\"d2h\":\"runs\"', '\"d2h\":\"calls\"')",
              SQLITE_OPEN_READWRITE);
    const FigureData calls = make("prompt-stores", {"served", "served-calls"});
    EXPECT_EQ(calls.panels.at(0).names.at(1), "a copy for each block (Quest, partition, by layers, stores by calls)");
    EXPECT_NE(calls.note.find("1.76x"), std::string::npos);
    EXPECT_NE(test::failureOf([&] { make("prompt-stores", {"served"}); }).find("in one way (a copy for each head)"),
              std::string::npos);
}

/// SQL for a sum over the iterations of a trace with this many rows, run by run, where a run has three of them.
std::string overIterations(const std::string& sum, int rows) {
    return fmt::format(
        "SELECT total(s) FROM (SELECT {} AS s FROM v_iteration i WHERE decode_rows = {} AND decode_ns > 0"
        " GROUP BY run_id HAVING count(*) >= 3)",
        sum, rows);
}
const std::string kMissed = "sum((SELECT total(misses) FROM v_member m WHERE m.run_id = i.run_id AND m.iteration ="
                            " i.iteration AND m.kind = 'decode'))",
                  kMoved = "sum((SELECT total(h2d_bytes) FROM v_member m WHERE m.run_id = i.run_id AND m.iteration ="
                           " i.iteration AND m.kind = 'decode'))";

TEST_F(ServedFigures, BatchesOfAServerAreItsIterationsByRows) {
    const FigureData data = make("batch", {"served-2", "served-4"});
    ASSERT_EQ(data.panels[0].series.size(), 1U);
    const FigureSeries &loads = data.panels[0].series[0], &speeds = data.panels[1].series.at(0);
    EXPECT_EQ(loads.name, "Quest, partition, by layers");
    EXPECT_EQ(loads.x, speeds.x);
    EXPECT_EQ(loads.x.back(), 4) << "the rows of an iteration, not those that the server may have";
    int points = 0;
    for (int rows = 1; rows <= 4; ++rows) {
        const auto both = [&](const std::string& sum) {
            return sql("served-2", overIterations(sum, rows)) + sql("served-4", overIterations(sum, rows));
        };
        const double count = both("count(*)");
        if (count == 0) continue;
        const auto at = std::size_t(points++);
        ASSERT_LT(at, loads.x.size());
        EXPECT_EQ(loads.x[at], rows);
        EXPECT_NEAR(loads.y[at], both(kMissed) / count, 1e-9);
        EXPECT_NEAR(speeds.y[at], 1e9 * rows * count / both("sum(decode_ns)"), 1e-6);
    }
    EXPECT_EQ(std::size_t(points), loads.x.size());
    EXPECT_NE(data.note.find("x2.07 from batch 2 to 6"), std::string::npos) << "the paper's beside ours: " << data.note;
    EXPECT_NE(data.note.find("here Quest, partition, by layers, batch "), std::string::npos) << data.note;
}

/// Nanoseconds of decode steps at the numbers of rows that both servers have: of the first, and of as many of the
/// second.
std::pair<double, double> stepsOfBoth(const std::function<double(const std::string&)>& first,
                                      const std::function<double(const std::string&)>& second, double* steps = nullptr,
                                      double* bytes = nullptr) {
    std::pair<double, double> ns;
    for (int rows = 1; rows <= 2; ++rows) {
        const double count = first(overIterations("count(*)", rows)), other = second(overIterations("count(*)", rows));
        if (count == 0 || other == 0) continue;
        ns.first += first(overIterations("sum(decode_ns)", rows));
        ns.second += second(overIterations("sum(decode_ns)", rows)) * count / other;
        if (steps) *steps += count;
        if (bytes) *bytes += first(overIterations(kMoved, rows));
    }
    return ns;
}

TEST_F(ServedFigures, LoadingIsWhatStepsTakeBeyondThoseOfAResidentServer) {
    const auto first = [](const std::string& query) { return sql("served-2", query); };
    const auto second = [](const std::string& query) { return sql("served-resident-2", query); };
    const FigureData data = make("loading", {"served-2", "served-resident-2"});
    const FigurePanel& panel = data.panels.at(0);
    ASSERT_EQ(panel.names.size(), 1U);
    EXPECT_NE(panel.names[0].find("Quest, partition, by layers, one kernel a layer, "), std::string::npos);
    double unit = 1, steps = 0;
    for (const auto& [name, ns] : {std::pair{"(µs)", 1e3}, {"(ms)", 1e6}, {"(s)", 1e9}})
        if (panel.xTitle.find(name) != std::string::npos) unit = ns;
    const auto [loading, resident] = stepsOfBoth(first, second, &steps);
    ASSERT_GT(steps, 0);
    const double waits = std::max(0.0, loading - resident) / steps;
    EXPECT_NEAR(series(panel, "Other").x.at(0) * unit, loading / steps - waits, 1);
    if (waits > 0) {
        EXPECT_NEAR(series(panel, "Loading").x.at(0) * unit, waits, 1);
    }
    EXPECT_NE(data.note.find(fmt::format(" rows {:.2f} %", 100 * waits * steps / loading)), std::string::npos)
        << data.note;
    EXPECT_NE(test::failureOf([&] {
                  make("loading", {"served-2"});
              }).find("no server beside those that load had everything on the device"),
              std::string::npos);
}

/// Copies of a server's trace say that their steps took longer, and one that its blocks came by copy calls.
TEST_F(ServedFigures, WaysOfLoadingHaveTheirBandwidths) {
    for (const auto& [name, factor] : {std::pair{"slow-kernel", 5}, {"slow-calls", 20}}) {
        std::filesystem::copy_file(trace("served-2"), trace(name), std::filesystem::copy_options::overwrite_existing);
        test::sql(
            trace(name),
            fmt::format("UPDATE iteration SET decode_ns = {0} * decode_ns, duration_ns = {0} * duration_ns", factor),
            SQLITE_OPEN_READWRITE);
    }
    test::sql(trace("slow-calls"),
              "UPDATE run_meta SET value = replace(value, '\"transfers\":\"kernel\"', '\"transfers\":\"calls\"')",
              SQLITE_OPEN_READWRITE);
    const FigureData data = make("transfer-bandwidth", {"slow-kernel", "slow-calls", "served-resident-2"});
    const FigurePanel& panel = data.panels.at(0);
    ASSERT_EQ(panel.series.size(), 2U);
    for (const auto& [name, way] : {std::pair{"slow-kernel", "one kernel a layer, beside a resident server"},
                                    {"slow-calls", "a copy call for each block, beside a resident server"}}) {
        double bytes = 0;
        const auto [loading, resident] =
            stepsOfBoth([file = name](const std::string& query) { return sql(file, query); },
                        [](const std::string& query) { return sql("served-resident-2", query); }, nullptr, &bytes);
        const FigureSeries& one = series(panel, way);
        ASSERT_EQ(one.y.size(), 1U);
        EXPECT_NEAR(one.y[0], bytes / (loading - resident), 1e-9);
        EXPECT_NEAR(one.x[0], sql("served-2", "SELECT min(block_bytes) / 1024.0 FROM run"), 1e-9);
    }
    EXPECT_NE(data.note.find("more than 20 GB/s for blocks of 4 to 32 tokens with one kernel"), std::string::npos);
    EXPECT_NE(test::failureOf([&] {
                  make("transfer-bandwidth", {"slow-kernel", "served-resident-2"});
              }).find("has blocks of"),
              std::string::npos);
}

TEST_F(ServedFigures, RatesOfTwoServersAreComparedWhereTheyAreEqual) {
    std::ofstream(path("two.json"))
        << R"({"workload":"longmix","method":"quest","points":[)"
        << R"({"rate":1,"measured":true,"output_tokens_per_s":10,"ttft_ms":{"mean":100},"tbt_ms":{"mean":10}},)"
        << R"({"rate":2,"measured":true,"output_tokens_per_s":12,"ttft_ms":{"mean":900},"tbt_ms":{"mean":20}}]})";
    std::ofstream(path("three.json"))
        << R"({"workload":"longmix","method":"nosa","points":[)"
        << R"({"rate":1.05,"measured":true,"output_tokens_per_s":11,"ttft_ms":{"mean":50},"tbt_ms":{"mean":11}},)"
        << R"({"rate":2,"measured":true,"output_tokens_per_s":24,"ttft_ms":{"mean":90},"tbt_ms":{"mean":10}},)"
        << R"({"rate":4,"measured":true,"output_tokens_per_s":60,"ttft_ms":{"mean":95},"tbt_ms":{"mean":90}}]})";
    const FigureData data = make("request-rate", {"two.json", "three.json"});
    EXPECT_NE(data.note.find("nosa over quest: TTFT down to 0.10x, throughput up to 2.00x, TBT up to 1.10x."),
              std::string::npos)
        << data.note;
}

TEST_F(ServedFigures, PointsOfALadderAreRead) {
    // lines as load --rungs --resume writes them, without what the figure does not read
    std::ofstream(path("points.json"))
        << R"({"settings":{"workload":"longmix","requests":12}})" << '\n'
        << R"({"key":"costs of quest","point":{"decode_ms":[[1.0,13.7]]}})" << '\n'
        << R"({"key":"simulated +offload seed 1 rate 0.5","point":{"broken":"","refused":0,"result":{"measured":false,)"
        << R"("output_tokens_per_s":2.5,"ttft_ms":null,"tbt_ms":{"mean":9.0,"p99_interpolated":30.0},)"
        << R"("loaded_bytes":4e6,"iterations":2}}})" << '\n'
        << R"({"key":"measured +offload seed 1 rate 0.25","point":{"broken":"","refused":0,"result":{"measured":true,)"
        << R"("output_tokens_per_s":2.0,"ttft_ms":{"mean":840.0},"tbt_ms":{"mean":11.0,"p99_interpolated":35.5},)"
        << R"("loaded_bytes":3e6,"iterations":3}}})" << '\n';
    const FigureData data = make("request-rate", {"points.json"});
    EXPECT_EQ(series(data.panels[0], "+offload").x, std::vector<double>{0.25});
    EXPECT_EQ(series(data.panels[0], "+offload").y, std::vector<double>{840});
    const FigureSeries& simulated = series(data.panels[1], "+offload, simulated");
    EXPECT_EQ(simulated.x, std::vector<double>{0.5});
    EXPECT_EQ(simulated.y, std::vector<double>{2.5});
    EXPECT_TRUE(simulated.hollow);
    EXPECT_EQ(series(data.panels[4], "+offload").y, std::vector<double>{1});
    EXPECT_EQ(data.panels[0].series.size(), 1U) << "a simulation that promises no TTFT has none";
    std::ofstream(path("loads.json")) << R"({"workload":"longmix","method":"quest","points":[)"
                                      << R"({"rate":1,"measured":true,"output_tokens_per_s":10},)"
                                      << R"({"rate":2,"measured":true,"output_tokens_per_s":8}]})";
    const FigureData loads = make("request-rate", {"loads.json"});
    ASSERT_EQ(loads.panels.size(), 1U);
    EXPECT_EQ(loads.panels[0].series.at(0).y, (std::vector<double>{10, 8}));
    EXPECT_NE(loads.note.find("quest falls by 20.00 % from 1 to 2 requests/s"), std::string::npos) << loads.note;
    std::ofstream(path("nothing.json")) << R"({"settings":{"workload":"longmix"}})" << '\n';
    EXPECT_NE(test::failureOf([] { sources({"nothing.json"}); }).find("there are no points of a load"),
              std::string::npos);
}

/// Two seeds of two rungs in the simulator, one seed of one rung with the engine; a rung of which nothing holds has no
/// bar.
TEST_F(ServedFigures, TheLadderHasTheLargestRatesThatHold) {
    std::ofstream out(path("climbed.json"));
    out << R"({"settings":{"workload":"longmix"}})" << '\n';
    const auto point = [&](const char* key, const char* broken) {
        out << fmt::format(R"({{"key":"{}","point":{{"broken":"{}","refused":0,"result":{{"measured":{}}}}}}})", key,
                           broken, key[0] == 'm' ? "true" : "false")
            << '\n';
    };
    point("simulated +offload seed 1 rate 0.5", ""), point("simulated +offload seed 1 rate 1", "too slow");
    point("simulated +offload seed 1 rate 0.75", ""), point("simulated +offload seed 2 rate 0.25", "");
    point("simulated +kernel seed 1 rate 1.5", ""), point("simulated +kernel seed 2 rate 0.5", "");
    point("simulated full seed 1 rate 0.5", "too slow");
    point("simulated +layers seed 1 rate 4", ""), point("simulated +layers seed 2 rate 2", "too slow");
    point("measured +kernel seed 1 rate 0.9", ""), point("measured +kernel seed 1 rate 1.1", "too slow");
    out.close();
    const FigureData data = make("ladder", {"climbed.json"});
    ASSERT_EQ(data.panels.size(), 2U);
    EXPECT_EQ(data.panels[0].names, (std::vector<std::string>{"+offload [0.25, 0.75]", "+kernel x2.00 [0.5, 1.5]"}));
    EXPECT_EQ(data.panels[0].series.at(0).x, (std::vector<double>{0.5, 1}));
    EXPECT_TRUE(data.panels[0].series[0].hollow);
    EXPECT_EQ(data.panels[1].names, std::vector<std::string>{"+kernel"});
    EXPECT_EQ(data.panels[1].series.at(0).x, std::vector<double>{0.9});
    EXPECT_NE(data.note.find("Here simulated +kernel x2.00."), std::string::npos) << data.note;
    EXPECT_NE(data.note.find("+kernel x1.88 and x1.19"), std::string::npos) << "the paper's";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

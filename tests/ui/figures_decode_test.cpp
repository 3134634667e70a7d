// The figures of decode runs show what SQL says of their traces.
#include "tests/ui/figure_runs.h"

#include <algorithm>
#include <map>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class DecodeFigures : public test::FigureRuns {};

TEST_F(DecodeFigures, LocalityIsWhatSqlSays) {
    const FigureData data = make("locality", {"nosa", "infllmv2"});
    ASSERT_EQ(data.panels[0].series.size(), 2U);
    const FigureSeries& nosa = data.panels[0].series[0];
    ASSERT_EQ(nosa.x.size(), 8U);
    for (std::size_t i = 0; i < nosa.x.size(); ++i)
        EXPECT_NEAR(nosa.y[i],
                    sql("nosa", "SELECT avg(locality) FROM v_locality WHERE NOT opens_block AND layer = " +
                                    std::to_string(int(nosa.x[i]))),
                    1e-9);
}

TEST_F(DecodeFigures, ThroughputAndHitRateAreWhatSqlSays) {
    const FigureData data = make("throughput-hit-rate", {"nosa", "infllmv2", "full"});
    const char* where = " FROM v_step WHERE phase = 'decode' AND step > 1"; // rates leave the cold step out
    const FigureSeries& measured = series(data.panels[0], "NOSA");
    const FigureSeries& predicted = series(data.panels[0], "NOSA, with modelled link");
    ASSERT_EQ(measured.x.size(), 1U);
    EXPECT_NEAR(measured.x[0], sql("nosa", std::string("SELECT 100.0 * sum(hits) / sum(hits + misses)") + where), 1e-9);
    EXPECT_NEAR(measured.y[0], sql("nosa", std::string("SELECT sum(tokens) * 1e9 / sum(duration_ns)") + where), 1e-6);
    EXPECT_EQ(measured.basis, "measured");
    EXPECT_NEAR(predicted.y[0],
                sql("nosa", std::string("SELECT sum(tokens) * 1e9 / sum(duration_ns + exposed_ns)") + where), 1e-6);
    EXPECT_EQ(predicted.basis, "predicted");
    EXPECT_TRUE(predicted.hollow);
}

TEST_F(DecodeFigures, TransferBandwidthIsWhatSqlSays) {
    const FigureData data = make("transfer-bandwidth", {"nosa", "small"});
    const FigureSeries& bySize = series(data.panels[0], "all decode steps, modelled");
    ASSERT_EQ(bySize.x.size(), 2U);
    const char* query = "SELECT total(bytes) / sum(duration_ns) FROM v_transfer WHERE direction = 'h2d' AND step > 0";
    EXPECT_NEAR(bySize.y[0], sql("small", query), 1e-9) << "the smaller block comes first";
    EXPECT_NEAR(bySize.y[1], sql("nosa", query), 1e-9);
    for (const FigureSeries& one : data.panels[1].series)
        for (const double locality : one.x) EXPECT_NEAR(locality * 20, std::round(locality * 20), 1e-9);
}

TEST_F(DecodeFigures, LayerBreakdownAddsUpToTheStep) {
    const FigureData data = make("layer-breakdown", {"nosa", "full"});
    const FigurePanel& panel = data.panels[0];
    ASSERT_EQ(panel.names.size(), 2U);
    double unit = 1;
    for (const auto& [name, ns] : {std::pair{"(µs)", 1e3}, {"(ms)", 1e6}, {"(s)", 1e9}})
        if (panel.xTitle.find(name) != std::string::npos) unit = ns;
    for (std::size_t run = 0; run < 2; ++run) {
        double sum = 0;
        for (const FigureSeries& one : panel.series)
            if (one.basis == "measured") sum += one.x[run] * unit;
        const std::string wall = "SELECT avg(duration_ns - embed_ns - lm_head_ns - sample_ns) / 8 FROM v_step WHERE "
                                 "phase = 'decode' AND step > 1";
        EXPECT_NEAR(sum, sql(run == 0 ? "nosa" : "full", wall), 1) << "all 8 layers are alike";
    }
    EXPECT_EQ(series(panel, "Attention").x[0], 0) << "NOSA has no dense layer";
    EXPECT_GT(series(panel, "Attention").x[1], 0);
    EXPECT_NEAR(series(panel, "Exposed transfer, modelled").x[0] * unit,
                sql("nosa", "SELECT avg(exposed_ns) FROM v_layer WHERE phase = 'decode' AND step > 1"), 1);
}

TEST_F(DecodeFigures, BatchIsWhatSqlSays) {
    const FigureData data = make("batch", {"pair", "nosa"});
    const FigureSeries &loads = series(data.panels[0], "NOSA"), &speeds = series(data.panels[1], "NOSA");
    EXPECT_EQ(loads.x, (std::vector<double>{1, 2}));
    const char *loaded = "SELECT avg(misses) FROM v_step WHERE phase = 'decode' AND step > 1",
               *speed = "SELECT sum(tokens) * 1e9 / sum(duration_ns) FROM v_step WHERE phase = 'decode' AND step > 1";
    EXPECT_NEAR(loads.y[0], sql("nosa", loaded), 1e-9);
    EXPECT_NEAR(loads.y[1], sql("pair", loaded), 1e-9);
    EXPECT_NEAR(speeds.y[0], sql("nosa", speed), 1e-6);
    EXPECT_NEAR(speeds.y[1], sql("pair", speed), 1e-6);
}

TEST_F(DecodeFigures, ALargePoolLoadsEveryBlockOnce) {
    const FigureData data = make("device-pool", {"small"});
    const FigureSeries &lru = series(data.panels[0], "one pool, LRU"),
                       &belady = series(data.panels[0], "one pool, Belady");
    ASSERT_EQ(lru.x, belady.x);
    for (std::size_t i = 0; i < lru.x.size(); ++i) EXPECT_LE(lru.y[i], belady.y[i]) << lru.x[i];
    const TraceReader reader(trace("small"));
    const RunRow run = *reader.run(1);
    std::int64_t selected = 0, loads = 0;
    for (int layer = 0; layer < run.layers; ++layer)
        for (int head = 0; head < run.kvHeads; ++head) {
            std::set<std::int32_t> resident; // and the newest ones
            for (const SelectionRow& row : reader.selections(1, layer, 0, head, 1)) {
                selected += std::int64_t(row.blocks.size());
                resident.insert(row.blocks.back().id());
                for (const PackedBlock block : row.blocks) loads += resident.insert(block.id()).second;
            }
        }
    EXPECT_NEAR(lru.x.back(), 2, 0.01);
    EXPECT_NEAR(lru.y.back(), 1 - double(loads) / double(selected), 1e-12);
    EXPECT_NEAR(belady.y.back(), lru.y.back(), 1e-12);
}

TEST_F(DecodeFigures, OverlapIsWhatSetsSay) {
    const FigureData data = make("overlap", {"infllmv2"});
    const FigureSeries& overlap = data.panels[0].series.at(0);
    const TraceReader reader(trace("infllmv2"));
    const RunRow run = *reader.run(1);
    std::map<int, std::int64_t> there, held, last; // by window
    std::int64_t blocks = 0;
    for (int layer = 0; layer < run.layers; ++layer)
        for (int head = 0; head < run.kvHeads; ++head) {
            std::vector<std::set<std::int32_t>> steps;
            for (const SelectionRow& row : reader.selections(1, layer, 0, head, 1)) {
                std::set<std::int32_t>& ids = steps.emplace_back();
                for (const PackedBlock block : row.blocks) ids.insert(block.id());
            }
            for (std::size_t step = 0; step < steps.size(); ++step) {
                std::set<std::int32_t> together;
                for (std::size_t back = 0; back <= step; ++back) {
                    together.insert(steps[step - back].begin(), steps[step - back].end());
                    held[int(back) + 1] += std::int64_t(together.size());
                    last[int(back) + 1] += std::int64_t(steps[step].size());
                }
            }
            for (std::size_t step = 1; step < steps.size(); ++step) {
                blocks += std::int64_t(steps[step].size());
                for (std::size_t window = 1; window <= overlap.x.size(); ++window) {
                    std::set<std::int32_t> before;
                    for (std::size_t back = 1; back <= std::min(window, step); ++back)
                        before.insert(steps[step - back].begin(), steps[step - back].end());
                    for (const std::int32_t block : steps[step]) there[int(window)] += before.count(block);
                }
            }
        }
    ASSERT_EQ(overlap.x.size(), 7U) << "8 decode steps";
    for (std::size_t i = 0; i < overlap.x.size(); ++i)
        EXPECT_NEAR(overlap.y[i], double(there[int(overlap.x[i])]) / double(blocks), 1e-12) << overlap.x[i];
    const FigureSeries& workingSet = data.panels[1].series.at(0);
    ASSERT_EQ(workingSet.x.size(), 8U);
    EXPECT_EQ(workingSet.y[0], 1) << "the selection itself";
    for (std::size_t i = 0; i < workingSet.x.size(); ++i)
        EXPECT_NEAR(workingSet.y[i], double(held[int(workingSet.x[i])]) / double(last[int(workingSet.x[i])]), 1e-12);
}

TEST_F(DecodeFigures, LoadingAndTheRestAreWhatSqlSays) {
    const FigureData data = make("loading", {"small", "pair"});
    const FigurePanel& panel = data.panels[0];
    double unit = 1;
    for (const auto& [name, ns] : {std::pair{"(µs)", 1e3}, {"(ms)", 1e6}, {"(s)", 1e9}})
        if (panel.xTitle.find(name) != std::string::npos) unit = ns;
    ASSERT_EQ(panel.names.size(), 2U);
    EXPECT_NE(panel.names[1].find("batch 2"), std::string::npos);
    const char* where = " FROM v_step WHERE phase = 'decode' AND step > 1"; // means leave the cold step out
    for (std::size_t run = 0; run < 2; ++run) {
        const char* name = run == 0 ? "small" : "pair";
        EXPECT_NEAR(series(panel, "Other").x[run] * unit, sql(name, std::string("SELECT avg(duration_ns)") + where), 1);
        EXPECT_NEAR(series(panel, "Loading, modelled").x[run] * unit,
                    sql(name, std::string("SELECT avg(exposed_ns)") + where), 1);
    }
    EXPECT_NE(data.note.find("69.94 %"), std::string::npos);
}

TEST_F(DecodeFigures, AttentionAgainstContextIsWhatSqlSays) {
    const FigureData data = make("attention-context", {"long", "nosa"});
    const FigurePanel& panel = data.panels[0];
    double unit = 1;
    for (const auto& [name, ns] : {std::pair{"(µs)", 1e3}, {"(ms)", 1e6}, {"(s)", 1e9}})
        if (panel.yTitle.find(name) != std::string::npos) unit = ns;
    const FigureSeries &attention = series(panel, "NOSA: attention"), &selection = series(panel, "NOSA: selection");
    ASSERT_EQ(attention.x.size(), 2U);
    EXPECT_LT(attention.x[0], attention.x[1]);
    const char* where = " FROM v_layer WHERE phase = 'decode' AND step > 1"; // means leave the cold step out
    for (std::size_t run = 0; run < 2; ++run) {
        const char* name = run == 0 ? "nosa" : "long";
        EXPECT_NEAR(attention.y[run] * unit, sql(name, std::string("SELECT avg(stage2_ns + attention_ns)") + where), 1);
        EXPECT_NEAR(selection.y[run] * unit,
                    sql(name, std::string("SELECT avg(compression_ns + stage1_ns + pooling_ns)") + where), 1);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

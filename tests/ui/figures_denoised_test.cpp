// The figures of denoised runs show what SQL says of their traces.
#include "tests/ui/figure_runs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <tuple>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class DenoisedFigures : public test::FigureRuns {
protected:
    /// The changes of a trace's rows, by step, layer and KV head, for one sequence.
    static std::map<std::tuple<int, int, int>, std::vector<float>> changesOf(const std::string& name) {
        std::map<std::tuple<int, int, int>, std::vector<float>> changes;
        for (const auto& row : test::sql(trace(name), "SELECT step, layer, kv_head, changes FROM v_denoise_layer WHERE"
                                                      " changes IS NOT NULL")
                                   .rows) {
            std::vector<float> values(row[3].size() / sizeof(float));
            std::memcpy(values.data(), row[3].data(), values.size() * sizeof(float));
            changes[{std::stoi(row[0]), std::stoi(row[1]), std::stoi(row[2])}] = values;
        }
        return changes;
    }
};

TEST_F(DenoisedFigures, TokensInTheOrderOfTheirChangeAreWhatSortingSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("token-change", {"losa"});
    std::map<int, std::vector<double>> cumulated; // by layer: [rank], sums over forwards
    std::map<int, int> forwards, forHalf;
    for (const auto& [place, changes] : changesOf("losa")) {
        std::vector<double> sorted(changes.begin(), changes.end());
        std::sort(sorted.rbegin(), sorted.rend());
        double whole = 0, sum = 0;
        for (const double change : sorted) whole += change;
        if (whole <= 0) continue;
        const int layer = std::get<1>(place);
        ++forwards[layer];
        cumulated[layer].resize(sorted.size());
        bool reached = false;
        for (std::size_t rank = 0; rank < sorted.size(); ++rank) {
            sum += sorted[rank];
            cumulated[layer][rank] += sum / whole;
            if (!reached && sum >= whole / 2) forHalf[layer] += int(rank) + 1, reached = true;
        }
    }
    ASSERT_EQ(forwards.size(), 8U);
    const FigureSeries& halves = data.panels[1].series.at(0);
    ASSERT_EQ(halves.x.size(), 8U);
    for (std::size_t i = 0; i < 8; ++i)
        EXPECT_NEAR(halves.y[i], double(forHalf[int(i)]) / forwards[int(i)], 1e-9) << "layer " << i;
    for (const int layer : {0, 1, 3, 5, 7}) {
        const FigureSeries& ranks = series(data.panels[0], fmt::format("layer {}", layer).c_str());
        ASSERT_EQ(ranks.x.size(), 16U) << "tokens of a block";
        for (std::size_t rank = 0; rank < 16; ++rank)
            EXPECT_NEAR(ranks.y[rank], 100 * cumulated[layer][rank] / forwards[layer], 1e-6) << layer << ' ' << rank;
    }
    EXPECT_TRUE(series(data.panels[0], "50 %").hollow);
    EXPECT_NE(data.note.find("early and late layers are more local"), std::string::npos);
}

TEST_F(DenoisedFigures, ChangesByAgeAreWhatSqlSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("query-change", {"losa"});
    std::map<std::pair<int, int>, std::pair<double, int>> means; // by step and place in the block: sum and layers
    for (const auto& [place, changes] : changesOf("losa"))
        for (std::size_t i = 0; i < changes.size(); ++i) {
            auto& [sum, layers] = means[{std::get<0>(place), int(i)}];
            sum += double(changes[i]), ++layers;
        }
    const std::string later =
        "SELECT t.step, t.position % 16, f.denoise_step - g.denoise_step FROM v_denoise_token t JOIN v_denoise f ON"
        " f.step = t.step JOIN v_denoise_token w ON w.position = t.position AND w.written AND w.step < t.step JOIN"
        " v_denoise g ON g.step = w.step UNION ALL SELECT step, position % 16, 0 FROM v_denoise_token WHERE confidence"
        " IS NOT NULL";
    std::map<int, std::pair<double, int>> ages;
    for (const auto& row : test::sql(trace("losa"), later).rows) {
        const auto found = means.find({std::stoi(row[0]), std::stoi(row[1])});
        if (found == means.end()) continue; // a block's first forward
        auto& [sum, tokens] = ages[std::stoi(row[2])];
        sum += found->second.first / found->second.second, ++tokens;
    }
    const FigureSeries& drawn = series(data.panels[1], "LoSA on losa-tiny");
    ASSERT_EQ(drawn.x.size(), ages.size());
    ASSERT_GT(ages.size(), 3U);
    std::size_t i = 0;
    for (const auto& [age, sum] : ages) {
        EXPECT_EQ(drawn.x[i], age);
        EXPECT_NEAR(drawn.y[i], sum.first / sum.second, 1e-4 * (1 + sum.first / sum.second)) << age;
        ++i;
    }
    EXPECT_NE(data.note.find("figure kv-change"), std::string::npos);
}

TEST_F(DenoisedFigures, ChangesOfKeysAndValuesAreWhatSortingSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout has no model that denoises";
    const FigureData data = make("kv-change", {"losa", "denoised-full"}); // the first one has changes of queries alone
    ASSERT_EQ(data.panels.size(), 3U);
    for (const auto& [name, column] : {std::pair("keys", "key_changes"), std::pair("values", "value_changes")}) {
        std::map<int, std::pair<double, int>> most; // by layer: sum of the largest shares, and of how many forwards
        for (const auto& row :
             test::sql(trace("denoised-full"), fmt::format("SELECT layer, {} FROM v_denoise_change", column)).rows) {
            std::vector<float> changes(row[1].size() / sizeof(float));
            std::memcpy(changes.data(), row[1].data(), changes.size() * sizeof(float));
            ASSERT_EQ(changes.size(), 16U);
            double whole = 0;
            for (const float change : changes) whole += double(change);
            auto& [sum, forwards] = most[std::stoi(row[0])];
            if (whole <= 0) continue;
            sum += double(*std::max_element(changes.begin(), changes.end())) / whole;
            ++forwards;
        }
        ASSERT_EQ(most.size(), 8U);
        double mean = 0;
        for (const auto& [layer, of] : most) mean += of.first / of.second / 8;
        EXPECT_NEAR(series(data.panels[1], name).y.front(), 100 * mean, 1e-6) << name;
        EXPECT_NEAR(series(data.panels[1], name).y.back(), 100, 1e-6) << name;
        double whole = 0;
        for (const double share : series(data.panels[0], name).y) whole += share;
        EXPECT_NEAR(whole, 100, 1e-3) << "one forward's tokens have all of its change";
        EXPECT_EQ(series(data.panels[2], name).x.size(), 8U);
    }
    EXPECT_EQ(test::value(trace("losa"), "SELECT count(*) FROM v_denoise_change"), "0")
        << "full attention alone has them";
}

TEST_F(DenoisedFigures, TheBreakdownOfAForwardIsWhatSqlSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout has no model that denoises";
    const FigureData data = make("denoise-breakdown", {"denoised-full", "denoised-quest", "losa"});
    const FigurePanel& panel = data.panels.front();
    ASSERT_EQ(panel.names.size(), 3U);
    EXPECT_NE(data.note.find("LoSA "), std::string::npos) << data.note;
    EXPECT_NE(panel.names[2].find("LoSA 64, "), std::string::npos) << panel.names[2];
    EXPECT_NE(panel.names[2].find("block 16"), std::string::npos) << panel.names[2];
    const FigureSeries& attention = series(panel, "Attention computation");
    ASSERT_EQ(attention.x.size(), 3U);
    for (const double time : attention.x) EXPECT_GT(time, 0);
    EXPECT_EQ(series(panel, "Criticality estimation").x[0], 0) << "full attention estimates nothing";
    // of forwards that choose pages; the first of them is cold
    const std::string from =
        " FROM v_layer WHERE step IN (SELECT step FROM v_step WHERE selected > 0 ORDER BY step LIMIT"
        " -1 OFFSET 1)";
    const double wanted = sql("losa", "SELECT 1.0 * sum(compression_ns) / sum(stage2_ns + attention_ns)" + from);
    EXPECT_GT(wanted, 0);
    EXPECT_NEAR(series(panel, "Locality pruning").x[2] / attention.x[2], wanted, 1e-9 * wanted);
    const double ofFull = sql("denoised-full", "SELECT avg(attention_ns) FROM v_layer WHERE phase = 'decode'"),
                 ofLosa = sql("losa", "SELECT avg(stage2_ns + attention_ns)" + from);
    EXPECT_NEAR(attention.x[0] / attention.x[2], ofFull / ofLosa, 0.3 * ofFull / ofLosa) << "but for cold forwards";
}

TEST_F(DenoisedFigures, ActiveSetsAreWhatSqlSays) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("active-set", {"losa", "losa-2", "denoised-quest"});
    const FigureSeries &losa = series(data.panels[0], "LoSA, 64 tokens a query"),
                       &quest = series(data.panels[0], "Quest, 64 tokens a query");
    EXPECT_EQ(losa.x, (std::vector<double>{2, 5}));
    const char* mean = "SELECT 100 * avg(density) FROM v_denoise_layer WHERE mode = 'sparse'";
    EXPECT_NEAR(losa.y[0], sql("losa-2", mean), 1e-9);
    EXPECT_NEAR(losa.y[1], sql("losa", mean), 1e-9);
    EXPECT_NEAR(quest.y[0], sql("denoised-quest", mean), 1e-9);
    EXPECT_EQ(quest.x, (std::vector<double>{1, 16})) << "a line over all sizes";
    EXPECT_TRUE(quest.hollow);
    EXPECT_LT(losa.y[0], losa.y[1]) << "fewer tokens read less";
    EXPECT_LT(losa.y[1], quest.y[0]);
    EXPECT_NE(test::failureOf([&] { make("active-set", {"losa"}); }).find("every run has active sets of 5 tokens"),
              std::string::npos);
}

TEST_F(DenoisedFigures, DensitiesStandBesideThePapers) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const FigureData data = make("density", {"losa", "denoised-quest", "sparsed"});
    const char* mean = "SELECT 100 * avg(density) FROM v_denoise_layer WHERE mode = 'sparse'";
    const double losa = sql("losa", mean), quest = sql("denoised-quest", mean);
    EXPECT_NEAR(series(data.panels[0], "LoSA").y.at(0), losa, 1e-9);
    EXPECT_NEAR(series(data.panels[0], "Quest").y.at(0), quest, 1e-9);
    EXPECT_EQ(series(data.panels[0], "SparseD").x, std::vector<double>{128});
    EXPECT_NEAR(series(data.panels[0], "SparseD").y.at(0), sql("sparsed", mean), 1e-9);
    EXPECT_NEAR(series(data.panels[1], "LoSA").y.at(0), quest / losa, 1e-9);
    const FigureSeries& stated = series(data.panels[1], "LoSA, the paper");
    const std::vector<double> ratios{1.64, 1.60, 1.52, 1.41}; // LoSA's text
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(stated.y[i], ratios[i], 0.006);
    EXPECT_TRUE(stated.hollow);
    EXPECT_EQ(make("density", {"losa"}).panels.size(), 1U) << "no ratio without Quest";
}

TEST_F(DenoisedFigures, RunsOfDifferentLengthCountWithTheirForwards) {
    if (!denoises()) GTEST_SKIP() << "this checkout leaves out losa-tiny";
    const std::vector<std::string> both{"denoised-quest", "denoised-quest-short"};
    double sum = 0, rows = 0, means = 0;
    for (const std::string& name : both) {
        const std::string from = " FROM v_denoise_layer WHERE mode = 'sparse'";
        sum += sql(name, "SELECT 100 * sum(density)" + from);
        rows += sql(name, "SELECT count(*)" + from);
        means += sql(name, "SELECT 100 * avg(density)" + from) / 2;
    }
    ASSERT_GT(std::abs(means - sum / rows), 1) << "the runs differ in density and in length";
    EXPECT_NEAR(series(make("density", both).panels[0], "Quest").y.at(0), sum / rows, 1e-9);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

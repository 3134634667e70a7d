// Rates of a serving run over time, against SQL over the same trace.
#include "profiler/read/serving_rates.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

constexpr int kCount = 7;

class ServingRatesTest : public ::testing::Test {
protected:
    void SetUp() override {
        file = (folder / "served.kvtrace").string();
        synthetic::recordServing(file, 30);
        const TraceReader reader(file);
        rows = readServing(reader, 1, &gaps);
        loads = readIterationBytes(reader, 1);
        end = double(rows.iterations.back().endNs());
        rates = ratesOverTime(rows, gaps, loads, end, kCount);
    }
    /// What the statement counts in each interval; `ns` is the time of a row, `what` the sum over rows.
    std::vector<double> counted(const std::string& what, const std::string& ns, const std::string& from) const {
        std::vector<double> sums(kCount, 0);
        const auto found =
            test::sql(file, fmt::format("SELECT min({}, CAST({} / {:.17g} AS INTEGER)), total({}) FROM {} GROUP BY 1",
                                        kCount - 1, ns, rates.lengthNs, what, from));
        for (const auto& row : found.rows) sums.at(std::stoul(row.at(0))) = std::stod(row.at(1));
        return sums;
    }
    template <class Count> std::vector<double> drawn(Count&& count) const {
        std::vector<double> values;
        for (const RateInterval& each : rates.intervals) values.push_back(double(count(each)));
        return values;
    }

    const test::Folder folder;
    std::string file;
    ServingRows rows;
    std::vector<TokenGap> gaps;
    std::vector<IterationBytes> loads;
    double end = 0;
    ServingRates rates;
};

TEST_F(ServingRatesTest, AreWhatSqlCountsInEachInterval) {
    ASSERT_EQ(rates.intervals.size(), std::size_t(kCount));
    EXPECT_DOUBLE_EQ(rates.lengthNs * kCount, end);
    EXPECT_EQ(drawn([](const RateInterval& i) { return i.arrived; }), counted("1", "arrival_ns", "v_request"));
    EXPECT_EQ(drawn([](const RateInterval& i) { return i.finished; }),
              counted("1", "end_ns", "v_request WHERE status IN ('length', 'stop')"));
    EXPECT_EQ(drawn([](const RateInterval& i) { return i.lost; }),
              counted("1", "end_ns", "v_request WHERE end_ns IS NOT NULL AND status NOT IN ('length', 'stop')"));
    EXPECT_EQ(drawn([](const RateInterval& i) { return i.tokens; }),
              counted("1", "token_ns", "v_member WHERE token_ns IS NOT NULL"));
    EXPECT_EQ(drawn([](const RateInterval& i) { return i.promptTokens; }),
              counted("prompt_tokens", "first_token_ns", "v_request WHERE first_token_ns IS NOT NULL"));
    const std::vector<double> bytes = drawn([](const RateInterval& i) { return i.loadedBytes; });
    EXPECT_EQ(bytes,
              counted("h2d_bytes", "(start_ns + duration_ns)", "v_member JOIN v_iteration USING (run_id, iteration)"));
    EXPECT_GT(*std::max_element(bytes.begin(), bytes.end()), 0);
    int lost = 0;
    for (const RateInterval& each : rates.intervals) lost += int(each.lost);
    EXPECT_EQ(lost, 1) << "one request is refused";
    EXPECT_DOUBLE_EQ(rates.perSecond(3), 3e9 / rates.lengthNs);
}

TEST_F(ServingRatesTest, TheSystemHasWhoeverHasArrivedAndNotEnded) {
    const auto inside = requestsInSystem(rows.requests);
    ASSERT_GT(inside.size(), 20u);
    for (std::size_t i = 0; i < inside.size(); ++i) {
        if (i > 0) {
            EXPECT_GT(inside[i].first, inside[i - 1].first);
        }
        const std::string count = test::value(
            file, fmt::format(
                      "SELECT count(*) FROM v_request WHERE arrival_ns <= {0:.0f} AND coalesce(end_ns, 9e18) > {0:.0f}",
                      inside[i].first));
        EXPECT_EQ(std::to_string(inside[i].second), count) << inside[i].first;
    }
    EXPECT_EQ(inside.back().second, 1) << "one never ends";
}

TEST_F(ServingRatesTest, PcieCountersAreSharedOutByTime) {
    EXPECT_TRUE(pcieOfIntervals(TraceReader(file), 1, end, kCount).empty()) << "there are none";
    // Half of the first sample lies in the second interval; no sample lies behind the third one.
    const auto length = std::int64_t(rates.lengthNs);
    test::sql(file,
              fmt::format("INSERT INTO text(value) VALUES ('{}');"
                          "INSERT INTO counter(run_id, track, start_ns, duration_ns, value)"
                          " SELECT 1, id, {}, {}, 1000 FROM text WHERE value = '{}'"
                          " UNION ALL SELECT 1, id, {}, {}, 600 FROM text WHERE value = '{}';",
                          kPcieToDevice, length / 2, length, kPcieToDevice, 2 * length, length / 2, kPcieToDevice),
              SQLITE_OPEN_READWRITE);
    const auto pcie = pcieOfIntervals(TraceReader(file), 1, end, kCount);
    ASSERT_EQ(pcie.size(), std::size_t(kCount));
    ASSERT_TRUE(pcie[0] && pcie[1] && pcie[2]);
    EXPECT_NEAR(double(pcie[0]->countedToDevice), 500, 1);
    EXPECT_NEAR(double(pcie[1]->countedToDevice), 500, 1);
    EXPECT_NEAR(double(pcie[2]->countedToDevice), 600, 1);
    EXPECT_FALSE(pcie[3].has_value());
    EXPECT_FALSE(pcie[0]->sampled);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

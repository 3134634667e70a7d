// Thrash of serving runs against a count that keeps whole lists, and against a run whose misses are known.
#include "profiler/read/thrash.h"

#include "profiler/read/serving.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_serving.h"

#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class ThrashTest : public testing::Test {
protected:
    std::string record(bool steps) {
        const std::filesystem::path path =
            std::filesystem::temp_directory_path() / fmt::format("thrash-{}.kvtrace", ::getpid());
        std::filesystem::remove(path);
        synthetic::recordServing(path, 14, true, RunStatus::Finished, steps);
        return path_ = path.string();
    }
    ~ThrashTest() override { std::filesystem::remove(path_); }
    void setKnobs(const char* json) const {
        test::sql(path_, fmt::format("UPDATE run_meta SET value = '{}' WHERE key = 'serving'", json),
                  SQLITE_OPEN_READWRITE);
    }
    std::string path_;
};

/// Reads every selection again, one head after the other, and searches the lists of the steps before.
TEST_F(ThrashTest, CountsMissesOfBlocksThatTheRequestSelectedShortlyBefore) {
    const std::string path = record(true);
    for (const int window : {1, 2, 12}) {
        setKnobs(fmt::format("{{\"rows\":3,\"window\":{}}}", window).c_str());
        const TraceReader reader(path);
        const Thrash thrash = readThrash(reader, 1, true);
        ASSERT_EQ(thrash.basis, Thrash::Basis::Selections);
        EXPECT_EQ(thrash.window, window);
        std::map<std::pair<int, int>, std::int64_t> owner; // by iteration and row
        for (const IterationRow& iteration : readServing(reader, 1).iterations)
            for (const MemberRow& member : readMembers(reader, 1, iteration.iteration))
                if (!member.prefill) owner[{iteration.iteration, member.row}] = member.request;
        std::map<int, std::pair<std::int64_t, std::int64_t>> expected; // by iteration: misses, again
        for (int layer = 0; layer < synthetic::kServingLayers; ++layer)
            for (int head = 0; head < synthetic::kServingHeads; ++head) {
                std::map<std::int64_t, std::vector<std::set<std::int32_t>>> before; // by request
                std::map<int, std::vector<std::pair<int, SelectionRow>>> rows;      // by step: row and selection
                for (int row = 0; row < synthetic::kServingRows; ++row)
                    for (const SelectionRow& selection : reader.selections(1, layer, row, head))
                        rows[selection.step].emplace_back(row, selection);
                for (const auto& [step, selections] : rows)
                    for (const auto& [row, selection] : selections) {
                        std::vector<std::set<std::int32_t>>& lists = before[owner.at({step, row})];
                        std::set<std::int32_t> now;
                        for (const PackedBlock block : selection.blocks) {
                            now.insert(block.id());
                            if (block.hit()) continue;
                            ++expected[step].first;
                            for (std::size_t back = 1; back <= std::min<std::size_t>(lists.size(), window); ++back)
                                if (lists[lists.size() - back].count(block.id()) > 0) {
                                    ++expected[step].second;
                                    break;
                                }
                        }
                        lists.push_back(now);
                    }
            }
        std::int64_t misses = 0, again = 0;
        for (const ThrashRow& row : thrash.rows) {
            EXPECT_EQ(row.misses, expected[row.iteration].first) << row.iteration;
            EXPECT_EQ(row.again, expected[row.iteration].second) << row.iteration;
            misses += row.misses, again += row.again;
        }
        EXPECT_EQ(misses,
                  std::stoll(test::sql(path, "SELECT sum(misses) FROM v_member WHERE kind = 'decode'").rows[0][0]));
        EXPECT_GT(again, 0);
        EXPECT_LT(again, misses) << "the first miss of a request is of no block that it had";
    }
}

TEST_F(ThrashTest, TakesTheCountersOfARunWithOnePool) {
    const std::string path = record(false);
    EXPECT_EQ(readThrash(TraceReader(path), 1, true).basis, Thrash::Basis::Unknown) << "no pool, no selections";
    setKnobs(R"({"rows":3,"cache":"global-lru"})");
    test::sql(path, "UPDATE iteration SET surprises = 1 WHERE id & 3 = 0", SQLITE_OPEN_READWRITE);
    const TraceReader reader(path);
    const Thrash thrash = readThrash(reader, 1, true);
    ASSERT_EQ(thrash.basis, Thrash::Basis::Counters);
    EXPECT_EQ(thrash.window, 12);
    for (const ThrashRow& row : thrash.rows) {
        // A row that decoded in the iteration before is warm.
        const auto rows =
            test::sql(path, fmt::format("SELECT coalesce(sum(m.misses), 0), coalesce(sum(CASE WHEN EXISTS ("
                                        "SELECT 1 FROM v_member b WHERE b.kind = 'decode' AND b.request ="
                                        " m.request AND b.iteration = m.iteration - 1) THEN m.misses END),"
                                        " 0), (SELECT surprises FROM v_iteration i WHERE i.iteration = {0})"
                                        " FROM v_member m WHERE m.kind = 'decode' AND m.iteration = {0}",
                                        row.iteration))
                .rows[0];
        EXPECT_EQ(row.misses, std::stoll(rows[0]));
        EXPECT_EQ(row.again, std::max(0LL, std::stoll(rows[1]) - std::stoll(rows[2]))) << row.iteration;
    }
}

TEST(ThrashOverTime, IsTheShareOfASlidingSpan) {
    const std::vector<ThrashRow> rows{{0, 10, 0}, {1, 10, 10}, {2, 0, 0}, {3, 5, 5}, {9, 0, 0}};
    const std::vector<double> ends{1e9, 1.5e9, 1.9e9, 2.2e9, 9e9};
    const std::vector<double> shares = thrashOverTime(rows, ends, 1e9);
    EXPECT_DOUBLE_EQ(shares[0], 0);
    EXPECT_DOUBLE_EQ(shares[1], 0.5);
    EXPECT_DOUBLE_EQ(shares[2], 0.5);
    EXPECT_DOUBLE_EQ(shares[3], 1) << "the first iteration ended more than a second before";
    EXPECT_TRUE(std::isnan(shares[4])) << "no miss in the last second";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

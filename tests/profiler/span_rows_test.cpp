// Rows of a file without an index, found again: against looking at every row.
#include "profiler/read/span_rows.h"

#include "profiler/read/recorded_flows.h"
#include "profiler/read/row_lookup.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <numeric>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

/// In the order of their values, in none, one track after the other, and of few values.
std::vector<std::vector<std::int64_t>> columns(std::size_t rows) {
    std::mt19937_64 random(5);
    std::vector<std::int64_t> ordered(rows), perTrack(rows), few(rows);
    for (std::size_t i = 0; i < rows; ++i) {
        ordered[i] = std::int64_t(i) * 10 + std::int64_t(random() % 300) - (std::int64_t(1) << 40);
        perTrack[i] = std::int64_t(i % (rows / 300)) * 1000;
        few[i] = std::int64_t(random() % 3);
    }
    std::vector<std::int64_t> shuffled = ordered;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    return {ordered, shuffled, perTrack, few};
}

TEST(RowLookup, NamesEveryRowOfAValueAndFewOthers) {
    constexpr std::size_t kRows = 600'000; // more than two stretches
    const auto all = columns(kRows);
    for (std::size_t kind = 0; kind < all.size(); ++kind) {
        RowLookup lookup;
        for (std::size_t i = 0; i < kRows; ++i) lookup.add(std::int64_t(i) * 2 + 1, all[kind][i]);
        for (std::size_t asked = 0; asked < 40; ++asked) {
            const std::int64_t value = all[kind][asked * 14'983 % kRows];
            const auto found = lookup.find(value);
            std::int64_t last = 0, looked = 0;
            std::size_t at = 0;
            for (const auto& [first, end] : found) {
                EXPECT_GE(first, last) << "ascending";
                last = end;
                looked += (end - first) / 2 + 1;
            }
            std::int64_t wanted = 0;
            for (std::size_t i = 0; i < kRows; ++i) {
                if (all[kind][i] != value) continue;
                const auto id = std::int64_t(i) * 2 + 1;
                while (at < found.size() && found[at].second < id) ++at;
                ASSERT_TRUE(at < found.size() && found[at].first <= id)
                    << kind << ": row " << i << " is not among them";
                ++wanted;
            }
            EXPECT_LE(looked, wanted + 12 * 512) << kind;
        }
        EXPECT_TRUE(lookup.find(std::int64_t(1) << 50).empty());
        if (kind == 0) {
            EXPECT_LT(lookup.memoryBytes(), kRows * 8) << "of what is in order only the ends are kept";
        }
    }
    EXPECT_TRUE(RowLookup().find(3).empty());
}

/// A thousand calls and their kernels, in an order of their own, with the arrows in another.
class SpanRowsTest : public testing::Test {
protected:
    static constexpr int kPairs = 1000;
    void SetUp() override {
        {
            Recorder recorder(file, {});
            recorder.beginRun(synthetic::infoOf({}));
            recorder.endRun(RunStatus::Finished, {});
            recorder.flush();
        }
        std::mt19937 random(2);
        std::vector<int> ids(2 * kPairs);
        std::iota(ids.begin(), ids.end(), 1);
        std::shuffle(ids.begin(), ids.end(), random);
        std::string sql =
            "INSERT INTO text(id, value) VALUES (901,'cpu'),(902,'gpu'),(903,'launch'),(904,'gemm');BEGIN;";
        for (int i = 0; i < kPairs; ++i) {
            call.push_back(ids[std::size_t(2 * i)]);
            kernel.push_back(ids[std::size_t(2 * i + 1)]);
            sql += fmt::format("INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, "
                               "depth) VALUES ({},1,-1,-1,0,901,903,{},5,0),({},1,-1,-1,1,902,904,{},9,0);",
                               call.back(), i * 20, kernel.back(), i * 20 + 7);
        }
        sql += "INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES "
               "(9000,2,-1,-1,0,901,903,40,5,0);"; // another run's
        std::vector<int> order(kPairs);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (const int i : order)
            sql += fmt::format("INSERT INTO flow(run_id, from_span, to_span) VALUES (1,{},{});", call[std::size_t(i)],
                               kernel[std::size_t(i)]);
        test::sql(file, sql + "COMMIT", SQLITE_OPEN_READWRITE);
    }
    void expectAll(const TraceReader& reader, const SpanRows& rows, const char* how) {
        for (int i = 0; i < kPairs; i += 37) {
            const SpanPlace from{"cpu", "launch", i * 20, 5, 0}, to{"gpu", "gemm", i * 20 + 7, 9, 0};
            EXPECT_EQ(rows.spanAt(reader, from), call[std::size_t(i)]) << how;
            EXPECT_EQ(rows.spanAt(reader, to), kernel[std::size_t(i)]) << how;
            const auto out = recordedFlows(reader, 1, from, &rows), in = recordedFlows(reader, 1, to, &rows);
            ASSERT_EQ(out.size(), 1u) << how;
            EXPECT_TRUE(out[0].leaves);
            EXPECT_EQ(out[0].other, to) << how;
            ASSERT_EQ(in.size(), 1u) << how;
            EXPECT_EQ(in[0].other, from) << how;
        }
        EXPECT_FALSE(rows.spanAt(reader, {"cpu", "launch", 41, 5, 0}));
        EXPECT_FALSE(rows.spanAt(reader, {"gpu", "launch", 40, 5, 0}));
    }

    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
    std::vector<int> call, kernel; // ids
};

TEST_F(SpanRowsTest, FindsTheSameUnreadHalfReadAndRead) {
    const TraceReader reader(file);
    SpanRows rows(1);
    expectAll(reader, rows, "unread");
    EXPECT_FALSE(rows.readOn(reader, 700));
    expectAll(reader, rows, "spans in part");
    EXPECT_FALSE(rows.readOn(reader, 2000));
    expectAll(reader, rows, "arrows in part");
    while (!rows.readOn(reader, 300)) {
    }
    expectAll(reader, rows, "read");
    // What comes later is found unread, and read on.
    test::sql(file,
              "INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES "
              "(9001,1,-1,-1,0,901,903,77,5,0),(9002,1,-1,-1,1,902,904,90,9,0);"
              "INSERT INTO flow(run_id, from_span, to_span) VALUES (1,9001,9002)",
              SQLITE_OPEN_READWRITE);
    const SpanPlace late{"cpu", "launch", 77, 5, 0};
    for (const bool read : {false, true}) {
        EXPECT_EQ(rows.spanAt(reader, late), 9001) << read;
        ASSERT_EQ(recordedFlows(reader, 1, late, &rows).size(), 1u) << read;
        EXPECT_TRUE(rows.readOn(reader, 1000));
    }
}

/// A graph's launch leads to more kernels than anybody follows: the earliest ones are given.
TEST_F(SpanRowsTest, OfManyArrowsTheEarliestAreGiven) {
    std::string sql = "BEGIN;";
    for (int i = 0; i < 500; ++i)
        sql += fmt::format("INSERT INTO flow(run_id, from_span, to_span) VALUES (1,{},{});", call[0],
                           kernel[std::size_t(499 - i)]);
    test::sql(file, sql + "COMMIT", SQLITE_OPEN_READWRITE);
    const TraceReader reader(file);
    const auto flows = recordedFlows(reader, 1, {"cpu", "launch", 0, 5, 0});
    ASSERT_EQ(flows.size(), 64u);
    EXPECT_EQ(flows.front().other.startNs, 7);
    EXPECT_LE(flows.back().other.startNs, 64 * 20);
}

TEST(SpanRows, ReadsNothingWhereNobodyWillAsk) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
    }
    test::sql(file,
              "INSERT INTO text(id, value) VALUES (901,'cpu');INSERT INTO span(id, run_id, step, layer, kind, track, "
              "name, start_ns, duration_ns, depth) VALUES (1,1,-1,-1,0,901,901,1,5,0)",
              SQLITE_OPEN_READWRITE);
    const TraceReader reader(file);
    SpanRows rows(1);
    EXPECT_TRUE(rows.readOn(reader, 1));
    EXPECT_EQ(rows.memoryBytes(), 0u);
    EXPECT_EQ(rows.spanAt(reader, {"cpu", "cpu", 1, 5, 0}), 1);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

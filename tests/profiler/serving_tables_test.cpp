// The report of a serving run: its load, its requests by class and what bound its plans, counted again from the rows.
#include "profiler/report/report.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class ServingTables : public ::testing::Test {
protected:
    void SetUp() override {
        file = (folder / "served.kvtrace").string();
        synthetic::recordServing(file, 24);
        report = reports::makeReport({file});
        rows = readServing(TraceReader(file), 1, &gaps);
    }
    double number(const char* table, const std::string& key, const std::string& row, const std::string& column) {
        const reports::Table* found = report.table(table);
        if (!found) return -1;
        const std::vector<reports::Cell>* cells = found->find(key, row);
        const int at = found->columnAt(column);
        if (!cells || at < 0) return -1;
        return (*cells)[std::size_t(at)].number();
    }

    const test::Folder folder;
    std::string file;
    reports::Report report;
    ServingRows rows;
    std::vector<TokenGap> gaps;
};

TEST_F(ServingTables, ClassesAreCountedFromTheRequests) {
    std::set<std::string> kinds;
    for (const RequestRow& request : rows.requests) kinds.insert(request.kind);
    ASSERT_EQ(kinds, (std::set<std::string>{"even", "odd"}));
    ASSERT_NE(report.table("serving_classes"), nullptr);
    EXPECT_EQ(report.table("serving_classes")->rows.size(), 2u);
    bool someAreBad = false;
    for (const std::string& kind : kinds) {
        int count = 0, refused = 0, good = 0;
        double waited = 0;
        int answered = 0;
        for (const RequestRow& request : rows.requests) {
            if (request.kind != kind) continue;
            ++count, refused += request.status == ServedStatus::Refused;
            if (request.firstTokenNs >= 0) ++answered, waited += double(request.firstTokenNs - request.arrivalNs);
            // Requests have few tokens, so that one gap far beyond the bound breaks their 99th percentile.
            bool late = false;
            for (const TokenGap& gap : gaps) late |= gap.request == request.number && gap.gapNs > 25'000'000;
            good += request.finished() && !late &&
                    double(request.firstTokenNs - request.arrivalNs) <= request.ttftBoundMs * 1e6;
        }
        EXPECT_EQ(number("serving_classes", "class", kind, "requests"), count);
        EXPECT_EQ(number("serving_classes", "class", kind, "refused"), refused);
        EXPECT_NEAR(number("serving_classes", "class", kind, "good"), double(good) / count, 1e-12) << kind;
        EXPECT_NEAR(number("serving_classes", "class", kind, "ttft_ns"), waited / answered, 1);
        someAreBad |= good < count;
    }
    EXPECT_TRUE(someAreBad) << "one is refused and one is paused for too long";
}

TEST_F(ServingTables, PlansAreCountedByWhatBoundThem) {
    std::map<std::string, int> iterations;
    for (const IterationRow& row : rows.iterations) ++iterations[row.limitedBy];
    ASSERT_GE(iterations.size(), 2u);
    double share = 0;
    for (const auto& [limit, count] : iterations) {
        EXPECT_EQ(number("serving_plans", "limited_by", limit, "iterations"), count) << limit;
        share += number("serving_plans", "limited_by", limit, "share");
    }
    EXPECT_NEAR(share, 1, 1e-9);
}

TEST_F(ServingTables, TheLoadHasAColumnForTheRun) {
    const std::optional<ServedLoad> load = readServedLoad(TraceReader(file), 1);
    ASSERT_TRUE(load.has_value());
    EXPECT_EQ(number("serving", "quantity", "Requests", "served"), double(load->requests));
    EXPECT_NEAR(number("serving", "quantity", "Time between tokens, P99", "served"), load->tbtP99Ms * 1e6, 1);
    EXPECT_NEAR(number("serving", "quantity", "Tokens per second", "served"), load->tokensPerSecond, 1e-9);
}

TEST(ServingTablesOfOthers, ARunThatServedNobodyHasNone) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, synthetic::RunShape{});
    const reports::Report report = reports::makeReport({file});
    for (const char* id : {"serving", "serving_classes", "serving_plans"}) EXPECT_EQ(report.table(id), nullptr) << id;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

// kvscope-cli insights, as a person and a script use it.
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sqlite3.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::cli;
namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const std::string kSample = test::source("resources/samples/h200-nosa-tiny.kvtrace");

std::int64_t number(const std::string& query) {
    sqlite3* database = nullptr;
    sqlite3_stmt* statement = nullptr;
    EXPECT_EQ(sqlite3_open_v2(kSample.c_str(), &database, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
    EXPECT_EQ(sqlite3_prepare_v2(database, query.c_str(), -1, &statement, nullptr), SQLITE_OK);
    EXPECT_EQ(sqlite3_step(statement), SQLITE_ROW);
    const std::int64_t value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(database);
    return value;
}

TEST(CliInsights, PrintsTheHeadlineFindingsAndEvidence) {
    const test::Finished result = cli({"insights", kSample, "--run", "2"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("of decode time is exposed transfer (measured)"));
    EXPECT_THAT(result.out, HasSubstr("1. [alarm]"));
    EXPECT_THAT(result.out, HasSubstr("Try: "));
    EXPECT_THAT(result.out, HasSubstr("See: "));
}

TEST(CliInsights, JsonHasPricesProposalsAndTheWaterfall) {
    const test::Finished result = cli({"insights", kSample, "--run", "2", "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    const json out = json::parse(result.out);
    EXPECT_EQ(out["waterfall"]["bars"].back()["id"], "unexplained");
    bool proposed = false;
    for (const json& insight : out["insights"]) {
        if (!insight["price"].is_null()) {
            const double low = insight["price"]["saved_low"], high = insight["price"]["saved_high"];
            EXPECT_GE(low, 0);
            EXPECT_LT(low, high);
            EXPECT_GE(high, insight["impact"].get<double>() - 1e-12);
            EXPECT_THAT(insight["price"]["text"].get<std::string>(), HasSubstr("tokens/s"));
        }
        proposed = proposed || !insight["proposal"].is_null();
    }
    EXPECT_TRUE(proposed);
    EXPECT_THAT(cli({"insights", kSample, "--run", "2"}).out, HasSubstr("Gain: "));
    EXPECT_THAT(cli({"insights", kSample, "--run", "2"}).out, HasSubstr("Why not the roof?"));
}

TEST(CliInsights, JsonHasEveryLayerAndEqualsSql) {
    const test::Finished result = cli({"insights", kSample, "--run", "1", "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    const json out = json::parse(result.out);
    EXPECT_EQ(out["exposure"]["timing"], "measured");
    ASSERT_EQ(out["exposure"]["layers"].size(), 8u);
    for (const json& layer : out["exposure"]["layers"]) {
        const std::string where = " FROM v_layer WHERE run_id=1 AND phase='decode' AND step>1 AND layer=" +
                                  std::to_string(layer["layer"].get<int>());
        EXPECT_EQ(layer["exposed_ns"], number("SELECT sum(exposed_ns)" + where));
        EXPECT_EQ(layer["hidden_ns"], number("SELECT sum(h2d_ns + d2h_ns - exposed_ns)" + where));
    }
    EXPECT_EQ(out["exposure"]["all"]["exposed_ns"],
              number("SELECT sum(exposed_ns) FROM v_step WHERE run_id=1 AND phase='decode'"));
    EXPECT_EQ(out["exposure"]["steps"].size(), 63u);
    EXPECT_EQ(out["exposure"]["steps"][0]["kind"], "cold");
    for (const json& insight : out["insights"]) {
        EXPECT_EQ(insight["evidence"]["run_id"], 1);
        EXPECT_FALSE(insight["figures"].empty());
    }
}

TEST(CliInsights, RefusesWhatIsNotThereInOneSentence) {
    const test::Finished run = cli({"insights", kSample, "--run", "9"});
    EXPECT_EQ(run.status, 1);
    EXPECT_THAT(run.err, HasSubstr("has no run 9"));
    EXPECT_EQ(cli({"insights", "/no/such.kvtrace"}).status, 1);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

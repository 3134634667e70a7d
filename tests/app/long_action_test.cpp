// When long commands say how far they are, where standard error is no terminal.
#include "app/cli/long_action.h"
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>

namespace kvscope::cli {
namespace KVSCOPE_TEST_FILE {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(LongAction, WritesALineEveryTenSecondsUnlessToldOtherwise) {
    for (const char* unsaid : {static_cast<const char*>(nullptr), "", "often", "5 minutes", "nan"}) {
        EXPECT_EQ(pauseOfLines(unsaid, Prints::Text), 10s) << (unsaid != nullptr ? unsaid : "not set");
        EXPECT_FALSE(pauseOfLines(unsaid, Prints::Document)) << (unsaid != nullptr ? unsaid : "not set");
    }
    for (const Prints prints : {Prints::Text, Prints::Document}) {
        EXPECT_EQ(pauseOfLines("60", prints), 60s);
        EXPECT_EQ(pauseOfLines("0.01", prints), 10ms);
        EXPECT_GT(pauseOfLines("1e300", prints), 24h) << "longer than any command";
        for (const char* none : {"0", "0.0", "-1", "-inf"}) EXPECT_FALSE(pauseOfLines(none, prints)) << none;
    }
}

class ProgressLines : public test::CliFixture {
protected:
    /// A short evaluation with KVSCOPE_PROGRESS_SECONDS set so.
    test::Finished evaluate(const std::string& seconds, bool json) const {
        std::vector<std::string> command{"/usr/bin/env",
                                         "KVSCOPE_PROGRESS_SECONDS=" + seconds,
                                         test::kCommandLine,
                                         "eval",
                                         "--methods",
                                         "streaming",
                                         "--contexts",
                                         "600",
                                         "--prompts",
                                         "0",
                                         "--no-oracle",
                                         "--text-tokens",
                                         "4"};
        if (json) command.emplace_back("--json");
        const test::Finished result = test::runProcess(command);
        EXPECT_EQ(result.status, 0) << result.err;
        return result;
    }
};

TEST_F(ProgressLines, AreOnStandardErrorWhenAskedForAndOffAtZero) {
    EXPECT_EQ(evaluate("0", false).err, "");
    EXPECT_THAT(evaluate("1e-9", false).err, HasSubstr("% streaming"));
    const test::Finished document = evaluate("1e-9", true);
    EXPECT_THAT(document.err, HasSubstr("% streaming")) << "what was asked for is not left out";
    EXPECT_TRUE(nlohmann::json::accept(document.out)) << "the document is alone on standard output";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cli

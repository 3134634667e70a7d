// When a sequence is over.
#include "core/session/end_rule.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

TEST(EndRule, EndsAtTheLastTokenOrAtTheEndOfText) {
    ModelConfig config;
    config.eosIds = {7, 9};
    SessionOptions options;
    options.maxNewTokens = 5;
    const EndRule rule(options, config);
    EXPECT_FALSE(rule.ends(4, 1));
    EXPECT_TRUE(rule.ends(5, 1));
    EXPECT_TRUE(rule.ends(1, 7));
    EXPECT_TRUE(rule.ends(1, 9));
    options.stopAtEos = false;
    EXPECT_FALSE(rule.ends(1, 9));
    EXPECT_TRUE(rule.ends(5, 9));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

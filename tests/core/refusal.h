// What a refused input is told: one line that names the thing and says how to mend it.
#pragma once

#include "base/error.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

namespace kvscope::test {

/// The one line of the Error that `action` ends in, which names `named`; empty when it succeeds.
inline std::string refusalOf(const std::function<void()>& action, const std::string& named) {
    try {
        action();
        return {};
    } catch (const Error& error) {
        const std::string line = oneLine(error);
        EXPECT_EQ(line.find_first_of("\r\n"), std::string::npos) << line;
        EXPECT_THAT(line, testing::HasSubstr(named));
        EXPECT_LT(line.size(), 500u) << line;
        EXPECT_FALSE(line.ends_with(".")) << line;
        return line;
    }
}

} // namespace kvscope::test

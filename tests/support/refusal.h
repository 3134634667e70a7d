// The message for refused input: one line that names the thing and says what would help.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

namespace kvscope::test {

/// The one line of the Error that `action` ends in; "nothing was thrown" when it succeeds.
inline std::string failureOf(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return oneLine(error);
    }
    return "nothing was thrown";
}

/// The one line of the Error that `action` ends in, which names `named` and is shorter than `longest` bytes; empty when
/// it succeeds.
inline std::string refusalOf(const std::function<void()>& action, const std::string& named, std::size_t longest = 500) {
    try {
        action();
        return {};
    } catch (const Error& error) {
        const std::string line = oneLine(error);
        EXPECT_EQ(line.find_first_of("\r\n"), std::string::npos) << line;
        EXPECT_THAT(line, testing::HasSubstr(named));
        EXPECT_LT(line.size(), longest) << line;
        EXPECT_FALSE(line.ends_with(".")) << line;
        return line;
    }
}

} // namespace kvscope::test

// A folder, the command line, and short recorded runs, for tests that use kvscope-cli as a person does.
#pragma once

#include "tests/app/process.h"
#include "tests/support/places.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sqlite3.h>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

inline Finished cli(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), test::kCommandLine);
    return runProcess(arguments);
}

inline std::vector<std::string> linesOf(const std::string& text) {
    std::vector<std::string> out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
}

inline void executeSql(const std::string& file, const std::string& sql) {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
}

/// The options of `load` and `simulate` for a server of little memory of which every request counts.
inline std::vector<std::string> smallServer(const std::vector<std::string>& more = {}, const char* hostKv = "256M") {
    std::vector<std::string> all{"--warm-up",   "0",   "--warm-up-seconds", "0",  "--host-kv", hostKv,
                                 "--device-kv", "64M", "--scratch",         "64M"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}
/// A command with its own arguments and these behind them.
inline std::vector<std::string> commandOf(std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    return command;
}

class CliFixture : public ::testing::Test {
protected:
    CliFixture() {
        std::string name = (std::filesystem::temp_directory_path() / "kvscope-cli-XXXXXX").string();
        folder_ = mkdtemp(name.data());
    }
    ~CliFixture() override { std::filesystem::remove_all(folder_); }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    /// Records a run. @return its JSON document
    nlohmann::json record(const std::string& trace, std::vector<std::string> arguments) const {
        arguments.insert(arguments.begin(), {"run", "--ignore-eos", "--trace", trace, "--json"});
        const Finished result = cli(arguments);
        EXPECT_EQ(result.status, 0) << result.err;
        return nlohmann::json::parse(result.out, nullptr, false);
    }

    /// The JSON document of a command that succeeds.
    static nlohmann::json jsonOf(std::vector<std::string> arguments, int status = 0) {
        arguments.emplace_back("--json");
        const Finished result = cli(arguments);
        EXPECT_EQ(result.status, status) << result.err;
        return nlohmann::json::parse(result.out, nullptr, false);
    }

    /// What a command line that is refused says: one line on the standard error, and nothing on the standard output.
    static std::string refusal(const std::vector<std::string>& arguments) {
        const Finished result = cli(arguments);
        EXPECT_TRUE(result.status == 1 || result.status == 2) << result.status << result.out;
        EXPECT_EQ(linesOf(result.err).size(), 1u) << result.err;
        EXPECT_EQ(result.out, "");
        return result.err;
    }
    /// Arguments, and words of the sentence that refuses them.
    using Mistakes = std::vector<std::pair<std::vector<std::string>, std::string>>;
    /// Expects that the command is refused when the arguments of a mistake follow its own arguments, for every mistake.
    static void expectRefusals(const std::vector<std::string>& command, const Mistakes& mistakes) {
        for (const auto& [arguments, words] : mistakes) {
            EXPECT_THAT(refusal(commandOf(command, arguments)), testing::HasSubstr(words));
        }
    }

    std::filesystem::path folder_;
};

} // namespace kvscope::test

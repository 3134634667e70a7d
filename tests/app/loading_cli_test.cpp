// Loading a model at a terminal: it shows how far it is, and Ctrl-C ends it.
#include "core/model/bundled_models.h"
#include "tests/app/process.h"
#include "tests/core/many_tokens.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

struct AtTerminal {
    std::string shown;
    bool ended = false; // by itself, not by a signal
    int status = -1;
};

/// Runs kvscope-cli at a terminal of its own; presses Ctrl-C once `interruptAt` is shown, if that is not empty.
AtTerminal runAtTerminal(std::vector<std::string> arguments, const std::string& interruptAt) {
    arguments.insert(arguments.begin(), test::kCommandLine);
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    if (child == 0) {
        std::vector<char*> raw;
        for (std::string& argument : arguments) raw.push_back(argument.data());
        raw.push_back(nullptr);
        execv(raw[0], raw.data());
        _exit(127);
    }
    AtTerminal result;
    bool pressed = interruptAt.empty();
    std::array<char, 4096> buffer{};
    for (ssize_t n = 0; (n = read(terminal, buffer.data(), buffer.size())) > 0;) {
        result.shown.append(buffer.data(), std::size_t(n));
        if (pressed || result.shown.find(interruptAt) == std::string::npos) continue;
        pressed = write(terminal, "\x03", 1) == 1;
    }
    close(terminal);
    int status = 0;
    waitpid(child, &status, 0);
    result.ended = WIFEXITED(status);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    return result;
}

TEST(Loading, ShowsHowFarItIsOnATerminal) {
    const test::Folder folder;
    const std::string path = (folder / "model.gguf").string();
    test::writeModelOfManyTokens(path, 20'000);
    const AtTerminal result = runAtTerminal({"info", path}, "");
    EXPECT_EQ(result.status, 0) << result.shown;
    for (const char* part : {"  0 % reading the configuration", "% reading the metadata", "% reading the tokenizer",
                             "% checking the weights", "100 % ready"})
        EXPECT_THAT(result.shown, HasSubstr(part));
    EXPECT_LT(result.shown.find("100 % ready"), result.shown.find("20000")) << "the line goes before the answer comes";
}

TEST(Loading, ShowsOnlyTheAnswerOnATerminalWhereProgressIsOff) {
    setenv("KVSCOPE_PROGRESS_SECONDS", "0", 1);
    const AtTerminal result = runAtTerminal({"info", "nosa-tiny"}, "");
    unsetenv("KVSCOPE_PROGRESS_SECONDS");
    EXPECT_EQ(result.status, 0) << result.shown;
    EXPECT_THAT(result.shown, HasSubstr("nosa-tiny"));
    EXPECT_EQ(result.shown.find(" % "), std::string::npos) << result.shown;
}

/// Keys that nobody reads are the file's own text: a terminal gets it escaped, and what cannot be printed ends no run.
TEST(Loading, NotesOfAModelAreEscapedOnATerminalAndEndNoRun) {
    const test::Folder folder;
    for (const auto& entry : std::filesystem::directory_iterator(bundledModelFolder("nosa-tiny")))
        if (entry.path().filename() != "config.json")
            std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                            folder / entry.path().filename().string());
    std::ifstream original(bundledModelFolder("nosa-tiny") / "config.json");
    nlohmann::json config = nlohmann::json::parse(original);
    config["colour\xE2\x80\xAE\xC2\x9B"
           "31m"] = 7; // a right-to-left override, and a control sequence of one character
    std::ofstream(folder / "config.json") << config.dump();
    for (const char* command : {"info", "run"}) {
        std::vector<std::string> arguments{command};
        if (std::string(command) == "run")
            arguments.insert(arguments.end(), {"--prompt", "one two", "--max-new-tokens", "2", "--model"});
        arguments.push_back(folder.path().string());
        const AtTerminal result = runAtTerminal(arguments, "");
        EXPECT_EQ(result.status, 0) << result.shown;
        EXPECT_THAT(result.shown, HasSubstr("colour\\u202e\\u009b31m")) << command;
        EXPECT_EQ(result.shown.find("\xE2\x80\xAE"), std::string::npos) << command;
    }
    const auto closed = test::runProcess({"/bin/sh", "-c",
                                          "exec '" + std::string(test::kCommandLine) +
                                              "' run --prompt 'one two' --max-new-tokens 2 --model '" +
                                              folder.path().string() + "' 2>&-"});
    EXPECT_EQ(closed.status, 0);
    EXPECT_NE(closed.out, "");
}

/// A machine may load a file before the key is pressed: then the file was too small.
TEST(Loading, CtrlCEndsItWithASentence) {
    const test::Folder folder;
    const std::string path = (folder / "model.gguf").string();
    for (const char* command : {"info", "run"}) {
        AtTerminal result;
        for (std::uint32_t tokens = 250'000; tokens <= 4'000'000; tokens *= 2) {
            test::writeModelOfManyTokens(path, tokens);
            std::vector<std::string> arguments{command};
            if (std::string(command) == "run")
                arguments.insert(arguments.end(), {"--prompt", "token1", "--method", "full", "--model"});
            arguments.push_back(path);
            result = runAtTerminal(arguments, "%");
            if (result.status != 0) break;
        }
        EXPECT_THAT(result.shown, HasSubstr("cancelled")) << command;
        EXPECT_TRUE(result.ended) << command << " was killed";
        EXPECT_EQ(result.status, 130) << command;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

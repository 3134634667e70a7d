#include "bench/desktop_program.h"

#include "base/error.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace kvscope::bench {
namespace {

std::string programBeside() {
    std::error_code failure;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
    return failure ? std::string() : (self.parent_path() / "kvscope-bench-desktop").string();
}

/// Runs a command and collects its standard output; its standard error goes to ours. @return the command's exit status,
/// -1 when it could not be started
int outputOf(const std::vector<std::string>& command, std::string& output) {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) return -1;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    for (const int end : ends) posix_spawn_file_actions_addclose(&actions, end);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_t child = -1;
    const int failure = posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    std::array<char, 4096> buffer{};
    for (ssize_t count = 0; failure == 0;) {
        count = read(ends[0], buffer.data(), buffer.size());
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        output.append(buffer.data(), std::size_t(count));
    }
    close(ends[0]);
    int status = -1;
    if (failure != 0) return -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

nlohmann::ordered_json runInDesktop(std::string_view name, const Settings& settings) {
    const std::string program = programBeside();
    if (access(program.c_str(), X_OK) != 0)
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("benchmark {} measures the desktop, and there is no program {}", name,
                        program.empty() ? "kvscope-bench-desktop beside this one" : program),
            "build it (KVSCOPE_UI=ON, which needs Qt 6): cmake --build build/release --target kvscope-bench-desktop");
    std::vector<std::string> command{program, std::string(name)};
    for (const auto& [key, value] : settings) command.push_back(fmt::format("--set={}={}", key, value));
    std::string output;
    const int status = outputOf(command, output);
    auto result = nlohmann::ordered_json::parse(output, nullptr, false);
    if (status != 0 || !result.is_object())
        throw Error(ErrorKind::Unsupported, fmt::format("benchmark {} failed inside {}", name, program),
                    "its own message is above");
    return result;
}

} // namespace kvscope::bench

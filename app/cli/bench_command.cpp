// kvscope-cli bench: becomes the program kvscope-bench, which has the benchmarks.
#include "app/cli/commands.h"
#include "app/terminal/options.h"

#include "base/error.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

namespace kvscope::cli {
namespace {

/// Replaces this program by kvscope-bench, which lies in the same folder, and hands the arguments on.
/// @throws Error(Unsupported) when it cannot be started
int run(const std::vector<std::string>& arguments) {
    std::error_code failure;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
    const std::string program = (self.parent_path() / "kvscope-bench").string();
    std::vector<char*> words{const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execv(program.c_str(), words.data());
    throw Error(ErrorKind::Unsupported,
                fmt::format("the benchmarks' program {} cannot be started: {}", program, std::strerror(errno)),
                "build it: cmake --build build/release --target kvscope-bench kvscope-bench-desktop");
}

} // namespace

Command addBench(Options& program) {
    auto arguments = std::make_shared<std::vector<std::string>>();
    Options sub = program.command("bench", "Measure this machine and this build, each number beside its floor");
    sub.handOn(*arguments);
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli

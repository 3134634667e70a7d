#include "bench/desktop_program.h"

#include "base/error.h"
#include "bench/child_program.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace kvscope::bench {

nlohmann::ordered_json runInDesktop(std::string_view name, const Settings& settings) {
    const std::string program = programBeside("kvscope-bench-desktop");
    if (access(program.c_str(), X_OK) != 0)
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("benchmark {} measures the desktop, and there is no program {}", name,
                        program.empty() ? "kvscope-bench-desktop beside this one" : program),
            "build it (KVSCOPE_UI=ON, which needs Qt 6): cmake --build build/release --target kvscope-bench-desktop");
    std::vector<std::string> command{program, std::string(name)};
    for (const auto& [key, value] : settings) command.push_back(fmt::format("--set={}={}", key, value));
    ChildProgram child(command);
    const int status = child.wait();
    auto result = nlohmann::ordered_json::parse(child.output(), nullptr, false);
    if (status != 0 || !result.is_object())
        throw Error(ErrorKind::Unsupported, fmt::format("benchmark {} failed inside {}", name, program),
                    "its own message is above");
    return result;
}

} // namespace kvscope::bench

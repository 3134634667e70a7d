// A command that is stopped as with Ctrl+C.
#pragma once

#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace kvscope::test {

/// Starts kvscope-cli with these words, interrupts it when its progress has said `until`, or after a minute, and waits
/// for its end. said: a file for its standard error, which the result lacks.
inline Finished interrupted(const std::vector<std::string>& words, const std::string& until, const std::string& said) {
    std::string line = "exec env KVSCOPE_PROGRESS_SECONDS=0.01 " + std::string(kCommandLine);
    for (const std::string& word : words) line += " " + word;
    Process process({"/bin/sh", "-c", line + " 2>" + said});
    const auto hasSaid = [&] {
        std::ifstream file(said);
        return std::string(std::istreambuf_iterator<char>(file), {}).find(until) != std::string::npos;
    };
    for (int i = 0; i < 1200 && !hasSaid(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    process.signal(SIGINT);
    return process.wait();
}

} // namespace kvscope::test

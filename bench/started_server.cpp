#include "bench/started_server.h"

#include "base/error.h"

#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope::bench {
namespace {

std::vector<std::string> commandOf(const ServingJob& job, const std::vector<std::string>& more) {
    const std::string program = programBeside("kvscope-cli");
    if (access(program.c_str(), X_OK) != 0)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("the server that is measured is in kvscope-cli, and there is no program {}", program),
                    "build it: cmake --build build/release --target kvscope-cli");
    std::vector<std::string> command{program,       "serve",
                                     "--model",     job.model,
                                     "--method",    job.method,
                                     "--backend",   nameOf(job.backend),
                                     "--port",      "0",
                                     "--device-kv", fmt::format("{}M", job.deviceMiB),
                                     "--host-kv",   fmt::format("{}M", job.hostMiB),
                                     "--scratch",   fmt::format("{}M", job.scratchMiB),
                                     "--knob",      fmt::format("rows={}", job.streams),
                                     "--benchmark"};
    if (job.threads > 0) command.insert(command.end(), {"--threads", fmt::format("{}", job.threads)});
    if (!job.costs.empty()) command.insert(command.end(), {"--costs", job.costs});
    command.insert(command.end(), more.begin(), more.end());
    return command;
}

} // namespace

StartedServer::StartedServer(const ServingJob& job, const std::vector<std::string>& more)
    : program_(commandOf(job, more)) {
    if (!program_.readUntil("ready: "))
        throw Error(ErrorKind::Unsupported, "kvscope-cli serve ended before it was ready", "its own message is above");
    const std::string& said = program_.output(); // "listening on http://127.0.0.1:PORT"
    port_ = std::atoi(said.c_str() + said.rfind(':', said.find('\n')) + 1);
}

void StartedServer::stop() {
    program_.terminate();
    if (const int status = program_.wait(); status != 0)
        throw Error(ErrorKind::Unsupported, fmt::format("kvscope-cli serve ended with the exit status {}", status),
                    "its own message is above");
}

} // namespace kvscope::bench

// A server of `kvscope-cli serve` that a benchmark starts in a process of its own.
#pragma once

#include "bench/child_program.h"
#include "bench/serving.h"

#include <string>
#include <vector>

namespace kvscope::bench {

class StartedServer {
public:
    /// Starts the program beside this one on a free port, with a row for every stream of the job, and waits until it is
    /// ready. more: further arguments. @throws Error(Unsupported) where there is no such program or it ends
    explicit StartedServer(const ServingJob& job, const std::vector<std::string>& more = {});

    int port() const { return port_; }
    /// Asks the server to end, and waits. @throws Error(Unsupported) where its exit status is not 0
    void stop();

private:
    ChildProgram program_;
    int port_ = 0;
};

} // namespace kvscope::bench

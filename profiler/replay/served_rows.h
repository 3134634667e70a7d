// Which request had which row of a serving run's batch, and when its blocks left the device.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace kvscope {

class Connection;

/// A request whose blocks leave the device before a step: it was paused, or gave its row back.
struct RequestLeave {
    int step = 0; // number of the first iteration that it holds for
    std::int64_t request = 0;
};

class ServedRows {
public:
    ServedRows() = default; // of a run that served nobody
    ServedRows(Connection& connection, const RunRow& run, int lastStep);

    /// A request that decoded in an iteration, and the position of the token that it was fed.
    struct Decoded {
        int step = 0;
        std::int64_t request = 0, position = 0;
    };
    bool empty() const { return decoded_.empty(); }
    /// The request that decoded in the row in the step; -1: none did.
    std::int64_t requestAt(int step, int row) const;
    int rowOf(std::int64_t request) const;
    const std::vector<Decoded>& decoded() const { return decoded_; }    // by step, then by row
    const std::vector<RequestLeave>& leaves() const { return leaves_; } // in the order of steps

private:
    std::unordered_map<std::int64_t, std::int64_t> requestAt_; // by the last 35 bits of a member's key
    std::unordered_map<std::int64_t, int> rowOf_;
    std::vector<Decoded> decoded_;
    std::vector<RequestLeave> leaves_;
};

} // namespace kvscope

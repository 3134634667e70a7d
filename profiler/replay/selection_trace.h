// What a recorded run asked its block caches for, in memory: the decode selections of every (sequence, layer, KV head).
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// The blocks one KV head attends in one step: all of them must be resident at the same time.
struct BlockRequest {
    int step = 0;             // index into SelectionTrace::steps
    std::size_t first = 0;    // HeadTrace::blocks[first .. first + count)
    std::size_t count = 0;    //
    std::int32_t fresh = -1;  // begins in this step, so it is a hit and never transferred; -1: none does
    bool selected = true;     // false: the head attended every block (dense_len): traffic, but neither hits nor misses
    int hits = 0, misses = 0; // as recorded
};

struct HeadTrace {
    int sequence = 0, layer = 0, kvHead = 0;
    std::int32_t tail = -1; // incomplete last block of the prompt, resident before the first request; -1: none
    std::vector<BlockRequest> requests;
    std::vector<std::int32_t> blocks; // ascending within a request

    void add(int step, std::span<const std::int32_t> wanted, std::int32_t fresh);
    std::span<const std::int32_t> blocksOf(const BlockRequest& request) const {
        return std::span(blocks).subspan(request.first, request.count);
    }
    std::int32_t blockLimit() const; // one more than the highest block
    std::size_t largestSet() const;  // blocks of the largest request
};

struct ReplayStep { // one decode step, as recorded
    int step = 0, tokens = 0;
    std::int64_t durationNs = 0, exposedNs = 0;
};

struct SelectionTrace {
    RunRow run;
    std::string cachePolicy; // of the recording; empty if it does not say
    std::vector<ReplayStep> steps;
    std::vector<HeadTrace> heads;
    std::size_t largestSet = 0;
    std::int64_t hits = 0, misses = 0; // recorded, all decode steps
};

/// @throws Error(BadInput | Storage | Cancelled): no such run, no selected blocks in it, damaged
SelectionTrace loadSelectionTrace(const TraceReader& reader, int runId);

} // namespace kvscope

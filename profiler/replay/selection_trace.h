// The requests of a recorded run to its block caches, in memory: the decode selections of every (sequence, layer, KV
// head).
#pragma once

#include "base/extents.h"
#include "base/progress.h"
#include "core/transfer/link.h"
#include "profiler/read/trace_reader.h"
#include "profiler/replay/block_visits.h"
#include "profiler/replay/served_rows.h"

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope {

struct RecordedOutcome {
    int hits = 0, misses = 0;
};

/// The requests of one pool of block slots. A request is the set of blocks that a KV head attends in one step.
struct PoolTrace {
    int sequence = 0, layer = 0, kvHead = 0; // sequence -1: shared by all
    /// Of a serving run: the request that had the row `sequence`. Where sequences begin several prompts: the number of
    /// the prompt, counted over all of them as they first select. Else -1.
    std::int64_t request = -1;
    /// Includes the steps in which a head attended to every block (dense_len). These do not count as hits or misses,
    /// but load blocks.
    BlockVisits visits;
    /// [request] index into SelectionTrace::steps. -1: a request before all steps, for the last block of the prompt,
    /// which is not full and resident from the start.
    std::vector<std::int32_t> steps;
    std::vector<RecordedOutcome> recorded; // [request]; empty for a shared pool
};

struct ReplayStep { // one decode step, as recorded
    int step = 0, tokens = 0;
    std::int64_t durationNs = 0, exposedNs = 0;
    /// The step is cold (read/step_kind.h), and the run has steps that are not: rates can leave this one out.
    bool cold = false;
};

/// Recorded compute time of a layer in a step, without transfers: before its attention needs the blocks, and after
/// that.
struct LayerTime {
    std::int64_t beforeNs = 0, afterNs = 0;
};

struct SelectionTrace {
    RunRow run;
    std::string cachePolicy; // of the recording; empty if the recording does not name it
    /// The link of the recording: the modelled one, or latency and bandwidth fitted to measured exposed times.
    Link link;
    Numbered<ReplayStep> steps;
    std::vector<LayerTime> layerTimes; // [decode step][layer], needed to replay loading ahead
    std::vector<PoolTrace> pools;
    int largest = 0;                                                // blocks of the largest request of any pool
    std::int64_t hits = 0, misses = 0, h2dBytes = 0, exposedNs = 0; // as recorded, over all decode steps
    bool shared = false;
    /// Of layerTimes, and of the loads of a replay.
    Extents<int, int> layerSteps() const { return Extents<int, int>(steps.count(), run.layers); }
    std::vector<RequestLeave> leaves;          // of a serving run, in the order of steps
    std::int64_t coldHits = 0, coldMisses = 0; // of hits and misses, those in steps that are `cold`
    bool renumbered = false;                   // blocks have other numbers than in the recording, in the same order

    bool isCold(std::int32_t step) const { return step >= 0 && steps[step].cold; } // an index into steps
    /// Time of a step without measured transfers (modelled ones are not in it); NaN where the run knows no step times.
    double computeNs(const ReplayStep& step) const;
    /// [request] of a pool: 1 in cold steps. Empty: there are none.
    std::vector<std::uint8_t> coldRequests(const PoolTrace& pool) const;
    /// A copy of the run without its pools and the size of their largest request, both of which the caller sets anew.
    SelectionTrace withoutPools() const {
        return {run,    cachePolicy, link,      steps,  layerTimes, {},       0,          hits,
                misses, h2dBytes,    exposedNs, shared, leaves,     coldHits, coldMisses, renumbered};
    }
};

/// The pools of a serving run are those of its requests: a row that another request has had before begins empty.
/// @throws Error(BadInput | Storage | Cancelled): no such run, no selected blocks in it, damaged
SelectionTrace loadSelectionTrace(const TraceReader& reader, int runId, const Progress& progress = {},
                                  const std::stop_token& stop = {});

/// The link that a run was recorded over: the modelled one, or latency and bandwidth fitted to the measured exposed
/// times of steps 0 .. lastStep (-1: all); nothing if no bytes crossed it.
std::optional<Link> recordedLink(const TraceReader& reader, const RunRow& run, int lastStep = -1);

/// The run with one pool for each (layer, KV head), which all sequences share. The request of a step then has the
/// blocks of all sequences. Blocks of a sequence that has ended stay until they are replaced.
SelectionTrace withSharedPools(const SelectionTrace& trace);

} // namespace kvscope

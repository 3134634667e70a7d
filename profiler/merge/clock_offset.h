// How far the clock of one rank's run is from another's: what to add to its times so that both count from the same
// moment.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

/// What was read of a rank's clock.
struct RankClock {
    struct Reading {
        std::string clock;
        std::int64_t ownNs = 0, otherNs = 0, errorNs = 0;
    };
    struct Moment {
        std::string name;
        std::int64_t ns = 0;
    };
    std::vector<Reading> readings;   // key `clocks` of run_meta, and table clock_sync
    std::vector<Moment> collectives; // ends of the spans of track `collectives`, which all ranks leave together
    std::vector<Moment> steps;       // starts of decode steps, by their number
    std::int64_t medianStepNs = 0;
    std::optional<std::int64_t> createdNs; // created_utc, whole seconds since 1970
};

/// Track of spans that all ranks leave at the same moment; the same collective has the same name on all ranks.
inline constexpr const char* kCollectiveTrack = "collectives";

/// Reads at most the first 20,000 collectives and steps. @throws Error(Storage | BadInput)
RankClock readClock(const TraceReader& reader, const RunRow& run);

struct ClockOffset {
    std::int64_t addNs = 0; // to the times of `other`
    std::int64_t errorNs = 0;
    std::string by;    // "monotonic", "collectives", "utc" or "created_utc"; empty: no clock in common
    std::string doubt; // half a sentence where clocks contradict each other; empty: they do not
};

/// Of several ways the surest is taken: the machine's monotonic clock, collectives, UTC. The others are compared with
/// it: one that is farther away than both errors is a doubt. Where there is none of them, the second in which the run
/// was created is taken. A clock that both read several times has the median of the offsets, and an error that reaches
/// to the farthest of them, so that a drift is part of it.
/// @param sameSteps the ranks make the same steps together, so that starts of steps are compared as well
ClockOffset offsetBetween(const RankClock& reference, const RankClock& other, bool sameSteps);

/// Key `clocks` of a run whose times all became later by `addNs`; text that is no list of readings stays as it is.
std::string shiftedClocks(const std::string& text, std::int64_t addNs);

} // namespace kvscope

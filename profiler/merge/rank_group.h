// Which runs are the ranks of one run in several processes, and what the layout makes of their numbers.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

/// One dimension of a layout: "tp=1/4" is place 1 of 4.
struct LayoutPlace {
    int place = 0, size = 1;
    friend bool operator==(const LayoutPlace&, const LayoutPlace&) = default;
};
/// Key `layout` of run_meta: "tp=1/4 dp=0/2". What cannot be read is left out.
std::map<std::string, LayoutPlace> parseLayout(const std::string& text);

/// KV heads of a rank by their global numbers, both ends included.
struct HeadRange {
    int first = 0, last = -1;
    friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

struct RankedRun {
    std::size_t run = 0; // place in the runs that were given
    int rank = 0;
    std::map<std::string, LayoutPlace> layout;
    HeadRange heads;
    /// Rank that holds the same heads of the same requests: it selects the same, and counts are not to be added to that
    /// one's. Its transfers are its own.
    std::optional<int> replicaOf;
};

struct RankGroup {
    std::string name;             // key `group`, or the runs' name where none has the key
    std::vector<RankedRun> ranks; // by rank
    int world = 0;                // ranks that there should be
    bool worldSaid = false;       // by key `world` or `layout`; else the highest rank and those below
    std::vector<int> missing;     // ranks
    bool otherRequests = false;   // data-parallel attention: ranks have requests of their own, so rates are compared
};

/// Groups runs that have a rank: those with the same key `group`, or without one those with the same name, model and
/// method. Where a rank has several runs, as of a process that generates several times, the first ones of all ranks are
/// one group, the second ones the next.
std::vector<RankGroup> rankGroups(const std::vector<RunRow>& runs);

/// "rank 2 of 4 is missing from group G"; empty: none is.
std::string missingSentence(const RankGroup& group);
/// What the layout means for sums over ranks; one sentence.
std::string layoutSentence(const RankGroup& group);

/// A number of run_meta; `otherwise` where it is absent or none from 0 to `most`.
int numberOf(const RunRow& run, const char* key, int most, int otherwise);

} // namespace kvscope

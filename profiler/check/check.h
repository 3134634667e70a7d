// Whether a trace obeys the rules of docs/trace-format.md: what a writer promises, and every view and number relies on.
#pragma once

#include "base/progress.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// Kinds of numbers that a broken rule makes worthless.
enum class Concern : std::uint8_t {
    Identity,
    Times,
    Tokens,
    Selection,
    Hits,
    Bytes,
    Transfer,
    Exposed,
    Mass,
    Timeline,
    Serving
};
inline constexpr int kConcernCount = 11;
/// The concern in words, for a sentence: "times", "hits and misses", ...
std::string_view nameOf(Concern concern);

/// Which rule of which run broke where.
struct Violation {
    std::string rule;  // id
    int run = 0;       // 0: of the file
    std::string where; // "step 5, layer 2, sequence 0, KV head 1"; empty: of the run as a whole
    std::string what;  // "hits + misses is 7, selected is 9"
};

struct RuleResult {
    std::string_view id;
    std::string_view says; // the rule, in a line
    Concern concern = Concern::Identity;
    bool tested = true; // false: the run does not know what the rule is about, or nothing of it is in the trace
    std::int64_t violations = 0;
};

struct RunCheck {
    int run = 0; // 0: the file
    std::vector<RuleResult> rules;
    std::vector<Violation> examples; // the first ones of each rule, as many as were asked for
    // selections whose blobs were not read, because the run has more than CheckOptions::blobs
    std::int64_t unread = 0;
    std::int64_t violations() const;
    int untested() const;
    /// "the rules blob, ... were not tested: the run has 5000000 selections"; empty: none was left out for that reason
    std::string leftOut() const;
    void add(const RunCheck& other); // appends the rules and examples of another check
    /// Whether a rule that concerns these numbers is broken.
    bool concerns(Concern concern) const;
    /// "3 rows break the rule hits-and-misses, 1 ..."; empty: none
    std::string sentence() const;
};

struct CheckOptions {
    std::int64_t examples = 100; // of each rule and run; < 0: all
    /// A run with more selections than this has none of its blobs read, and no rule about blobs is tested. < 0: all are
    /// read
    std::int64_t blobs = -1;
    Progress progress{};
};

/// Options for callers that only count: no examples, and blobs of runs that are read within seconds.
CheckOptions counting();

/// The file as a whole, then every run. @throws Error(BadInput | Cancelled): a file that cannot be read at all
std::vector<RunCheck> checkTrace(const TraceReader& reader, const CheckOptions& options = {});
/// The file alone: the rules that belong to no run. @throws Error(BadInput | Cancelled)
RunCheck checkFile(const TraceReader& reader, const CheckOptions& options = {});
/// One run. @throws Error(BadInput) if there is no such run
RunCheck checkRun(const TraceReader& reader, int runId, const CheckOptions& options = {});

/// The knowledge of a run without the groups whose numbers a broken rule makes worthless: views show them as not known.
Knowledge trusted(Knowledge knows, const RunCheck& check);

} // namespace kvscope

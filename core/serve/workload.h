// A workload: when requests arrive at a server, and how long they are.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::serve {

/// One request of a workload.
struct WorkloadLine {
    std::int64_t arrivalUs = 0; // intended arrival, counted from the beginning of the workload
    int promptTokens = 1, outputTokens = 1;
    std::string kind;       // its class; may be empty
    std::uint64_t seed = 0; // for the prompt's text and for sampling
};

/// Requests in the order of their arrival.
struct Workload {
    std::string name;
    std::vector<WorkloadLine> lines;
    std::int64_t spanUs = 0; // length of the workload: a second reading begins there

    /// Requests per second, over the span.
    double rate() const { return spanUs > 0 ? double(lines.size()) / double(spanUs) * 1e6 : 0; }
};

enum class Arrivals : std::uint8_t { Recorded, Poisson, Gamma, Constant };

/// Draws new arrivals at one request per second from `seed`: gaps of mean 1 s whose coefficient of variation is 1
/// (Poisson), 1/sqrt(shape) (Gamma) or 0. Recorded arrivals stay as they are. The drawn gaps are not scaled to a sum of
/// n seconds.
void drawArrivals(Workload& workload, Arrivals arrivals, double shape, std::uint64_t seed);
/// Multiplies the rate of arrivals by `factor`, which is positive: all times are divided by it.
void changeRate(Workload& workload, double factor);
/// Spreads arrivals that share a bucket of `bucketUs` uniformly over it: Mooncake's traces stamp them every 3 s.
void spreadArrivals(Workload& workload, std::int64_t bucketUs, std::uint64_t seed);

/// Rules by which a workload's lengths are changed. Lengths stay at least 1.
struct LengthRules {
    double scale = 1;   // prompts are divided by it; above 2, outputs are divided by half of it
    double outputs = 1; // outputs are multiplied by it
    int cap = 0;        // longest prompt; 0: as they are
};
/// @throws Error(BadInput) for a rule that is not positive
void changeLengths(Workload& workload, const LengthRules& rules);

/// The workload `longmix`. Of `count` requests 39 % ask about code, 14 % are short questions, 16 % long questions, 31 %
/// summaries. Prompts are lognormal, stratified within their class; outputs are uniform from half of the class's cap to
/// the cap; arrivals are Poisson at one request per second, in whole milliseconds. A seed gives the same bytes on every
/// machine.
/// @throws Error(BadInput) unless 1 <= count <= 10,000,000
Workload longmix(int count, std::uint64_t seed);

/// Writes one JSON object per line, with the keys of Mooncake's traces: timestamp (ms), input_length, output_length,
/// hash_ids (empty, because no prefix is shared), and besides `class` and `seed`.
void writeWorkload(const Workload& workload, std::ostream& out);
/// Reads what writeWorkload writes. class, seed and hash_ids may be absent, other keys are ignored. The span is the
/// time of the last arrival and one mean gap. @throws Error(BadInput) naming the line
Workload readWorkload(std::string_view text, std::string name);
/// Reads a workload from a file. @throws Error(Storage) where the file cannot be read, Error(BadInput) as readWorkload
Workload loadWorkload(const std::string& file);

} // namespace kvscope::serve

// What is offered to a server: when requests arrive and how long they are.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::serve {

/// One request of a workload.
struct WorkloadLine {
    std::int64_t arrivalUs = 0; // intended arrival, from the beginning
    int promptTokens = 1, outputTokens = 1;
    std::string kind;       // its class; may be empty
    std::uint64_t seed = 0; // of its prompt's text and of sampling
};

/// In the order of arrival.
struct Workload {
    std::string name;
    std::vector<WorkloadLine> lines;
    std::int64_t spanUs = 0; // how long it lasts: where a second reading of it begins

    /// Requests per second over the span.
    double rate() const { return spanUs > 0 ? double(lines.size()) / double(spanUs) * 1e6 : 0; }
};

enum class Arrivals : std::uint8_t { Recorded, Poisson, Gamma, Constant };

/// New arrivals at one request per second: `gaps` of mean 1 s from `seed`, of coefficient of variation 1 (Poisson),
/// 1/sqrt(shape) (Gamma) or 0. Nothing changes for Recorded. The drawn gaps are kept as they are: their sum is not made
/// n seconds.
void drawArrivals(Workload& workload, Arrivals arrivals, double shape, std::uint64_t seed);
/// Multiplies the rate of arrivals: times are divided by `factor`, which is positive.
void changeRate(Workload& workload, double factor);
/// Spreads arrivals that share a bucket of `bucketUs` uniformly over it: Mooncake's traces stamp them every 3 s.
void spreadArrivals(Workload& workload, std::int64_t bucketUs, std::uint64_t seed);

/// Variants by rule. Lengths stay at least 1.
struct LengthRules {
    double scale = 1;   // prompts are divided by it, and outputs by half of it where it is above 2
    double outputs = 1; // outputs are multiplied by it
    int cap = 0;        // longest prompt; 0: as they are
};
/// @throws Error(BadInput) for a rule that is not positive
void changeLengths(Workload& workload, const LengthRules& rules);

/// `longmix`: code 39 %, short questions 14 %, long questions 16 %, summaries 31 % of `count` requests. Prompts are
/// lognormal, stratified within their class, outputs uniform from half the class's cap to the cap; arrivals Poisson at
/// one request per second, in whole milliseconds. The same bytes for the same seed on every machine.
/// @throws Error(BadInput) unless 1 <= count <= 10,000,000
Workload longmix(int count, std::uint64_t seed);

/// One JSON object per line with the keys of Mooncake's traces: timestamp (ms), input_length, output_length, hash_ids
/// (no prefix is shared: empty), and `class` and `seed`.
void writeWorkload(const Workload& workload, std::ostream& out);
/// Reads that form; class, seed and hash_ids may be absent, other keys are ignored. The span is the last arrival and
/// one mean gap. @throws Error(BadInput) naming the line
Workload readWorkload(std::string_view text, std::string name);
/// @throws Error(Storage) where the file cannot be read, else as readWorkload
Workload loadWorkload(const std::string& file);

} // namespace kvscope::serve

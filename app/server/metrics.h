// The server's numbers, in Prometheus' text format 0.0.4.
#pragma once

#include "app/server/engine_thread.h"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvscope::server {

class Histogram {
public:
    explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}
    void add(double value);
    /// Writes the lines _bucket, _sum and _count of the name.
    void write(std::string& out, const std::string& name, const std::string& labels) const;

private:
    std::vector<double> bounds_;
    std::vector<std::int64_t> counts_; // one for each bound, and one for values above the last
    double sum_ = 0;
    std::int64_t count_ = 0;
};

/// Counts what happens. The thread of the connections makes all calls.
class Metrics {
public:
    Metrics();

    void batch(const EngineBatch& batch);
    void answered(int status) { ++answers_[status]; }
    void promptRead(int promptTokens) { promptTokens_ += promptTokens; }
    void token() { ++tokens_; }
    /// In seconds: from the arrival to the first token, between two tokens, and in the other phases of a request.
    void firstToken(double seconds) { ttft_.add(seconds); }
    void gap(double seconds) { gaps_.add(seconds); }
    void queued(double seconds) { queue_.add(seconds); }
    void prefilled(double seconds) { prefill_.add(seconds); }
    void pause(double seconds) { pausedSeconds_ += seconds; }
    void paused() { ++pauses_; }
    /// how: stop, length, cancelled, refused or failed. decodeSeconds: below 0 for a request without a token, which has
    /// no time of decoding.
    void ended(const std::string& how, double seconds, double decodeSeconds);
    void ignoredMembers(int count) { ignored_ += count; }

    std::string text(const std::string& model, std::size_t connections) const;

private:
    EngineGauges gauges_;
    std::map<int, std::int64_t> answers_;
    std::map<std::string, std::int64_t> ended_;
    std::int64_t promptTokens_ = 0, tokens_ = 0, pauses_ = 0, ignored_ = 0;
    std::int64_t hits_ = 0, misses_ = 0, missedBytes_ = 0, storedBytes_ = 0, surprises_ = 0, exposedNs_ = 0;
    std::array<std::int64_t, 3> iterations_{}; // decode, prefill, mixed
    double pausedSeconds_ = 0, predictedMs_ = 0, actualMs_ = 0;
    Histogram ttft_, gaps_, e2e_, queue_, prefill_, decode_;
};

} // namespace kvscope::server

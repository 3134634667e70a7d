#include "app/server/metrics.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace kvscope::server {
namespace {

std::vector<double> longBounds() { // long prompts take minutes
    return {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 300};
}
std::vector<double> gapBounds() {
    return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 40, 80};
}

/// The value of a label, in which the format escapes three characters.
std::string quoted(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\' || c == '"') out += '\\';
        out += c == '\n' ? ' ' : c;
    }
    return out;
}

class Page {
public:
    explicit Page(const std::string& model) : model_(fmt::format("model_name=\"{}\"", quoted(model))) {}

    void head(const std::string& name, const char* type, const char* help) {
        fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    }
    template <class Value> void line(const std::string& name, Value value, const std::string& label = {}) {
        fmt::format_to(std::back_inserter(out), "{}{{{}{}}} {}\n", name, model_, label.empty() ? "" : "," + label,
                       value);
    }
    template <class Value> void gauge(const std::string& name, Value value, const char* help) {
        head(name, "gauge", help);
        line(name, value);
    }
    template <class Value> void counter(const std::string& name, Value value, const char* help) {
        head(name, "counter", help);
        line(name, value);
    }
    void histogram(const std::string& name, const Histogram& histogram, const char* help) {
        head(name, "histogram", help);
        histogram.write(out, name, model_);
    }

    std::string out;

private:
    const std::string model_;
};

} // namespace

void Histogram::add(double value) {
    ++counts_[std::size_t(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin())];
    sum_ += value, ++count_;
}

void Histogram::write(std::string& out, const std::string& name, const std::string& labels) const {
    std::int64_t below = 0;
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
        below += counts_[i];
        fmt::format_to(std::back_inserter(out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], below);
    }
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{},le=\"+Inf\"}} {}\n{}_sum{{{}}} {}\n{}_count{{{}}} {}\n",
                   name, labels, count_, name, labels, sum_, name, labels, count_);
}

Metrics::Metrics()
    : ttft_(longBounds()), gaps_(gapBounds()), e2e_(longBounds()), queue_(longBounds()), prefill_(longBounds()),
      decode_(longBounds()) {
    for (const char* how : {"stop", "length", "cancelled", "refused", "failed"}) ended_[how] = 0;
}

void Metrics::batch(const EngineBatch& batch) {
    const EngineGauges last = gauges_;
    gauges_ = batch.gauges;
    storedBytes_ += batch.storedBytes, exposedNs_ += batch.exposedNs;
    if (!batch.iterated) { // without an iteration the plan's numbers stay as they were
        gauges_.workingSetBytes = last.workingSetBytes, gauges_.availableBytes = last.availableBytes;
        if (gauges_.running == 0) gauges_.workingSetBytes = 0;
        return;
    }
    ++iterations_[batch.prefilled ? (batch.decoded ? 2 : 1) : 0];
    hits_ += batch.hits, misses_ += batch.misses, missedBytes_ += batch.missedBytes, surprises_ += batch.surprises;
    predictedMs_ += batch.predictedMs, actualMs_ += batch.actualMs;
}

void Metrics::ended(const std::string& how, double seconds, double decodeSeconds) {
    ++ended_[how];
    if (how != "stop" && how != "length") return;
    e2e_.add(seconds);
    if (decodeSeconds >= 0) decode_.add(decodeSeconds);
}

std::string Metrics::text(const std::string& model, std::size_t connections) const {
    Page page(model);
    page.gauge("vllm:num_requests_running", gauges_.running, "Requests whose prompt is read or that make tokens.");
    page.gauge("vllm:num_requests_waiting", gauges_.waiting, "Requests that wait for admission.");
    const double host = gauges_.budget.host > 0 ? double(gauges_.used.host) / double(gauges_.budget.host) : 0;
    page.gauge("vllm:kv_cache_usage_perc", host, "Reserved share of the host memory for KV, 0 to 1.");
    page.counter("vllm:num_preemptions_total", pauses_, "Pauses; a paused request keeps what it has read.");
    page.counter("vllm:prompt_tokens_total", promptTokens_, "Tokens of prompts that were read to their ends.");
    page.counter("vllm:generation_tokens_total", tokens_, "Tokens made.");
    page.histogram("vllm:time_to_first_token_seconds", ttft_, "From the whole request to its first token.");
    page.histogram("vllm:inter_token_latency_seconds", gaps_, "Between two tokens of a request.");
    page.histogram("vllm:e2e_request_latency_seconds", e2e_, "From the whole request to its last token.");
    page.histogram("vllm:request_queue_time_seconds", queue_, "Until the first iteration that works for a request.");
    page.histogram("vllm:request_prefill_time_seconds", prefill_, "From there to the first token.");
    page.histogram("vllm:request_decode_time_seconds", decode_, "From the first token to the last.");
    page.head("vllm:request_success_total", "counter", "Requests that came to their end.");
    for (const char* how : {"stop", "length"})
        page.line("vllm:request_success_total", ended_.at(how), fmt::format("finished_reason=\"{}\"", how));

    page.head("kvscope:requests_ended_total", "counter", "Requests by how they ended.");
    for (const auto& [how, count] : ended_)
        page.line("kvscope:requests_ended_total", count, fmt::format("ending=\"{}\"", how));
    page.gauge("kvscope:requests_paused", gauges_.paused, "Requests that are paused.");
    page.counter("kvscope:paused_seconds_total", pausedSeconds_, "Time that requests were paused.");
    page.head("kvscope:requests_waiting_for", "gauge", "Waiting requests by what they wait for, at the last plan.");
    for (int limit = 1; limit < serve::kLimits; ++limit)
        if (serve::Limit(limit) != serve::Limit::QueueFull && serve::Limit(limit) != serve::Limit::TooLarge)
            page.line("kvscope:requests_waiting_for", gauges_.waitingFor[std::size_t(limit)],
                      fmt::format("reason=\"{}\"", nameOf(serve::Limit(limit))));
    page.gauge("kvscope:working_set_bytes", gauges_.workingSetBytes, "Sum of working sets of running requests.");
    page.gauge("kvscope:available_bytes", gauges_.availableBytes,
               "M_avl: what fixed reservations leave of the device.");
    page.gauge("kvscope:index_bytes", gauges_.used.device, "Reserved device memory for indices and newest blocks.");
    page.gauge("kvscope:scratch_bytes", gauges_.used.scratch, "Reserved memory for prompts that are being read.");
    page.gauge("kvscope:host_bytes", gauges_.used.host, "Reserved host memory for KV.");
    page.gauge("kvscope:host_budget_bytes", gauges_.budget.host, "Host memory for KV.");
    page.gauge("kvscope:device_budget_bytes", gauges_.budget.device, "Device memory for KV and index.");
    page.counter("kvscope:block_hits_total", hits_, "Selected blocks that were on the device.");
    page.counter("kvscope:block_misses_total", misses_, "Selected blocks that were not.");
    page.counter("kvscope:surprises_total", surprises_, "Selected blocks outside of working sets.");
    page.counter("kvscope:h2d_bytes_total", missedBytes_, "Bytes of blocks that came to the device.");
    page.counter("kvscope:d2h_bytes_total", storedBytes_, "Bytes of full blocks that went to the host.");
    page.counter("kvscope:exposed_transfer_seconds_total", double(exposedNs_) / 1e9,
                 "Time that rows waited for transfers, summed over rows; modelled on a CPU.");
    page.counter("kvscope:recorder_drops_total", gauges_.recorderDrops, "Records that the recorder could not take.");
    page.head("kvscope:iterations_total", "counter", "Iterations by what they did.");
    constexpr const char* kKinds[] = {"decode", "prefill", "mixed"};
    for (std::size_t kind = 0; kind < 3; ++kind)
        page.line("kvscope:iterations_total", iterations_[kind], fmt::format("kind=\"{}\"", kKinds[kind]));
    page.counter("kvscope:iteration_seconds_total", actualMs_ / 1e3, "Time of iterations.");
    page.counter("kvscope:iteration_predicted_seconds_total", predictedMs_ / 1e3,
                 "Time that plans predicted for them.");
    page.gauge("kvscope:connections", connections, "Open connections.");
    page.head("kvscope:http_answers_total", "counter", "Answers by status.");
    for (const auto& [status, count] : answers_)
        page.line("kvscope:http_answers_total", count, fmt::format("status=\"{}\"", status));
    page.counter("kvscope:ignored_members_total", ignored_, "Unknown members of request bodies.");
    return page.out;
}

} // namespace kvscope::server

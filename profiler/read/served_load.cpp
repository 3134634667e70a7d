#include "profiler/read/served_load.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace kvscope {
namespace {

double prefillNsPerToken(Connection& connection, int runId) {
    const auto sum = [&](const char* query) {
        Statement rows(connection, query);
        rows.bindAll(runId);
        return rows.step() && !rows.isNull(0) ? rows.real(0) : 0.0;
    };
    const double tokens =
                     sum("SELECT total(prompt_tokens) FROM v_request WHERE run_id = ? AND first_token_ns NOT NULL"),
                 ns = sum("SELECT total(prefill_ns) FROM v_iteration WHERE run_id = ?");
    return tokens > 0 && ns > 0 ? ns / tokens : std::numeric_limits<double>::quiet_NaN();
}

} // namespace

std::pair<double, double> meanAndP99(std::vector<double>& samples) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    if (samples.empty()) return {kNone, kNone};
    std::sort(samples.begin(), samples.end());
    double sum = 0;
    for (const double sample : samples) sum += sample;
    const double at = 0.99 * double(samples.size() - 1);
    const auto below = std::size_t(at);
    const double above = samples[std::min(below + 1, samples.size() - 1)];
    return {sum / double(samples.size()), std::lerp(samples[below], above, at - double(below))};
}

std::optional<ServedLoad> measureLoad(std::span<const RequestRow> requests, std::span<const ServedToken> tokens,
                                      std::span<const IterationLoads> iterations) {
    if (requests.empty()) return std::nullopt;
    const auto [first, last] = std::ranges::minmax(requests, {}, &RequestRow::arrivalNs);
    // doubles, because the times of a damaged file may be any
    const double from = std::lerp(double(first.arrivalNs), double(last.arrivalNs), 0.2), to = double(last.arrivalNs);
    if (!(to > from)) return std::nullopt;
    const auto inWindow = [&](std::int64_t ns) { return double(ns) >= from && double(ns) <= to; };
    ServedLoad load;
    load.seconds = (to - from) / 1e9;
    std::vector<double> ttft, gaps;
    for (const RequestRow& request : requests) {
        if (!inWindow(request.arrivalNs)) continue;
        ++load.requests;
        if (request.firstTokenNs < 0)
            ++load.unanswered;
        else
            ttft.push_back((double(request.firstTokenNs) - double(request.arrivalNs)) / 1e6);
    }
    std::unordered_map<std::int64_t, std::int64_t> before;
    std::int64_t made = 0;
    for (const ServedToken& token : tokens) {
        const auto [previous, isFirst] = before.try_emplace(token.request, token.ns);
        const std::int64_t previousNs = std::exchange(previous->second, token.ns);
        if (!inWindow(token.ns)) continue;
        ++made;
        if (!isFirst) gaps.push_back((double(token.ns) - double(previousNs)) / 1e6);
    }
    std::int64_t counted = 0;
    for (const IterationLoads& iteration : iterations) {
        if (iteration.rows <= 0 || !inWindow(iteration.startNs)) continue;
        ++counted;
        load.decodeRows += double(iteration.rows);
        load.blocksLoaded += double(iteration.blocks);
        load.bytesLoaded += double(iteration.bytes);
    }
    for (double* mean : {&load.decodeRows, &load.blocksLoaded, &load.bytesLoaded})
        *mean = counted > 0 ? *mean / double(counted) : std::numeric_limits<double>::quiet_NaN();
    load.rate = double(load.requests) / load.seconds;
    load.tokensPerSecond = double(made) / load.seconds;
    std::tie(load.ttftMs, load.ttftP99Ms) = meanAndP99(ttft);
    std::tie(load.tbtMs, load.tbtP99Ms) = meanAndP99(gaps);
    return load;
}

std::vector<RowsLoad> loadsByRows(std::span<const IterationLoads> iterations) {
    constexpr int kFewest = 3; // iterations
    std::map<std::int64_t, RowsLoad> sums;
    for (const IterationLoads& iteration : iterations) {
        if (iteration.rows <= 0 || iteration.decodeNs <= 0) continue;
        RowsLoad& sum = sums[iteration.rows];
        sum.rows = iteration.rows;
        ++sum.iterations;
        sum.decodeNs += double(iteration.decodeNs);
        sum.blocks += double(iteration.blocks);
        sum.bytes += double(iteration.bytes);
    }
    std::vector<RowsLoad> loads;
    for (const auto& [rows, sum] : sums)
        if (sum.iterations >= kFewest) loads.push_back(sum);
    return loads;
}

StepsBeside stepsBeside(std::span<const RowsLoad> loading, std::span<const RowsLoad> resident) {
    StepsBeside beside;
    for (const RowsLoad& load : loading) {
        const auto same = std::ranges::find(resident, load.rows, &RowsLoad::rows);
        if (same == resident.end()) continue;
        beside.loadingNs += load.decodeNs;
        beside.residentNs += same->decodeNs * double(load.iterations) / double(same->iterations);
        beside.steps += double(load.iterations);
        beside.rows += double(load.iterations) * double(load.rows);
        beside.bytes += load.bytes;
    }
    return beside;
}

ServerKnobs serverKnobs(const RunRow& run) {
    const nlohmann::json knobs = parseJson(run.metaOr(run_meta::kServing));
    const auto text = [&](const char* key) {
        const nlohmann::json& value = member(knobs, key);
        return value.is_string() ? value.get<std::string>() : std::string();
    };
    ServerKnobs server;
    server.offload = member(knobs, "offload") != false;
    server.workingSetControl = member(knobs, "working_set_control") != false;
    server.cache = text("cache"), server.transfers = text("transfers"), server.d2h = text("d2h");
    server.prefill = text("prefill");
    const nlohmann::json& chunk = member(knobs, "chunk_tokens");
    if (chunk.is_number_integer() && chunk >= 1 && chunk <= 1 << 30) server.chunkTokens = chunk.get<int>();
    return server;
}

bool saysServer(const RunRow& run) { return !run.metaOr(run_meta::kServing).empty(); }

std::string serverWords(const RunRow& run) {
    const ServerKnobs server = serverKnobs(run);
    std::string words;
    const auto add = [&](const std::string& word) { words += (words.empty() ? "" : ", ") + word; };
    if (!server.offload)
        add("resident");
    else if (!server.cache.empty())
        add(server.cache);
    if (server.prefill == "chunks" && server.chunkTokens > 0)
        add("by chunks of " + std::to_string(server.chunkTokens));
    else if (!server.prefill.empty() && (server.offload || server.prefill != "layers"))
        add("by " + server.prefill);
    if (!server.offload) return words;
    if (!server.transfers.empty() && server.transfers != "kernel") add("loads by " + server.transfers);
    if (!server.d2h.empty() && server.d2h != "runs") add("stores by " + server.d2h);
    if (!server.workingSetControl) add("no control");
    return words;
}

std::optional<ServedLoad> readServedLoad(const TraceReader& reader, int runId) {
    if (!isServing(reader, runId)) return std::nullopt;
    Connection& connection = *ReaderAccess::of(reader).connection;
    std::vector<RequestRow> requests;
    Statement arrivals(connection, "SELECT request, arrival_ns, first_token_ns FROM v_request WHERE run_id = ?");
    arrivals.bindAll(runId);
    while (arrivals.step()) {
        RequestRow& request = requests.emplace_back();
        request.number = arrivals.int64(0);
        request.arrivalNs = arrivals.int64(1);
        request.firstTokenNs = arrivals.isNull(2) ? -1 : arrivals.int64(2);
    }
    std::vector<ServedToken> tokens;
    forEachServedToken(reader, runId, [&](std::int64_t request, std::int64_t ns) { tokens.push_back({request, ns}); });
    std::vector<IterationLoads> iterations;
    std::unordered_map<std::int64_t, std::size_t> placeOf; // by iteration
    Statement starts(connection,
                     "SELECT iteration, start_ns, decode_rows, decode_ns FROM v_iteration WHERE run_id = ?");
    starts.bindAll(runId);
    while (starts.step()) {
        placeOf[starts.int64(0)] = iterations.size();
        iterations.push_back({starts.int64(1), starts.int64(2), 0, 0, starts.int64(3)});
    }
    Statement loads(connection, "SELECT iteration, misses, h2d_bytes FROM v_member WHERE run_id = ?"
                                " AND kind = 'decode' AND misses >= 0 AND h2d_bytes >= 0");
    loads.bindAll(runId);
    while (loads.step()) {
        const auto place = placeOf.find(loads.int64(0));
        if (place == placeOf.end()) continue;
        const auto add = [](std::int64_t& sum, std::int64_t value) {
            sum = std::int64_t(std::uint64_t(sum) + std::uint64_t(value)); // absurd numbers of a damaged file wrap
        };
        add(iterations[place->second].blocks, loads.int64(1));
        add(iterations[place->second].bytes, loads.int64(2));
    }
    std::optional<ServedLoad> load = measureLoad(requests, tokens, iterations);
    if (!load) return load;
    load->prefillNsPerToken = prefillNsPerToken(connection, runId);
    load->byRows = loadsByRows(iterations);
    return load;
}

} // namespace kvscope

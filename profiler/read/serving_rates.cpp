#include "profiler/read/serving_rates.h"

#include "profiler/read/reader_impl.h"

#include <algorithm>

namespace kvscope {

std::size_t ServingRates::placeOf(double ns) const {
    return std::size_t(std::clamp(ns / lengthNs, 0.0, double(intervals.size()) - 1));
}

std::vector<IterationBytes> readIterationBytes(const TraceReader& reader, int runId) {
    std::vector<IterationBytes> bytes;
    Statement rows(*ReaderAccess::of(reader).connection, // total() is a sum in floating point, which cannot overflow
                   "SELECT iteration, total(h2d_bytes) FROM v_member WHERE run_id = ? AND h2d_bytes > 0"
                   " GROUP BY iteration ORDER BY iteration");
    rows.bindAll(runId);
    while (rows.step()) bytes.push_back({rows.int32(0), rows.real(1)});
    return bytes;
}

ServingRates ratesOverTime(const ServingRows& rows, const std::vector<TokenGap>& gaps,
                           const std::vector<IterationBytes>& loads, double endNs, int count) {
    ServingRates rates;
    rates.intervals.resize(std::size_t(std::max(count, 1)));
    rates.lengthNs = std::max(endNs, 1.0) / double(rates.intervals.size());
    const auto at = [&](std::int64_t ns) -> RateInterval& { return rates.intervals[rates.placeOf(double(ns))]; };
    for (const RequestRow& request : rows.requests) {
        ++at(request.arrivalNs).arrived;
        if (request.ended()) ++(request.finished() ? at(request.endNs).finished : at(request.endNs).lost);
        if (request.firstTokenNs < 0) continue;
        ++at(request.firstTokenNs).tokens;
        at(request.firstTokenNs).promptTokens += request.promptTokens;
    }
    for (const TokenGap& gap : gaps) ++at(gap.ns).tokens;
    auto load = loads.begin();
    for (const IterationRow& iteration : rows.iterations) {
        while (load != loads.end() && load->iteration < iteration.iteration) ++load;
        if (load != loads.end() && load->iteration == iteration.iteration)
            at(iteration.endNs()).loadedBytes += load->bytes;
    }
    return rates;
}

std::vector<std::pair<double, int>> requestsInSystem(std::span<const RequestRow> requests) {
    std::vector<std::pair<double, int>> changes;
    for (const RequestRow& request : requests) {
        changes.emplace_back(double(request.arrivalNs), 1);
        if (request.ended()) changes.emplace_back(double(std::max(request.endNs, request.arrivalNs)), -1);
    }
    std::stable_sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::pair<double, int>> numbers;
    int inside = 0;
    for (const auto& [ns, by] : changes) {
        inside += by;
        if (!numbers.empty() && numbers.back().first == ns)
            numbers.back().second = inside;
        else
            numbers.emplace_back(ns, inside);
    }
    return numbers;
}

} // namespace kvscope

#include "profiler/read/served_classes.h"

#include "profiler/read/served_load.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace kvscope {
namespace {

using Samples = std::vector<LatencySample>;

bool isShorter(const LatencySample& a, const LatencySample& b) { return a.ns < b.ns; }

/// gaps: of this request.
void addRequest(ServedClass& sums, const RequestRow& request, const Samples& gaps) {
    ++sums.requests;
    sums.refused += request.status == ServedStatus::Refused;
    sums.pauses += request.pauses;
    sums.open += !request.ended();
    const bool answered = request.firstTokenNs >= 0;
    const double first = double(request.firstTokenNs) - double(request.arrivalNs);
    if (answered) sums.ttft.push_back({first, request.number, request.firstTokenNs});
    if (answered && request.firstScheduledNs >= 0)
        sums.queueNs += double(request.firstScheduledNs) - double(request.arrivalNs);
    sums.gaps.insert(sums.gaps.end(), gaps.begin(), gaps.end());
    double p99 = 0;
    if (!gaps.empty()) {
        std::vector<double> values = nanosecondsOf(gaps);
        p99 = meanAndP99(values).second;
        sums.worst.push_back(*std::max_element(gaps.begin(), gaps.end(), isShorter));
        sums.worst.back().ns = p99;
    }
    const bool firstInTime = answered && (request.ttftBoundMs <= 0 || first <= request.ttftBoundMs * 1e6);
    const bool gapsInTime = answered && (request.tbtBoundMs <= 0 || p99 <= request.tbtBoundMs * 1e6);
    sums.keptFirst += firstInTime, sums.keptGaps += gapsInTime;
    sums.good += firstInTime && gapsInTime && request.finished();
}

void sortSamples(ServedClass& sums) {
    for (Samples* samples : {&sums.ttft, &sums.gaps, &sums.worst})
        std::stable_sort(samples->begin(), samples->end(), isShorter);
}

} // namespace

std::vector<double> nanosecondsOf(const std::vector<LatencySample>& samples) {
    std::vector<double> values;
    values.reserve(samples.size());
    for (const LatencySample& sample : samples) values.push_back(sample.ns);
    return values;
}

std::vector<ServedClass> servedClasses(const std::vector<RequestRow>& requests, const std::vector<TokenGap>& gaps) {
    std::unordered_map<std::int64_t, Samples> gapsOf;
    for (const TokenGap& gap : gaps) gapsOf[gap.request].push_back({double(gap.gapNs), gap.request, gap.ns});
    std::map<std::string, ServedClass> byName;
    for (const RequestRow& request : requests) addRequest(byName[request.kind], request, gapsOf[request.number]);
    std::vector<ServedClass> classes;
    for (auto& [kind, sums] : byName) {
        sums.kind = kind;
        sortSamples(sums);
        classes.push_back(std::move(sums));
    }
    return classes;
}

ServedClass allClasses(const std::vector<ServedClass>& classes) {
    ServedClass all;
    for (const ServedClass& each : classes) {
        all.requests += each.requests, all.refused += each.refused, all.pauses += each.pauses, all.open += each.open;
        all.keptFirst += each.keptFirst, all.keptGaps += each.keptGaps, all.good += each.good;
        all.queueNs += each.queueNs;
        for (const auto samples : {&ServedClass::ttft, &ServedClass::gaps, &ServedClass::worst})
            (all.*samples).insert((all.*samples).end(), (each.*samples).begin(), (each.*samples).end());
    }
    sortSamples(all);
    return all;
}

} // namespace kvscope

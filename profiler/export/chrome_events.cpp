#include "profiler/export/chrome_events.h"

#include <cmath>

namespace kvscope {

void ChromeEvents::begin(char phase, int process, int thread) {
    writer_.addText(events_++ == 0 ? "\n" : ",\n");
    writer_.add(R"({{"ph":"{}","pid":{},"tid":{})", phase, process, thread);
}

/// Nanoseconds as microseconds with all digits: rounding would make nested events overlap.
void ChromeEvents::time(std::string_view key, std::int64_t ns) {
    const std::uint64_t size = ns < 0 ? std::uint64_t(0) - std::uint64_t(ns) : std::uint64_t(ns);
    writer_.add(R"(,"{}":{}{}.{:03})", key, ns < 0 ? "-" : "", size / 1000, size % 1000);
}

void ChromeEvents::startTime(std::int64_t ns) { time("ts", sumOf(ns, -originNs_)); }

void ChromeEvents::nameProcess(int process, std::string_view name, int order) {
    begin('M', process, 0);
    writer_.addText(R"(,"name":"process_name","args":{"name":)");
    writer_.addJson(name);
    writer_.addText("}}");
    begin('M', process, 0);
    writer_.add(R"(,"name":"process_sort_index","args":{{"sort_index":{}}}}})", order);
}

int ChromeEvents::addLane(int process, Thread& thread) {
    thread.lanes.push_back({++lastThread_, {}});
    begin('M', process, lastThread_);
    writer_.addText(R"(,"name":"thread_name","args":{"name":)");
    writer_.addJson(thread.name);
    writer_.addText("}}");
    begin('M', process, lastThread_);
    writer_.add(R"(,"name":"thread_sort_index","args":{{"sort_index":{}}}}})", lastThread_);
    return lastThread_;
}

int ChromeEvents::thread(int process, std::string_view name) {
    const auto [known, isNew] = numbers_.try_emplace({process, std::string(name)}, 0);
    if (isNew) {
        Thread added{std::string(name), {}};
        known->second = addLane(process, added);
        threads_.emplace(std::pair(process, known->second), std::move(added));
    }
    return known->second;
}

EventTrack ChromeEvents::slice(const Slice& slice) {
    Thread& thread = threads_.at({slice.process, slice.thread});
    const std::int64_t end = sumOf(slice.startNs, slice.durationNs);
    std::size_t at = 0;
    for (;; ++at) {
        if (at == thread.lanes.size()) addLane(slice.process, thread);
        std::vector<std::int64_t>& open = thread.lanes[at].ends;
        while (!open.empty() && open.back() <= slice.startNs) open.pop_back();
        if (open.empty() || end <= open.back()) break;
    }
    Lane& lane = thread.lanes[at];
    lane.ends.push_back(end);
    begin('X', slice.process, lane.thread);
    startTime(slice.startNs);
    time("dur", slice.durationNs);
    writer_.addText(R"(,"cat":)");
    writer_.addJson(slice.category);
    writer_.addText(R"(,"name":)");
    writer_.addJson(slice.name);
    const std::pair<std::string_view, std::int64_t> arguments[] = {
        {"step", slice.step}, {"layer", slice.layer}, {"bytes", slice.bytes}};
    const char* separator = R"(,"args":{)";
    for (const auto& [key, value] : arguments)
        if (value >= 0) {
            writer_.add(R"({}"{}":{})", separator, key, value);
            separator = ",";
        }
    if (slice.args.size() > 2) { // {} has nothing to say
        writer_.addText(separator);
        writer_.addText(slice.args.substr(1, slice.args.size() - 2));
        separator = ",";
    }
    writer_.addText(*separator == ',' && separator[1] == '\0' ? "}}" : "}");
    writer_.endRow();
    return {slice.process, lane.thread};
}

void ChromeEvents::counter(int process, std::string_view name, std::string_view unit, std::int64_t timeNs,
                           double value) {
    if (!std::isfinite(value)) return;
    begin('C', process, 0);
    startTime(timeNs);
    writer_.addText(R"(,"name":)");
    writer_.addJson(name);
    writer_.addText(R"(,"args":{)");
    writer_.addJson(unit);
    writer_.add(":{}}}}}", value);
    writer_.endRow();
    Last& last = counters_[{process, std::string(name)}];
    last.unit = unit;
    last.timeNs = timeNs;
    last.value = value;
    last.endNs.reset();
}

void ChromeEvents::counterOf(int process, std::string_view name, std::string_view unit, std::int64_t startNs,
                             std::int64_t endNs, double value) {
    if (!std::isfinite(value) || endNs <= startNs) return;
    const auto before = counters_.find({process, std::string(name)});
    if (before != counters_.end() && before->second.endNs && *before->second.endNs < startNs)
        counter(process, name, unit, *before->second.endNs, 0);
    counter(process, name, unit, startNs, value);
    counters_[{process, std::string(name)}].endNs = endNs;
}

void ChromeEvents::closeCounters(std::int64_t timeNs) {
    const auto all = std::exchange(counters_, {});
    for (const auto& [key, last] : all)
        if (last.endNs)
            counter(key.first, key.second, last.unit, *last.endNs, 0);
        else if (last.timeNs < timeNs)
            counter(key.first, key.second, last.unit, timeNs, last.value);
    counters_.clear();
}

void ChromeEvents::flowEnd(std::string_view kind, std::uint64_t number, bool isStart, EventTrack at,
                           std::int64_t timeNs) {
    begin(isStart ? 's' : 'f', at.process, at.thread);
    startTime(timeNs);
    writer_.addText(R"(,"cat":"flow","name":)");
    writer_.addJson(kind);
    writer_.add(R"(,"id":{}{}}})", number, isStart ? "" : R"(,"bp":"e")");
    writer_.endRow();
}

void ChromeEvents::flow(std::string_view kind, EventTrack from, std::int64_t fromNs, EventTrack to, std::int64_t toNs) {
    const std::uint64_t number = ++lastFlow_;
    flowEnd(kind, number, true, from, fromNs);
    flowEnd(kind, number, false, to, toNs);
}

} // namespace kvscope

#include "profiler/import/timeline_builder.h"

#include "profiler/import/open_spans.h"
#include "profiler/sqlite/row_inserter.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace kvscope {
namespace {

constexpr std::int64_t kRun = 1;
constexpr std::int64_t kSpansPerLook = 1 << 16;

/// Receives the ends of all flows in the order of time, pairs them by key and inserts a row per connection.
class FlowBinder {
public:
    FlowBinder(Connection& connection, ImportLosses& losses)
        : insert_(connection, "INSERT INTO flow(run_id, from_span, to_span) VALUES (?,?,?)", true), losses_(losses) {}

    void starts(FlowKey key, std::int64_t span) { from_[key] = span; }
    void ends(FlowKey key, std::int64_t span, bool last) {
        const auto start = from_.find(key);
        if (start == from_.end()) {
            ++losses_.unbound;
            return;
        }
        insert_.bindAll(kRun, start->second, span).run();
        ++count_;
        if (last)
            from_.erase(start);
        else
            start->second = span;
    }
    /// Connects `span` to the start of its flow and keeps that start, because one launch can start many kernels.
    void reaches(FlowKey key, std::int64_t span) {
        const auto start = from_.find(key);
        if (start == from_.end()) return; // the launch was not recorded; this is no loss
        insert_.bindAll(kRun, start->second, span).run();
        ++count_;
    }
    std::int64_t count() const { return count_; }

private:
    Statement insert_;
    ImportLosses& losses_;
    std::unordered_map<FlowKey, std::int64_t> from_;
    std::int64_t count_ = 0;
};

} // namespace

TimelineBuilder::TimelineBuilder(const std::string& folder)
    : details_(folder), spans_(folder), edges_(folder), counters_(folder) {}

TimelineBuilder::Track TimelineBuilder::addTrack() {
    labels_.emplace_back();
    return Track(labels_.size() - 1);
}

void TimelineBuilder::label(Track track, std::string text, std::string suffix) {
    labels_[track] = {std::move(text), std::move(suffix), 0};
}

bool TimelineBuilder::usable(std::int64_t timeNs) {
    if (timeNs < -kLatestNs || timeNs > kLatestNs) {
        ++losses_.untimed;
        return false;
    }
    earliestNs_ = std::min(earliestNs_, timeNs);
    latestNs_ = std::max(latestNs_, timeNs);
    return true;
}

TimelineBuilder::Detail TimelineBuilder::detailOf(const Span& span) {
    Detail detail;
    if (!span.category.empty()) detail.category = names_.id(span.category);
    if (span.args.size() > kLongestArgs)
        ++losses_.longArgs;
    else
        detail.args = details_.add(span.args);
    return detail;
}

/// Category and arguments of a range from both of its ends; where both name the same argument, the end's value wins.
TimelineBuilder::Detail TimelineBuilder::merged(const Detail& open, const Detail& close) {
    Detail both = open;
    if (both.category == kNoCategory) both.category = close.category;
    if (open.args.length == 0) both.args = close.args;
    if (open.args.length == 0 || close.args.length == 0) return both;
    auto args = nlohmann::ordered_json::parse(details_.read(open.args), nullptr, false);
    const auto more = nlohmann::ordered_json::parse(details_.read(close.args), nullptr, false);
    if (!args.is_object() || !more.is_object()) return both;
    args.update(more);
    both.args = details_.add(args.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return both;
}

void TimelineBuilder::add(const Span& span) {
    if (span.durationNs > kLatestNs) {
        ++losses_.untimed;
        return;
    }
    if (!usable(span.startNs)) return;
    addRecord(span, detailOf(span));
}

void TimelineBuilder::addRecord(const Span& span, const Detail& detail) {
    if (span.durationNs < 0) ++losses_.negative;
    const std::int64_t length = std::max<std::int64_t>(span.durationNs, 0);
    latestNs_ = std::max(latestNs_, span.startNs + length);
    spans_.add({span.startNs, length, detail, span.flow, sequence_++, span.track, span.name, span.step, span.layer,
                span.kind, span.endsFlow, span.startsFlow, false, FlowEnd::Start});
    ++spanCount_;
}

void TimelineBuilder::addEdge(std::uint64_t channel, const Span& span, bool opens, bool named) {
    if (usable(span.startNs))
        edges_.add({span.startNs, detailOf(span), sequence_++, channel, span.track, span.name, span.step, span.layer,
                    span.kind, opens, named});
}

void TimelineBuilder::open(std::uint64_t channel, const Span& span) { addEdge(channel, span, true, true); }
void TimelineBuilder::close(std::uint64_t channel, const Span& span, bool named) {
    addEdge(channel, span, false, named);
}

void TimelineBuilder::addFlow(Track track, std::int64_t timeNs, FlowKey key, FlowEnd end) {
    if (usable(timeNs))
        spans_.add({timeNs, 0, {}, key, sequence_++, track, 0, -1, -1, Kind::Range, false, false, true, end});
}

void TimelineBuilder::addCounter(Track counter, std::int64_t timeNs, double value) {
    if (usable(timeNs)) counters_.add({timeNs, sequence_++, value, counter});
}

void TimelineBuilder::joinEdges(const std::stop_token& stop) {
    std::unordered_map<std::uint64_t, std::vector<Edge>> channels;
    const auto join = [&](const Edge& open, std::int64_t endNs) {
        if (endNs - open.time > kLatestNs) {
            ++losses_.untimed;
            return;
        }
        Span span;
        span.track = open.track;
        span.name = open.name;
        span.kind = open.kind;
        span.step = open.step;
        span.layer = open.layer;
        span.startNs = open.time;
        span.durationNs = endNs - open.time;
        addRecord(span, open.detail);
    };
    std::int64_t seen = 0;
    edges_.drain([&](const Edge& edge) {
        if (++seen % kSpansPerLook == 0) throwIfCancelled(stop);
        std::vector<Edge>& stack = channels[edge.channel];
        if (edge.opens) {
            stack.push_back(edge);
            return;
        }
        auto found = stack.rbegin();
        if (edge.named)
            found = std::find_if(stack.rbegin(), stack.rend(), [&](const Edge& o) { return o.name == edge.name; });
        if (found == stack.rend()) {
            ++losses_.unopened;
            return;
        }
        if (edge.step >= 0) found->step = edge.step; // either end may name the step and the layer
        if (edge.layer >= 0) found->layer = edge.layer;
        if (!edge.detail.empty()) found->detail = merged(found->detail, edge.detail);
        const auto at = found.base() - 1;
        for (auto inner = stack.rbegin(); inner != found; ++inner) {
            ++losses_.unclosed; // the range around it ended, so it ends there too
            join(*inner, edge.time);
        }
        join(*at, edge.time);
        stack.erase(at, stack.end());
        if (stack.empty()) channels.erase(edge.channel);
    });
    for (const auto& [channel, stack] : channels)
        for (const Edge& open : stack) {
            ++losses_.unclosed;
            join(open, latestNs_);
        }
}

void TimelineBuilder::uniqueLabels() {
    std::map<std::string, int> uses;
    for (const Label& label : labels_) ++uses[label.text];
    std::set<std::string> taken;
    for (Label& label : labels_) {
        std::string text = label.text.empty() ? std::string("track") : label.text;
        if (uses[label.text] > 1 && !label.suffix.empty()) text += " " + label.suffix;
        std::string unique = text;
        for (int number = 2; !taken.insert(unique).second; ++number) unique = fmt::format("{} #{}", text, number);
        label.name = names_.id(unique);
    }
}

void TimelineBuilder::writeTexts(Connection& connection) {
    RowInserter texts(connection, "text", "id, value");
    texts.expect(names_.size());
    for (std::uint32_t id = 0; id < names_.size(); ++id)
        texts.add(std::int64_t(id) + 1, std::string_view(names_.text(id)));
}

void TimelineBuilder::writeSpans(Connection& connection, std::int64_t originNs, Written& written,
                                 const Progress& progress, const std::stop_token& stop) {
    RowInserter rows(connection, "span", "id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth");
    rows.expect(std::size_t(spanCount_));
    Statement insertDetail(connection, "INSERT INTO span_detail(id, category, args) VALUES (?,?,?)", true);
    FlowBinder flows(connection, losses_);
    std::vector<OpenSpans> open(labels_.size(), OpenSpans(kDeepest));
    std::unordered_map<Track, std::vector<std::pair<FlowKey, bool>>> waiting; // flows that end at the track's next span
    spans_.drain([&](const Record& record) {
        OpenSpans& track = open[record.track];
        if (record.isFlow) {
            const OpenSpans::Found enclosing = track.innermost(record.time);
            const bool next = record.end == FlowEnd::FinishAtNext;
            if (next && !(enclosing.id >= 0 && enclosing.startNs == record.time))
                waiting[record.track].emplace_back(record.flow, true);
            else if (enclosing.id < 0)
                ++losses_.unbound;
            else if (record.end == FlowEnd::Start)
                flows.starts(record.flow, enclosing.id);
            else
                flows.ends(record.flow, enclosing.id, record.end != FlowEnd::Step);
            return;
        }
        const std::int64_t id = ++written.spans;
        const OpenSpans::Place place = track.place(record.time, record.length, id);
        if (place.squeezed) ++losses_.tooDeep;
        rows.add(id, kRun, record.step, record.layer, int(record.kind), std::int64_t(labels_[record.track].name) + 1,
                 std::int64_t(record.name) + 1, record.time - originNs, record.length, place.depth);
        if (!record.detail.empty()) {
            insertDetail.bind(1, id);
            if (record.detail.category == kNoCategory)
                insertDetail.bindNull(2);
            else
                insertDetail.bind(2, std::int64_t(record.detail.category) + 1);
            const std::string args = details_.read(record.detail.args);
            if (args.empty())
                insertDetail.bindNull(3);
            else
                insertDetail.bind(3, std::string_view(args));
            insertDetail.run();
        }
        if (record.endsFlow) flows.reaches(record.flow, id);
        if (record.startsFlow) flows.starts(record.flow, id);
        if (!waiting.empty())
            if (const auto due = waiting.find(record.track); due != waiting.end()) {
                for (const auto& [key, last] : due->second) flows.ends(key, id, last);
                waiting.erase(due);
            }
        if (id % kSpansPerLook == 0) {
            throwIfCancelled(stop);
            report(progress, double(id) / double(std::max<std::int64_t>(spanCount_, 1)), "sorting and writing spans");
        }
    });
    for (const auto& [track, keys] : waiting) losses_.unbound += std::int64_t(keys.size());
    written.flows = flows.count();
}

void TimelineBuilder::writeCounters(Connection& connection, std::int64_t originNs, Written& written,
                                    const std::stop_token& stop) {
    RowInserter rows(connection, "gauge", "run_id, track, time_ns, value");
    rows.expect(std::size_t(counters_.count()));
    counters_.drain([&](const Sample& sample) {
        rows.add(kRun, std::int64_t(labels_[sample.track].name) + 1, sample.time - originNs, sample.value);
        if (++written.counters % kSpansPerLook == 0) throwIfCancelled(stop);
    });
}

TimelineBuilder::Written TimelineBuilder::write(const std::string& path, const std::string& shownAs,
                                                std::optional<std::int64_t> originNs, const Progress& progress,
                                                const std::stop_token& stop) {
    joinEdges(stop);
    uniqueLabels();
    Written written;
    written.originNs = originNs.value_or(earliestNs_);
    Connection connection(path, Connection::Mode::ReadWrite, shownAs);
    // No other program sees the file yet, and a half-written file is thrown away, so SQLite needs no journal.
    connection.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536; BEGIN IMMEDIATE");
    writeTexts(connection);
    writeSpans(connection, written.originNs, written, progress, stop);
    writeCounters(connection, written.originNs, written, stop);
    connection.execute("COMMIT");
    return written;
}

} // namespace kvscope

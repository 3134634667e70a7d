// A serving run made by a rule: three rows, iterations of 10 ms, prompts that take two of them, one request that is
// refused, one that is paused for three iterations and whose next token is therefore late, and one that has no end.
#pragma once

#include "core/trace/serving_record.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h"

#include <deque>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::synthetic {

inline constexpr std::int64_t kIterationNs = 10'000'000;
inline constexpr int kServingRows = 3;

class SyntheticServer {
public:
    /// At least four requests. open: the last one never ends.
    explicit SyntheticServer(int requests, bool open = true) : open_(open) {
        for (int i = 0; i < requests; ++i) {
            Served& served = served_.emplace_back();
            served.request.number = i;
            served.request.kind = i % 2 == 0 ? "even" : "odd";
            served.request.arrivalNs = i * kIterationNs - 3'000'000 * (i > 0);
            served.request.promptTokens = 100 + 10 * i, served.request.maxTokens = 4 + i % 3;
            served.request.ttftBoundMs = 1000, served.request.tbtBoundMs = 25;
            served.span = {i, "queued", served.request.arrivalNs, 0, -1, -1};
        }
    }

    /// The whole run, an iteration a record.
    std::vector<ServingRecord> records() {
        std::vector<ServingRecord> all;
        for (int iteration = 0; iteration < 1000 && !done(); ++iteration) all.push_back(advance(iteration));
        return all;
    }

private:
    struct Served {
        ServedRequest request;
        RequestSpan span;
        int prompt = 2, row = -1; // iterations that its prompt still takes
        bool told = false;
    };
    bool done() const {
        for (const Served& served : served_)
            if (served.request.endNs < 0 && !(open_ && &served == &served_.back())) return false;
        return !open_ || served_.back().request.outputTokens > 0;
    }
    void enter(Served& served, const char* state, std::int64_t ns, ServingRecord& record) {
        served.span.endNs = ns;
        if (served.span.state == "paused") served.request.pausedNs += ns - served.span.startNs;
        record.spans.push_back(served.span);
        served.span = {served.request.number, state, ns, 0, -1, -1};
        served.request.status = state;
    }
    int freeRow() const {
        for (int row = 0; row < kServingRows; ++row) {
            bool used = false;
            for (const Served& served : served_) used |= served.row == row;
            if (!used) return row;
        }
        return -1;
    }
    ServingRecord advance(int iteration) {
        ServingRecord record;
        const std::int64_t begin = iteration * kIterationNs, end = begin + kIterationNs - 500'000;
        ServingIteration row;
        row.iteration = iteration, row.startNs = begin, row.durationNs = end - begin;
        row.predictedNs = kIterationNs, row.limitedBy = "none";
        row.availableBytes = 8 << 20, row.deviceBytes = 1 << 20, row.hostBytes = 64 << 20;
        for (Served& served : served_) {
            ServedRequest& request = served.request;
            if (request.arrivalNs > begin || request.endNs >= 0) continue;
            served.told = true;
            if (request.number == 1 && request.status == "queued") {
                enter(served, "", begin, record);
                request.status = "refused", request.reason = "it can never run", request.endNs = begin;
                ++row.refused;
                continue;
            }
            if (served.row < 0 && (served.row = freeRow()) < 0) {
                ++row.waiting, row.limitedBy = "rows";
                continue;
            }
            serve(served, row, end, record);
        }
        for (const IterationMember& member : row.members)
            (member.prefill ? row.prefillNs : row.decodeNs) += 2'000'000, row.workingSetBytes += member.workingSetBytes;
        for (Served& served : served_) {
            if (served.told) record.requests.push_back(served.request);
            if (served.request.endNs >= 0) served.row = -1; // free for the next iteration
        }
        record.iterations.push_back(std::move(row));
        return record;
    }
    void serve(Served& served, ServingIteration& row, std::int64_t end, ServingRecord& record) {
        ServedRequest& request = served.request;
        request.row = served.row;
        if (request.status == "queued") {
            enter(served, "prefill", row.startNs, record);
            request.firstScheduledNs = row.startNs;
            ++row.admitted;
        }
        if (request.number == 2 && request.status == "decode" && request.outputTokens == 2 && request.pauses == 0) {
            enter(served, "paused", row.startNs, record);
            ++request.pauses;
        }
        if (request.status == "paused") {
            if (row.startNs - served.span.startNs < 3 * kIterationNs) {
                ++row.paused;
                return;
            }
            enter(served, "decode", row.startNs, record);
        }
        IterationMember member;
        member.request = request.number, member.row = served.row;
        member.workingSetBytes = 1 << 20;
        if (served.span.firstIteration < 0) served.span.firstIteration = row.iteration;
        served.span.lastIteration = row.iteration;
        if (request.status == "prefill") {
            member.prefill = true, member.tokens = request.promptTokens;
            member.layerFrom = served.prompt == 2 ? 0 : 2, member.layerTo = member.layerFrom + 2;
            if (--served.prompt == 0) member.tokenNs = end;
        } else {
            member.tokens = 1, member.tokenNs = end;
            member.hits = 15, member.misses = 1, member.missedBytes = 4096;
            request.hits += 15, request.misses += 1, request.missedBytes += 4096;
        }
        row.members.push_back(member);
        if (member.tokenNs < 0) return;
        ++request.outputTokens;
        if (request.outputTokens == 1) {
            request.firstTokenNs = end;
            enter(served, "decode", end, record);
        }
        if (request.outputTokens < request.maxTokens || (open_ && &served == &served_.back())) return;
        enter(served, "", end, record);
        request.status = "length", request.endNs = end;
    }

    const bool open_;
    std::deque<Served> served_;
};

/// Records such a run into a new file.
inline void recordServing(const std::filesystem::path& path, int requests = 12, bool open = true,
                          RunStatus status = RunStatus::Finished) {
    RecorderOptions options;
    options.level = RecordLevel::Counters;
    Recorder recorder(path.string(), options);
    RunInfo info = infoOf(RunShape{});
    info.name = "served";
    info.meta.emplace_back("serving", R"({"rows":3})");
    info.prompts = {};
    recorder.beginRun(info);
    for (ServingRecord& record : SyntheticServer(requests, open).records())
        recorder.take(std::make_unique<ServingRecord>(std::move(record)));
    recorder.endRun(status, "");
    recorder.flush();
    if (const std::string error = recorder.health().error; !error.empty()) throw std::runtime_error(error);
}

} // namespace kvscope::synthetic

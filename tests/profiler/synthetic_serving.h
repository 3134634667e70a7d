// A serving run made by a rule: three rows, iterations of 10 ms, prompts that take two of them, one request that is
// refused, one that is paused for three iterations and whose next token is therefore late, and one that has no end.
#pragma once

#include "core/trace/serving_record.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::synthetic {

inline constexpr std::int64_t kIterationNs = 10'000'000;
inline constexpr int kServingRows = 3, kServingLayers = 4, kServingHeads = 2;
inline constexpr int kServingBlock = 16; // tokens

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
            served.span = {i, ServedState::Queued, served.request.arrivalNs, 0, -1, -1};
        }
    }

    /// The whole run, an iteration a record.
    std::vector<ServingRecord> records() {
        std::vector<ServingRecord> all;
        for (int iteration = 0; iteration < 1000 && !done(); ++iteration) all.push_back(advance(iteration));
        return all;
    }
    /// The decode steps of these iterations.
    const std::vector<StepRecord>& steps() const { return steps_; }

private:
    struct Served {
        ServedRequest request;
        RequestSpan span;
        int prompt = 2, row = -1; // iterations that its prompt still takes
        bool told = false;
        std::vector<std::int32_t> before[kServingLayers][kServingHeads]; // what it selected last
    };
    bool done() const {
        for (const Served& served : served_)
            if (served.request.endNs < 0 && !(open_ && &served == &served_.back())) return false;
        return !open_ || served_.back().request.outputTokens > 0;
    }
    static void endSpan(Served& served, std::int64_t ns, ServingRecord& record) {
        served.span.endNs = ns;
        if (served.span.state == ServedState::Paused) served.request.pausedNs += ns - served.span.startNs;
        record.spans.push_back(served.span);
    }
    static void enter(Served& served, ServedState state, std::int64_t ns, ServingRecord& record) {
        endSpan(served, ns, record);
        served.span = {served.request.number, state, ns, 0, -1, -1};
        served.request.status = statusOf(state);
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
        step_ = {};
        step_.step = iteration, step_.layers.resize(kServingLayers);
        for (Served& served : served_) {
            ServedRequest& request = served.request;
            if (request.arrivalNs > begin || request.endNs >= 0) continue;
            served.told = true;
            if (request.number == 1 && request.status == ServedStatus::Queued) {
                endSpan(served, begin, record);
                request.status = ServedStatus::Refused, request.reason = "it can never run", request.endNs = begin;
                ++row.refused;
                continue;
            }
            const bool joins = served.row < 0;
            if (joins && (served.row = freeRow()) < 0) {
                ++row.waiting, row.limitedBy = "rows";
                continue;
            }
            if (joins) addEvent(served, RowEventKind::Admitted, iteration, begin, record);
            serve(served, row, end, record);
        }
        for (const IterationMember& member : row.members)
            (member.prefill ? row.prefillNs : row.decodeNs) += 2'000'000, row.workingSetBytes += member.workingSetBytes;
        for (Served& served : served_) {
            if (served.told) record.requests.push_back(served.request);
            if (served.request.endNs < 0 || served.row < 0) continue;
            addEvent(served, RowEventKind::Released, iteration + 1, end, record);
            served.row = -1; // free for the next iteration
        }
        if (step_.tokens > 0) {
            step_.startNs = begin + row.prefillNs, step_.durationNs = row.decodeNs;
            for (LayerRecord& layer : step_.layers) layer.startNs = step_.startNs;
            steps_.push_back(step_);
        }
        record.iterations.push_back(std::move(row));
        return record;
    }
    static void addEvent(const Served& served, RowEventKind kind, int iteration, std::int64_t ns,
                         ServingRecord& record) {
        record.events.push_back({iteration, served.row, served.request.number, kind, ns});
    }
    /// Selects three blocks in every layer and KV head: the first, one that changes, and the newest. The first block of
    /// layer 0 and KV head 0 is missed.
    void select(Served& served, IterationMember& member) {
        const int made = served.request.outputTokens, position = served.request.promptTokens + made - 1;
        step_.tokens += 1;
        step_.fed.push_back({served.row, position});
        for (int layer = 0; layer < kServingLayers; ++layer) {
            LayerRecord& sum = step_.layers[std::size_t(layer)];
            for (int head = 0; head < kServingHeads; ++head) {
                const std::vector<std::int32_t> blocks{0, 1 + (made / 2 + layer + head) % 4, position / kServingBlock};
                std::vector<std::int32_t>& before = served.before[layer][head];
                SelectionRecord selection;
                selection.layer = layer, selection.sequence = served.row, selection.kvHead = head;
                selection.selected = int(blocks.size());
                selection.first = std::uint32_t(step_.blocks.size());
                selection.misses = layer == 0 && head == 0 ? 1 : 0;
                selection.hits = selection.selected - selection.misses;
                if (!before.empty()) {
                    selection.kept = 0;
                    for (const std::int32_t block : blocks)
                        selection.kept += int(std::count(before.begin(), before.end(), block));
                }
                sum.kept = sum.kept < 0 || selection.kept < 0 ? -1 : sum.kept + selection.kept;
                sum.selected += selection.selected, sum.hits += selection.hits, sum.misses += selection.misses;
                sum.h2dBlocks += selection.misses, sum.h2dBytes += 4096 * selection.misses;
                member.hits += selection.hits, member.misses += selection.misses;
                member.missedBytes += 4096 * selection.misses;
                step_.blocks.emplace_back(blocks[0], Origin::Sink, selection.misses == 0);
                step_.blocks.emplace_back(blocks[1], Origin::QueryAware, true);
                step_.blocks.emplace_back(blocks[2], Origin::Window, true);
                step_.selections.push_back(selection);
                before = blocks;
            }
        }
    }
    void serve(Served& served, ServingIteration& row, std::int64_t end, ServingRecord& record) {
        ServedRequest& request = served.request;
        request.row = served.row;
        if (request.status == ServedStatus::Queued) {
            enter(served, ServedState::Prefill, row.startNs, record);
            request.firstScheduledNs = row.startNs;
            ++row.admitted;
        }
        if (request.number == 2 && request.status == ServedStatus::Decode && request.outputTokens == 2 &&
            request.pauses == 0) {
            enter(served, ServedState::Paused, row.startNs, record);
            addEvent(served, RowEventKind::Paused, row.iteration, row.startNs, record);
            ++request.pauses;
        }
        if (request.status == ServedStatus::Paused) {
            if (row.startNs - served.span.startNs < 3 * kIterationNs) {
                ++row.paused;
                return;
            }
            enter(served, ServedState::Decode, row.startNs, record);
            addEvent(served, RowEventKind::Resumed, row.iteration, row.startNs, record);
        }
        IterationMember member;
        member.request = request.number, member.row = served.row;
        member.workingSetBytes = 1 << 20;
        if (served.span.firstIteration < 0) served.span.firstIteration = row.iteration;
        served.span.lastIteration = row.iteration;
        if (request.status == ServedStatus::Prefill) {
            member.prefill = true, member.tokens = request.promptTokens;
            member.layerFrom = served.prompt == 2 ? 0 : 2, member.layerTo = member.layerFrom + 2;
            if (--served.prompt == 0) member.tokenNs = end;
        } else {
            member.tokens = 1, member.tokenNs = end;
            select(served, member);
            request.hits += member.hits, request.misses += member.misses, request.missedBytes += member.missedBytes;
        }
        row.members.push_back(member);
        if (member.tokenNs < 0) return;
        ++request.outputTokens;
        if (request.outputTokens == 1) {
            request.firstTokenNs = end;
            enter(served, ServedState::Decode, end, record);
        }
        if (request.outputTokens < request.maxTokens || (open_ && &served == &served_.back())) return;
        endSpan(served, end, record);
        request.status = ServedStatus::Length, request.endNs = end;
    }

    const bool open_;
    std::deque<Served> served_;
    StepRecord step_; // of the iteration that is made
    std::vector<StepRecord> steps_;
};

/// What a run says of such a server, costs included, so that it can be simulated.
inline constexpr const char* kServerFacts =
    R"({"rows":3,"ttft_bound_ms":1000,"tbt_bound_ms":25,"cache":"global-lru","device_kv_bytes":524288,)"
    R"("host_kv_bytes":67108864,"scratch_bytes":16777216,"costs":{"decode_ms":[[1,4],[3,6]],"decode_us_per_ktoken":0,)"
    R"("prefill_us_per_token":10,"prefill_ps_per_token2":0,"shape":{"layers":4,"kv_heads":2,"block_tokens":16,)"
    R"("block_bytes":4096,"index_bytes_per_token":64,"selected_blocks":3,"hidden":64,"host_run_blocks":1,)"
    R"("piece_tokens":512}}})";

/// Records such a run into a new file. steps: with the steps and selections of its rows. serving: what the run says of
/// its server.
inline void recordServing(const std::filesystem::path& path, int requests = 12, bool open = true,
                          RunStatus status = RunStatus::Finished, bool steps = false,
                          const char* serving = R"({"rows":3})") {
    RecorderOptions options;
    options.level = steps ? RecordLevel::Selections : RecordLevel::Counters;
    Recorder recorder(path.string(), options);
    RunInfo info = infoOf(RunShape{});
    info.name = "served";
    info.sequences = kServingRows;
    info.meta.emplace_back("serving", serving);
    info.prompts = {};
    if (steps)
        info.knows = info.knows.without(Known::StageTimes).without(Known::TransferTimes).without(Known::ExposedTimes);
    recorder.beginRun(info);
    SyntheticServer server(requests, open);
    for (ServingRecord& record : server.records()) recorder.take(std::make_unique<ServingRecord>(std::move(record)));
    if (steps)
        for (const StepRecord& step : server.steps()) recorder.take(std::make_unique<StepRecord>(step));
    recorder.endRun(status, "");
    recorder.flush();
    if (const std::string error = recorder.health().error; !error.empty()) throw std::runtime_error(error);
}

} // namespace kvscope::synthetic

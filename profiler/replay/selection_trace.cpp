#include "profiler/replay/selection_trace.h"

#include "kernels/base/error.h"
#include "profiler/read/reader_impl.h"
#include "profiler/store/selection_blob.h"
#include "profiler/store/trace_keys.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <unordered_map>

namespace kvscope {
namespace {

// More than any run has; they keep damaged numbers from taking memory or overflowing sums.
constexpr std::int32_t kMaxBlocks = 1 << 22;
constexpr std::int64_t kMaxBlockBytes = std::int64_t(1) << 32;

struct FedToken {
    int step = 0; // index into SelectionTrace::steps
    std::int64_t position = 0;
};

/// Index of every recorded step among the decode steps.
class StepIndex {
public:
    explicit StepIndex(const std::vector<StepRow>& rows) {
        for (const StepRow& row : rows) index_.emplace(row.step, row.phase == Phase::Decode ? decodeSteps_++ : -1);
    }
    bool knows(int step) const { return index_.contains(step); }
    int operator[](int step) const { return index_.at(step); } // -1: the prefill

private:
    std::unordered_map<int, int> index_;
    int decodeSteps_ = 0;
};

std::string recordedPolicy(const std::string& paramsJson) {
    const auto params = nlohmann::json::parse(paramsJson, nullptr, false);
    if (!params.is_object() || !params.contains("cache_policy") || !params["cache_policy"].is_string()) return {};
    return params["cache_policy"].get<std::string>();
}

/// Steps in which a head of a selecting layer attended everything leave no selection, but they use its block slots.
void addDenseSteps(HeadTrace& head, std::span<const FedToken> fed, int blockSize) {
    if (blockSize <= 0 || head.requests.size() >= fed.size()) return;
    const HeadTrace recorded = std::move(head);
    head = HeadTrace{recorded.sequence, recorded.layer, recorded.kvHead, -1, {}, {}};
    std::size_t next = 0;
    const auto copyOne = [&] {
        const BlockRequest& request = recorded.requests[next++];
        head.add(request.step, recorded.blocksOf(request), request.fresh);
        head.requests.back().hits = request.hits;
        head.requests.back().misses = request.misses;
    };
    std::vector<std::int32_t> all;
    for (const FedToken& token : fed) {
        while (next < recorded.requests.size() && recorded.requests[next].step < token.step) copyOne();
        if (next < recorded.requests.size() && recorded.requests[next].step == token.step) {
            copyOne();
            continue;
        }
        all.resize(std::size_t(token.position / blockSize) + 1);
        std::iota(all.begin(), all.end(), 0);
        head.add(token.step, all, token.position % blockSize == 0 ? all.back() : -1);
        head.requests.back().selected = false;
    }
    while (next < recorded.requests.size()) copyOne();
}

/// What was resident before the first step, and blocks whose first step the recorder dropped.
void settle(HeadTrace& head, std::span<const ReplayStep> steps) {
    int previousStep = -1;
    std::int32_t previousTail = -1;
    for (BlockRequest& request : head.requests) {
        if (request.count == 0) continue;
        const std::int32_t current = head.blocksOf(request).back();
        const int step = steps[std::size_t(request.step)].step;
        if (previousTail < 0)
            head.tail = request.fresh < 0 ? current : -1;
        else if (step != previousStep + 1 && current != previousTail)
            request.fresh = current;
        previousStep = step;
        previousTail = current;
    }
}

[[noreturn]] void damaged(const Connection& connection, const std::string& what) {
    throw Error(ErrorKind::BadInput, fmt::format("{} is damaged ({})", connection.path(), what), "record it again");
}

/// The heads of a run while they are read, by layer, sequence and KV head.
class Heads {
public:
    explicit Heads(std::vector<HeadTrace>& heads) : heads_(heads) {}
    HeadTrace& at(int layer, int sequence, int kvHead) {
        const auto [entry, isNew] =
            index_.try_emplace(trace::selectionKey(0, 0, layer, sequence, kvHead), heads_.size());
        if (isNew) heads_.push_back({sequence, layer, kvHead, -1, {}, {}});
        return heads_[entry->second];
    }

private:
    std::vector<HeadTrace>& heads_;
    std::map<std::int64_t, std::size_t> index_;
};

/// @return whether there are selections without blocks
bool readSelections(Connection& connection, const StepIndex& index, int lastStep, SelectionTrace& trace, Heads& heads) {
    const RunRow& run = trace.run;
    const auto [low, high] = trace::keysOfSteps(run.runId, 0, lastStep, trace::kSelectionShift);
    Statement rows(connection, "SELECT id, opens_block, hits, misses, blocks FROM selection"
                               " WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(low, high);
    DecodedSelection decoded;
    while (rows.step()) {
        const std::int64_t id = rows.int64(0);
        const int step = trace::stepOf(id, trace::kSelectionShift), layer = int((id >> 20) & 1023),
                  sequence = int((id >> 10) & 1023), kvHead = int(id & 1023);
        const auto refuse = [&](const char* why) {
            damaged(connection, fmt::format("the selection of step {}, layer {}, sequence {}, KV head {} {}", step,
                                            layer, sequence, kvHead, why));
        };
        if (!index.knows(step)) refuse("belongs to no step");
        if (index[step] < 0) continue;
        if (rows.isNull(4)) return true;
        if (layer >= run.layers || sequence >= run.sequences || kvHead >= run.kvHeads) refuse("is outside the run");
        if (!decodeSelection(rows.blob(4), decoded) || (!decoded.blocks.empty() && decoded.blocks.back() >= kMaxBlocks))
            refuse("cannot be decoded");
        HeadTrace& head = heads.at(layer, sequence, kvHead);
        const bool opens = rows.int64(1) != 0 && !decoded.blocks.empty();
        head.add(index[step], decoded.blocks, opens ? decoded.blocks.back() : -1);
        head.requests.back().hits = rows.int32(2);
        head.requests.back().misses = rows.int32(3);
        trace.hits += rows.int32(2);
        trace.misses += rows.int32(3);
    }
    return false;
}

/// What each sequence fed in the decode steps.
std::map<int, std::vector<FedToken>> readFedTokens(Connection& connection, const StepIndex& index, int lastStep,
                                                   const RunRow& run) {
    std::map<int, std::vector<FedToken>> fed;
    const auto [low, high] = trace::keysOfSteps(run.runId, 0, lastStep, trace::kTokenShift);
    Statement rows(connection, "SELECT id, position FROM token WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(low, high);
    while (rows.step()) {
        const std::int64_t id = rows.int64(0), position = rows.int64(1) - 1; // the token was made from the one before
        const int step = trace::stepOf(id, trace::kTokenShift), sequence = int((id >> 10) & 1023);
        if (!index.knows(step) || index[step] < 0 || (id & 1023) != 0) continue;
        if (position < 0 || position / std::max(run.blockSize, 1) >= kMaxBlocks || sequence >= run.sequences)
            damaged(connection, fmt::format("the token of step {}, sequence {}, position {} is outside the run", step,
                                            sequence, position));
        fed[sequence].push_back({index[step], position});
    }
    return fed;
}

} // namespace

void HeadTrace::add(int step, std::span<const std::int32_t> wanted, std::int32_t fresh) {
    requests.push_back({step, blocks.size(), wanted.size(), fresh, true, 0, 0});
    blocks.insert(blocks.end(), wanted.begin(), wanted.end());
}

std::int32_t HeadTrace::blockLimit() const {
    return blocks.empty() ? 0 : *std::max_element(blocks.begin(), blocks.end()) + 1;
}

std::size_t HeadTrace::largestSet() const {
    std::size_t largest = 0;
    for (const BlockRequest& request : requests) largest = std::max(largest, request.count);
    return largest;
}

SelectionTrace loadSelectionTrace(const TraceReader& reader, int runId) {
    const TraceReader::Impl& impl = *reader.impl_;
    SelectionTrace trace;
    trace.run = impl.known(runId);
    trace.cachePolicy = recordedPolicy(trace.run.paramsJson);
    if (trace.run.blockBytes < 0 || trace.run.blockBytes > kMaxBlockBytes)
        impl.damaged(fmt::format("run {} has block_bytes = {}", runId, trace.run.blockBytes));
    const std::vector<StepRow> rows = reader.steps(runId);
    for (const StepRow& row : rows)
        if (row.phase == Phase::Decode) trace.steps.push_back({row.step, row.tokens, row.durationNs, row.exposedNs});
    if (trace.steps.empty())
        throw Error(ErrorKind::BadInput, fmt::format("run {} of {} has no decode steps", runId, reader.path()),
                    "record a run that generates tokens");

    const StepIndex index(rows);
    const int lastStep = rows.back().step; // a live run may have grown since
    Heads heads(trace.heads);
    if (readSelections(*impl.connection, index, lastStep, trace, heads))
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} was recorded at level counters: it has no selected blocks to replay",
                                runId, reader.path()),
                    "record it with --record selections");
    if (trace.heads.empty())
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} has no selections: its method attends every block", runId, reader.path()),
                    "record a sparse method, e.g. --method nosa");

    std::set<int> layers;
    for (const HeadTrace& head : trace.heads) layers.insert(head.layer);
    const auto fed = readFedTokens(*impl.connection, index, lastStep, trace.run);
    for (const auto& [sequence, tokens] : fed)
        for (const int layer : layers)
            for (int kvHead = 0; kvHead < trace.run.kvHeads; ++kvHead)
                addDenseSteps(heads.at(layer, sequence, kvHead), tokens, trace.run.blockSize);
    for (HeadTrace& head : trace.heads) {
        settle(head, trace.steps);
        trace.largestSet = std::max(trace.largestSet, head.largestSet());
    }
    if (trace.run.deviceSlots > 0 && trace.largestSet > std::size_t(trace.run.deviceSlots))
        impl.damaged(fmt::format("run {} attends {} blocks at a time out of {} block slots", runId, trace.largestSet,
                                 trace.run.deviceSlots));
    return trace;
}

} // namespace kvscope

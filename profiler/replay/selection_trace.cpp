#include "profiler/replay/selection_trace.h"

#include "base/error.h"
#include "core/trace/run_meta.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/step_kind.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace kvscope {
namespace {

// Replays keep arrays of all block numbers below the largest one. Where a run has larger ids, which the format allows,
// its blocks get other numbers.
constexpr std::int32_t kMaxBlocks = 1 << 22;
// A limit beyond what any run has. Damaged numbers must not overflow sums.
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

[[noreturn]] void damaged(const Connection& connection, const std::string& what) {
    throw Error(ErrorKind::BadInput, fmt::format("{} is damaged ({})", connection.path(), what), "record it again");
}

/// Whose a selection is: of a serving run the request's number; else the sequence, and above it which of its prompts it
/// has begun.
std::int64_t promptOwner(const PromptSteps& prompts, int step, int sequence) {
    return std::int64_t(prompts.promptAt(sequence, step)) << 10 | sequence;
}

/// The numbers that a replay gives to blocks: their ids or, where these are too large, their places among the ids that
/// the run selects, so that the order stays.
class BlockNumbers {
public:
    BlockNumbers() = default; // the ids
    explicit BlockNumbers(std::vector<std::int32_t> ids) : ids_(std::move(ids)) {
        std::sort(ids_.begin(), ids_.end());
        ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    }
    bool areIds() const { return ids_.empty(); }
    std::size_t count() const { return ids_.size(); }
    void number(std::vector<PackedBlock>& blocks) const {
        if (areIds()) return;
        for (PackedBlock& block : blocks)
            block = {std::int32_t(std::lower_bound(ids_.begin(), ids_.end(), block.id()) - ids_.begin()),
                     block.origin(), block.hit()};
    }

private:
    std::vector<std::int32_t> ids_; // ascending
};

/// By sequence or, of a serving run, by request; in step order.
using FedTokens = std::map<std::int64_t, std::vector<FedToken>>;

/// Builds the pools of a run while its selections are read, step by step.
class Pools {
public:
    Pools(SelectionTrace& trace, const FedTokens& fed, const ServedRows& served)
        : trace_(trace), fed_(fed), served_(served),
          severalPrompts_(served.empty() && trace.run.prompts.severalPrompts()) {}

    /// sequence: its owner, as promptOwner says or, of a serving run, the request.
    void addSelection(int step, int layer, std::int64_t sequence, int kvHead, std::span<const PackedBlock> blocks,
                      bool opens, RecordedOutcome recorded) {
        Pool& pool = at(layer, sequence, kvHead);
        addDenseSteps(pool, step);
        if (pool.nextFed < pool.fed.size() && pool.fed[pool.nextFed].step == step) ++pool.nextFed;
        add(pool, step, blocks, opens, true, recorded);
    }
    /// Adds the last steps of heads that attended to everything up to the end, in layers where other heads selected.
    void finish() {
        std::set<int> layers;
        for (const PoolTrace& pool : trace_.pools) layers.insert(pool.layer);
        for (const auto& [sequence, tokens] : fed_)
            for (const int layer : layers)
                for (int kvHead = 0; kvHead < trace_.run.kvHeads; ++kvHead)
                    addDenseSteps(at(layer, sequence, kvHead), int(trace_.steps.size()));
        for (const PoolTrace& pool : trace_.pools) trace_.largest = std::max(trace_.largest, pool.visits.largest());
        if (severalPrompts_) addLeaves();
    }

private:
    struct Pool {
        std::size_t index = 0; // into SelectionTrace::pools
        std::span<const FedToken> fed;
        std::size_t nextFed = 0;
        int lastStep = -1;      // number of the last recorded step
        std::int32_t tail = -1; // the last block of the request before
    };

    Pool& at(int layer, std::int64_t sequence, int kvHead) {
        const auto [entry, isNew] =
            pools_.try_emplace(std::tuple(layer, sequence, kvHead), Pool{trace_.pools.size(), {}, 0, -1, -1});
        if (isNew) {
            PoolTrace& pool = trace_.pools.emplace_back();
            pool.sequence = served_.empty() ? int(sequence & 1023) : served_.rowOf(sequence);
            if (!served_.empty()) pool.request = sequence;
            if (severalPrompts_) pool.request = requests_.try_emplace(sequence, std::ssize(requests_)).first->second;
            pool.layer = layer, pool.kvHead = kvHead;
            const auto fed = fed_.find(sequence);
            if (fed != fed_.end()) entry->second.fed = fed->second;
        }
        return entry->second;
    }
    /// A prompt that another one follows in its sequence leaves where that one begins.
    void addLeaves() {
        for (const PromptSteps::Begin& begin : trace_.run.prompts.begins())
            if (const int prompt = trace_.run.prompts.promptAt(begin.sequence, begin.step); prompt > 0)
                if (const auto left = requests_.find(std::int64_t(prompt - 1) << 10 | begin.sequence);
                    left != requests_.end())
                    trace_.leaves.push_back({begin.step, left->second});
        std::sort(trace_.leaves.begin(), trace_.leaves.end(), [](const RequestLeave& a, const RequestLeave& b) {
            return std::pair(a.step, a.request) < std::pair(b.step, b.request);
        });
    }
    /// Adds the steps before `end` in which a head of a layer that selects has attended to everything. A trace has no
    /// selection of such a step, but the step uses the head's slots.
    void addDenseSteps(Pool& pool, int end) {
        for (; pool.nextFed < pool.fed.size() && pool.fed[pool.nextFed].step < end; ++pool.nextFed) {
            const FedToken& token = pool.fed[pool.nextFed];
            if (trace_.run.blockSize <= 0) continue;
            if (trace_.renumbered)
                throw Error(ErrorKind::Unsupported,
                            fmt::format("run {} has block ids of {} and more, and steps that attend to every block: "
                                        "these are too many to replay",
                                        trace_.run.runId, kMaxBlocks),
                            "choose a run with smaller ids");
            const int blocks = token.position / trace_.run.blockSize + 1;
            while (all_.count() < blocks) all_.emplace_back(all_.count(), Origin{}, true);
            add(pool, token.step, NumberedSpan<const PackedBlock>(all_).first(blocks),
                token.position % trace_.run.blockSize == 0, false, {});
        }
    }
    void add(Pool& pool, int step, std::span<const PackedBlock> blocks, bool opens, bool counted,
             RecordedOutcome recorded) {
        PoolTrace& out = trace_.pools[pool.index];
        const auto append = [&](int at, std::span<const PackedBlock> wanted, std::int32_t fresh, bool isCounted) {
            out.visits.add(wanted, fresh, isCounted);
            out.steps.push_back(at);
            out.recorded.push_back(isCounted ? recorded : RecordedOutcome{});
        };
        std::int32_t fresh = -1;
        if (!blocks.empty()) {
            const std::int32_t current = blocks.back().id();
            const int recordedStep = trace_.steps[step].step;
            const bool dropped = pool.tail >= 0 && recordedStep != pool.lastStep + 1 && current != pool.tail;
            if (opens || dropped) fresh = current; // the block began in this step, or in a step that was not recorded
            if (pool.tail < 0 && !opens) append(-1, blocks.last(1), current, false);
            pool.lastStep = recordedStep;
            pool.tail = current;
        }
        append(step, blocks, fresh, counted);
    }

    SelectionTrace& trace_;
    const FedTokens& fed_;
    const ServedRows& served_;
    const bool severalPrompts_;                     // of some sequence: each has pools of its own, as requests have
    std::map<std::int64_t, std::int64_t> requests_; // [owner] its number, where there are several prompts
    std::map<std::tuple<int, std::int64_t, int>, Pool> pools_; // by layer, sequence and KV head
    Numbered<PackedBlock> all_;                                // block i at place i
};

enum class Blocks : std::uint8_t {
    Read,
    Missing, // there are selections without blocks
    TooFar   // some id is too large for a number of a block
};

Blocks readSelections(Connection& connection, const StepIndex& index, int lastStep, const ServedRows& served,
                      const BlockNumbers& numbers, SelectionTrace& trace, Pools& pools, const Progress& progress,
                      const std::stop_token& stop) {
    const RunRow run = trace.run;
    const auto [low, high] = trace::keysOfSteps(run.runId, 0, lastStep, trace::kSelectionShift);
    Statement rows(connection, "SELECT id, opens_block, hits, misses, blocks FROM selection"
                               " WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(low, high);
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    for (std::int64_t row = 0; rows.step(); ++row) {
        const std::int64_t id = rows.int64(0);
        const int step = trace::stepOf(id, trace::kSelectionShift), layer = int((id >> 20) & 1023),
                  sequence = int((id >> 10) & 1023), kvHead = int(id & 1023);
        if (row % 4096 == 0) {
            throwIfCancelled(stop);
            report(progress, double(step) / (double(lastStep) + 1), "reading selections");
        }
        const auto refuse = [&](const char* why) {
            damaged(connection, fmt::format("the selection of step {}, layer {}, sequence {}, KV head {} {}", step,
                                            layer, sequence, kvHead, why));
        };
        if (!index.knows(step)) refuse("belongs to no step");
        if (index[step] < 0) continue;
        if (rows.isNull(4)) return Blocks::Missing;
        if (layer >= run.layers || sequence >= run.sequences || kvHead >= run.kvHeads) refuse("is outside the run");
        if (!decodeSelection(rows.blob(4), blocks, scores)) refuse("cannot be decoded");
        numbers.number(blocks);
        if (!blocks.empty() && blocks.back().id() >= kMaxBlocks) return Blocks::TooFar;
        const RecordedOutcome recorded{rows.int32(2), rows.int32(3)};
        const std::int64_t owner =
            served.empty() ? promptOwner(run.prompts, step, sequence) : served.requestAt(step, sequence);
        if (owner < 0) refuse("is of no request");
        pools.addSelection(index[step], layer, owner, kvHead, blocks, rows.int64(1) != 0 && !blocks.empty(), recorded);
        trace.hits += recorded.hits;
        trace.misses += recorded.misses;
        if (!trace.isCold(index[step])) continue;
        trace.coldHits += recorded.hits;
        trace.coldMisses += recorded.misses;
    }
    report(progress, 1, "reading selections");
    return Blocks::Read;
}

/// The ids that the run selects. @throws Error(Unsupported): too many
BlockNumbers blockNumbersOf(Connection& connection, const RunRow& run, int lastStep, const std::stop_token& stop) {
    const auto [low, high] = trace::keysOfSteps(run.runId, 0, lastStep, trace::kSelectionShift);
    Statement rows(connection, "SELECT blocks FROM selection WHERE id BETWEEN ? AND ? AND blocks IS NOT NULL");
    rows.bindAll(low, high);
    std::unordered_set<std::int32_t> ids;
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    while (rows.step()) {
        throwIfCancelled(stop);
        if (!decodeSelection(rows.blob(0), blocks, scores)) damaged(connection, "a selection cannot be decoded");
        for (const PackedBlock block : blocks) ids.insert(block.id());
        if (ids.size() >= std::size_t(kMaxBlocks))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("run {} of {} selects {} different blocks or more, which are too many to replay",
                                    run.runId, connection.path(), kMaxBlocks),
                        "choose a shorter run, or one with larger blocks");
    }
    return BlockNumbers({ids.begin(), ids.end()});
}

/// The tokens that each sequence has fed in the decode steps.
FedTokens readFedTokens(Connection& connection, const StepIndex& index, int lastStep, const RunRow& run) {
    FedTokens fed;
    const auto [low, high] = trace::keysOfSteps(run.runId, 0, lastStep, trace::kTokenShift);
    Statement rows(connection, "SELECT id, position FROM token WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(low, high);
    while (rows.step()) {
        const std::int64_t id = rows.int64(0), position = rows.int64(1) - 1; // the token before was fed in this step
        const int step = trace::stepOf(id, trace::kTokenShift), sequence = int((id >> 10) & 1023);
        if (!index.knows(step) || index[step] < 0 || (id & 1023) != 0) continue;
        if (run.prompts.readsPieceOf(sequence, step)) continue; // the token that the end of a prompt gives
        if (position < 0 || position / std::max(run.blockSize, 1) > PackedBlock::kMaxId || sequence >= run.sequences)
            damaged(connection, fmt::format("the token of step {}, sequence {}, position {} is outside the run", step,
                                            sequence, position));
        fed[promptOwner(run.prompts, step, sequence)].push_back({index[step], position});
    }
    return fed;
}

/// As readFedTokens, of a serving run, whose tokens are not in the trace.
FedTokens servedTokens(const Connection& connection, const StepIndex& index, const ServedRows& served,
                       const RunRow& run) {
    FedTokens fed;
    for (const ServedRows::Decoded& decoded : served.decoded()) {
        if (!index.knows(decoded.step) || index[decoded.step] < 0) continue;
        if (decoded.position < 0 || decoded.position / std::max(run.blockSize, 1) >= kMaxBlocks)
            damaged(connection, fmt::format("request {} decodes in step {} at position {}", decoded.request,
                                            decoded.step, decoded.position));
        fed[decoded.request].push_back({index[decoded.step], decoded.position});
    }
    return fed;
}

/// Fits latency and bandwidth to the exposed time of a layer in a step by its bytes (least squares). Where the bytes do
/// not differ enough, the latency is 0 and the bandwidth explains all of the time.
std::optional<Link> fittedLink(Connection& connection, int runId, int lastStep) {
    const auto [low, high] = trace::keysOfSteps(runId, 0, lastStep, trace::kLayerShift);
    Statement sums(connection,
                   "SELECT count(*), total(h2d_bytes), total(exposed_ns), total(1.0 * h2d_bytes * h2d_bytes),"
                   " total(1.0 * h2d_bytes * exposed_ns) FROM layer_step"
                   " WHERE id BETWEEN ? AND ? AND h2d_bytes > 0");
    sums.bindAll(low, high);
    if (!sums.step() || sums.int64(0) == 0) return std::nullopt;
    const double n = sums.real(0), bytes = sums.real(1), ns = sums.real(2);
    const double spread = sums.real(3) - bytes * bytes / n, slope = (sums.real(4) - bytes * ns / n) / spread;
    const double latency = (ns - slope * bytes) / n;
    if (spread > 0 && slope > 0 && latency >= 0 && std::isfinite(slope))
        return Link{"fitted", 1 / slope, latency / 1e3};
    if (bytes > 0 && ns > 0) return Link{"fitted", bytes / ns, 0};
    return std::nullopt;
}

/// Whether a layer of the run selected blocks, by its own count.
bool countsSelected(Connection& connection, int runId, int lastStep) {
    Statement layers(connection, "SELECT 1 FROM layer_step WHERE id BETWEEN ? AND ? AND selected <> 0 LIMIT 1");
    const auto [first, last] = trace::keysOfSteps(runId, 0, lastStep, trace::kLayerShift);
    layers.bindAll(first, last);
    return layers.step();
}

/// Reads the recorded compute times. trace.run and trace.steps must be set.
void readLayerTimes(Connection& connection, const StepIndex& index, int lastStep, SelectionTrace& trace) {
    const Extents<int, int> cells = trace.layerSteps();
    trace.layerTimes.assign(cells.size(), {});
    const bool measured = trace.run.timing == Timing::Measured;
    const auto [low, high] = trace::keysOfSteps(trace.run.runId, 0, lastStep, trace::kLayerShift);
    // Sums are made as real numbers, because the integers of a damaged file may overflow.
    Statement rows(connection, "SELECT id, 1.0 * qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns +"
                               " offloading_ns, 1.0 * stage2_ns + attention_ns + o_linear_ns + ffn_ns, exposed_ns"
                               " FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(low, high);
    const auto ns = [](double value) { return std::int64_t(std::clamp(value, 0., 1e15)); };
    while (rows.step()) {
        const std::int64_t id = rows.int64(0);
        const int step = trace::stepOf(id, trace::kLayerShift);
        const int layer = int(id & (trace::kMaxLayers - 1));
        if (!index.knows(step) || index[step] < 0 || layer >= trace.run.layers) continue;
        const double waited = measured ? rows.real(3) : 0;
        trace.layerTimes[cells.offset(index[step], layer)] = {ns(rows.real(1) - waited), ns(rows.real(2))};
    }
}

void markCold(const std::vector<StepKind>& kinds, std::vector<ReplayStep>& steps) {
    if (std::ranges::all_of(kinds, isLeftOut)) return;
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i].cold = isLeftOut(kinds[i]);
}

/// One sequence's part of a shared pool. The blocks of the sequences have different numbers there.
struct SharedPart {
    const PoolTrace* pool = nullptr;
    std::int32_t shift = 0;           // added to the sequence's block numbers
    std::size_t next = 0;             // the next request of the sequence's own pool
    std::vector<std::int32_t> blocks; // blocks of its last request, shifted
    bool present = false;             // the sequence had a request in the last step
};

void mergeStep(std::vector<SharedPart>& parts, std::int32_t step, PoolTrace& out) {
    std::vector<BlockVisits::Entry> entered;
    std::vector<std::int32_t> left, now;
    int size = 0, counted = 0;
    for (SharedPart& part : parts) {
        const bool takesPart = part.next < part.pool->steps.size() && part.pool->steps[part.next] == step;
        if (!takesPart) {
            if (part.present) left.insert(left.end(), part.blocks.begin(), part.blocks.end());
            part.present = false;
            continue;
        }
        const BlockVisits& visits = part.pool->visits;
        const std::size_t request = part.next++;
        const bool returns = !part.present && request > 0; // the sequence's blocks left in a step without its request
        part.present = true;
        const bool isCounted = visits.counted(request) > 0;
        now.clear();
        const auto arrivals = visits.entered(request);
        std::size_t nextLeft = 0, arrival = 0;
        const auto gone = visits.left(request);
        const auto arrive = [&] {
            entered.push_back(arrivals[arrival++].shifted(part.shift));
            now.push_back(entered.back().block());
        };
        for (const std::int32_t block : part.blocks) {
            while (arrival < arrivals.size() && arrivals[arrival].block() + part.shift < block) arrive();
            if (nextLeft < gone.size() && gone[nextLeft] + part.shift == block) {
                ++nextLeft;
                if (!returns) left.push_back(block);
                continue;
            }
            if (returns) entered.emplace_back(block, false, isCounted, false);
            now.push_back(block);
        }
        while (arrival < arrivals.size()) arrive();
        part.blocks = now;
        size += visits.size(request);
        counted += visits.counted(request);
    }
    out.visits.addChange(entered, left, size, counted);
    out.steps.push_back(step);
}

} // namespace

std::optional<Link> recordedLink(const TraceReader& reader, const RunRow& run, int lastStep) {
    if (run.linkGbps > 0) return Link{"recorded", run.linkGbps, run.linkLatencyUs};
    return fittedLink(*ReaderAccess::of(reader).connection, run.runId, lastStep < 0 ? trace::kMaxStep : lastStep);
}

double SelectionTrace::computeNs(const ReplayStep& step) const {
    if (!run.knows.has(Known::StepTimes)) return std::numeric_limits<double>::quiet_NaN();
    const bool measured = run.timing == Timing::Measured;
    return std::max(0.0, double(step.durationNs) - (measured ? double(step.exposedNs) : 0.0));
}

std::vector<std::uint8_t> SelectionTrace::coldRequests(const PoolTrace& pool) const {
    if (std::ranges::none_of(steps, &ReplayStep::cold)) return {};
    std::vector<std::uint8_t> cold;
    for (const std::int32_t step : pool.steps) cold.push_back(isCold(step) ? 1 : 0);
    return cold;
}

SelectionTrace loadSelectionTrace(const TraceReader& reader, int runId, const Progress& progress,
                                  const std::stop_token& stop) {
    const TraceReader::Impl& impl = *reader.impl_;
    SelectionTrace trace;
    trace.run = impl.known(runId);
    trace.cachePolicy = recordedPolicy(trace.run.paramsJson);
    if (trace.run.blockBytes < 0 || trace.run.blockBytes > kMaxBlockBytes)
        impl.damaged(fmt::format("run {} has block_bytes = {}", runId, trace.run.blockBytes));
    const std::vector<StepRow> rows = reader.steps(runId);
    std::vector<StepRow> decodeSteps;
    for (const StepRow& row : rows) {
        if (row.phase != Phase::Decode) continue;
        decodeSteps.push_back(row);
        trace.steps.push_back({row.step, int(row.decodeTokens()), row.durationNs, row.exposedNs});
        for (const auto& [sum, value, what] :
             {std::tuple(&trace.h2dBytes, row.h2dBytes, "h2d_bytes"), {&trace.exposedNs, row.exposedNs, "exposed_ns"}})
            if (value < 0 || __builtin_add_overflow(*sum, value, sum))
                impl.damaged(fmt::format("step {} of run {} has {} = {}", row.step, runId, what, value));
    }
    if (trace.steps.empty())
        throw Error(ErrorKind::BadInput, fmt::format("run {} of {} has no decode steps", runId, reader.path()),
                    "record a run that generates tokens");
    markCold(kindsOf(reader, trace.run, decodeSteps), trace.steps);

    if (!trace.run.metaOr(run_meta::kDenoisingBlock).empty())
        throw Error(ErrorKind::Unsupported,
                    fmt::format("run {} of {} is of a diffusion model, whose dense forwards read everything without a "
                                "selection: there is no whole list of requests to replay",
                                runId, reader.path()),
                    "choose a run that decodes token by token");
    const StepIndex index(rows);
    const int lastStep = rows.back().step; // later steps of a live run are left out
    if (const auto link = recordedLink(reader, trace.run, lastStep)) trace.link = *link;
    readLayerTimes(*impl.connection, index, lastStep, trace);
    ServedRows served;
    if (trace.run.serves()) served = ServedRows(*impl.connection, trace.run, lastStep);
    trace.leaves = served.leaves();
    const FedTokens fed = served.empty() ? readFedTokens(*impl.connection, index, lastStep, trace.run)
                                         : servedTokens(*impl.connection, index, served, trace.run);
    std::optional<Pools> pools(std::in_place, trace, fed, served);
    Blocks found = readSelections(*impl.connection, index, lastStep, served, {}, trace, *pools, progress, stop);
    if (found == Blocks::TooFar) {
        const BlockNumbers numbers = blockNumbersOf(*impl.connection, trace.run, lastStep, stop);
        trace.pools.clear();
        trace.hits = trace.misses = trace.coldHits = trace.coldMisses = 0;
        trace.renumbered = true;
        pools.emplace(trace, fed, served);
        found = readSelections(*impl.connection, index, lastStep, served, numbers, trace, *pools, progress, stop);
    }
    if (found == Blocks::Missing)
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} was recorded at level counters: it has no selected blocks to replay",
                                runId, reader.path()),
                    "record it with --record selections");
    if (trace.pools.empty() && !trace.run.knows.has(Known::Selections))
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} does not know which blocks were selected: there is nothing to replay",
                                runId, reader.path()),
                    "record it with an engine that writes its selections");
    if (trace.pools.empty() && countsSelected(*impl.connection, runId, lastStep))
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} has no selections, only how many blocks its layers selected", runId,
                                reader.path()),
                    "record it with --record selections");
    if (trace.pools.empty())
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} has no selections: its method attends every block", runId, reader.path()),
                    "record a sparse method, e.g. --method nosa");
    pools->finish();
    if (trace.run.deviceSlots > 0 && trace.largest > trace.run.deviceSlots)
        impl.damaged(fmt::format("run {} attends {} blocks at a time out of {} block slots", runId, trace.largest,
                                 trace.run.deviceSlots));
    return trace;
}

SelectionTrace withSharedPools(const SelectionTrace& trace) {
    SelectionTrace shared = trace.withoutPools();
    shared.shared = true;
    std::map<std::pair<int, int>, std::vector<SharedPart>> parts; // by layer and KV head
    for (const PoolTrace& pool : trace.pools) parts[{pool.layer, pool.kvHead}].push_back({&pool, 0, 0, {}, false});
    for (auto& [place, members] : parts) {
        PoolTrace& pool = shared.pools.emplace_back();
        pool.sequence = -1;
        pool.layer = place.first;
        pool.kvHead = place.second;
        std::sort(members.begin(), members.end(), [](const SharedPart& a, const SharedPart& b) {
            return std::pair(a.pool->sequence, a.pool->request) < std::pair(b.pool->sequence, b.pool->request);
        });
        std::int64_t blocks = 0;
        std::set<std::int32_t> steps;
        for (SharedPart& part : members) {
            part.shift = std::int32_t(blocks);
            blocks += part.pool->visits.blockLimit();
            steps.insert(part.pool->steps.begin(), part.pool->steps.end());
            if (blocks > BlockVisits::kMaxBlock)
                throw Error(ErrorKind::Unsupported,
                            fmt::format("the sequences of run {} have too many blocks for one pool", trace.run.runId),
                            "replay it without --shared-pool");
        }
        for (const std::int32_t step : steps) mergeStep(members, step, pool);
        shared.largest = std::max(shared.largest, pool.visits.largest());
    }
    return shared;
}

} // namespace kvscope

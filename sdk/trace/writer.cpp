#include "sdk/trace/writer.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"
#include "sdk/trace/arguments.h"
#include "sdk/trace/rank_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

namespace kvscope::sdk {
namespace {

constexpr unsigned kAllKnown = (1u << unsigned(kKnownCount)) - 1;

/// Translates the bits of kvtrace_knows into those of Known, which have the same order.
Knowledge knowledgeOf(unsigned bits) {
    Knowledge knowledge = Knowledge::nothing();
    for (unsigned i = 0; i < unsigned(kKnownCount); ++i)
        if ((bits >> i & 1u) != 0) knowledge = knowledge.with(Known(i));
    return knowledge;
}

void requireWithin(const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most)
        refuse(KVTRACE_INVALID, "kvtrace_run_info: ", what, " is ", std::to_string(value), "; a trace holds ",
               std::to_string(least), " to ", std::to_string(most));
}

RunPrompts promptsOf(const kvtrace_run_info& info) {
    if (info.prompt_count == 0) return {};
    if (info.prompt_count != info.sequences)
        refuse(KVTRACE_INVALID, "kvtrace_run_info: there are ", std::to_string(info.prompt_count), " prompts for ",
               std::to_string(info.sequences), " sequences; pass one for each, an empty one where it is not known");
    required(info.prompts, "kvtrace_run_info.prompts");
    auto ids = std::make_shared<RunPrompts::Ids>();
    auto texts = std::make_shared<std::map<std::int32_t, std::string>>();
    for (std::int32_t i = 0; i < info.prompt_count; ++i) {
        const kvtrace_prompt& prompt = info.prompts[i];
        if (prompt.count < 0) refuse(KVTRACE_INVALID, "prompt ", std::to_string(i), " has a negative count");
        if (prompt.count > 0) required(prompt.ids, "kvtrace_prompt.ids");
        ids->emplace_back(prompt.ids, prompt.ids + prompt.count);
        for (std::int64_t at = 0; at < prompt.count; ++at) {
            if (prompt.ids[at] < 0)
                refuse(KVTRACE_INVALID, "token ", std::to_string(at), " of prompt ", std::to_string(i), " is negative");
            texts->emplace(prompt.ids[at], pieceOf(prompt.text, prompt.offsets, at));
        }
    }
    return {ids, [texts](std::int32_t id) { return texts->at(id); }};
}

RunInfo infoOf(const kvtrace_run_info& given, RecordLevel level) {
    requireWithin("block_size", given.block_size, 1, 1 << 30);
    requireWithin("layers", given.layers, 1, trace::kMaxLayers);
    requireWithin("kv_heads", given.kv_heads, 1, trace::kMaxKvHeads);
    requireWithin("sequences", given.sequences, 1, trace::kMaxSequences);
    for (const auto& [what, value] : {std::pair("query_heads", std::int64_t(given.query_heads)),
                                      {"head_dim", given.head_dim},
                                      {"device_slots", given.device_slots},
                                      {"budget_blocks", given.budget_blocks},
                                      {"sink_blocks", given.sink_blocks},
                                      {"window_blocks", given.window_blocks},
                                      {"prompt_count", given.prompt_count}})
        requireWithin(what, value, 0, 1 << 30);
    requireWithin("block_bytes", given.block_bytes, 0, std::int64_t(1) << 50);
    if ((given.knows & KVTRACE_KNOWS_SELECTIONS) != 0 && given.block_bytes == 0)
        refuse(KVTRACE_INVALID,
               "kvtrace_run_info: block_bytes is 0; give the bytes of block_size tokens of one KV head, keys and "
               "values, so that a cache of another size can be replayed");
    requireWithin("knows", given.knows, 0, kAllKnown);
    requireWithin("meta_count", given.meta_count, 0, 1 << 16);
    if (given.modelled != 0 && !(std::isfinite(given.link_gbps) && given.link_gbps > 0))
        refuse(KVTRACE_INVALID, "kvtrace_run_info: modelled transfer times need link_gbps above 0");
    RunInfo info;
    info.name = textOf(given.name);
    info.model = textOf(given.model);
    info.method = textOf(given.method);
    if (info.method.empty()) refuse(KVTRACE_INVALID, "kvtrace_run_info: method is empty; give a name, e.g. \"dsa\"");
    info.paramsJson = textOf(given.params_json);
    if (!info.paramsJson.empty() && !parseJson(info.paramsJson).is_object())
        refuse(KVTRACE_INVALID, "kvtrace_run_info: params_json is ", shown(info.paramsJson),
               "; give one JSON object, e.g. {\"k\": 64}");
    info.backend = textOf(given.backend);
    if (info.backend.empty()) info.backend = "cpu";
    if (info.backend != "cpu" && info.backend != "cuda")
        refuse(KVTRACE_INVALID, "kvtrace_run_info: backend is \"", info.backend, "\"; give \"cpu\" or \"cuda\"");
    info.device = textOf(given.device);
    info.link = textOf(given.link);
    info.linkTiming = given.modelled != 0 ? Timing::Modelled : Timing::Measured;
    info.linkGbps = given.link_gbps;
    info.linkLatencyUs = given.link_latency_us;
    info.blockSize = given.block_size;
    info.layers = given.layers;
    info.kvHeads = given.kv_heads;
    info.queryHeads = given.query_heads;
    info.headDim = given.head_dim;
    info.sequences = given.sequences;
    info.deviceSlots = given.device_slots;
    info.budgetBlocks = given.budget_blocks;
    info.blockBytes = given.block_bytes;
    info.level = level;
    info.knows = knowledgeOf(given.knows);
    info.meta = {{run_meta::kEngine, "unknown"}, {run_meta::kEngineVersion, "unknown"}};
    for (std::int64_t i = 0; i < given.meta_count; ++i) {
        const kvtrace_pair& pair = required(given.meta, "kvtrace_run_info.meta")[i];
        const std::string key = textOf(pair.key);
        if (key.empty()) refuse(KVTRACE_INVALID, "meta ", std::to_string(i), " has no key");
        if (key == run_meta::kKnows)
            refuse(KVTRACE_INVALID, "meta \"knows\" is written by the library; set kvtrace_run_info.knows");
        info.meta.emplace_back(key, textOf(pair.value));
    }
    info.prompts = promptsOf(given);
    return info;
}

} // namespace

Writer::Writer(std::string path, const RecorderOptions& options, std::optional<int> processRank, int every)
    : rank(processRank), sampleEvery(every > 2 ? every : 1), path_(std::move(path)),
      recorder_(std::make_shared<Recorder>(path_, options)) {}

void Writer::settle() {
    {
        const std::lock_guard lock(mutex);
        held_ = recorder_;
    }
    if (held_) held_->hold();
}

void Writer::resume() {
    if (!held_) return;
    held_->letGo();
    held_.reset();
}

std::shared_ptr<Recorder> Writer::recorder() const {
    const std::lock_guard lock(mutex);
    if (!recorder_) refuse(KVTRACE_CLOSED, "the writer of ", path_, " is closed; open the file again");
    return recorder_;
}

std::shared_ptr<Recorder> Writer::close() {
    const std::lock_guard lock(mutex);
    return std::exchange(recorder_, nullptr);
}

void Writer::requireWritable() const {
    const RecorderHealth health = recorder()->health();
    if (!health.error.empty()) refuse(KVTRACE_STORAGE, health.error);
}

void Writer::requireRoom() const {
    if (recorder()->health().full)
        refuse(KVTRACE_STATE, path_,
               " has reached kvtrace_options.max_file_bytes, so that its run has ended; the steps "
               "before are complete, go on with another file");
}

Run::Run(std::shared_ptr<Writer> owner, const kvtrace_run_info& info)
    : writer(std::move(owner)), counts(std::make_shared<RunCounts>()), layers(info.layers), kvHeads(info.kv_heads),
      sequences(info.sequences),
      hasSlots(info.device_slots > 0), rules{info.block_size, info.sink_blocks, info.window_blocks},
      level(writer->recorder()->level()), knows_(info.knows), requests_(info.sequences) {
    RunInfo begun = infoOf(info, level);
    hasPrompts_ = info.prompt_count > 0;
    readsClocks_ = addRankFacts(begun.meta, writer->rank, began_);
    for (const auto& [key, value] : begun.meta)
        if (key == run_meta::kIndexLeader) writesLeaders_ = false;
    if (writer->sampleEvery > 1) begun.meta.emplace_back("sample_every", std::to_string(writer->sampleEvery));
    writer->recorder()->beginRun(begun);
    if (readsClocks_) writer->recorder()->take(readClocks(began_));
}

void Run::addClock(ClockReading reading) {
    requireOpen();
    writer->recorder()->take(std::vector<ClockReading>{std::move(reading)});
}

void Run::lookAtClocks() {
    constexpr auto kRest = std::chrono::seconds(10);
    const auto now = std::chrono::steady_clock::now();
    if (!readsClocks_ || now - clocksRead_ < kRest) return;
    clocksRead_ = now;
    writer->recorder()->take(readClocks(began_));
}

std::int64_t Run::now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began_).count();
}

bool Run::beginStep(StepRecord& record, int phase, std::int64_t startNs) {
    const std::lock_guard lock(mutex_);
    if (ended_) refuse(KVTRACE_STATE, "this run has ended; begin another one");
    if (phase < KVTRACE_PREFILL || phase > KVTRACE_MIXED)
        refuse(
            KVTRACE_INVALID, "phase ", std::to_string(phase),
            " is none; give KVTRACE_PREFILL or KVTRACE_DECODE, or KVTRACE_PROMPT or KVTRACE_MIXED for prompts that are "
            "read in pieces");
    if (phase == KVTRACE_PREFILL && hasBegunSteps_)
        refuse(KVTRACE_STATE, "a run has one prefill, before its decode steps; begin another run for another prompt");
    const bool timed = knows(KVTRACE_KNOWS_STEP_TIMES);
    const std::int64_t start = !timed ? 0 : startNs == KVTRACE_NOW ? now() : startNs;
    requireTime("the start of a step", start);
    if (start < lastStartNs_)
        refuse(KVTRACE_INVALID, "a step starts at ", std::to_string(start),
               " ns, before the step before it, which started at ", std::to_string(lastStartNs_), " ns");
    record.phase = phase == KVTRACE_PREFILL || phase == KVTRACE_PROMPT ? Phase::Prefill : Phase::Decode;
    record.startNs = lastStartNs_ = start;
    hasBegunSteps_ = true;
    ++openSteps_;
    if (phase == KVTRACE_PREFILL) prefillOpen_ = true;
    return record.phase != Phase::Decode || begunDecodes_++ % writer->sampleEvery < 2;
}

/// Places a step behind the one before it. Where steps overlap by the library's own clock, which several threads read,
/// the later one counts from the end of the earlier.
void Run::placeInTime(StepRecord& record, bool ownClock) const {
    const std::int64_t late = lastEndNs_ - record.startNs;
    if (late <= 0) return;
    if (!ownClock)
        refuse(KVTRACE_INVALID, "a step starts at ", std::to_string(record.startNs),
               " ns, before the one that was committed "
               "before it ends, at ",
               std::to_string(lastEndNs_), " ns");
    record.startNs += late;
    record.durationNs = std::max<std::int64_t>(record.durationNs - late, 0);
}

void Run::findKept(StepRecord& record) {
    std::vector<std::uint8_t> undefined(record.layers.size(), 0);
    for (SelectionRecord& row : record.selections) {
        const std::span<const PackedBlock> now = record.blocksOf(row);
        Chosen& before =
            chosen_[std::uint64_t(row.layer) << 20 | std::uint64_t(row.sequence) << 10 | std::uint64_t(row.kvHead)];
        row.kept = before.step >= 0 && before.step == lastDecode_ ? commonBlocks(before.blocks, now) : -1;
        before.step = record.step;
        before.blocks.assign(now.begin(), now.end());
        LayerRecord& layer = record.layers[std::size_t(row.layer)];
        if (row.kept < 0)
            undefined[std::size_t(row.layer)] = 1;
        else
            layer.kept += row.kept;
    }
    for (std::size_t i = 0; i < record.layers.size(); ++i)
        if (undefined[i] != 0) record.layers[i].kept = -1;
}

/// What the sequence selects next is of another prompt, whose blocks are others: nothing of it was kept.
void Run::forgetChosen(int sequence) {
    for (auto& [key, before] : chosen_)
        if ((key >> 10 & 1023) == std::uint64_t(sequence)) before.step = -2;
}

std::int64_t Run::addSpans(std::vector<EngineSpan> spans) {
    const std::lock_guard lock(mutex_); // a run that another thread begins meanwhile does not get these spans
    if (ended_) refuse(KVTRACE_STATE, "this run has ended; begin another one");
    const std::int64_t first = spans_.fetch_add(std::int64_t(spans.size())) + 1;
    for (std::size_t i = 0; i < spans.size(); ++i) spans[i].number = first + std::int64_t(i);
    writer->recorder()->offer(std::move(spans));
    return first;
}

void Run::addFlow(std::int64_t from, std::int64_t to) {
    requireOpen();
    for (const std::int64_t number : {from, to})
        if (number < 1 || number > spans_.load())
            refuse(KVTRACE_INVALID, "a flow has span ", std::to_string(number), ", but the run has ",
                   std::to_string(spans_.load()), "; pass numbers of kvtrace_spans, counted on from *first");
    if (from == to) refuse(KVTRACE_INVALID, "a flow leads from span ", std::to_string(from), " to itself");
    writer->recorder()->offer(EngineFlow{from, to});
}

std::int32_t Run::beginRequest(const kvtrace_request& request) {
    const std::lock_guard lock(mutex_);
    if (ended_) refuse(KVTRACE_STATE, "this run has ended; begin another one");
    std::int32_t row = -1;
    EngineRequest begun = requests_.begin(request, now(), row);
    forgetChosen(row);
    writer->recorder()->offer(std::move(begun));
    return row;
}

void Run::endRequest(std::int32_t row, std::int32_t outcome, std::string reason, std::int64_t endNs) {
    const std::lock_guard lock(mutex_);
    if (ended_) refuse(KVTRACE_STATE, "this run has ended; end its requests before");
    const std::int64_t ends = endNs == KVTRACE_NOW ? now() : endNs;
    requireTime("the end of a request", ends);
    EngineRequest ended = requests_.end(row, outcome, std::move(reason), ends);
    forgetChosen(row);
    writer->recorder()->offer(std::move(ended));
}

/// Refuses pieces that do not follow those before them.
void Run::requireFollowing(const std::vector<PieceRecord>& pieces) const {
    for (const PieceRecord& piece : pieces) {
        const auto read = read_.find(piece.sequence);
        if (!piece.begins && read != read_.end() && piece.first < read->second.end)
            refuse(KVTRACE_INVALID, "a piece of the prompt of sequence ", std::to_string(piece.sequence),
                   " begins at position ", std::to_string(piece.first), ", and the piece before it ends at ",
                   std::to_string(read->second.end), "; set begins where it is another prompt");
    }
}

/// Notes what the pieces read, and leaves out the tokens that the trace has no place for: table prompt holds one prompt
/// for each sequence, without gaps.
void Run::takePieces(std::vector<PieceRecord>& pieces) {
    for (PieceRecord& piece : pieces) {
        Reading& reading = read_[piece.sequence];
        if (piece.begins) {
            ++reading.prompts;
            forgetChosen(piece.sequence);
        }
        reading.end = piece.first + std::int64_t(piece.tokens);
        if (hasPrompts_ || hasPrefill_ || reading.prompts > 1 || reading.kept != piece.first)
            piece.read.clear();
        else
            reading.kept += std::int64_t(piece.read.size());
    }
}

/// Writes into the trace whose selection each layer has, when the first step says it. A later step that says otherwise
/// has it taken out again.
void Run::noteLeaders(const std::vector<int>& leaders) {
    if (!writesLeaders_ || leaders.empty() || leaders == leaders_) return;
    writesLeaders_ = leaders_.empty();
    leaders_ = leaders;
    std::string list; // empty: the key goes away again
    for (int layer = 0; layer < layers && writesLeaders_; ++layer) {
        const int leader = leaders[std::size_t(layer)];
        list += (list.empty() ? "[" : ",") + std::to_string(leader < 0 ? layer : leader);
    }
    if (!list.empty()) list += "]";
    writer->recorder()->offer(MetaRow{run_meta::kIndexLeader, list});
}

void Run::commit(std::unique_ptr<StepRecord> record, bool ownClock, int phase, const std::vector<int>& leaders,
                 bool sampled) {
    const std::lock_guard lock(mutex_);
    if (ended_) refuse(KVTRACE_STATE, "this run has ended; commit its steps before its end");
    const bool prefill = phase == KVTRACE_PREFILL;
    requireFollowing(record->pieces);
    if (prefillOpen_ && !prefill)
        refuse(KVTRACE_STATE, "the prefill of this run is still open; commit or discard it before decode steps");
    if (nextStep_ > trace::kMaxStep) refuse(KVTRACE_UNSUPPORTED, "a run holds 2^25 steps; begin another run");
    placeInTime(*record, ownClock);
    if (prefill) prefillOpen_ = false, hasPrefill_ = true;
    record->step = prefill || (phase == KVTRACE_PROMPT && nextStep_ == 1 && !zeroTaken_) ? 0 : nextStep_++;
    zeroTaken_ |= record->step == 0;
    takePieces(record->pieces);
    lastEndNs_ = record->startNs + record->durationNs;
    std::int64_t at = record->startNs;
    for (LayerRecord& layer : record->layers) { // a layer without times begins where the one before it ends
        const std::int64_t stages = std::accumulate(layer.stageNs.begin(), layer.stageNs.end(), std::int64_t(0));
        if (stages == 0) layer.startNs = at;
        at = layer.startNs + stages;
    }
    --openSteps_;
    findKept(*record);
    noteLeaders(leaders);
    if (record->phase == Phase::Decode) lastDecode_ = record->step;
    if (level == RecordLevel::Counters) record->blocks.clear();
    std::vector<EngineRequest> changed = requests_.take(*record, knows(KVTRACE_KNOWS_STEP_TIMES), now());
    if (!sampled) { // counts of the layers and of requests are those of the selections all the same
        record->selections.clear();
        record->blocks.clear();
        record->scores.clear();
    }
    writer->recorder()->take(std::move(record));
    for (EngineRequest& request : changed) writer->recorder()->offer(std::move(request));
    lookAtClocks();
}

void Run::discard(int phase) {
    const std::lock_guard lock(mutex_);
    if (ended_) return; // end() has counted this step
    --openSteps_;
    if (phase == KVTRACE_PREFILL) prefillOpen_ = false;
    chosen_.clear(); // after the gap nobody knows what the next step kept
    ++counts->discardedSteps;
}

void Run::requireOpen() const {
    const std::lock_guard lock(mutex_);
    if (ended_) refuse(KVTRACE_STATE, "this run has ended; begin another one");
}

void Run::end(RunStatus status, std::string message) {
    {
        const std::lock_guard lock(mutex_);
        if (ended_) return;
        ended_ = true;
        counts->discardedSteps += openSteps_;
        chosen_.clear();
        for (EngineRequest& request : requests_.open()) writer->recorder()->offer(std::move(request));
    }
    std::string missing;
    for (unsigned i = 0; i < unsigned(kKnownCount); ++i)
        if ((knows_ & ~written_.load() & 1u << i) != 0)
            missing += (missing.empty() ? "" : ", ") + std::string(kKnownNames[i]);
    if (!missing.empty())
        message += (message.empty() ? "" : "; ") + ("said to be known, but never written: " + missing);
    // One more reading, which shows how far the clock has drifted.
    if (readsClocks_) writer->recorder()->take(readClocks(began_));
    writer->recorder()->endRun(status, message);
}

} // namespace kvscope::sdk

#include "profiler/format/trace_keys.h"
#include "sdk/trace/arguments.h"
#include "sdk/trace/writer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvscope::sdk {
namespace {

void requireNotNegative(const char* what, std::int64_t value) {
    if (value < 0) refuse(KVTRACE_INVALID, what, " is ", std::to_string(value), "; it cannot be negative");
}

/// Refuses misses in a run that declares no slots, because every block of such a run is resident. A run that records
/// its loads may have misses without slots.
void requireSlots(const Run& run, std::int64_t misses) {
    if (misses > 0 && !run.hasSlots && !run.knows(KVTRACE_KNOWS_BYTES))
        refuse(KVTRACE_INVALID,
               "a block was missed, but kvtrace_run_info.device_slots is 0, which says that every block is "
               "resident; set it to the blocks that a KV head has room for");
}

bool hasHits(const kvtrace_selection& selection) { return selection.hit != nullptr || selection.hit_mask != nullptr; }

/// Refuses what the run has not declared, because readers would not look at it.
[[noreturn]] void refuseUndeclared(const char* what, const char* bit) {
    refuse(KVTRACE_INVALID, what, " is given, but the run does not know it; add ", bit, " to kvtrace_run_info.knows");
}

} // namespace

Step::Step(std::shared_ptr<Run> run, int phase, std::int32_t tokens, std::int64_t startNs)
    : run_(std::move(run)), record_(run_->writer->recorder()->acquire()), phase_(phase),
      counted_(std::size_t(run_->layers)) {
    requireNotNegative("tokens of a step", tokens);
    sampled_ = run_->beginStep(*record_, phase, startNs);
    ownClock_ = startNs == KVTRACE_NOW || !run_->knows(KVTRACE_KNOWS_STEP_TIMES);
    record_->tokens = tokens;
    record_->layers.resize(std::size_t(run_->layers));
    for (LayerRecord& layer : record_->layers) layer.startNs = record_->startNs;
}

void Step::requireSelectable(const kvtrace_selection& of) const {
    const std::string layer = "the selection of layer " + std::to_string(of.layer);
    if (!run_->knows(KVTRACE_KNOWS_SELECTIONS)) refuseUndeclared("a selection", "KVTRACE_KNOWS_SELECTIONS");
    if (record_->phase == Phase::Prefill)
        refuse(KVTRACE_STATE, layer, " belongs to a prefill, where every token selects; record decode steps alone");
    if (of.layer < 0 || of.layer >= run_->layers)
        refuse(KVTRACE_INVALID, layer, " is of no layer: the run has ", std::to_string(run_->layers));
    if (of.rows < 0 || of.heads < 0 || of.k < 0) refuse(KVTRACE_INVALID, layer, " has a negative shape");
    if (of.head0 < 0 || of.heads > run_->kvHeads - of.head0)
        refuse(KVTRACE_INVALID, layer, " has heads ", std::to_string(of.head0), " to ",
               std::to_string(of.head0 + of.heads - 1), ", but the run has ", std::to_string(run_->kvHeads),
               " KV heads");
    if (of.unit < KVTRACE_BLOCKS || of.unit > KVTRACE_BITMASK)
        refuse(KVTRACE_INVALID, layer, " has unit ", std::to_string(of.unit),
               "; give KVTRACE_BLOCKS, KVTRACE_TOKENS or KVTRACE_BITMASK");
    if (of.unit == KVTRACE_BITMASK && (of.hit != nullptr || of.score != nullptr || of.origin != nullptr))
        refuse(KVTRACE_INVALID, layer, " is a bitmask, which has no hit, score or origin; give hits as hit_mask");
    if (of.unit != KVTRACE_BITMASK && of.hit_mask != nullptr)
        refuse(KVTRACE_INVALID, layer, " has a hit_mask, but is no bitmask; give hits as hit");
    if (of.id_type != KVTRACE_INT32 && of.id_type != KVTRACE_INT64)
        refuse(KVTRACE_INVALID, layer, " has id_type ", std::to_string(of.id_type),
               "; give KVTRACE_INT32 or KVTRACE_INT64");
    if (of.rows > 0 && of.heads > 0 && of.k > 0) required(of.ids, "kvtrace_selection.ids");
    if (of.rows > 0) required(of.position, "kvtrace_selection.position");
    if (hasHits(of) && !run_->knows(KVTRACE_KNOWS_HITS)) refuseUndeclared("hit", "KVTRACE_KNOWS_HITS");
    if (!hasHits(of) && run_->knows(KVTRACE_KNOWS_HITS))
        refuse(KVTRACE_INVALID, layer,
               " has no hit, but the run knows hits; pass it, or leave KVTRACE_KNOWS_HITS out of knows");
    for (std::int64_t row = 0; row < of.rows; ++row) {
        const std::int64_t sequence = of.sequence == nullptr ? row : of.sequence[row];
        if (sequence < 0 || sequence >= run_->sequences)
            refuse(KVTRACE_INVALID, layer, " is of sequence ", std::to_string(sequence), ", but the run has ",
                   std::to_string(run_->sequences));
        if (of.position[row] < 0)
            refuse(KVTRACE_INVALID, layer, " has a query at position ", std::to_string(of.position[row]));
        if (readsPrompt(int(sequence)))
            refuse(KVTRACE_STATE, layer, " is of sequence ", std::to_string(sequence),
                   ", which reads its prompt in this step; record the sequences that decode alone");
        for (const SelectionRecord& other : record_->selections)
            if (other.layer == of.layer && other.sequence == sequence && other.kvHead >= of.head0 &&
                other.kvHead < of.head0 + of.heads)
                refuse(KVTRACE_STATE, layer, " is there already for sequence ", std::to_string(sequence),
                       "; a step has one selection per layer, sequence and KV head");
        for (std::int64_t before = 0; before < row && of.sequence != nullptr; ++before)
            if (of.sequence[before] == sequence)
                refuse(KVTRACE_INVALID, layer, " has sequence ", std::to_string(sequence), " twice");
        for (std::int64_t head = 0; head < of.heads; ++head) {
            const std::int64_t at = row * of.heads + head;
            if (of.count != nullptr && (of.count[at] < 0 || of.count[at] > of.k))
                refuse(KVTRACE_INVALID, layer, " has count ", std::to_string(of.count[at]),
                       " of k = ", std::to_string(of.k));
            if (of.mass != nullptr && !std::isnan(of.mass[at]) && !(of.mass[at] >= 0 && of.mass[at] <= 1.0001f))
                refuse(KVTRACE_INVALID, layer, " has mass ", std::to_string(of.mass[at]), "; it is 0 to 1");
        }
    }
}

void Step::select(const kvtrace_selection& selection) {
    const std::lock_guard lock(mutex_);
    run_->requireOpen();
    requireSelectable(selection);
    if (counted_[std::size_t(std::max(selection.layer, 0))] != 0)
        refuse(KVTRACE_STATE, "layer ", std::to_string(selection.layer),
               " has counts of hits already; select before them");
    const unsigned known = KVTRACE_KNOWS_SELECTIONS | (hasHits(selection) ? unsigned(KVTRACE_KNOWS_HITS) : 0);
    if (std::any_of(leaders_.begin(), leaders_.end(), [&](int leader) { return leader == selection.layer; }))
        refuse(KVTRACE_STATE, "layer ", std::to_string(selection.layer),
               " has shared its selection in this step already; record all of it before");
    const std::size_t selections = record_->selections.size(), blocks = record_->blocks.size();
    const LayerRecord before = record_->layers[std::size_t(selection.layer)];
    try {
        for (std::int64_t row = 0; row < selection.rows; ++row)
            for (std::int64_t head = 0; head < selection.heads; ++head) addRow(selection, row, head);
    } catch (...) { // a failed call leaves the step as it was
        record_->selections.resize(selections);
        record_->blocks.resize(blocks);
        record_->scores.resize(std::min(record_->scores.size(), blocks));
        record_->layers[std::size_t(selection.layer)] = before;
        throw;
    }
    run_->note(known);
}

void Step::share(int layer, int leader) {
    const std::lock_guard lock(mutex_);
    run_->requireOpen();
    const std::string which = "layer " + std::to_string(layer);
    if (layer < 0 || layer >= run_->layers || leader < 0 || leader >= layer)
        refuse(KVTRACE_INVALID, which, " cannot have the selection of layer ", std::to_string(leader), ": the run has ",
               std::to_string(run_->layers), " layers, and a leader comes before the layer");
    if (counted_[std::size_t(layer)] != 0) refuse(KVTRACE_STATE, which, " has counts of hits already");
    const auto selects = [&](int of) {
        return std::any_of(record_->selections.begin(), record_->selections.end(),
                           [&](const SelectionRecord& row) { return row.layer == of; });
    };
    if (selects(layer)) refuse(KVTRACE_STATE, which, " has a selection of its own in this step");
    if (!selects(leader) || (!leaders_.empty() && leaders_[std::size_t(leader)] >= 0))
        refuse(KVTRACE_STATE, "layer ", std::to_string(leader),
               " has no selection of its own in this step; record it before the layers that share it");
    const std::size_t own = record_->selections.size();
    for (std::size_t i = 0; i < own; ++i) {
        if (record_->selections[i].layer != leader) continue;
        SelectionRecord row = record_->selections[i]; // of the same blocks, which are in the record once
        row.layer = layer;
        row.mass = std::numeric_limits<float>::quiet_NaN(); // of the leader's attention
        record_->selections.push_back(row);
    }
    LayerRecord& shared = record_->layers[std::size_t(layer)];
    const LayerRecord& of = record_->layers[std::size_t(leader)];
    shared.selected = of.selected;
    shared.hits = of.hits;
    shared.misses = of.misses;
    leaders_.resize(std::size_t(run_->layers), -1);
    leaders_[std::size_t(layer)] = leader;
}

void Step::addRow(const kvtrace_selection& of, std::int64_t row, std::int64_t head) {
    const std::int64_t at = row * of.heads + head;
    const std::int64_t position = of.position[row];
    finder_.find(
        {&of, row * of.row_stride + head * of.head_stride, of.count == nullptr ? of.k : of.count[at], position},
        run_->rules, found_);
    run_->counts->futureIds += found_.futureIds;
    run_->counts->duplicateIds += found_.duplicateIds;
    SelectionRecord record;
    record.layer = of.layer;
    record.sequence = of.sequence == nullptr ? std::int32_t(row) : of.sequence[row];
    record.kvHead = of.head0 + std::int32_t(head);
    record.selected = std::int32_t(found_.blocks.size());
    record.first = std::uint32_t(record_->blocks.size());
    if (hasHits(of)) {
        record.hits = std::int32_t(
            std::count_if(found_.blocks.begin(), found_.blocks.end(), [](PackedBlock block) { return block.hit(); }));
        record.misses = record.selected - record.hits;
        requireSlots(*run_, record.misses);
    }
    if (of.mass != nullptr) record.mass = std::min(of.mass[at], 1.f);
    record_->selections.push_back(record);
    record_->blocks.insert(record_->blocks.end(), found_.blocks.begin(), found_.blocks.end());
    if (run_->level == RecordLevel::Full && (of.score != nullptr || !record_->scores.empty()))
        record_->scores.resize(std::size_t(record.first), std::numeric_limits<float>::quiet_NaN()),
            record_->scores.insert(record_->scores.end(), found_.scores.begin(), found_.scores.end());
    record_->opensBlock = record_->opensBlock || position % run_->rules.blockSize == 0;
    LayerRecord& layer = record_->layers[std::size_t(of.layer)];
    layer.selected += record.selected;
    layer.hits += record.hits;
    layer.misses += record.misses;
}

void Step::addLayer(const kvtrace_layer& given) {
    const std::lock_guard lock(mutex_);
    run_->requireOpen();
    if (given.layer < 0 || given.layer >= run_->layers)
        refuse(KVTRACE_INVALID, "layer ", std::to_string(given.layer), " is none: the run has ",
               std::to_string(run_->layers));
    std::int64_t stages = 0;
    for (const std::int64_t ns : given.stage_ns) {
        requireNotNegative("a stage's time", ns);
        requireTime("a stage's time", ns);
        stages += ns;
    }
    requireTime("the start of a layer", given.start_ns);
    for (const std::int64_t ns : {given.transfer_ns, given.exposed_ns}) requireTime("a transfer's time", ns);
    for (const std::int64_t value :
         {std::int64_t(given.h2d_blocks), std::int64_t(given.d2h_blocks), given.h2d_bytes, given.d2h_bytes,
          given.transfer_ns, given.exposed_ns, std::int64_t(given.hits), std::int64_t(given.misses)})
        requireNotNegative("a count, size or time of a layer", value);
    constexpr std::int64_t most = std::int64_t(1) << 50; // bytes; sums over the layers of a run fit their type
    if (std::max(given.h2d_bytes, given.d2h_bytes) > most || std::max(given.hits, given.misses) > 1 << 30)
        refuse(KVTRACE_UNSUPPORTED, "layer ", std::to_string(given.layer),
               " has more than 2^50 bytes, or 2^30 hits or misses; a trace holds no more");
    const bool moved = given.h2d_blocks != 0 || given.d2h_blocks != 0 || given.h2d_bytes != 0 || given.d2h_bytes != 0;
    const bool counts = given.hits != 0 || given.misses != 0;
    if (stages != 0 && !run_->knows(KVTRACE_KNOWS_STAGE_TIMES))
        refuseUndeclared("stage_ns", "KVTRACE_KNOWS_STAGE_TIMES");
    if (moved && !run_->knows(KVTRACE_KNOWS_BYTES)) refuseUndeclared("a transfer", "KVTRACE_KNOWS_BYTES");
    if (given.transfer_ns != 0 && !run_->knows(KVTRACE_KNOWS_TRANSFER_TIMES))
        refuseUndeclared("transfer_ns", "KVTRACE_KNOWS_TRANSFER_TIMES");
    if (given.exposed_ns != 0 && !run_->knows(KVTRACE_KNOWS_EXPOSED_TIMES))
        refuseUndeclared("exposed_ns", "KVTRACE_KNOWS_EXPOSED_TIMES");
    if (given.exposed_ns > given.transfer_ns && run_->knows(KVTRACE_KNOWS_TRANSFER_TIMES))
        refuse(KVTRACE_INVALID, "exposed_ns of layer ", std::to_string(given.layer), " is more than its transfer_ns");
    if (counts && !run_->knows(KVTRACE_KNOWS_HITS)) refuseUndeclared("a count of hits", "KVTRACE_KNOWS_HITS");
    requireSlots(*run_, given.misses);
    LayerRecord& layer = record_->layers[std::size_t(given.layer)];
    const bool selects = std::any_of(record_->selections.begin(), record_->selections.end(),
                                     [&](const SelectionRecord& row) { return row.layer == given.layer; });
    if (counts && selects)
        refuse(KVTRACE_INVALID, "layer ", std::to_string(given.layer),
               " has selections, whose hits count; leave hits and misses of kvtrace_layer at 0");
    if (run_->knows(KVTRACE_KNOWS_STAGE_TIMES)) layer.startNs = given.start_ns;
    std::copy(std::begin(given.stage_ns), std::end(given.stage_ns), layer.stageNs.begin());
    layer.h2dBlocks = given.h2d_blocks;
    layer.d2hBlocks = given.d2h_blocks;
    layer.h2dBytes = given.h2d_bytes;
    layer.d2hBytes = given.d2h_bytes;
    layer.transferNs = given.transfer_ns;
    layer.exposedNs = given.exposed_ns;
    if (counts || counted_[std::size_t(given.layer)] != 0) {
        layer.hits = given.hits;
        layer.misses = given.misses;
        layer.selected = given.hits + given.misses;
        layer.kept = -1;
        counted_[std::size_t(given.layer)] = 1;
    }
    run_->note(KVTRACE_KNOWS_BYTES | KVTRACE_KNOWS_TRANSFER_TIMES | KVTRACE_KNOWS_EXPOSED_TIMES |
               KVTRACE_KNOWS_STAGE_TIMES);
    if (counts) run_->note(KVTRACE_KNOWS_HITS);
}

void Step::addStages(std::int64_t embedNs, std::int64_t lmHeadNs, std::int64_t sampleNs) {
    const std::lock_guard lock(mutex_);
    run_->requireOpen();
    if (!run_->knows(KVTRACE_KNOWS_STAGE_TIMES)) refuseUndeclared("a stage's time", "KVTRACE_KNOWS_STAGE_TIMES");
    for (const std::int64_t ns : {embedNs, lmHeadNs, sampleNs}) {
        requireNotNegative("a stage's time", ns);
        requireTime("a stage's time", ns);
    }
    record_->stepStageNs = {embedNs, lmHeadNs, sampleNs};
    run_->note(KVTRACE_KNOWS_STAGE_TIMES);
}

void Step::addTokens(int sequence, std::int64_t position, const std::int32_t* ids, std::int64_t count, const char* text,
                     const std::int64_t* offsets) {
    const std::lock_guard lock(mutex_);
    run_->requireOpen();
    if (sequence < 0 || sequence >= run_->sequences)
        refuse(KVTRACE_INVALID, "tokens are of sequence ", std::to_string(sequence), ", but the run has ",
               std::to_string(run_->sequences));
    requireNotNegative("count of tokens", count);
    if (count > 0) required(ids, "ids");
    if (position < 0 || position > std::numeric_limits<std::int32_t>::max() - count)
        refuse(KVTRACE_INVALID, "tokens begin at position ", std::to_string(position), "; a trace holds 0 to 2^31 - 1");
    const auto mine = std::count_if(record_->generated.begin(), record_->generated.end(),
                                    [&](const TokenRecord& token) { return token.sequence == sequence; });
    if (mine + count > trace::kMaxTokensPerStep)
        refuse(KVTRACE_UNSUPPORTED, "sequence ", std::to_string(sequence), " produces more than ",
               std::to_string(trace::kMaxTokensPerStep), " tokens in one step");
    for (std::int64_t i = 0; i < count; ++i) requireNotNegative("a token's id", ids[i]);
    std::vector<TokenRecord> tokens;
    for (std::int64_t i = 0; i < count; ++i)
        tokens.push_back({sequence, ids[i], std::int32_t(position + i), pieceOf(text, offsets, i)});
    record_->generated.insert(record_->generated.end(), std::make_move_iterator(tokens.begin()),
                              std::make_move_iterator(tokens.end()));
}

bool Step::readsPrompt(int sequence) const {
    return std::any_of(record_->pieces.begin(), record_->pieces.end(),
                       [&](const PieceRecord& piece) { return piece.sequence == sequence; });
}

void Step::addPiece(const kvtrace_prompt_piece& of) {
    const std::lock_guard lock(mutex_);
    run_->requireOpen();
    const std::string whose = "the prompt of sequence " + std::to_string(of.sequence);
    if (phase_ != KVTRACE_PROMPT && phase_ != KVTRACE_MIXED)
        refuse(KVTRACE_STATE, whose,
               " is read in a step that says it reads none; begin it as KVTRACE_PROMPT or "
               "KVTRACE_MIXED");
    if (of.sequence < 0 || of.sequence >= run_->sequences)
        refuse(KVTRACE_INVALID, whose, " is of none: the run has ", std::to_string(run_->sequences), " sequences");
    if (of.begins != 0 && of.begins != 1)
        refuse(KVTRACE_INVALID, "begins of a piece of ", whose, " is ", std::to_string(of.begins), "; give 0 or 1");
    if (of.tokens < 1)
        refuse(KVTRACE_INVALID, "a piece of ", whose, " has ", std::to_string(of.tokens), " tokens; give one or more");
    if (of.first < 0 || of.first > std::numeric_limits<std::int32_t>::max() - of.tokens)
        refuse(KVTRACE_INVALID, "a piece of ", whose, " begins at position ", std::to_string(of.first),
               "; a trace holds 0 to 2^31 - 1");
    if (readsPrompt(of.sequence))
        refuse(KVTRACE_STATE, whose, " has a piece in this step already; give its tokens as one");
    if (std::any_of(record_->selections.begin(), record_->selections.end(),
                    [&](const SelectionRecord& row) { return row.sequence == of.sequence; }))
        refuse(KVTRACE_STATE, whose, " is read in a step in which the sequence has selected; it does one of both");
    PieceRecord piece;
    piece.sequence = of.sequence;
    piece.first = std::int32_t(of.first);
    piece.tokens = of.tokens;
    piece.begins = of.begins != 0;
    for (std::int32_t i = 0; of.ids != nullptr && i < of.tokens; ++i) {
        requireNotNegative("a token's id", of.ids[i]);
        piece.read.push_back({of.sequence, of.ids[i], piece.first + i, pieceOf(of.text, of.offsets, i)});
    }
    record_->pieces.push_back(std::move(piece));
}

/// Refuses a step whose number of tokens is not that of what it says it reads.
void Step::requirePieces() const {
    if (phase_ != KVTRACE_PROMPT && phase_ != KVTRACE_MIXED) return;
    std::int64_t tokens = 0;
    for (const PieceRecord& piece : record_->pieces) tokens += piece.tokens;
    const std::string has =
        std::to_string(record_->tokens) + " tokens, and the pieces of prompts in it have " + std::to_string(tokens);
    if (tokens == 0)
        refuse(KVTRACE_STATE, "a step that reads prompts says of none; call kvtrace_step_prompt for each sequence that "
                              "reads its own");
    if (phase_ == KVTRACE_PROMPT && record_->tokens != tokens)
        refuse(KVTRACE_INVALID, "a step of KVTRACE_PROMPT has ", has, "; give the same number, or KVTRACE_MIXED");
    if (phase_ == KVTRACE_MIXED && record_->tokens <= tokens)
        refuse(KVTRACE_INVALID, "a step of KVTRACE_MIXED has ", has, "; give those of the sequences that decode too");
}

void Step::requireTimes() const {
    const std::string step = "the step that began at " + std::to_string(record_->startNs) + " ns";
    const std::int64_t begin = record_->startNs, end = begin + record_->durationNs;
    std::int64_t stages = std::accumulate(record_->stepStageNs.begin(), record_->stepStageNs.end(), std::int64_t(0));
    std::int64_t before = begin; // where the layer before ends
    for (std::size_t i = 0; i < record_->layers.size(); ++i) {
        const LayerRecord& layer = record_->layers[i];
        const std::int64_t mine = std::accumulate(layer.stageNs.begin(), layer.stageNs.end(), std::int64_t(0));
        if (mine > 0 && (layer.startNs < begin || layer.startNs > end || mine > end - layer.startNs))
            refuse(KVTRACE_INVALID, "layer ", std::to_string(i), " of ", step, " does not lie within the step's time");
        stages += mine; // a sum of all layers might not fit its type
        if (stages > record_->durationNs) break;
        if (mine > 0 && layer.startNs < before)
            refuse(KVTRACE_INVALID, "layer ", std::to_string(i), " of ", step,
                   " begins before the layer before it ends");
        if (mine > 0) before = layer.startNs + mine;
    }
    if (stages > record_->durationNs) refuse(KVTRACE_INVALID, "the stages of ", step, " take longer than the step");
}

void Step::commit(std::int64_t endNs) {
    const std::lock_guard lock(mutex_);
    run_->writer->requireWritable();
    run_->writer->requireRoom();
    requirePieces();
    if (run_->knows(KVTRACE_KNOWS_STEP_TIMES)) {
        const std::int64_t ends = endNs == KVTRACE_NOW ? run_->now() : endNs;
        requireTime("the end of a step", ends);
        record_->durationNs = ends - record_->startNs;
        if (record_->durationNs < 0)
            refuse(KVTRACE_INVALID, "the step that began at ", std::to_string(record_->startNs),
                   " ns ends before it starts");
        requireTimes();
        run_->note(KVTRACE_KNOWS_STEP_TIMES);
    }
    std::sort(record_->selections.begin(), record_->selections.end(),
              [](const SelectionRecord& a, const SelectionRecord& b) {
                  return std::tie(a.layer, a.sequence, a.kvHead) < std::tie(b.layer, b.sequence, b.kvHead);
              });
    std::stable_sort(record_->generated.begin(), record_->generated.end(),
                     [](const TokenRecord& a, const TokenRecord& b) { return a.sequence < b.sequence; });
    std::sort(record_->pieces.begin(), record_->pieces.end(),
              [](const PieceRecord& a, const PieceRecord& b) { return a.sequence < b.sequence; });
    if (!record_->scores.empty())
        record_->scores.resize(record_->blocks.size(), std::numeric_limits<float>::quiet_NaN());
    run_->commit(std::move(record_), ownClock_, phase_, leaders_, sampled_);
}

void Step::discard() { run_->discard(phase_); }

} // namespace kvscope::sdk

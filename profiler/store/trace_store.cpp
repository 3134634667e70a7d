#include "profiler/store/trace_store.h"

#include "base/error.h"
#include "base/utf8.h"
#include "core/trace/run_meta.h"
#include "core/transfer/link.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/store/trace_schema.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <optional>

#ifndef KVSCOPE_VERSION
#define KVSCOPE_VERSION "unknown"
#endif

namespace kvscope {
namespace {

namespace fs = std::filesystem;

std::string utcNow() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

std::int64_t unixMs() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
    throw Error(ErrorKind::Storage, message, hint);
}

/// Says early and plainly what SQLite would only call "unable to open database file". Looks, but never opens the file:
/// closing it would drop the locks of other connections of this process.
const std::string& usablePath(const std::string& path, const std::string& shownAs) {
    if (path.empty()) refuse("the trace has no file name", "give one, e.g. run.kvtrace");
    std::error_code ignored;
    const fs::path file(path), folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    const fs::file_status folderStatus = fs::status(folder, ignored);
    if (!fs::exists(folderStatus))
        refuse(fmt::format("cannot record to {}: there is no folder {}", shownAs, folder.string()),
               "create the folder first");
    if (!fs::is_directory(folderStatus))
        refuse(fmt::format("cannot record to {}: {} is not a folder", shownAs, folder.string()),
               "choose another place");
    const fs::file_status status = fs::status(file, ignored);
    if (fs::is_directory(status))
        refuse(fmt::format("cannot record to {}: it is a folder", shownAs), "add a file name, e.g. run.kvtrace");
    if (fs::exists(status) && !fs::is_regular_file(status))
        refuse(fmt::format("cannot record to {}: it is not a regular file", shownAs), "choose another name");
    return path;
}

bool isFree(const std::string& path) {
    std::error_code ignored;
    return fs::status(path, ignored).type() == fs::file_type::not_found;
}

constexpr const char* kFilesOfATrace[] = {"", "-wal", "-shm", "-journal"}; // behind its path

/// Removes the file at `path` and what lies beside it. A symbolic link stays: its file is removed.
void removeMade(const std::string& path) {
    std::error_code failure;
    const fs::path file = fs::canonical(path, failure);
    if (failure) return; // nothing was made
    for (const char* suffix : kFilesOfATrace) fs::remove(file.string() + suffix, failure);
}

/// Makes room for a new file. The caller holds the lock of the old one.
const std::string& removed(const std::string& path, const WriterLock& lock) {
    std::error_code failure;
    if (!fs::exists(path, failure)) return path;
    refuseWhileWritten(path, lock.tookOver() ? Heartbeat::IsOver : Heartbeat::Counts);
    for (const char* suffix : kFilesOfATrace) {
        fs::remove(path + suffix, failure);
        if (failure)
            refuse(fmt::format("cannot replace {}: {}", path, failure.message()), "choose a folder you may write to");
    }
    return path;
}

std::optional<std::int64_t> whereDefined(std::int64_t kept) { return kept < 0 ? std::nullopt : std::optional(kept); }

/// A token's bytes as text, and as they are where they are no text.
struct TokenText {
    explicit TokenText(const std::string& bytes) {
        const bool ascii = std::all_of(bytes.begin(), bytes.end(), [](char c) { return c > 0; });
        if (!ascii) valid = toValidUtf8(bytes);
        text = ascii ? std::string_view(bytes) : std::string_view(valid);
        if (text != bytes) raw = RowInserter::Blob{std::as_bytes(std::span(bytes))};
    }
    TokenText(const TokenText&) = delete; // text may point into valid
    TokenText& operator=(const TokenText&) = delete;
    std::string valid;
    std::string_view text;
    std::optional<RowInserter::Blob> raw; // of the bytes given, which outlive the insert
};

} // namespace

TraceStore::TraceStore(const std::string& path, bool overwrite, const std::string& shownAs)
    : path_(usablePath(path, shownAs.empty() ? path : shownAs)), lock_(path), isNew_(overwrite || isFree(path)),
      connection_(overwrite ? removed(path, lock_) : path, Connection::Mode::ReadWrite, shownAs) {
    try {
        if (connection_.integer("PRAGMA page_count") == 0)
            trace::createSchema(connection_);
        else
            trace::verifySchema(connection_);
        connection_.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=4000;"
                            "PRAGMA cache_size=-65536");
        // Proves now, not at the first step, that the file can be written.
        connection_.execute("BEGIN IMMEDIATE; COMMIT");
        identity_ = FileIdentity::of(path);
        trace::completeSchema(connection_);
        prepare();
    } catch (const Error& error) {
        if (isNew_) removeMade(path); // the disk may be full at once: the file holds no run yet
        if (error.kind != ErrorKind::BadInput) throw;
        throw Error(ErrorKind::Storage, error.what(), "record to another file");
    }
}

TraceStore::~TraceStore() = default;

void TraceStore::prepare() {
    const auto make = [&](const char* sql) { return Statement(connection_, sql, true); };
    begin_ = make("BEGIN IMMEDIATE");
    commit_ = make("COMMIT");
    insertSteps_ =
        RowInserter(connection_, "step",
                    "id, phase, tokens, opens_block, start_ns, duration_ns, embed_ns, lm_head_ns, sample_ns, selected,"
                    " kept, hits, misses, h2d_blocks, d2h_blocks, h2d_bytes, d2h_bytes, transfer_ns, exposed_ns");
    insertLayers_ =
        RowInserter(connection_, "layer_step",
                    "id, start_ns, qkv_linear_ns, rope_ns, compression_ns, stage1_ns, pooling_ns, offloading_ns,"
                    " stage2_ns, attention_ns, o_linear_ns, ffn_ns, selected, kept, hits, misses, h2d_blocks,"
                    " d2h_blocks, h2d_bytes, d2h_bytes, h2d_ns, d2h_ns, exposed_ns, mass");
    insertSelections_ =
        RowInserter(connection_, "selection", "id, opens_block, selected, kept, hits, misses, mass, blocks");
    insertLookahead_ = RowInserter(connection_, "lookahead", "id, predicted, used, wasted, late, stale");
    insertOracle_ = RowInserter(connection_, "oracle", "id, best_mass, recall, far_mass, far_best_mass, far_recall");
    insertTokens_ = RowInserter(connection_, "token", "id, position, token_id, text, bytes");
    insertPrompts_ = RowInserter(connection_, "prompt", "id, token_id, text, bytes");
    insertPieces_ = RowInserter(connection_, "prompt_piece", "id, begins, first, tokens");
    denoising_ = DenoiseWriter(connection_);
    spans_ = SpanWriter(connection_);
    serving_ = ServingWriter(connection_);
    insertCounters_ = RowInserter(connection_, "counter", "run_id, track, start_ns, duration_ns, value");
    insertGauges_ = RowInserter(connection_, "gauge", "run_id, track, time_ns, value");
    texts_ = TextTable(connection_);
    pageCount_ = make("PRAGMA page_count");
    pageBytes_ = connection_.integer("PRAGMA page_size");
    updateHealth_ =
        make("UPDATE OR ROLLBACK health SET dropped_steps=?, writer_busy_ns=?, heartbeat_ms=?, error=? WHERE run_id=?");
}

int TraceStore::beginRun(const RunInfo& info, RecordLevel level) {
    const auto atMost = [&](const char* what, std::int64_t count, int limit) {
        if (count < 0 || count > limit)
            throw Error(ErrorKind::Unsupported,
                        fmt::format("cannot record {}: a trace holds 0 to {} {}, this run has {}", connection_.path(),
                                    limit, what, count),
                        "record a smaller run");
    };
    atMost("layers", info.layers, trace::kMaxLayers);
    atMost("KV heads", info.kvHeads, trace::kMaxKvHeads);
    atMost("sequences", std::max<std::int64_t>(info.sequences, std::int64_t(info.prompts.sequences())),
           trace::kMaxSequences);
    begin();
    const std::int64_t run = connection_.integer("SELECT max(run_id) FROM run") + 1;
    if (run > trace::kMaxRuns || run < 1)
        refuse(fmt::format("{} already holds {} runs, the most a trace can", connection_.path(), trace::kMaxRuns),
               "record to another file");
    Statement insertRun(connection_,
                        "INSERT OR ROLLBACK INTO run(run_id, name, created_utc, model, method, params_json, backend, "
                        "device, link, timing,"
                        " link_gbps, link_latency_us, block_size, layers, kv_heads, query_heads, head_dim, sequences,"
                        " device_slots, budget_blocks, block_bytes, level, status)"
                        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    const auto view = [](const std::string& text) { return std::string_view(text); };
    const auto finite = [](double value) { return std::isfinite(value) ? value : 0.0; };
    const std::string ofMethod = info.model.empty() ? info.method : fmt::format("{} on {}", info.method, info.model);
    const std::string& name = info.name.empty() ? ofMethod : info.name;
    insertRun
        .bindAll(run, view(name), view(utcNow()), view(info.model), view(info.method),
                 view(info.paramsJson.empty() ? "{}" : info.paramsJson), view(info.backend), view(info.device),
                 view(info.link), std::string_view(nameOf(info.linkTiming)), finite(info.linkGbps),
                 finite(info.linkLatencyUs), info.blockSize, info.layers, info.kvHeads, info.queryHeads, info.headDim,
                 info.sequences, info.deviceSlots, info.budgetBlocks, info.blockBytes, std::string_view(nameOf(level)),
                 std::string_view(nameOf(RunStatus::Running)))
        .run();
    Statement insertHealth(
        connection_, "INSERT OR ROLLBACK INTO health(run_id, program, dropped_steps, writer_busy_ns, heartbeat_ms)"
                     " VALUES (?,?,0,0,?)");
    insertHealth.bindAll(run, std::string_view("kvscope " KVSCOPE_VERSION), unixMs()).run();
    addMeta(run, info);
    commit();
    serving_.beginRun();
    spans_.beginRun();
    current_ = {int(run), level, info, info.blockSize};
    for (const auto& [key, value] : info.meta)
        if (key == run_meta::kKvBlockTokens) current_.kvBlockTokens = std::atoi(value.c_str());
    current_.info.prompts = {};
    return current_.id;
}

void TraceStore::addMeta(std::int64_t run, const RunInfo& info) {
    Statement insert(connection_, "INSERT OR REPLACE INTO run_meta(run_id, key, value) VALUES (?,?,?)");
    const auto add = [&](std::string_view key, const std::string& value) {
        insert.bindAll(run, key, std::string_view(value)).run();
    };
    add(run_meta::kKnows, info.knows.toJson());
    add(run_meta::kEngine, "kvscope");
    add(run_meta::kEngineVersion, KVSCOPE_VERSION);
    for (const auto& [key, value] : info.meta) add(key, value);
}

void TraceStore::addPrompts(const RunPrompts& prompts) {
    begin();
    std::array<std::string, RowInserter::kRowsAtOnce> bytes; // of the rows of one statement
    for (std::size_t sequence = 0; sequence < prompts.sequences(); ++sequence) {
        const std::span<const std::int32_t> ids = prompts.of(sequence);
        insertPrompts_.expect(ids.size());
        for (std::size_t position = 0; position < ids.size(); ++position) {
            std::string& kept = bytes[insertPrompts_.slot()];
            kept = prompts.bytesOf(ids[position]);
            const TokenText text(kept);
            insertPrompts_.add(trace::promptKey(current_.id, int(sequence), std::int64_t(position)), ids[position],
                               text.text, text.raw);
        }
    }
}

void TraceStore::addStep(const StepRecord& record) {
    if (record.step < 0 || record.step > trace::kMaxStep || int(record.layers.size()) > trace::kMaxLayers)
        refuse(fmt::format("step {} with {} layers cannot be numbered in {}", record.step, record.layers.size(),
                           connection_.path()),
               "record a shorter run");
    begin();
    noteFed(record);
    std::int64_t selected = 0, kept = 0, hits = 0, misses = 0, h2dBlocks = 0, d2hBlocks = 0, h2dBytes = 0, d2hBytes = 0,
                 transferNs = 0, exposedNs = 0;
    bool anyKept = false, keptDefined = true;
    for (const LayerRecord& layer : record.layers) {
        selected += layer.selected;
        if (layer.selected > 0) {
            anyKept = true;
            keptDefined = keptDefined && layer.kept >= 0;
            kept += layer.kept;
        }
        hits += layer.hits;
        misses += layer.misses;
        h2dBlocks += layer.h2dBlocks;
        d2hBlocks += layer.d2hBlocks;
        h2dBytes += layer.h2dBytes;
        d2hBytes += layer.d2hBytes;
        transferNs += layer.transferNs;
        exposedNs += layer.exposedNs;
    }
    insertSteps_.expect(1);
    insertSteps_.add(trace::stepKey(current_.id, record.step), int(record.phase), record.tokens, someBlockOpens(record),
                     record.startNs, record.durationNs, record.stepStageNs[0], record.stepStageNs[1],
                     record.stepStageNs[2], selected, whereDefined(anyKept && keptDefined ? kept : -1), hits, misses,
                     h2dBlocks, d2hBlocks, h2dBytes, d2hBytes, transferNs, exposedNs);
    addTokens(record);
    if (!record.pieces.empty()) addPieces(record);
    addSelections(record);
    addLayers(record);
    if (!record.spans.empty()) addSpans(record.spans);
    if (!record.denoise.empty()) {
        const int group = std::max(1, current_.info.queryHeads / std::max(1, current_.info.kvHeads));
        denoising_.add(current_.id, group, record);
    }
}

/// Notes the position of the token that each sequence is fed in this step: as the record says, or the one before the
/// first token that the sequence generates.
void TraceStore::noteFed(const StepRecord& record) {
    sequences_.assign(trace::kMaxSequences, {});
    for (const FedPosition& fed : record.fed)
        if (fed.sequence >= 0 && fed.sequence < trace::kMaxSequences) sequences_[fed.sequence].fed = fed.position;
    for (const TokenRecord& token : record.generated)
        if (std::int32_t* fed = token.sequence >= 0 && token.sequence < trace::kMaxSequences
                                    ? &sequences_[token.sequence].fed
                                    : nullptr;
            fed != nullptr && *fed < 0)
            *fed = token.position - 1;
}

/// Whether a sequence begins a KV block in this step: the token that it is fed is the first one of a block. Where the
/// record does not say which token that is, the record's own word counts.
bool TraceStore::opensBlock(const StepRecord& record, std::int32_t sequence) const {
    const std::int32_t fed = sequences_[sequence].fed;
    return fed >= 0 && current_.kvBlockTokens > 0 ? fed % current_.kvBlockTokens == 0 : record.opensBlock;
}

/// A step begins a block if one of its sequences does. Its selections say the same of their sequences, so that averages
/// of steps and of selections leave out the same ones.
bool TraceStore::someBlockOpens(const StepRecord& record) const {
    if (!record.denoise.empty()) return record.opensBlock; // tokens are written in any order there
    const auto opens = [&](const auto& row) {
        return row.sequence >= 0 && row.sequence < trace::kMaxSequences && opensBlock(record, row.sequence);
    };
    return record.opensBlock || std::any_of(record.selections.begin(), record.selections.end(), opens) ||
           (record.phase == Phase::Decode && std::any_of(record.generated.begin(), record.generated.end(), opens));
}

void TraceStore::addTokens(const StepRecord& record) {
    insertTokens_.expect(record.generated.size());
    for (const TokenRecord& token : record.generated) {
        if (token.sequence < 0 || token.sequence >= trace::kMaxSequences)
            refuse(fmt::format("sequence {} cannot be numbered in {}", token.sequence, connection_.path()),
                   "record fewer sequences");
        int& ordinal = sequences_[token.sequence].tokens;
        if (ordinal >= trace::kMaxTokensPerStep)
            refuse(fmt::format("step {} makes too many tokens for {}", record.step, connection_.path()),
                   "record a smaller run");
        const TokenText text(token.bytes);
        insertTokens_.add(trace::tokenKey(current_.id, record.step, token.sequence, ordinal++), token.position,
                          token.id, text.text, text.raw);
    }
}

void TraceStore::addPieces(const StepRecord& record) {
    insertPieces_.expect(record.pieces.size());
    for (const PieceRecord& piece : record.pieces) {
        if (piece.sequence < 0 || piece.sequence >= trace::kMaxSequences)
            refuse(fmt::format("sequence {} cannot be numbered in {}", piece.sequence, connection_.path()),
                   "record fewer sequences");
        insertPieces_.add(trace::tokenKey(current_.id, record.step, piece.sequence, 0), piece.begins ? 1 : 0,
                          piece.first, piece.tokens);
    }
    for (const PieceRecord& piece : record.pieces) {
        insertPrompts_.expect(piece.read.size());
        for (const TokenRecord& token : piece.read) {
            const TokenText text(token.bytes);
            insertPrompts_.add(trace::promptKey(current_.id, piece.sequence, token.position), token.id, text.text,
                               text.raw);
        }
    }
}

RowInserter::Blob TraceStore::encode(const StepRecord& record, const SelectionRecord& row) {
    const std::size_t first = row.first, count = std::size_t(std::max(row.selected, 0)), end = first + count;
    const bool scored = current_.level == RecordLevel::Full && !record.scores.empty();
    const bool inside = end <= record.blocks.size() && (!scored || end <= record.scores.size());
    std::vector<std::byte>& bytes = blobs_[insertSelections_.slot()];
    SelectionView view;
    if (inside) {
        view.blocks = std::span(record.blocks).subspan(first, count);
        if (scored) view.scores = std::span(record.scores).subspan(first, count);
    }
    if (!inside || !encodeSelection(view, bytes))
        refuse(fmt::format("the selection of step {}, layer {}, sequence {}, KV head {} breaks the rules of a trace",
                           record.step, row.layer, row.sequence, row.kvHead),
               "block ids must ascend and every block needs an origin");
    return {bytes};
}

void TraceStore::addSelections(const StepRecord& record) {
    masses_.assign(record.layers.size(), {});
    insertSelections_.expect(record.selections.size());
    const bool withBlocks = current_.level != RecordLevel::Counters && !record.blocks.empty();
    for (const SelectionRecord& row : record.selections) {
        const bool numbered = row.layer >= 0 && row.layer < trace::kMaxLayers && row.sequence >= 0 &&
                              row.sequence < trace::kMaxSequences && row.kvHead >= 0 && row.kvHead < trace::kMaxKvHeads;
        if (!numbered)
            refuse(fmt::format("layer {}, sequence {}, KV head {} cannot be numbered in {}", row.layer, row.sequence,
                               row.kvHead, connection_.path()),
                   "record a smaller run");
        // A sequence whose block is denoised opens the block with the first selection in it, even if tokens are written
        // before.
        const bool opens = record.denoise.empty() ? opensBlock(record, row.sequence) : row.kept < 0;
        std::optional<RowInserter::Blob> blocks;
        if (withBlocks) blocks = encode(record, row);
        insertSelections_.add(trace::selectionKey(current_.id, record.step, row.layer, row.sequence, row.kvHead), opens,
                              row.selected, whereDefined(row.kept), row.hits, row.misses, double(row.mass), blocks);
        if (!std::isnan(row.mass) && std::size_t(row.layer) < masses_.size()) {
            masses_[row.layer].sum += row.mass;
            ++masses_[row.layer].count;
        }
    }
    addOracle(record);
    const auto wasAhead = [](const SelectionRecord& row) { return row.predicted >= 0; };
    const auto ahead = std::count_if(record.selections.begin(), record.selections.end(), wasAhead);
    if (ahead == 0) return;
    insertLookahead_.expect(std::size_t(ahead));
    for (const SelectionRecord& row : record.selections)
        if (wasAhead(row))
            insertLookahead_.add(trace::selectionKey(current_.id, record.step, row.layer, row.sequence, row.kvHead),
                                 row.predicted, row.used, row.wasted, row.late, whereDefined(row.stale));
}

void TraceStore::addOracle(const StepRecord& record) {
    const auto compared = [](const SelectionRecord& row) { return !std::isnan(row.recall); };
    const auto rows = std::count_if(record.selections.begin(), record.selections.end(), compared);
    if (rows == 0) return;
    insertOracle_.expect(std::size_t(rows));
    for (const SelectionRecord& row : record.selections)
        if (compared(row))
            insertOracle_.add(trace::selectionKey(current_.id, record.step, row.layer, row.sequence, row.kvHead),
                              double(row.bestMass), double(row.recall), double(row.farMass), double(row.farBestMass),
                              double(row.farRecall));
}

void TraceStore::addLayers(const StepRecord& record) {
    Link link;
    link.gigabytesPerSecond = current_.info.linkGbps;
    link.latencyUs = current_.info.linkLatencyUs;
    insertLayers_.expect(record.layers.size());
    for (std::size_t i = 0; i < record.layers.size(); ++i) {
        const LayerRecord& layer = record.layers[i];
        // One transfer time per layer comes in; it is split by what the model of the link gives each direction, or by
        // bytes where times are measured.
        std::int64_t d2hNs = 0;
        if (layer.h2dBytes == 0)
            d2hNs = layer.d2hBytes > 0 ? layer.transferNs : 0;
        else if (layer.d2hBytes > 0)
            d2hNs = current_.info.linkTiming == Timing::Modelled && current_.info.linkGbps > 0
                        ? std::min(link.transferNs(layer.d2hBytes), layer.transferNs)
                        : std::int64_t(double(layer.transferNs) * double(layer.d2hBytes) /
                                       double(layer.h2dBytes + layer.d2hBytes));
        std::optional<double> mass;
        if (masses_[i].count > 0) mass = double(masses_[i].sum / float(masses_[i].count));
        const auto& ns = layer.stageNs;
        insertLayers_.add(trace::layerKey(current_.id, record.step, int(i)), layer.startNs, ns[0], ns[1], ns[2], ns[3],
                          ns[4], ns[5], ns[6], ns[7], ns[8], ns[9], layer.selected, whereDefined(layer.kept),
                          layer.hits, layer.misses, layer.h2dBlocks, layer.d2hBlocks, layer.h2dBytes, layer.d2hBytes,
                          layer.transferNs - d2hNs, d2hNs, layer.exposedNs, mass);
    }
}

void TraceStore::addServing(const ServingRecord& record) {
    begin();
    serving_.add(current_.id, record);
}

void TraceStore::addSpans(const std::vector<SpanRecord>& spans) {
    begin();
    spans_.add(current_.id, spans, texts_);
}

void TraceStore::addRemark(const std::string& sentence) {
    SpanRecord remark;
    remark.track = trace::kRemarkTrack;
    remark.name = sentence;
    addSpans({remark});
}

void TraceStore::addCounters(const std::vector<CounterSample>& samples) {
    begin();
    std::vector<std::int64_t> tracks;
    for (const CounterSample& sample : samples) tracks.push_back(texts_.idOf(sample.track));
    insertCounters_.expect(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i)
        insertCounters_.add(current_.id, tracks[i], samples[i].startNs, samples[i].durationNs, samples[i].value);
}

void TraceStore::addClocks(const std::vector<ClockReading>& readings) {
    begin();
    Statement insert(connection_, "INSERT OR ROLLBACK INTO clock_sync(run_id, clock, own_ns, reference_ns, error_ns)"
                                  " VALUES (?,?,?,?,?)");
    for (const ClockReading& reading : readings) {
        insert.reset();
        insert.bindAll(current_.id, texts_.idOf(reading.clock), reading.ownNs, reading.otherNs, reading.errorNs).run();
    }
}

void TraceStore::addGauges(const std::vector<HeldValue>& samples) {
    std::vector<std::int64_t> tracks;
    for (const HeldValue& sample : samples) tracks.push_back(texts_.idOf(sample.track));
    insertGauges_.expect(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i)
        insertGauges_.add(current_.id, tracks[i], samples[i].ns, samples[i].value);
}

void TraceStore::addEngineEvent(const EngineEvent& event) {
    begin();
    if (const auto* gauges = std::get_if<std::vector<HeldValue>>(&event)) addGauges(*gauges);
    if (const auto* counters = std::get_if<std::vector<CounterSample>>(&event)) addCounters(*counters);
    if (const auto* spans = std::get_if<std::vector<EngineSpan>>(&event)) spans_.add(current_.id, *spans, texts_);
    if (const auto* flow = std::get_if<EngineFlow>(&event)) spans_.add(current_.id, *flow);
    if (const auto* request = std::get_if<EngineRequest>(&event)) serving_.add(current_.id, *request);
    if (const auto* row = std::get_if<MetaRow>(&event); row != nullptr && row->value.empty()) {
        Statement remove(connection_, "DELETE FROM run_meta WHERE run_id = ? AND key = ?");
        remove.bindAll(current_.id, std::string_view(row->key)).run();
    } else if (row != nullptr) {
        Statement insert(connection_, "INSERT OR REPLACE INTO run_meta(run_id, key, value) VALUES (?,?,?)");
        insert.bindAll(current_.id, std::string_view(row->key), std::string_view(row->value)).run();
    }
}

std::int64_t TraceStore::fileBytes() {
    pageCount_.reset();
    const std::int64_t pages = pageCount_.step() ? pageCount_.int64(0) : 0;
    pageCount_.reset();
    return pages * pageBytes_;
}

void TraceStore::setHealth(std::int64_t droppedSteps, std::int64_t writerBusyNs, const std::string& error) {
    begin();
    updateHealth_.bindAll(droppedSteps, writerBusyNs, unixMs(), std::string_view(error), current_.id).run();
}

void TraceStore::endRun(RunStatus status, const std::string& message) {
    begin();
    Statement update(connection_, "UPDATE OR ROLLBACK run SET status=?, status_message=? WHERE run_id=?");
    update.bindAll(std::string_view(nameOf(status)), std::string_view(message), current_.id).run();
}

void TraceStore::begin() {
    if (!connection_.inTransaction()) begin_.run();
}

void TraceStore::commit() {
    if (connection_.inTransaction()) commit_.run();
}

void TraceStore::rollback() noexcept {
    try {
        for (RowInserter* inserter :
             {&insertCounters_, &insertSteps_, &insertLayers_, &insertSelections_, &insertLookahead_, &insertOracle_,
              &insertTokens_, &insertPrompts_, &insertPieces_, &insertGauges_})
            inserter->reset();
        spans_.reset();
        denoising_.reset();
        serving_.reset();
        texts_.reset();
        for (Statement* statement : {&updateHealth_, &begin_, &commit_, &pageCount_}) statement->reset();
        if (connection_.inTransaction()) connection_.execute("ROLLBACK"); // some errors have rolled back already
    } catch (const Error&) {
        // Nothing more can be done; the next writer or reader recovers from the log.
    }
}

TraceStore::Loss TraceStore::lossBehind(const std::exception& trouble) {
    Loss found = loss();
    const auto* error = dynamic_cast<const Error*>(&trouble);
    if (found.sentence.empty() && error && error->kind == ErrorKind::BadInput)
        found = {fmt::format("{} was truncated while it was recorded, or another program wrote to it ({})",
                             connection_.path(), error->what()),
                 true,
                 {}};
    return found;
}

TraceStore::Loss TraceStore::loss() {
    const std::string& path = connection_.path();
    if (FileIdentity::of(path_) == identity_) {
        std::error_code failure;
        const std::uintmax_t size = fs::file_size(path_, failure);
        if (failure || size >= size_) {
            size_ = failure ? size_ : size; // the file only grows, because no row is ever deleted from it
            return {};
        }
        return {fmt::format("{} was truncated while it was recorded: it had {} bytes, it has {}", path, size_, size),
                true,
                {}};
    }
    const OpenFile now = OpenFile::find(identity_);
    if (!now.path.empty())
        return {fmt::format("{} was renamed to {} while it was recorded", path, now.path), false, now.path};
    if (now.exists) return {fmt::format("{} was renamed while it was recorded", path), false, {}};
    return {fmt::format("{} was deleted, renamed or replaced while it was recorded", path), true, {}};
}

void TraceStore::finish() noexcept {
    try {
        connection_.execute("PRAGMA busy_timeout=200; PRAGMA wal_checkpoint(TRUNCATE)");
        connection_.execute("PRAGMA journal_mode=DELETE");
    } catch (const Error&) {
        // Readers are still there or the disk is full: the -wal file stays, which every reader understands.
    }
}

void TraceStore::settle(const std::string& path) noexcept {
    try {
        std::error_code failure;
        const std::uintmax_t left = fs::file_size(path + "-wal", failure);
        if (failure) return;
        const WriterLock lock(path);
        // A reader that was in the middle of a query when the run ended kept its last steps in the log. Any connection
        // that may write puts the log into the file when it is closed, so one that only reads looks first.
        if (left > 0 &&
            Connection(path, Connection::Mode::ReadOnly).integer("SELECT count(*) FROM run WHERE status = 'running'") >
                0)
            return;
        Connection connection(path, Connection::Mode::ReadWrite);
        connection.execute("PRAGMA busy_timeout=0; PRAGMA journal_mode=DELETE");
    } catch (const std::exception&) {
        // Another program has the trace open. The log that stays beside it does no harm: every reader understands it.
    }
}

} // namespace kvscope

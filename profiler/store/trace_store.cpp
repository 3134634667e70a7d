#include "profiler/store/trace_store.h"

#include "core/model/tokenizer.h"
#include "core/transfer/link.h"
#include "kernels/base/error.h"
#include "profiler/store/selection_blob.h"
#include "profiler/store/trace_keys.h"
#include "resources/resources.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>

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
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
    throw Error(ErrorKind::Storage, message, hint);
}

/// Says early and plainly what SQLite would only call "unable to open database file". Looks, but never opens the file:
/// closing it would drop the locks of other connections of this process.
std::string usablePath(const std::string& path, bool overwrite) {
    if (path.empty()) refuse("the trace has no file name", "give one, e.g. run.kvtrace");
    std::error_code ignored;
    const fs::path file(path), folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    const fs::file_status folderStatus = fs::status(folder, ignored);
    if (!fs::exists(folderStatus))
        refuse(fmt::format("cannot record to {}: there is no folder {}", path, folder.string()), "create the folder first");
    if (!fs::is_directory(folderStatus))
        refuse(fmt::format("cannot record to {}: {} is not a folder", path, folder.string()), "choose another place");
    const fs::file_status status = fs::status(file, ignored);
    if (fs::is_directory(status))
        refuse(fmt::format("cannot record to {}: it is a folder", path), "add a file name, e.g. run.kvtrace");
    if (fs::exists(status) && !fs::is_regular_file(status))
        refuse(fmt::format("cannot record to {}: it is not a regular file", path), "choose another name");
    if (overwrite && fs::exists(status))
        for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
            std::error_code failure;
            fs::remove(path + suffix, failure);
            if (failure)
                refuse(fmt::format("cannot replace {}: {}", path, failure.message()), "choose a folder you may write to");
        }
    return path;
}

void bindKept(Statement& statement, int index, std::int64_t kept) {
    if (kept < 0) statement.bindNull(index);
    else statement.bind(index, kept);
}

void bindText(Statement& statement, int textIndex, int bytesIndex, const std::string& bytes) {
    const bool ascii = std::all_of(bytes.begin(), bytes.end(), [](char c) { return c > 0; });
    const std::string text = ascii ? bytes : toValidUtf8(bytes);
    statement.bind(textIndex, std::string_view(text));
    if (text == bytes) statement.bindNull(bytesIndex);
    else statement.bindBlob(bytesIndex, std::as_bytes(std::span(bytes)));
}

} // namespace

TraceStore::TraceStore(const std::string& path, bool overwrite)
    : connection_(usablePath(path, overwrite), Connection::Mode::ReadWrite) {
    try {
        if (connection_.integer("PRAGMA page_count") == 0) create();
        else verify();
        connection_.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=4000;"
                            "PRAGMA cache_size=-65536");
        // Proves now, not at the first step, that the file can be written.
        connection_.execute("BEGIN IMMEDIATE; COMMIT");
        prepare();
    } catch (const Error& error) {
        if (error.kind != ErrorKind::BadInput) throw;
        throw Error(ErrorKind::Storage, error.what(), "record to another file");
    }
}

TraceStore::~TraceStore() = default;

void TraceStore::create() {
    const auto schema = resources::text("sql/schema.sql");
    if (!schema) throw Error(ErrorKind::Unsupported, "this program was built without sql/schema.sql", "build it again");
    connection_.execute("PRAGMA page_size=16384");
    // One transaction: a process killed here leaves an empty file, never half a schema.
    connection_.execute(fmt::format("BEGIN EXCLUSIVE; PRAGMA application_id={}; PRAGMA user_version={};",
                                    trace::kApplicationId, trace::kVersion));
    connection_.execute(std::string(*schema));
    connection_.execute("COMMIT");
}

void TraceStore::verify() {
    if (connection_.integer("PRAGMA application_id") != trace::kApplicationId)
        refuse(fmt::format("{} exists and is not a KVScope trace", connection_.path()), "choose another name");
    const std::int64_t version = connection_.integer("PRAGMA user_version");
    if (version != trace::kVersion)
        refuse(fmt::format("{} has trace format {}, this program writes format {}", connection_.path(), version,
                           trace::kVersion),
               version > trace::kVersion ? "update KVScope or record to another file" : "record to another file");
}

void TraceStore::prepare() {
    const auto make = [&](const char* sql) { return Statement(connection_, sql, true); };
    begin_ = make("BEGIN IMMEDIATE");
    commit_ = make("COMMIT");
    insertStep_ = make("INSERT INTO step(id, phase, tokens, opens_block, start_ns, duration_ns, embed_ns, lm_head_ns, sample_ns,"
                       " selected, kept, hits, misses, h2d_blocks, d2h_blocks, h2d_bytes, d2h_bytes, transfer_ns, exposed_ns)"
                       " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    insertLayer_ =
        make("INSERT INTO layer_step(id, start_ns, qkv_linear_ns, rope_ns, compression_ns, stage1_ns, pooling_ns,"
             " offloading_ns, stage2_ns, attention_ns, o_linear_ns, ffn_ns, selected, kept, hits, misses, h2d_blocks,"
             " d2h_blocks, h2d_bytes, d2h_bytes, h2d_ns, d2h_ns, exposed_ns, mass)"
             " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    insertSelection_ = make("INSERT INTO selection(id, opens_block, selected, kept, hits, misses, mass, blocks)"
                            " VALUES (?,?,?,?,?,?,?,?)");
    insertToken_ = make("INSERT INTO token(id, position, token_id, text, bytes) VALUES (?,?,?,?,?)");
    insertPrompt_ = make("INSERT INTO prompt(id, token_id, text, bytes) VALUES (?,?,?,?)");
    updateHealth_ = make("UPDATE health SET dropped_steps=?, writer_busy_ns=?, heartbeat_ms=?, error=? WHERE run_id=?");
}

int TraceStore::beginRun(const RunInfo& info, RecordLevel level) {
    const auto atMost = [&](const char* what, std::int64_t count, int limit) {
        if (count < 0 || count > limit)
            throw Error(ErrorKind::Unsupported,
                        fmt::format("cannot record {}: a trace holds 0 to {} {}, this run has {}", connection_.path(), limit,
                                    what, count),
                        "record a smaller run");
    };
    atMost("layers", info.layers, trace::kMaxLayers);
    atMost("KV heads", info.kvHeads, trace::kMaxKvHeads);
    atMost("sequences", std::max<std::int64_t>(info.sequences, std::int64_t(info.prompts.size())), trace::kMaxSequences);
    begin();
    const std::int64_t run = connection_.integer("SELECT max(run_id) FROM run") + 1;
    if (run > trace::kMaxRuns || run < 1)
        refuse(fmt::format("{} already holds {} runs, the most a trace can", connection_.path(), trace::kMaxRuns),
               "record to another file");
    Statement insertRun(connection_,
                        "INSERT INTO run(run_id, name, created_utc, model, method, params_json, backend, device, link, timing,"
                        " link_gbps, link_latency_us, block_size, layers, kv_heads, query_heads, head_dim, sequences,"
                        " device_slots, budget_blocks, block_bytes, level, status)"
                        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    const auto view = [](const std::string& text) { return std::string_view(text); };
    const auto finite = [](double value) { return std::isfinite(value) ? value : 0.0; };
    const std::string name = info.name.empty() ? fmt::format("{} on {}", info.method, info.model) : info.name;
    insertRun
        .bindAll(run, view(name), view(utcNow()), view(info.model), view(info.method),
                 view(info.paramsJson.empty() ? "{}" : info.paramsJson), view(info.backend), view(info.device),
                 view(info.link), std::string_view(nameOf(info.linkTiming)), finite(info.linkGbps),
                 finite(info.linkLatencyUs), info.blockSize, info.layers, info.kvHeads, info.queryHeads, info.headDim,
                 info.sequences, info.deviceSlots, info.budgetBlocks, info.blockBytes, std::string_view(nameOf(level)),
                 std::string_view(nameOf(RunStatus::Running)))
        .run();
    Statement insertHealth(connection_, "INSERT INTO health(run_id, program, dropped_steps, writer_busy_ns, heartbeat_ms)"
                                        " VALUES (?,?,0,0,?)");
    insertHealth.bindAll(run, std::string_view("kvscope " KVSCOPE_VERSION), unixMs()).run();
    commit();
    run_ = int(run);
    level_ = level;
    info_ = info;
    info_.prompts.clear();
    return run_;
}

void TraceStore::addPrompts(const std::vector<std::vector<PromptToken>>& prompts) {
    begin();
    for (std::size_t sequence = 0; sequence < prompts.size(); ++sequence)
        for (std::size_t position = 0; position < prompts[sequence].size(); ++position) {
            const PromptToken& token = prompts[sequence][position];
            insertPrompt_.bind(1, trace::promptKey(run_, int(sequence), std::int64_t(position)));
            insertPrompt_.bind(2, token.id);
            bindText(insertPrompt_, 3, 4, token.bytes);
            insertPrompt_.run();
        }
}

void TraceStore::addStep(const StepRecord& record) {
    if (record.step < 0 || record.step > trace::kMaxStep || int(record.layers.size()) > trace::kMaxLayers)
        refuse(fmt::format("step {} with {} layers cannot be numbered in {}", record.step, record.layers.size(),
                           connection_.path()),
               "record a shorter run");
    begin();
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
    insertStep_.bindAll(trace::stepKey(run_, record.step), int(record.phase), record.tokens, record.opensBlock, record.startNs,
                        record.durationNs, record.stepStageNs[0], record.stepStageNs[1], record.stepStageNs[2], selected);
    bindKept(insertStep_, 11, anyKept && keptDefined ? kept : -1);
    int index = 12;
    for (const std::int64_t value : {hits, misses, h2dBlocks, d2hBlocks, h2dBytes, d2hBytes, transferNs, exposedNs})
        insertStep_.bind(index++, value);
    insertStep_.run();
    addTokens(record);
    addSelections(record);
    addLayers(record);
}

void TraceStore::addTokens(const StepRecord& record) {
    fed_.assign(std::size_t(trace::kMaxSequences), -1);
    tokenIndex_.assign(std::size_t(trace::kMaxSequences), 0);
    for (const TokenRecord& token : record.generated) {
        if (token.sequence < 0 || token.sequence >= trace::kMaxSequences)
            refuse(fmt::format("sequence {} cannot be numbered in {}", token.sequence, connection_.path()),
                   "record fewer sequences");
        int& ordinal = tokenIndex_[std::size_t(token.sequence)];
        if (ordinal >= trace::kMaxTokensPerStep)
            refuse(fmt::format("step {} makes too many tokens for {}", record.step, connection_.path()), "record a smaller run");
        if (ordinal == 0) fed_[std::size_t(token.sequence)] = token.position - 1;
        insertToken_.bind(1, trace::tokenKey(run_, record.step, token.sequence, ordinal++));
        insertToken_.bind(2, token.position);
        insertToken_.bind(3, token.id);
        bindText(insertToken_, 4, 5, token.bytes);
        insertToken_.run();
    }
}

void TraceStore::addSelections(const StepRecord& record) {
    massSum_.assign(record.layers.size(), 0.f);
    massCount_.assign(record.layers.size(), 0);
    for (const SelectionRecord& row : record.selections) {
        const bool numbered = row.layer >= 0 && row.layer < trace::kMaxLayers && row.sequence >= 0 &&
                              row.sequence < trace::kMaxSequences && row.kvHead >= 0 && row.kvHead < trace::kMaxKvHeads;
        if (!numbered)
            refuse(fmt::format("layer {}, sequence {}, KV head {} cannot be numbered in {}", row.layer, row.sequence,
                               row.kvHead, connection_.path()),
                   "record a smaller run");
        const std::int32_t fed = fed_[std::size_t(row.sequence)];
        const bool opens = fed >= 0 && info_.blockSize > 0 ? fed % info_.blockSize == 0 : record.opensBlock;
        insertSelection_.bind(1, trace::selectionKey(run_, record.step, row.layer, row.sequence, row.kvHead));
        insertSelection_.bind(2, opens);
        insertSelection_.bind(3, row.selected);
        bindKept(insertSelection_, 4, row.kept);
        insertSelection_.bind(5, row.hits);
        insertSelection_.bind(6, row.misses);
        insertSelection_.bind(7, double(row.mass));
        if (level_ == RecordLevel::Counters || record.blocks.empty()) {
            insertSelection_.bindNull(8);
        } else {
            const std::size_t first = row.first, count = std::size_t(std::max(row.selected, 0));
            const bool scored = level_ == RecordLevel::Full && !record.scores.empty();
            const bool inside = first + count <= record.blocks.size() && first + count <= record.origins.size() &&
                                first + count <= record.hit.size() && (!scored || first + count <= record.scores.size());
            SelectionView view;
            if (inside) {
                view = {std::span(record.blocks).subspan(first, count), std::span(record.origins).subspan(first, count),
                        std::span(record.hit).subspan(first, count), {}};
                if (scored) view.scores = std::span(record.scores).subspan(first, count);
            }
            if (!inside || !encodeSelection(view, blob_))
                refuse(fmt::format("the selection of step {}, layer {}, sequence {}, KV head {} breaks the rules of a trace",
                                   record.step, row.layer, row.sequence, row.kvHead),
                       "block ids must ascend and every block needs an origin and a hit flag");
            insertSelection_.bindBlob(8, blob_);
        }
        insertSelection_.run();
        if (!std::isnan(row.mass) && std::size_t(row.layer) < massSum_.size()) {
            massSum_[std::size_t(row.layer)] += row.mass;
            ++massCount_[std::size_t(row.layer)];
        }
    }
}

void TraceStore::addLayers(const StepRecord& record) {
    Link link;
    link.gigabytesPerSecond = info_.linkGbps;
    link.latencyUs = info_.linkLatencyUs;
    for (std::size_t i = 0; i < record.layers.size(); ++i) {
        const LayerRecord& layer = record.layers[i];
        // One transfer time per layer comes in; it is split by what the model of the link gives each direction, or by bytes
        // where times are measured.
        std::int64_t d2hNs = 0;
        if (layer.h2dBytes == 0) d2hNs = layer.d2hBytes > 0 ? layer.transferNs : 0;
        else if (layer.d2hBytes > 0)
            d2hNs = info_.linkTiming == Timing::Modelled && info_.linkGbps > 0
                        ? std::min(link.transferNs(layer.d2hBytes), layer.transferNs)
                        : std::int64_t(double(layer.transferNs) * double(layer.d2hBytes) /
                                       double(layer.h2dBytes + layer.d2hBytes));
        insertLayer_.bind(1, trace::layerKey(run_, record.step, int(i)));
        insertLayer_.bind(2, layer.startNs);
        int index = 3;
        for (const std::int64_t ns : layer.stageNs) insertLayer_.bind(index++, ns);
        insertLayer_.bind(index++, layer.selected);
        bindKept(insertLayer_, index++, layer.kept);
        for (const std::int64_t value :
             {std::int64_t(layer.hits), std::int64_t(layer.misses), std::int64_t(layer.h2dBlocks), std::int64_t(layer.d2hBlocks),
              layer.h2dBytes, layer.d2hBytes, layer.transferNs - d2hNs, d2hNs, layer.exposedNs})
            insertLayer_.bind(index++, value);
        if (massCount_[i] > 0) insertLayer_.bind(index, double(massSum_[i] / float(massCount_[i])));
        else insertLayer_.bindNull(index);
        insertLayer_.run();
    }
}

void TraceStore::setHealth(std::int64_t droppedSteps, std::int64_t writerBusyNs, const std::string& error) {
    begin();
    updateHealth_.bindAll(droppedSteps, writerBusyNs, unixMs(), std::string_view(error), run_).run();
}

void TraceStore::endRun(RunStatus status, const std::string& message) {
    begin();
    Statement update(connection_, "UPDATE run SET status=?, status_message=? WHERE run_id=?");
    update.bindAll(std::string_view(nameOf(status)), std::string_view(message), run_).run();
}

void TraceStore::begin() {
    if (!connection_.inTransaction()) begin_.run();
}

void TraceStore::commit() {
    if (connection_.inTransaction()) commit_.run();
}

void TraceStore::rollback() noexcept {
    try {
        for (Statement* statement : {&insertStep_, &insertLayer_, &insertSelection_, &insertToken_, &insertPrompt_,
                                     &updateHealth_, &begin_, &commit_})
            statement->reset();
        if (connection_.inTransaction()) connection_.execute("ROLLBACK"); // some errors have rolled back already
    } catch (const Error&) {
        // Nothing more can be done; the next writer or reader recovers from the log.
    }
}

void TraceStore::finish() noexcept {
    try {
        connection_.execute("PRAGMA busy_timeout=200; PRAGMA wal_checkpoint(TRUNCATE)");
        connection_.execute("PRAGMA journal_mode=DELETE");
    } catch (const Error&) {
        // Readers are still there or the disk is full: the -wal file stays, which every reader understands.
    }
}

} // namespace kvscope

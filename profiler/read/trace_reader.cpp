#include "profiler/read/trace_reader.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "base/utf8.h"
#include "core/trace/run_meta.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/own_views.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/run_knowledge.h"
#include "profiler/read/run_labels.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

// A writer signs at least once a second; this is long enough for a machine that stalls.
constexpr std::int64_t kStaleMs = 5000;

constexpr const char* kRunColumns =
    "SELECT r.run_id, r.name, r.created_utc, r.model, r.method, r.params_json, r.backend, r.device, r.link, r.timing,"
    " r.status, r.status_message, r.level, r.block_size, r.layers, r.kv_heads, r.query_heads, r.head_dim, r.sequences,"
    " r.device_slots, r.budget_blocks, r.block_bytes, r.link_gbps, r.link_latency_us,"
    " coalesce(h.dropped_steps, 0), coalesce(h.writer_busy_ns, 0), h.heartbeat_ms,"
    " coalesce(h.error, '')"
    " FROM run r LEFT JOIN health h ON h.run_id = r.run_id";

constexpr const char* kLayerStages =
    "SELECT id, qkv_linear_ns, rope_ns, compression_ns, stage1_ns, pooling_ns, offloading_ns, stage2_ns, attention_ns,"
    " o_linear_ns, ffn_ns FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id";

int kept32(const Statement& row, int column) { return row.isNull(column) ? -1 : row.int32(column); }

} // namespace

double SelectionRow::locality() const {
    const std::int64_t size = blocks.empty() ? selected : std::int64_t(blocks.size());
    if (kept < 0 || size <= 0) return std::numeric_limits<double>::quiet_NaN();
    return double(kept) / double(size);
}

void TraceReader::Impl::damaged(const std::string& what) const {
    throw Error(ErrorKind::BadInput, fmt::format("{} is damaged ({})", connection->path(), what), "record it again");
}

RunRow TraceReader::Impl::runRow(const Statement& row) const {
    RunRow run;
    run.runId = row.int32(0);
    std::string backend, timing, status, level;
    std::string* const texts[] = {&run.name,   &run.createdUtc, &run.model, &run.method, &run.paramsJson,    &backend,
                                  &run.device, &run.link,       &timing,    &status,     &run.statusMessage, &level};
    int column = 1;
    for (std::string* text : texts) {
        const std::string_view value = row.text(column);
        // useOwnViews cuts long texts by their number of characters, and SQLite counts no characters behind a NUL byte.
        if (value.size() > std::size_t(4) * (text == &run.paramsJson ? kLongestParameters : kLongestName + 1))
            damaged(fmt::format("run {} has a {} of {} bytes", run.runId, row.columnName(column), value.size()));
        *text = toValidUtf8(value);
        ++column;
    }
    run.backend = RunFact<RunBackend>::parse(backend);
    run.timing = RunFact<Timing>::parse(timing);
    run.status = RunFact<RunStatus>::parse(status);
    run.level = RunFact<RecordLevel>::parse(level);
    const auto number = [&](const char* name, std::int64_t limit) {
        const std::int64_t value = row.int64(column++);
        if (value < 0 || value > limit) damaged(fmt::format("run {} has {} = {}", run.runId, name, value));
        return int(value);
    };
    constexpr int any = std::numeric_limits<int>::max();
    run.blockSize = number("block_size", any);
    run.layers = number("layers", trace::kMaxLayers);
    run.kvHeads = number("kv_heads", trace::kMaxKvHeads);
    run.queryHeads = number("query_heads", any);
    run.headDim = number("head_dim", any);
    run.sequences = number("sequences", trace::kMaxSequences);
    run.deviceSlots = number("device_slots", any);
    run.budgetBlocks = number("budget_blocks", any);
    run.blockBytes = row.int64(column++);
    run.linkGbps = row.real(column++);
    run.linkLatencyUs = row.real(column++);
    run.droppedSteps = row.int64(column++);
    run.writerBusyNs = row.int64(column++);
    run.error = toValidUtf8(row.text(column + 1));
    // Older writers called a run finished even if its disk had become full; its error tells.
    if (!run.error.empty() && run.status != RunStatus::Stopped) run.status = RunStatus::Failed;
    if (!run.error.empty() && run.statusMessage.empty()) run.statusMessage = run.error;
    if (run.status == RunStatus::Running) {
        using namespace std::chrono;
        const auto now = duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
        // A heartbeat far in the future comes from another machine's clock: no writer of ours either.
        run.stale = row.isNull(column) || now - row.int64(column) > kStaleMs || row.int64(column) - now > 60 * kStaleMs;
    }
    readMeta(run);
    return run;
}

void TraceReader::Impl::readMeta(RunRow& run) const {
    if (hasRunMeta(*connection)) {
        Statement rows(*connection, "SELECT key, value FROM run_meta WHERE run_id = ? LIMIT 1000");
        rows.bindAll(run.runId);
        while (rows.step()) run.meta[toValidUtf8(rows.text(0))] = toValidUtf8(rows.text(1));
    }
    if (std::string name = labelsOf(run).name; !name.empty()) run.name = std::move(name);
    const auto said = run.meta.find(run_meta::kKnows);
    const std::optional<Knowledge> knows = said == run.meta.end() ? std::nullopt : Knowledge::parse(said->second);
    run.knows = knows ? *knows : knowledgeFromRows(*connection, run.runId);
}

bool RunRow::serves() const { return !metaOr(run_meta::kServing).empty(); }
bool RunRow::sharesPool() const {
    const nlohmann::json serving = parseJson(metaOr(run_meta::kServing));
    return member(serving, "cache") == "global-lru" && member(serving, "offload") != false;
}

const std::string& RunRow::metaOr(const std::string& key) const {
    static const std::string none;
    const auto found = meta.find(key);
    return found == meta.end() ? none : found->second;
}

RunRow TraceReader::Impl::known(int runId) const {
    Statement row(*connection, std::string(kRunColumns) + " WHERE r.run_id=?");
    if (!row.bind(1, runId).step())
        throw Error(ErrorKind::BadInput, fmt::format("{} holds no run {}", connection->path(), runId),
                    "list its runs with kvscope-cli info");
    RunRow run = runRow(row);
    countSteps(run);
    return run;
}

StepRange TraceReader::Impl::range(int runId, int first, int last) const {
    StepRange steps;
    const int count = stepCount(runId);
    steps.first = std::max(first, 0);
    steps.last = last < 0 ? count - 1 : std::min(last, count - 1);
    return steps;
}

int TraceReader::Impl::stepCount(int runId) const { return afterLast("step", runId); }

/// One more than the number of the run's last step in a table whose keys are those of steps; 0: the run has no row
/// there.
int TraceReader::Impl::afterLast(const char* table, int runId) const {
    if (runId < 1 || runId > trace::kMaxRuns) return 0;
    Statement newest(*connection,
                     fmt::format("SELECT id FROM {} WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1", table));
    newest.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, trace::kMaxStep));
    return newest.step() ? trace::stepOf(newest.int64(0), 0) + 1 : 0;
}

void TraceReader::Impl::countSteps(RunRow& run) const {
    run.steps = stepCount(run.runId);
    run.prompts = PromptSteps(*connection, run.runId);
    if (run.serves() && hasTable("iteration")) run.iterations = afterLast("iteration", run.runId);
}

int TraceReader::Impl::nextStep(int runId, int step) const {
    if (runId < 1 || runId > trace::kMaxRuns || step < 0 || step > trace::kMaxStep) return step;
    Statement next(*connection, "SELECT id FROM step WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1");
    next.bindAll(trace::stepKey(runId, step), trace::stepKey(runId, trace::kMaxStep));
    return next.step() ? trace::stepOf(next.int64(0), 0) : step;
}

int TraceReader::Impl::previousStep(int runId, int step) const {
    if (runId < 1 || runId > trace::kMaxRuns || step < 1) return -1;
    Statement before(*connection, "SELECT id FROM step WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1");
    before.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, std::min(step - 1, trace::kMaxStep)));
    return before.step() ? trace::stepOf(before.int64(0), 0) : -1;
}

TraceReader::TraceReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
    impl_->path = path;
    OpenTrace opened = openTrace(path);
    impl_->copy = std::move(opened.copy);
    impl_->connection = std::move(opened.connection);
    runs(); // a damaged table of runs is said now, not by the first view
}

TraceReader::~TraceReader() = default;
TraceReader::TraceReader(TraceReader&&) noexcept = default;

const std::string& TraceReader::path() const { return impl_->path; }

void TraceReader::setInterrupt(const std::atomic<bool>* flag) { impl_->connection->setInterrupt(flag); }

std::vector<RunRow> TraceReader::runs() const {
    std::vector<RunRow> result;
    Statement rows(*impl_->connection, std::string(kRunColumns) + " ORDER BY r.run_id");
    while (rows.step()) result.push_back(impl_->runRow(rows));
    for (RunRow& run : result) impl_->countSteps(run);
    return result;
}

std::optional<RunRow> TraceReader::run(int runId) const {
    Statement row(*impl_->connection, std::string(kRunColumns) + " WHERE r.run_id=?");
    if (!row.bind(1, runId).step()) return std::nullopt;
    RunRow result = impl_->runRow(row);
    impl_->countSteps(result);
    return result;
}

int TraceReader::stepCount(int runId) const { return impl_->stepCount(runId); }

std::vector<StepRow> TraceReader::steps(int runId, int first, int last) const {
    std::vector<StepRow> result;
    const StepRange range = impl_->range(runId, first, last);
    if (range.count() == 0) return result;
    Statement rows(
        *impl_->connection,
        "SELECT id, phase, tokens, opens_block, start_ns, duration_ns, selected, kept, hits, misses, h2d_bytes,"
        " d2h_bytes, transfer_ns, exposed_ns FROM step WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(trace::stepKey(runId, range.first), trace::stepKey(runId, range.last));
    const PromptSteps prompts(*impl_->connection, runId, range.first, range.last);
    while (rows.step()) {
        StepRow step;
        step.step = trace::stepOf(rows.int64(0), 0);
        step.phase = rows.int64(1) == 0 ? Phase::Prefill : Phase::Decode;
        step.tokens = rows.int32(2);
        step.promptTokens = step.phase == Phase::Prefill ? step.tokens : prompts.mixedTokens(step.step);
        step.opensBlock = rows.int64(3) != 0;
        step.startNs = rows.int64(4);
        step.durationNs = rows.int64(5);
        step.selected = rows.int64(6);
        step.kept = rows.isNull(7) ? -1 : rows.int64(7);
        step.hits = rows.int64(8);
        step.misses = rows.int64(9);
        step.h2dBytes = rows.int64(10);
        step.d2hBytes = rows.int64(11);
        step.transferNs = rows.int64(12);
        step.exposedNs = rows.int64(13);
        result.push_back(step);
    }
    return result;
}

std::vector<TokenRow> TraceReader::tokens(int runId, int sequence, int firstStep) const {
    std::vector<TokenRow> result;
    if (runId < 1 || runId > trace::kMaxRuns || sequence < 0) return result;
    const auto [low, high] =
        trace::keysOfSteps(runId, std::clamp(firstStep, 0, trace::kMaxStep), trace::kMaxStep, trace::kTokenShift);
    Statement rows(*impl_->connection, "SELECT id, position, token_id, coalesce(bytes, text) FROM token"
                                       " WHERE id BETWEEN ? AND ? AND (id >> 10) & 1023 = ? ORDER BY id");
    rows.bindAll(low, high, sequence);
    while (rows.step())
        result.push_back({trace::stepOf(rows.int64(0), trace::kTokenShift), sequence, rows.int32(1), rows.int32(2),
                          std::string(rows.text(3))});
    return result;
}

std::vector<TokenRow> TraceReader::prompt(int runId, int sequence, int firstPosition, int count) const {
    std::vector<TokenRow> result;
    if (runId < 1 || runId > trace::kMaxRuns || sequence < 0 || sequence >= trace::kMaxSequences || count == 0)
        return result;
    constexpr std::int64_t lastPosition = (std::int64_t(1) << 45) - 1;
    const std::int64_t first = std::max(firstPosition, 0);
    const std::int64_t last = count < 0 ? lastPosition : first + count - 1;
    Statement rows(*impl_->connection, "SELECT id, token_id, coalesce(bytes, text) FROM prompt"
                                       " WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(trace::promptKey(runId, sequence, first), trace::promptKey(runId, sequence, last));
    while (rows.step())
        result.push_back({0, sequence,
                          int(std::min<std::int64_t>(rows.int64(0) & lastPosition, std::numeric_limits<int>::max())),
                          rows.int32(1), std::string(rows.text(2))});
    return result;
}

std::string TraceReader::blockText(int runId, int sequence, int block) const {
    const auto run = this->run(runId);
    if (!run || sequence < 0 || sequence >= trace::kMaxSequences || block < 0 || run->blockSize <= 0) return {};
    if (run->prompts.severalPrompts(sequence)) return {}; // of which of them is not said
    const std::int64_t first = std::int64_t(block) * run->blockSize, last = first + run->blockSize - 1;
    if (last > std::numeric_limits<int>::max()) return {};
    std::string bytes;
    std::int64_t next = first; // first position still wanted
    for (const TokenRow& token : prompt(runId, sequence, int(first), run->blockSize)) {
        bytes += token.bytes;
        next = token.position + 1;
    }
    if (next > last) return toValidUtf8(bytes);

    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kTokenShift);
    Statement newest(*impl_->connection,
                     "SELECT position, id FROM token WHERE id BETWEEN ? AND ? AND (id >> 10) & 1023 = ?"
                     " ORDER BY id DESC LIMIT 1");
    newest.bindAll(low, high, sequence);
    if (!newest.step()) return toValidUtf8(bytes);
    const std::int64_t newestPosition = newest.int64(0),
                       newestStep = trace::stepOf(newest.int64(1), trace::kTokenShift);
    // One token a step is the rule, so the position tells the step; where it does not hold, all tokens are looked at.
    const auto collect = [&](std::int64_t lowKey, std::int64_t highKey, std::string& text) {
        Statement rows(*impl_->connection,
                       "SELECT coalesce(bytes, text) FROM token WHERE id BETWEEN ?1 AND ?2"
                       " AND (id >> 10) & 1023 = ?3 AND position BETWEEN ?4 AND ?5 ORDER BY position");
        rows.bindAll(lowKey, highKey, sequence, next, last);
        std::int64_t found = 0;
        for (; rows.step(); ++found) text += rows.text(0);
        return found;
    };
    const std::int64_t wanted = std::min(last, newestPosition) - next + 1;
    if (wanted <= 0) return toValidUtf8(bytes);
    const std::int64_t from = std::clamp<std::int64_t>(newestStep - (newestPosition - next), 0, trace::kMaxStep);
    const auto guess = trace::keysOfSteps(runId, int(from), int(std::min<std::int64_t>(from + wanted, trace::kMaxStep)),
                                          trace::kTokenShift);
    std::string generated;
    if (collect(guess.first, guess.second, generated) < wanted) {
        generated.clear();
        collect(low, high, generated);
    }
    return toValidUtf8(bytes + generated);
}

std::vector<BreakdownRow> TraceReader::breakdown(int runId) const {
    // The same rows as v_breakdown, several times faster: one pass over each table, and sums in place of SQL's
    // grouping. Sums are unsigned so that absurd numbers of a damaged file wrap instead of being undefined.
    struct Sum {
        std::uint64_t calls = 0, ns = 0;
        void add(std::int64_t value) { calls += value != 0, ns += std::uint64_t(value); }
    };
    struct PhaseSums {
        std::uint64_t steps = 0, otherNs = 0;
        std::array<Sum, kStepStageCount> outside;
        std::vector<std::array<Sum, kStageCount>> layers;
    };
    std::array<PhaseSums, 2> phases; // prefill, decode
    if (runId < 1 || runId > trace::kMaxRuns) return {};
    std::vector<std::int64_t> prefillSteps; // few: one in a run of ours
    Statement steps(*impl_->connection, "SELECT id, phase, duration_ns, embed_ns, lm_head_ns, sample_ns FROM step"
                                        " WHERE id BETWEEN ? AND ? ORDER BY id");
    steps.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, trace::kMaxStep));
    while (steps.step()) {
        const bool prefill = steps.int64(1) == 0;
        if (prefill) prefillSteps.push_back(steps.int64(0));
        PhaseSums& phase = phases[prefill ? 0 : 1];
        ++phase.steps;
        phase.otherNs += std::uint64_t(steps.int64(2));
        for (std::size_t i = 0; i < phase.outside.size(); ++i) {
            const std::int64_t ns = steps.int64(3 + int(i));
            phase.outside[i].add(ns);
            phase.otherNs -= std::uint64_t(ns);
        }
    }
    Statement layers(*impl_->connection, kLayerStages);
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kLayerShift);
    layers.bindAll(low, high);
    while (layers.step()) {
        const std::int64_t id = layers.int64(0);
        const bool prefill = std::binary_search(prefillSteps.begin(), prefillSteps.end(), id >> trace::kLayerShift);
        PhaseSums& phase = phases[prefill ? 0 : 1];
        const auto layer = std::size_t(id & (trace::kMaxLayers - 1));
        if (phase.layers.size() <= layer) phase.layers.resize(layer + 1);
        for (std::size_t i = 0; i < phase.layers[layer].size(); ++i) {
            const std::int64_t ns = layers.int64(1 + int(i));
            phase.layers[layer][i].add(ns);
            phase.otherNs -= std::uint64_t(ns);
        }
    }
    std::vector<BreakdownRow> result;
    for (int p = 0; p < 2; ++p) {
        const PhaseSums& phase = phases[std::size_t(p)];
        if (phase.steps == 0) continue;
        const auto add = [&](std::string_view component, int layer, const Sum& sum) {
            if (sum.calls > 0)
                result.push_back(
                    {Phase(p), std::string(component), layer, std::int64_t(sum.calls), std::int64_t(sum.ns)});
        };
        for (std::size_t i = 0; i < phase.outside.size(); ++i) add(kStepStageNames[i], -1, phase.outside[i]);
        for (std::size_t layer = 0; layer < phase.layers.size(); ++layer)
            for (std::size_t i = 0; i < phase.layers[layer].size(); ++i)
                add(kStageNames[i], int(layer), phase.layers[layer][i]);
        add(kOtherName, -1, {phase.steps, phase.otherNs});
    }
    return result;
}

std::vector<BreakdownStep> TraceReader::breakdownSteps(int runId, int firstStep, int lastStep) const {
    std::vector<BreakdownStep> result;
    const StepRange range = impl_->range(runId, firstStep, lastStep);
    if (range.count() == 0) return result;
    Statement rows(*impl_->connection, "SELECT id, duration_ns, embed_ns, lm_head_ns, sample_ns FROM step"
                                       " WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(trace::stepKey(runId, range.first), trace::stepKey(runId, range.last));
    while (rows.step()) {
        BreakdownStep step;
        step.step = trace::stepOf(rows.int64(0), 0);
        step.durationNs = rows.int64(1);
        for (std::size_t i = 0; i < step.stepStageNs.size(); ++i) step.stepStageNs[i] = rows.int64(2 + int(i));
        result.push_back(step);
    }
    // Added up here: SQL's grouping takes a sixth longer, and its sums refuse the absurd numbers of a damaged file,
    // which wrap here.
    const auto add = [](std::int64_t& sum, std::int64_t ns) {
        sum = std::int64_t(std::uint64_t(sum) + std::uint64_t(ns));
    };
    Statement layers(*impl_->connection, kLayerStages);
    const auto [low, high] = trace::keysOfSteps(runId, range.first, range.last, trace::kLayerShift);
    layers.bindAll(low, high);
    for (auto step = result.begin(); layers.step();) {
        const int number = trace::stepOf(layers.int64(0), trace::kLayerShift);
        while (step != result.end() && step->step < number) ++step;
        if (step == result.end()) break;
        if (step->step > number) continue; // of a step that has no row
        for (std::size_t i = 0; i < step->stageNs.size(); ++i) add(step->stageNs[i], layers.int64(1 + int(i)));
    }
    for (BreakdownStep& step : result) {
        std::int64_t named = 0;
        for (const std::int64_t ns : step.stepStageNs) add(named, ns);
        for (const std::int64_t ns : step.stageNs) add(named, ns);
        step.otherNs = std::int64_t(std::uint64_t(step.durationNs) - std::uint64_t(named));
    }
    return result;
}

std::vector<LayerRecord> TraceReader::layers(int runId, int step) const {
    std::vector<LayerRecord> result;
    if (runId < 1 || runId > trace::kMaxRuns || step < 0 || step > trace::kMaxStep) return result;
    const auto [low, high] = trace::keysOfSteps(runId, step, step, trace::kLayerShift);
    Statement rows(
        *impl_->connection,
        "SELECT id, start_ns, qkv_linear_ns, rope_ns, compression_ns, stage1_ns, pooling_ns, offloading_ns,"
        " stage2_ns, attention_ns, o_linear_ns, ffn_ns, selected, kept, hits, misses, h2d_blocks, d2h_blocks,"
        " h2d_bytes, d2h_bytes, h2d_ns, d2h_ns, exposed_ns FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(low, high);
    while (rows.step()) {
        result.resize(std::size_t(rows.int64(0) & 1023) + 1);
        LayerRecord& layer = result.back();
        layer.startNs = rows.int64(1);
        for (std::size_t i = 0; i < layer.stageNs.size(); ++i) layer.stageNs[i] = rows.int64(2 + int(i));
        layer.selected = rows.int32(12);
        layer.kept = kept32(rows, 13);
        layer.hits = rows.int32(14);
        layer.misses = rows.int32(15);
        layer.h2dBlocks = rows.int32(16);
        layer.d2hBlocks = rows.int32(17);
        layer.h2dBytes = rows.int64(18);
        layer.d2hBytes = rows.int64(19);
        layer.transferNs = std::int64_t(std::uint64_t(rows.int64(20)) + std::uint64_t(rows.int64(21)));
        layer.exposedNs = rows.int64(22);
    }
    return result;
}

std::vector<TransferRow> TraceReader::transfers(int runId, int firstStep, int lastStep) const {
    std::vector<TransferRow> result;
    const StepRange range = impl_->range(runId, firstStep, lastStep);
    if (range.count() == 0) return result;
    Statement rows(*impl_->connection,
                   "SELECT step, layer, direction = 'h2d', mechanism, blocks, bytes, start_ns, duration_ns"
                   " FROM v_transfer WHERE run_id=? AND step BETWEEN ? AND ?");
    rows.bindAll(runId, range.first, range.last);
    while (rows.step())
        result.push_back({rows.int32(0), rows.int32(1), rows.int64(2) != 0, std::string(rows.text(3)), rows.int64(4),
                          rows.int64(5), rows.int64(6), rows.int64(7)});
    std::stable_sort(result.begin(), result.end(), [](const TransferRow& a, const TransferRow& b) {
        return a.step != b.step ? a.step < b.step : a.layer < b.layer;
    });
    return result;
}

} // namespace kvscope

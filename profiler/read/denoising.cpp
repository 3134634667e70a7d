#include "profiler/read/denoising.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace kvscope {
namespace {

constexpr std::size_t kActiveBits = 64;

constexpr double kNoShare = std::numeric_limits<double>::quiet_NaN();

/// Reads a share from a row; NaN where it is NULL, or where a damaged file has a number that is no share.
double shareIn(const Statement& row, int column) {
    if (row.isNull(column)) return kNoShare;
    const double value = row.real(column);
    return value >= 0 && value <= 1 ? value : kNoShare;
}

/// Sum and count of the numbers that are known.
struct MeanOf {
    double sum = 0;
    int count = 0;
    void add(double value) {
        if (!std::isfinite(value)) return;
        sum += value;
        ++count;
    }
    float value() const { return count > 0 ? float(sum / count) : std::numeric_limits<float>::quiet_NaN(); }
};

/// Combines the layers of one forward. Rows come in the order of layers and KV heads.
class ForwardLayers {
public:
    ForwardLayers(const DenoiseRequest& request, std::size_t tokens)
        : request_(request), changes_(tokens), active_(tokens, 0), activeLayers_(tokens, 0) {}

    void add(int layer, int kvHead, const Statement& row) {
        if (layer != layer_) beginLayer(layer);
        if (kvHead == 0) keep(row.blob(5), changesOfLayer_);
        if (!request_.filter.hasLayer(layer) || !request_.filter.hasKvHead(kvHead)) return;
        if (!counted_) ++layers_, counted_ = true;
        const bool wantedHead = request_.kvHead < 0 || request_.kvHead == kvHead;
        const bool wanted = wantedHead && (request_.layer < 0 || request_.layer == layer);
        const bool sparse = row.int64(1) != 0;
        const double density = sparse ? shareIn(row, 4) : kNoShare;
        meanDensity_.add(density);
        const auto set = std::uint64_t(row.int64(2));
        if (sparse && wantedHead) activeInLayer_ |= set, sparseHere_ = true;
        if (!wanted) return;
        ++wanted_;
        density_.add(density);
        if (sparse) {
            pages_.add(double(row.int64(3)));
            addTileRows(row.text(6));
            ++sparse_;
            for (std::size_t i = 0; i < std::min<std::size_t>(active_.size(), kActiveBits); ++i)
                active_[i] += int(set >> i & 1);
        }
        std::vector<float> own;
        keep(row.blob(5), own);
        const std::vector<float>& changes = own.empty() ? changesOfLayer_ : own;
        for (std::size_t i = 0; i < std::min(changes.size(), changes_.size()); ++i)
            // a change below 0 is not known, or comes from a damaged file
            if (changes[i] >= 0) changes_[i].add(double(changes[i]));
    }

    void finish(ForwardRow& row, std::span<ForwardCell> cells) {
        beginLayer(-1);
        row.layers = layers_;
        row.sparseLayers = sparseLayers_;
        row.dense = wanted_ > 0 && sparse_ == 0;
        row.density = density_.value();
        row.pages = pages_.value();
        row.meanDensity = meanDensity_.value();
        row.meanRow = tileRows_.value();
        if (tileRows_.count > 0) row.leastRow = float(leastRow_), row.mostRow = float(mostRow_);
        for (std::size_t i = 0; i < cells.size(); ++i) {
            cells[i].change = changes_[i].value();
            const bool isKnown = i < kActiveBits; // the trace does not say whether later tokens were active
            cells[i].activeLayers = isKnown || sparseLayers_ == 0 ? activeLayers_[i] : -1;
            if (sparse_ > 0 && isKnown) cells[i].active = float(active_[i]) / float(sparse_);
        }
    }

private:
    static void keep(std::span<const std::byte> blob, std::vector<float>& values) {
        values.resize(blob.size() / sizeof(float));
        if (!values.empty()) std::memcpy(values.data(), blob.data(), values.size() * sizeof(float));
    }
    /// Reads the numbers of a list of lists. Of a damaged one it takes what are shares.
    void addTileRows(std::string_view text) {
        for (const char *at = text.data(), *const end = at + text.size(); at < end;) {
            double share = 0;
            const auto [next, error] = std::from_chars(at, end, share);
            at = error == std::errc() ? next : at + 1;
            if (error != std::errc() || !(share >= 0 && share <= 1)) continue;
            tileRows_.add(share);
            leastRow_ = std::min(leastRow_, share), mostRow_ = std::max(mostRow_, share);
        }
    }
    void beginLayer(int layer) {
        for (std::size_t i = 0; i < std::min<std::size_t>(activeLayers_.size(), kActiveBits); ++i)
            activeLayers_[i] += int(activeInLayer_ >> i & 1);
        sparseLayers_ += sparseHere_ ? 1 : 0;
        layer_ = layer;
        activeInLayer_ = 0;
        sparseHere_ = counted_ = false;
        changesOfLayer_.clear();
    }

    const DenoiseRequest& request_;
    int layer_ = -1, layers_ = 0, sparseLayers_ = 0;
    // rows of the requested layers and KV heads; rows of those that chose pages
    int wanted_ = 0, sparse_ = 0;
    bool sparseHere_ = false, counted_ = false; // sparseHere_: of the layer that is being read
    std::uint64_t activeInLayer_ = 0;
    std::vector<float> changesOfLayer_;
    std::vector<MeanOf> changes_; // [token of the block], like the next two
    std::vector<int> active_, activeLayers_;
    MeanOf density_, pages_, meanDensity_, tileRows_;
    double leastRow_ = 1, mostRow_ = 0; // of those in tileRows_
};

void readTokens(Connection& connection, const DenoiseRequest& request, std::pair<std::int64_t, std::int64_t> keys,
                ForwardRows& result) {
    Statement tokens(connection, "SELECT id, position, input_id, candidate, confidence, written FROM denoise_token"
                                 " WHERE id BETWEEN ? AND ? AND (id >> 10) & 1023 = ? ORDER BY id");
    tokens.bindAll(keys.first, keys.second, request.sequence);
    auto row = result.rows.begin();
    while (tokens.step()) {
        const int step = trace::stepOf(tokens.int64(0), trace::kTokenShift);
        while (row != result.rows.end() && row->step < step) ++row;
        if (row == result.rows.end()) break;
        if (row->step != step) continue; // the filter leaves this step out
        ForwardCell cell;
        cell.position = std::max(tokens.int32(1), 0); // below 0 only in a damaged file
        cell.input = tokens.int32(2);
        if (!tokens.isNull(3)) {
            cell.candidate = tokens.int32(3);
            cell.confidence = float(shareIn(tokens, 4));
        }
        cell.written = tokens.int64(5) != 0;
        if (row->cells++ == 0) {
            row->firstCell = std::uint32_t(result.cells.size());
            row->firstPosition = row->lastPosition = cell.position;
        }
        row->firstPosition = std::min(row->firstPosition, cell.position);
        row->lastPosition = std::max(row->lastPosition, cell.position);
        result.cells.push_back(cell);
    }
}

void readLayers(Connection& connection, const DenoiseRequest& request, int first, int last, ForwardRows& result) {
    const auto [low, high] = trace::keysOfSteps(request.runId, first, last, trace::kSelectionShift);
    Statement layers(connection, "SELECT l.id, mode, active_set, pages, density, changes, densities FROM"
                                 " denoise_layer l LEFT JOIN denoise_tile t ON t.id = l.id WHERE l.id BETWEEN ? AND ?"
                                 " AND (l.id >> 10) & 1023 = ? ORDER BY l.id");
    layers.bindAll(low, high, request.sequence);
    bool there = layers.step();
    for (ForwardRow& row : result.rows) {
        const auto stepOfRow = [&] { return trace::stepOf(layers.int64(0), trace::kSelectionShift); };
        while (there && stepOfRow() < row.step) there = layers.step();
        ForwardLayers sums(request, row.cells);
        for (; there && stepOfRow() == row.step; there = layers.step())
            sums.add(int(layers.int64(0) >> 20 & 1023), int(layers.int64(0) & 1023), layers);
        sums.finish(row, std::span(result.cells).subspan(row.firstCell, row.cells));
    }
}

int tokensIn(const std::string& text) {
    int tokens = 0;
    std::from_chars(text.data(), text.data() + text.size(), tokens);
    return std::max(tokens, 0);
}

} // namespace

int denoisingBlock(const RunRow& run) { return tokensIn(run.metaOr(run_meta::kDenoisingBlock)); }

bool denoisesCanvas(const RunRow& run) { return !run.metaOr(run_meta::kDenoisingCanvas).empty(); }

int canvasTokens(const RunRow& run) { return tokensIn(run.metaOr(run_meta::kDenoisingCanvas)); }

bool choosesWithoutBound(const RunRow& run) {
    // what a query, or a row of a mask, may choose; methods that attend to everything have no such parameter
    if (denoisingBlock(run) == 0 || run.budgetBlocks != 0) return false;
    const auto params = parseJson(run.paramsJson);
    return params.contains("budget") || params.contains("select");
}

ForwardRows readForwards(const TraceReader& reader, const DenoiseRequest& request, int first, int last) {
    ForwardRows result;
    const auto& impl = ReaderAccess::of(reader);
    if (request.runId < 1 || request.runId > trace::kMaxRuns || request.sequence < 0 || first < 0 || last < first ||
        last > trace::kMaxStep)
        return result;
    for (const char* table : {"denoise", "denoise_token", "denoise_layer"})
        if (!impl.hasTable(table)) return result;
    const Numbered<bool> passes = stepsThatPass(reader, request.runId, request.filter, first, last);
    const auto keys = trace::keysOfSteps(request.runId, first, last, trace::kTokenShift);
    Statement rows(*impl.connection, "SELECT id, block, denoise_step, kind, masked, written FROM denoise"
                                     " WHERE id BETWEEN ? AND ? AND (id >> 10) & 1023 = ? ORDER BY id");
    rows.bindAll(keys.first, keys.second, request.sequence);
    while (rows.step()) {
        ForwardRow row;
        row.step = trace::stepOf(rows.int64(0), trace::kTokenShift);
        if (!passes[row.step - first] || (!result.rows.empty() && result.rows.back().step == row.step))
            continue; // the filter leaves the step out, or a damaged file has a second forward in it
        row.block = rows.int32(1);
        row.denoiseStep = rows.int32(2);
        row.final = rows.int64(3) != 0;
        row.masked = rows.int32(4);
        row.written = rows.int32(5);
        result.rows.push_back(row);
    }
    if (result.rows.empty()) return result;
    readTokens(*impl.connection, request, keys, result);
    readLayers(*impl.connection, request, first, last, result);
    return result;
}

std::map<std::int32_t, std::string> tokenBytes(const TraceReader& reader, int runId, int sequence,
                                               std::span<const std::int32_t> ids) {
    std::map<std::int32_t, std::string> result;
    if (runId < 1 || runId > trace::kMaxRuns || sequence < 0 || sequence >= trace::kMaxSequences) return result;
    Connection& connection = *ReaderAccess::of(reader).connection;
    Statement generated(connection, "SELECT coalesce(bytes, text) FROM token WHERE id BETWEEN ? AND ?"
                                    " AND token_id = ? LIMIT 1");
    Statement prompt(connection, "SELECT coalesce(bytes, text) FROM prompt WHERE id BETWEEN ? AND ?"
                                 " AND token_id = ? LIMIT 1");
    const auto steps = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kTokenShift);
    const auto first = trace::promptKey(runId, sequence, 0);
    const auto last = trace::promptKey(runId, sequence, (std::int64_t(1) << 45) - 1);
    for (const std::int32_t id : ids) {
        if (result.contains(id)) continue;
        generated.bindAll(steps.first, steps.second, id);
        prompt.bindAll(first, last, id);
        if (generated.step())
            result[id] = std::string(generated.text(0));
        else if (prompt.step())
            result[id] = std::string(prompt.text(0));
        generated.reset();
        prompt.reset();
    }
    return result;
}

} // namespace kvscope

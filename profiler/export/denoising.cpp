#include "profiler/export/denoising.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

namespace kvscope {
namespace {

constexpr std::int64_t kTokensPerReport = 1 << 10;

/// One KV head of a layer.
struct Head {
    bool sparse = false;
    int kvHead = 0;
    std::uint64_t active = 0;
    double density = 0;
    std::vector<PackedBlock> pages;
    bool hasPages = false;
    std::vector<float> changes, keyChanges, valueChanges;
    std::string tileRows; // JSON; empty: the query heads chose no tiles of their own, or the trace does not say
};

/// "[1,2]" of what `text` makes of each value.
template <class Values, class Text> std::string list(const Values& values, const Text& text) {
    std::string out = "[";
    for (const auto& value : values) {
        if (out.size() > 1) out += ',';
        out += text(value);
    }
    return out + "]";
}

std::string number(double value) { return fmt::format("{}", float(value)); }
std::string integer(std::int64_t value) { return fmt::format("{}", value); }

std::string bitsOf(std::uint64_t bits) {
    std::vector<int> places;
    for (int i = 0; i < 64; ++i)
        if ((bits >> i & 1) != 0) places.push_back(i);
    return list(places, integer);
}

class DenoisingExport {
public:
    DenoisingExport(Connection& connection, LineWriter& writer)
        : connection_(connection), writer_(writer),
          tokens_(connection, "SELECT position, input_id, candidate, confidence, written FROM denoise_token"
                              " WHERE id BETWEEN ?1 AND ?1 | 1023 ORDER BY id"),
          layers_(connection, "SELECT d.id, d.mode, d.active_set, d.density, d.changes, s.blocks, t.densities,"
                              " c.key_changes, c.value_changes FROM denoise_layer d LEFT JOIN selection s ON s.id ="
                              " d.id LEFT JOIN denoise_tile t ON t.id = d.id LEFT JOIN denoise_change c ON c.id = d.id"
                              " WHERE d.id BETWEEN ?1 AND ?2 ORDER BY d.id") {}

    /// key: of table denoise.
    void write(std::int64_t key, std::int64_t block, std::int64_t step, bool final) {
        const std::int64_t stepKey = key >> trace::kTokenShift, run = stepKey >> 25, sequence = key >> 10 & 1023;
        writer_.add("{{\"run_id\":{},\"seq\":{},\"block\":{},\"step\":{},\"kind\":\"{}\"", run, sequence, block, step,
                    final ? "final" : "denoise");
        addTokens(key, final);
        addLayers(stepKey, sequence);
        writer_.addText("}\n");
        writer_.endRow();
    }
    bool lackedPages() const { return lackedPages_; }

private:
    void addTokens(std::int64_t key, bool final) {
        std::vector<std::int64_t> ids, masked, written, tokens;
        std::vector<double> confidence;
        for (tokens_.bind(1, key); tokens_.step();) {
            const bool candidate = !tokens_.isNull(2);
            ids.push_back(tokens_.int64(1));
            if (candidate) masked.push_back(tokens_.int64(0));
            if (tokens_.int64(4) != 0) written.push_back(tokens_.int64(0));
            tokens.push_back(candidate ? tokens_.int64(2) : 0);
            confidence.push_back(candidate ? tokens_.real(3) : -1);
        }
        tokens_.reset();
        writer_.add(",\"ids\":{},\"masked\":{}", list(ids, integer), list(masked, integer));
        if (final) return;
        writer_.add(",\"written\":{},\"tokens\":{},\"confidence\":{}", list(written, integer), list(tokens, integer),
                    list(confidence, number));
    }

    void addLayers(std::int64_t stepKey, std::int64_t sequence) {
        std::map<std::int64_t, std::vector<Head>> layers;
        layers_.bind(1, stepKey << trace::kSelectionShift);
        layers_.bind(2, stepKey << trace::kSelectionShift | ((std::int64_t(1) << trace::kSelectionShift) - 1));
        while (layers_.step()) {
            const std::int64_t key = layers_.int64(0);
            if ((key >> 10 & 1023) == sequence) layers[key >> 20 & 1023].push_back(head(key));
        }
        layers_.reset();
        writer_.addText(",\"layers\":[");
        bool first = true;
        for (const auto& [layer, heads] : layers) {
            if (!first) writer_.addText(",");
            first = false;
            addLayer(heads);
        }
        writer_.addText("]");
    }

    Head head(std::int64_t key) {
        Head out;
        out.kvHead = int(key & 1023);
        out.sparse = layers_.int64(1) != 0;
        out.active = std::uint64_t(layers_.int64(2));
        out.density = layers_.real(3);
        out.changes = numbers(4);
        out.keyChanges = numbers(7), out.valueChanges = numbers(8);
        out.tileRows = tileRows(layers_.text(6));
        const bool stored = !layers_.isNull(5);
        out.hasPages = stored || out.density == 0; // a selection of nothing is not stored
        if (!stored) return out;
        std::vector<float> scores;
        if (!decodeSelection(layers_.blob(5), out.pages, scores))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} is damaged (a selection of step {} cannot be decoded)", connection_.path(),
                                    trace::stepOf(key, trace::kSelectionShift)),
                        "record it again");
        return out;
    }

    std::vector<float> numbers(int column) {
        const auto blob = layers_.blob(column);
        std::vector<float> out(blob.size() / sizeof(float));
        if (!out.empty()) std::memcpy(out.data(), blob.data(), out.size() * sizeof(float));
        return out;
    }

    /// The densities of rows of tiles as they stand in the trace; empty where there are none, or no list of them.
    static std::string tileRows(std::string_view text) {
        const nlohmann::json list = text.empty() ? nlohmann::json() : parseJson(text);
        return list.is_array() ? list.dump() : std::string();
    }

    void addLayer(const std::vector<Head>& heads) {
        const bool sparse = heads.front().sparse;
        writer_.add("{{\"mode\":\"{}\"", sparse ? "sparse" : "dense");
        if (sparse) {
            writer_.add(",\"active\":{}", list(heads, [](const Head& head) { return bitsOf(head.active); }));
            if (std::all_of(heads.begin(), heads.end(), [](const Head& head) { return head.hasPages; }))
                writer_.add(",\"pages\":{}", list(heads, [](const Head& head) {
                                return list(head.pages, [](PackedBlock page) { return integer(page.id()); });
                            }));
            else
                lackedPages_ = true;
            writer_.add(",\"density\":{}", list(heads, [](const Head& head) { return number(head.density); }));
            if (std::all_of(heads.begin(), heads.end(), [](const Head& head) { return !head.tileRows.empty(); }))
                writer_.add(",\"rows\":{}", list(heads, [](const Head& head) { return head.tileRows; }));
        }
        addChanges(heads);
        if (const Head& head = heads.front(); !head.keyChanges.empty() && !head.valueChanges.empty())
            writer_.add(",\"delta_keys\":{},\"delta_values\":{}", list(head.keyChanges, number),
                        list(head.valueChanges, number));
        writer_.addText("}");
    }

    /// Adds the changes of a layer: for the layer one number for each token, for KV heads a list for each token.
    void addChanges(const std::vector<Head>& heads) {
        if (heads.front().changes.empty()) return;
        if (heads.size() == 1 || heads[1].changes.empty()) {
            writer_.add(",\"delta\":{}", list(heads.front().changes, number));
            return;
        }
        std::vector<std::string> tokens;
        for (std::size_t i = 0; i < heads.front().changes.size(); ++i)
            tokens.push_back(list(heads, [&](const Head& head) {
                return i < head.changes.size() ? number(head.changes[i]) : std::string("null");
            }));
        writer_.add(",\"delta\":{}", list(tokens, [](const std::string& text) { return text; }));
    }

    Connection& connection_;
    LineWriter& writer_;
    Statement tokens_, layers_;
    bool lackedPages_ = false;
};

} // namespace

ExportResult exportDenoising(Connection& connection, LineWriter& writer, const ExportOptions& options) {
    ExportResult result;
    const int firstRun = options.runId.value_or(1), lastRun = options.runId.value_or(trace::kMaxRuns);
    if (firstRun < 1 || lastRun > trace::kMaxRuns) return result;
    Statement rows(connection,
                   "SELECT id, block, denoise_step, kind FROM denoise WHERE id BETWEEN ? AND ? ORDER BY id");
    rows.bindAll(trace::tokenKey(firstRun, 0, 0, 0),
                 trace::keysOfSteps(lastRun, 0, trace::kMaxStep, trace::kTokenShift).second);
    DenoisingExport forwards(connection, writer);
    for (; rows.step(); ++result.rows) {
        if (result.rows % kTokensPerReport == 0)
            report(options.progress, double(result.rows) / double(result.rows + 32 * kTokensPerReport),
                   fmt::format("exporting: {} forwards", result.rows));
        forwards.write(rows.int64(0), rows.int64(1), rows.int64(2), rows.int64(3) != 0);
    }
    if (forwards.lackedPages())
        result.note =
            "the trace was recorded at level counters: it has no pages, changes and densities of rows of tiles";
    return result;
}

} // namespace kvscope

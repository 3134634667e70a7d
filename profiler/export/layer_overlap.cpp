#include "profiler/export/layer_overlap.h"

#include "base/error.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <tuple>
#include <unordered_map>

namespace kvscope {
namespace {

struct LayerChoice {
    std::int64_t layerKey = 0; // of the step and the layer
    std::vector<PackedBlock> blocks;
    std::optional<double> mass;
};

struct MassSum {
    double own = 0, next = 0;
    std::int64_t count = 0;
};

std::optional<double> shareOf(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? std::optional(double(part) / double(whole)) : std::nullopt;
}

bool isForced(PackedBlock block) { return block.origin() == Origin::Sink || block.origin() == Origin::Window; }

void addChoice(const LayerChoice& below, const LayerChoice& above, LayerPair& pair, MassSum& mass) {
    ++pair.selections;
    for (const PackedBlock block : above.blocks) {
        const bool shared = findBlock(below.blocks, block.id()) != nullptr;
        ++pair.selected;
        pair.shared += shared ? 1 : 0;
        if (isForced(block)) continue;
        ++pair.chosen;
        pair.sharedChosen += shared ? 1 : 0;
    }
    if (!below.mass || !above.mass) return;
    mass.own += *below.mass;
    mass.next += *above.mass;
    ++mass.count;
}

void writeShare(LineWriter& writer, const std::optional<double>& value, ExportFormat format) {
    if (value)
        writer.add("{}", *value);
    else if (format == ExportFormat::Jsonl)
        writer.addText("null");
}

} // namespace

std::optional<double> LayerPair::overlap() const { return shareOf(shared, selected); }
std::optional<double> LayerPair::chosenOverlap() const { return shareOf(sharedChosen, chosen); }

std::optional<double> LayerPair::sharedMass() const {
    const auto part = overlap();
    return nextMass && part ? std::optional(*nextMass * *part) : std::nullopt;
}

std::string reuseVerdict(std::span<const LayerPair> pairs) {
    std::vector<int> reusable;
    const LayerPair *best = nullptr, *worst = nullptr;
    int judged = 0;
    for (const LayerPair& pair : pairs) {
        const auto overlap = pair.chosenOverlap();
        if (!overlap) continue;
        ++judged;
        if (*overlap >= kReusable) reusable.push_back(pair.next);
        if (best == nullptr || *overlap > *best->chosenOverlap()) best = &pair;
        if (worst == nullptr || *overlap < *worst->chosenOverlap()) worst = &pair;
    }
    if (best == nullptr) return "no layer chooses blocks beside sink and window";
    constexpr std::size_t kNamed = 8;
    std::string which =
        fmt::format("{}", fmt::join(std::span(reusable).first(std::min(reusable.size(), kNamed)), ", "));
    if (reusable.size() > kNamed) which += ", ...";
    const std::string range =
        best == worst
            ? fmt::format("layer {} shares {:.0f} % with layer {}", best->next, 100 * *best->chosenOverlap(),
                          best->layer)
            : fmt::format("layer {} shares most with the one below it, {:.0f} %, and layer {} least, {:.0f} %",
                          best->next, 100 * *best->chosenOverlap(), worst->next, 100 * *worst->chosenOverlap());
    if (reusable.empty()) return fmt::format("no layer of {} may reuse the choice below it: {}", judged, range);
    return fmt::format("{} of {} layers ({}) may reuse the choice below: {}", reusable.size(), judged, which, range);
}

std::vector<LayerPair> readLayerOverlap(const TraceReader& reader, int runId) {
    return readLayerOverlap(*ReaderAccess::of(reader).connection, runId);
}

std::vector<LayerPair> readLayerOverlap(Connection& connection, std::optional<int> runId) {
    const int firstRun = runId.value_or(1), lastRun = runId.value_or(trace::kMaxRuns);
    if (firstRun < 1 || lastRun > trace::kMaxRuns) return {};
    // Rows come by run, step, layer, sequence and head, so the last choice of a head is that of the layer below.
    Statement rows(connection, "SELECT id, mass, blocks FROM selection WHERE id BETWEEN ? AND ? AND blocks NOT NULL"
                               " ORDER BY id");
    rows.bindAll(trace::selectionKey(firstRun, 0, 0, 0, 0),
                 trace::keysOfSteps(lastRun, 0, trace::kMaxStep, trace::kSelectionShift).second);
    std::map<std::tuple<int, int, int>, std::pair<LayerPair, MassSum>> pairs;
    std::unordered_map<std::int64_t, LayerChoice> last; // by sequence and head
    std::vector<float> scores;
    while (rows.step()) {
        const std::int64_t id = rows.int64(0), layerKey = id >> 20;
        const int run = int(id >> 55), layer = int(layerKey & 1023);
        LayerChoice above;
        above.layerKey = layerKey;
        if (!decodeSelection(rows.blob(2), above.blocks, scores))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} is damaged (a selection of step {}, layer {} cannot be decoded)",
                                    connection.path(), trace::stepOf(id, trace::kSelectionShift), layer),
                        "record it again");
        if (!rows.isNull(1)) above.mass = rows.real(1);
        LayerChoice& below = last[id & 0xFFFFF];
        if (below.layerKey >> 10 == layerKey >> 10 && below.layerKey != layerKey) { // of the same step
            const int lower = int(below.layerKey & 1023);
            auto& [pair, mass] = pairs[{run, lower, layer}];
            pair.run = run, pair.layer = lower, pair.next = layer;
            addChoice(below, above, pair, mass);
        }
        below = std::move(above);
    }
    std::vector<LayerPair> result;
    for (auto& [key, sums] : pairs) {
        auto& [pair, mass] = sums;
        if (mass.count > 0) {
            pair.mass = mass.own / double(mass.count);
            pair.nextMass = mass.next / double(mass.count);
        }
        result.push_back(pair);
    }
    return result;
}

ExportResult exportLayerOverlap(Connection& connection, ExportFormat format, LineWriter& writer,
                                const ExportOptions& options) {
    ExportResult result;
    const bool csv = format == ExportFormat::Csv;
    constexpr const char* kNames[] = {"run_id",  "layer",  "next_layer",    "selections",     "selected", "shared",
                                      "overlap", "chosen", "shared_chosen", "chosen_overlap", "mass",     "next_mass"};
    if (csv) {
        for (const char* name : kNames) writer.add("{}{}", name == kNames[0] ? "" : ",", name);
        writer.addText("\n");
    }
    for (const LayerPair& pair : readLayerOverlap(connection, options.runId)) {
        std::size_t column = 0;
        const auto begin = [&] {
            if (!csv) writer.add("{}\"{}\":", column == 0 ? "{" : ",", kNames[column]);
            if (csv && column > 0) writer.addText(",");
            ++column;
        };
        const auto number = [&](std::int64_t value) {
            begin();
            writer.add("{}", value);
        };
        const auto share = [&](const std::optional<double>& value) {
            begin();
            writeShare(writer, value, format);
        };
        for (const int value : {pair.run, pair.layer, pair.next}) number(value);
        for (const std::int64_t value : {pair.selections, pair.selected, pair.shared}) number(value);
        share(pair.overlap());
        for (const std::int64_t value : {pair.chosen, pair.sharedChosen}) number(value);
        share(pair.chosenOverlap());
        share(pair.mass);
        share(pair.nextMass);
        writer.addText(csv ? "\n" : "}\n");
        writer.endRow();
        ++result.rows;
    }
    if (result.rows == 0) result.note = "no two layers of a step have recorded which blocks they selected";
    return result;
}

} // namespace kvscope

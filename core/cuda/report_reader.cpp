#include "core/cuda/report_reader.h"

#include "core/engine/step_order.h"
#include "core/session/oracle_best.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <utility>

namespace kvscope {

using enum StepReport::Mark;
using enum StepReport::StepMark;

void ReportReader::fill(const StepReport& report, StepRecord& record, std::span<const ActiveSequence> active) const {
    fillTimes(report, record);
    record.layers.assign(layers_.size(), {});
    const bool halves = order_.isInHalves();
    if (halves) fillHalves(report, record);
    for (const LayerId i : idsUpTo<LayerId>(config_.layers)) {
        const DeviceLayerState& layer = layers_[i];
        if (!halves) fillStages(report, i, record.layers[int(i)]);
        if (layer.offloaded && !halves) fillTransfers(report, i, record);
        if (layer.sparse && layer.ownTier)
            fillOwnSelections(report, i, record, active);
        else if (layer.sparse)
            fillSelections(report, i, record, active);
    }
}

void ReportReader::fillRow(const StepReport& report, const ActiveSequence& row, bool alone, StepRecord& record) const {
    if (alone) fillTimes(report, record);
    record.layers.assign(layers_.size(), {});
    for (const LayerId i : idsUpTo<LayerId>(config_.layers)) {
        const DeviceLayerState& layer = layers_[i];
        if (alone) fillStages(report, i, record.layers[int(i)]);
        if (layer.offloaded && alone)
            fillTransfers(report, i, record);
        else if (layer.offloaded)
            countTransfers(report, i, row, record.layers[int(i)]);
        if (layer.sparse) fillSelections(report, i, record, {&row, 1});
    }
    for (SelectionRecord& selection : record.selections) selection.sequence = 0;
}

/// What one of several rows has moved: its misses, and a block of every head when the token fills it.
void ReportReader::countTransfers(const StepReport& report, LayerId index, const ActiveSequence& row,
                                  LayerRecord& out) const {
    const cuda::SelectionHead* heads = report.headsOf(index) + layout_.headOf(row.sequence);
    for (int g = 0; g < layout_.kvHeads; ++g) out.h2dBlocks += heads[g].misses;
    out.d2hBlocks = (row.position + 1) % layout_.shape.blockSize == 0 ? layout_.kvHeads : 0;
    const std::int64_t blockBytes = options_.fullBlockBytes(layout_.blockElements);
    out.h2dBytes = out.h2dBlocks * blockBytes;
    out.d2hBytes = out.d2hBlocks * blockBytes;
}

void ReportReader::fillTimes(const StepReport& report, StepRecord& record) const {
    const std::uint64_t* step = report.stepMarks;
    record.startNs = clock_.sinceOrigin(step[kEmbed]);
    record.durationNs = std::int64_t(step[kEnd] - step[kEmbed]);
    record.stepStageNs[StepStage::Embed] = std::int64_t(report.marks[kQkv] - step[kEmbed]);
    record.stepStageNs[StepStage::LmHead] = std::int64_t(step[kSample] - step[kLmHead]);
    record.stepStageNs[StepStage::Sample] = std::int64_t(step[kEnd] - step[kSample]);
}

/// The stages of a layer follow each other; each lasts until the mark of the next one.
void ReportReader::fillStages(const StepReport& report, LayerId index, LayerRecord& out) const {
    const DeviceLayerState& layer = layers_[index];
    const std::uint64_t* marks = report.marksOf(index);
    out.startNs = clock_.sinceOrigin(marks[kQkv]);
    std::vector<std::pair<Stage, std::uint64_t>> order{{Stage::QkvLinear, marks[kQkv]}, {Stage::Rope, marks[kRope]}};
    if (layer.indexed) order.emplace_back(Stage::Compression, marks[kCompression]);
    if (order_.choosesIn(index)) {
        order.emplace_back(Stage::Stage1, marks[kStage1]);
        order.emplace_back(Stage::Pooling, marks[kPooling]);
        order.emplace_back(Stage::Offloading, marks[kOffloading]);
    } else if (layer.sparse) {
        order.emplace_back(Stage::Offloading, marks[kReady]);
    }
    order.emplace_back(layer.sparse ? Stage::Stage2 : Stage::Attention, marks[kAttention]);
    order.emplace_back(Stage::OLinear, marks[kOLinear]);
    order.emplace_back(Stage::Ffn, marks[kFfn]);
    const bool last = int(index) + 1 == config_.layers;
    const std::uint64_t end = last ? report.stepMarks[kLmHead] : report.marksOf(next(index))[kQkv];
    for (std::size_t s = 0; s < order.size(); ++s) {
        std::uint64_t next = s + 1 < order.size() ? order[s + 1].second : end;
        if (options_.oracle && order[s].first == Stage::Stage2)
            next = marks[kOracle]; // the oracle's time counts as "other"
        out.stageNs[order[s].first] += std::int64_t(next - order[s].second);
    }
}

/// The stages of two halves of the rows, which take turns: each stage lasts until the next one of either half begins,
/// and a layer's stages and transfers are those of both. The wait for a half's blocks is its layer's offloading. Layers
/// of the two halves lie across each other, so a layer is said to begin where all before it have had their time.
void ReportReader::fillHalves(const StepReport& report, StepRecord& record) const {
    const StepReport of[] = {report.half(0, 0), report.half(1, layout_.headOf(RowId{firstHalf(layout_.rows)}))};
    struct Begin {
        LayerId layer;
        std::optional<Stage> stage; // nothing: the oracle
        std::uint64_t at;
    };
    std::vector<Begin> begins;
    const auto choose = [&](int half, LayerId index) {
        const std::uint64_t* marks = of[half].marksOf(index);
        begins.push_back({index, Stage::QkvLinear, marks[kQkv]});
        begins.push_back({index, Stage::Rope, marks[kRope]});
        if (layers_[index].indexed) begins.push_back({index, Stage::Compression, marks[kCompression]});
        if (!layers_[index].sparse) return;
        begins.push_back({index, Stage::Stage1, marks[kStage1]});
        begins.push_back({index, Stage::Pooling, marks[kPooling]});
        begins.push_back({index, Stage::Offloading, marks[kOffloading]});
    };
    const auto attend = [&](int half, LayerId index) {
        const std::uint64_t* marks = of[half].marksOf(index);
        const bool sparse = layers_[index].sparse;
        if (layers_[index].offloaded) begins.push_back({index, Stage::Offloading, marks[kReady]});
        begins.push_back({index, sparse ? Stage::Stage2 : Stage::Attention, marks[kAttention]});
        if (sparse && options_.oracle) begins.push_back({index, std::nullopt, marks[kOracle]});
        begins.push_back({index, Stage::OLinear, marks[kOLinear]});
        begins.push_back({index, Stage::Ffn, marks[kFfn]});
    };
    inHalves(config_.layers, choose, attend);
    PerLayer<std::int64_t> took(layers_.size(), 0);
    for (std::size_t i = 0; i < begins.size(); ++i) {
        const Begin& begin = begins[i];
        const std::uint64_t end = i + 1 < begins.size() ? begins[i + 1].at : report.stepMarks[kLmHead];
        const auto ns = std::int64_t(end - begin.at);
        if (begin.stage) record.layers[int(begin.layer)].stageNs[*begin.stage] += ns;
        took[begin.layer] += ns;
    }
    std::int64_t start = clock_.sinceOrigin(begins.front().at);
    for (const LayerId i : idsUpTo<LayerId>(config_.layers)) {
        LayerRecord& out = record.layers[int(i)];
        out.startNs = std::exchange(start, start + took[i]);
        if (!layers_[i].offloaded) continue;
        for (const StepReport& half : of) {
            const LayerRecord before = out;
            fillTransfers(half, i, record);
            out.h2dBlocks += before.h2dBlocks, out.d2hBlocks += before.d2hBlocks;
            out.h2dBytes += before.h2dBytes, out.d2hBytes += before.d2hBytes;
            out.transferNs += before.transferNs, out.exposedNs += before.exposedNs;
        }
    }
}

void ReportReader::fillTransfers(const StepReport& report, LayerId index, StepRecord& record) const {
    LayerRecord& out = record.layers[int(index)];
    const std::int64_t blockBytes = options_.fullBlockBytes(layout_.blockElements);
    const std::uint64_t* marks = report.marksOf(index);
    out.h2dBlocks = std::int32_t(report.countsOf(index)[0]);
    out.d2hBlocks = std::int32_t(report.countsOf(index)[1]);
    out.h2dBytes = out.h2dBlocks * blockBytes;
    out.d2hBytes = out.d2hBlocks * blockBytes;
    out.transferNs = out.exposedNs = 0;
    if (order_.movesBeside())
        fillBeside(report, index, record);
    else if (out.h2dBlocks + out.d2hBlocks > 0) // on demand: nothing computes while it runs
        out.transferNs = out.exposedNs = std::int64_t(marks[kLoaded] - marks[kGather]);
}

/// Fills the transfer times of a layer whose blocks travelled while other kernels ran.
void ReportReader::fillBeside(const StepReport& report, LayerId index, StepRecord& record) const {
    LayerRecord& out = record.layers[int(index)];
    const std::uint64_t* marks = report.marksOf(index);
    // Whether write-backs are transfers of their own, behind the loads.
    const bool apart = order_.isInHalves() ? options_.quantised.has_value() : order_.chosenAhead(index);
    const int blocks = out.h2dBlocks + (apart ? 0 : out.d2hBlocks);
    if (blocks > 0) {
        const auto span = [](std::uint64_t from, std::uint64_t to) { return to > from ? std::int64_t(to - from) : 0; };
        const std::int64_t moved = span(marks[kGather], marks[kLoaded]);
        // The attention could have begun at the mark kReady. It waited if the last block arrived later.
        if (marks[kLoaded] > marks[kReady]) out.exposedNs = span(marks[kReady], marks[kAttention]);
        out.transferNs = std::max(moved, out.exposedNs);
        if (options_.trace != nullptr)
            record.spans.push_back({record.step, int(index), SpanRecord::Kind::Copy,
                                    order_.isInHalves() ? "transfers beside the other half" : "lookahead transfers",
                                    fmt::format("layer {}: {} blocks", int(index), blocks),
                                    clock_.sinceOrigin(marks[kGather]), moved});
    }
    if (out.d2hBlocks > 0 && apart) out.transferNs += std::int64_t(marks[kBackEnd] - marks[kBack]);
}

/// Fills in the selections of the engine's own choice: one for each head that did not attend to everything.
void ReportReader::fillSelections(const StepReport& report, LayerId index, StepRecord& record,
                                  std::span<const ActiveSequence> active) const {
    LayerRecord& out = record.layers[int(index)];
    const bool ahead = layers_[index].offloaded && order_.chosenAhead(index);
    const std::size_t firstSelection = record.selections.size();
    const Elements capacity(layout_.capacity);
    bool keptDefined = true, any = false;
    int kept = 0;
    for (const ActiveSequence& sequence : active)
        for (int g = 0; g < layout_.kvHeads; ++g) {
            const int item = layout_.headOf(sequence.sequence) + g;
            const cuda::SelectionHead& head = report.headsOf(index)[item];
            if (head.selected == 0) continue; // the head attended to everything
            any = true;
            SelectionRecord selection;
            selection.layer = int(index);
            selection.sequence = int(sequence.sequence);
            selection.kvHead = g;
            selection.selected = head.selected;
            selection.kept = head.kept;
            selection.hits = head.hits;
            selection.misses = head.misses;
            if (ahead) { // all blocks that were asked for are attended
                selection.predicted = selection.used = head.selected;
                selection.late = std::int32_t(head.late);
            }
            selection.first = std::uint32_t(record.blocks.size());
            if (report.blocks != nullptr) {
                const PackedBlock* blocks = RowsOf(report.blocksOf(index), capacity)[item];
                record.blocks.insert(record.blocks.end(), blocks, blocks + head.selected);
                if (report.masses != nullptr) measure(report.massesOf(index), index, sequence, record, selection);
                if (report.scores != nullptr) {
                    const float* scores = RowsOf(report.scoresOf(index), capacity)[item];
                    record.scores.insert(record.scores.end(), scores, scores + head.selected);
                }
            }
            out.selected += selection.selected;
            out.hits += selection.hits;
            out.misses += selection.misses;
            keptDefined &= selection.kept >= 0;
            kept += std::max(selection.kept, 0);
            record.selections.push_back(selection);
        }
    out.kept = any && keptDefined ? kept : -1;
    complete(report, index, record, active, firstSelection);
}

/// Fills in the selections that a method with its own device tier reports.
void ReportReader::fillOwnSelections(const StepReport& report, LayerId index, StepRecord& record,
                                     std::span<const ActiveSequence> active) const {
    const std::size_t firstSelection = record.selections.size();
    complete(report, index, record, active, firstSelection);
    if (report.masses == nullptr) return;
    auto of = active.begin(); // selections come in the order of the active sequences
    for (std::size_t s = firstSelection; s < record.selections.size(); ++s) {
        SelectionRecord& selection = record.selections[s];
        while (of->sequence != RowId{selection.sequence}) ++of;
        const float attended = selection.mass; // the method's own measure, or NaN
        measure(report.massesOf(index), index, *of, record, selection);
        if (!std::isnan(attended)) selection.mass = attended;
    }
}

/// Lets the selector complete the layer's selections; with its own device tier the selector adds all of them.
void ReportReader::complete(const StepReport& report, LayerId index, StepRecord& record,
                            std::span<const ActiveSequence> active, std::size_t firstSelection) const {
    if (!selector_) return;
    std::vector<RowId> sequences;
    for (const ActiveSequence& sequence : active) sequences.push_back(sequence.sequence);
    selector_->fill(index, report.ownOf(index), sequences, record.layers[int(index)], record, firstSelection);
}

/// Adds what the oracle says of a selection: the share of all attention that the chosen blocks got, and what the best
/// choice would have got. masses: those of the layer.
void ReportReader::measure(const float* masses, LayerId index, const ActiveSequence& sequence, StepRecord& record,
                           SelectionRecord& selection) const {
    const float* mass = RowsOf(masses, layout_.maxUnits)[layout_.headOf(sequence.sequence) + selection.kvHead];
    const std::span<const PackedBlock> chosen = record.blocksOf(selection);
    double sum = 0;
    for (const PackedBlock block : chosen) sum += double(mass[block.id()]);
    selection.mass = float(std::min(1.0, sum));
    OracleRecord best{record.step, int(index), int(sequence.sequence), selection.kvHead};
    const int window = layers_[index].window, tokens = sequence.position + 1;
    const int unit = spec_.unitTokens(),
              first = window > 0 ? std::max(0, tokens - window) / unit : 0; // the first unit that the query sees
    std::vector<std::int32_t> inSight;
    std::vector<Origin> origins;
    for (const PackedBlock block : chosen) inSight.push_back(block.id() - first), origins.push_back(block.origin());
    describeSelection({mass + first, Elements((tokens + unit - 1) / unit - first)}, inSight, origins, best);
    keepOracle(best, selection);
    if (options_.oracleObserver != nullptr) options_.oracleObserver->observe(best);
}

} // namespace kvscope

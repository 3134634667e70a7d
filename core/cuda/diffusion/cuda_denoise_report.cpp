#include "core/cuda/diffusion/cuda_denoise_report.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvscope {
namespace {

template <class T> void lay(T*& part, std::byte* base, std::size_t& at, Elements count) {
    constexpr std::size_t kAlignment = 16;
    if (base != nullptr && count > 0) part = reinterpret_cast<T*>(base + at);
    at += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
}

} // namespace

using enum DenoiseReport::Mark;
using enum DenoiseReport::StepMark;

DenoiseReport::DenoiseReport(const DenoiseReportNeeds& needs, std::byte* base, std::size_t& bytes) : needs_(needs) {
    const Elements layers(needs.layers), tokens(needs.rows, needs.block);
    bytes = 0;
    lay(stepMarks, base, bytes, int{kStepMarks});
    lay(candidates, base, bytes, tokens);
    lay(ids, base, bytes, tokens);
    lay(marks, base, bytes, {layers, int{kMarks}});
    lay(active, base, bytes, needs.active ? Elements(layers, needs.items()) : Elements(0));
    lay(changes, base, bytes, {layers, needs.sets, tokens});
    lay(pages, base, bytes, {layers, needs.items(), needs.words});
    lay(agnostic, base, bytes, needs.agnostic ? Elements(layers, needs.items(), needs.words) : Elements(0));
    lay(hits, base, bytes, needs.offloads ? Elements(layers, needs.items(), needs.words) : Elements(0));
    lay(moved, base, bytes, needs.offloads ? Elements(layers, int{cuda::PrefixPagesArgs::kCounts}) : Elements(0));
    lay(came, base, bytes, needs.ahead ? Elements(layers, needs.items()) : Elements(0));
    lay(late, base, bytes, needs.ahead ? Elements(layers, needs.items()) : Elements(0));
    lay(densities, base, bytes, {layers, needs.densities()});
    lay(kvChanges, base, bytes, needs.kvChanges ? Elements(layers, 2, tokens) : Elements(0));
}

DenoiseReportReader::DenoiseReportReader(const DenoiseOptions& options, const DenoiseReportNeeds& needs,
                                         const GpuClock& clock, std::int64_t pageBytes)
    : options_(options), needs_(needs), clock_(clock), pageBytes_(pageBytes),
      pagesAt_(needs.layers, needs.rows, needs.kvHeads), previous_(pagesAt_.size()) {}

void DenoiseReportReader::fill(const DenoiseReport& report, ForwardShape shape, std::span<const DenoiseRow> rows,
                               std::span<const std::uint32_t> flags, StepRecord& record) {
    const std::uint64_t* const step = report.stepMarks;
    record.startNs = clock_.sinceOrigin(step[kEmbed]);
    record.durationNs = std::int64_t(step[kEnd] - step[kEmbed]);
    record.stepStageNs[StepStage::Embed] = std::int64_t(report.marks[kQkv] - step[kEmbed]);
    if (shape.writes) {
        record.stepStageNs[StepStage::LmHead] = std::int64_t(step[kSample] - step[kLmHead]);
        record.stepStageNs[StepStage::Sample] = std::int64_t(step[kEnd] - step[kSample]);
    }
    record.layers.assign(needs_.layers, {});
    for (const LayerId layer : idsUpTo<LayerId>(needs_.layers)) {
        fillStages(report, shape, layer, record.layers[int(layer)]);
        if (needs_.offloads) fillMoved(report, layer, record.layers[int(layer)]);
        for (std::size_t i = 0; i < rows.size(); ++i)
            for (const KvHeadId g : idsUpTo<KvHeadId>(needs_.kvHeads))
                fillHead(report, layer, rows[i], flags[i], g, record);
    }
}

/// Fills the times of a layer's stages, each of which lasts until the mark of the next one. Where no pages are chosen,
/// all time between rotation and output projection counts for the attention.
void DenoiseReportReader::fillStages(const DenoiseReport& report, ForwardShape shape, LayerId layer,
                                     LayerRecord& out) const {
    const std::uint64_t* const marks = report.mark(layer, kQkv);
    out.startNs = clock_.sinceOrigin(marks[kQkv]);
    std::vector<std::pair<Stage, std::uint64_t>> order{{Stage::QkvLinear, marks[kQkv]}, {Stage::Rope, marks[kRope]}};
    if (needs_.active) order.emplace_back(options_.pages ? Stage::Compression : Stage::Attention, marks[kCompression]);
    const bool byQuery = shape.sparse && options_.choosesPages();
    if (byQuery || (shape.choosesOnce && !needs_.offloads)) {
        order.emplace_back(Stage::Stage1, marks[kStage1]);
        order.emplace_back(Stage::Pooling, marks[kPooling]);
    }
    if (needs_.offloads) order.emplace_back(Stage::Offloading, marks[needs_.ahead ? kReady : kLoad]);
    if (shape.choosesOnce && needs_.offloads) {
        order.emplace_back(Stage::Stage1, marks[kWeigh]);
        order.emplace_back(Stage::Pooling, marks[kChooseOnce]);
    }
    order.emplace_back(shape.sparse ? Stage::Stage2 : Stage::Attention, marks[kAttention]);
    if (options_.choosesPages() && shape.cleans) order.emplace_back(Stage::Offloading, marks[kOffloading]);
    order.emplace_back(Stage::OLinear, marks[kOLinear]);
    order.emplace_back(Stage::Ffn, marks[kFfn]);
    const bool last = int(layer) + 1 == needs_.layers;
    const std::uint64_t end = last ? report.stepMarks[kLmHead] : *report.mark(next(layer), kQkv);
    for (std::size_t s = 0; s < order.size(); ++s) {
        const std::uint64_t until = s + 1 < order.size() ? order[s + 1].second : end;
        out.stageNs[order[s].first] += std::int64_t(until - order[s].second);
    }
}

/// Fills what travelled for a layer. What it loads on demand it waits for: nothing computes meanwhile. For pages that
/// were sent ahead it waits if they have not come when it is ready for them.
void DenoiseReportReader::fillMoved(const DenoiseReport& report, LayerId layer, LayerRecord& out) const {
    const std::uint32_t* const moved = report.movedOf(layer);
    const std::uint64_t* const marks = report.mark(layer, kQkv);
    const auto ahead = std::int32_t(moved[cuda::PrefixPagesArgs::kAsked]),
               onDemand = std::int32_t(moved[cuda::PrefixPagesArgs::kLoads]);
    out.h2dBlocks = ahead + onDemand;
    out.d2hBlocks = std::int32_t(moved[cuda::PrefixPagesArgs::kStores]);
    out.h2dBytes = out.h2dBlocks * pageBytes_;
    out.d2hBytes = out.d2hBlocks * pageBytes_;
    if (onDemand + out.d2hBlocks > 0) out.transferNs = out.exposedNs = std::int64_t(marks[kLoaded] - marks[kLoad]);
    if (ahead == 0) return;
    const auto waited = marks[kCame] > marks[kReady] ? std::int64_t(marks[kCame] - marks[kReady]) : 0;
    out.exposedNs += waited;
    out.transferNs += std::max(waited, std::int64_t(marks[kCame] - marks[kSent]));
}

/// Adds the KV head's row of the trace to the record, and its selection where it chose pages.
void DenoiseReportReader::fillHead(const DenoiseReport& report, LayerId layer, const DenoiseRow& row,
                                   std::uint32_t flags, KvHeadId kvHead, StepRecord& record) {
    const int item = int(row.sequence) * needs_.kvHeads + int(kvHead);
    DenoiseLayer out;
    out.layer = int(layer), out.sequence = int(row.sequence), out.kvHead = int(kvHead);
    out.sparse = (flags & cuda::BlockRow::kSparse) != 0;
    DenoiseStep& denoise = record.denoise;
    if ((flags & cuda::BlockRow::kCompares) != 0 && int(kvHead) < needs_.sets) {
        const float* const from =
            RowsOf(report.changesOf(layer), needs_.block)[int(row.sequence) * needs_.sets + int(kvHead)];
        out.firstChange = std::int64_t(denoise.changes.size());
        denoise.changes.insert(denoise.changes.end(), from, from + needs_.block);
    }
    if (needs_.kvChanges && kvHead == KvHeadId{0} && row.step > 0) fillKvChanges(report, row, out, denoise);
    if (!out.sparse) {
        previous_[pagesAt_.offset(layer, row.sequence, kvHead)].known = false;
        denoise.layers.push_back(out);
        return;
    }
    out.active = report.activeOf(layer)[item];
    std::vector<std::int32_t> pages;
    const std::uint32_t* const words = RowsOf(report.pagesOf(layer), needs_.words)[item];
    for (std::size_t w = 0; w < needs_.words; ++w)
        for (std::uint32_t bits = words[w]; bits != 0; bits &= bits - 1)
            pages.push_back(std::int32_t(w) * 32 + std::countr_zero(bits));
    std::int64_t tokens = 0;
    for (const std::int32_t page : pages) tokens += std::min(options_.page, row.first - page * options_.page);
    out.pages = std::int32_t(pages.size());
    out.density = float(double(tokens) / row.first);
    if (needs_.tileRows > 0) fillTiles(report, layer, row, out, denoise);
    denoise.layers.push_back(out);
    fillSelection(report, layer, row, kvHead, std::move(pages), record);
}

/// Adds to the record the share of the prefix that each query head of the group keeps for each row of tiles.
void DenoiseReportReader::fillTiles(const DenoiseReport& report, LayerId layer, const DenoiseRow& row,
                                    DenoiseLayer& out, DenoiseStep& denoise) const {
    const int group = needs_.queryHeads / needs_.kvHeads;
    out.firstRow = std::int64_t(denoise.rowDensities.size());
    out.rows = group * needs_.tileRows;
    const float* const from =
        RowsOf(report.densitiesOf(layer), needs_.tileRows)[int(row.sequence) * needs_.queryHeads + out.kvHead * group];
    denoise.rowDensities.insert(denoise.rowDensities.end(), from, from + out.rows);
}

/// Adds to the record how much the block's keys changed, and then how much its values did.
void DenoiseReportReader::fillKvChanges(const DenoiseReport& report, const DenoiseRow& row, DenoiseLayer& out,
                                        DenoiseStep& denoise) const {
    out.firstKvChange = std::int64_t(denoise.kvChanges.size());
    const RowsOf numbers(report.kvChangesOf(LayerId{out.layer}), {2, needs_.block});
    const float* const from = numbers[int(row.sequence)];
    denoise.kvChanges.insert(denoise.kvChanges.end(), from, from + numbers.width());
}

/// Adds the KV head's selection to the record. It is compared with that of the forward before, if both are sparse
/// forwards of one block and this is not the clean one. A choice of nothing keeps nothing.
void DenoiseReportReader::fillSelection(const DenoiseReport& report, LayerId layer, const DenoiseRow& row,
                                        KvHeadId kvHead, std::vector<std::int32_t> pages, StepRecord& record) {
    const int item = int(row.sequence) * needs_.kvHeads + int(kvHead);
    Pages& before = previous_[pagesAt_.offset(layer, row.sequence, kvHead)];
    SelectionRecord selection;
    selection.layer = int(layer), selection.sequence = int(row.sequence), selection.kvHead = int(kvHead);
    const std::uint32_t* const there = needs_.offloads ? RowsOf(report.hitsOf(layer), needs_.words)[item] : nullptr;
    const auto isIn = [](const std::uint32_t* bits, std::int32_t page) {
        return (bits[page / 32] >> (page % 32) & 1) != 0;
    };
    const auto isHit = [&](std::int32_t page) { return there == nullptr || isIn(there, page); };
    selection.selected = std::int32_t(pages.size());
    selection.hits = std::int32_t(std::count_if(pages.begin(), pages.end(), isHit));
    selection.misses = selection.selected - selection.hits;
    if (const cuda::AskedPages came = needs_.ahead ? report.cameOf(layer)[item] : cuda::AskedPages();
        came.predicted >= 0) {
        selection.predicted = came.predicted, selection.used = came.used, selection.wasted = came.wasted;
        selection.late = std::int32_t(report.lateOf(layer)[item].late);
    }
    selection.first = std::uint32_t(record.blocks.size());
    if (pages.empty())
        selection.kept = 0;
    else if (before.known && !row.clean)
        selection.kept = std::int32_t(std::count_if(pages.begin(), pages.end(), [&](std::int32_t page) {
            return std::binary_search(before.list.begin(), before.list.end(), page);
        }));
    const std::uint32_t* const agnostic =
        needs_.agnostic ? RowsOf(report.agnosticOf(layer), needs_.words)[item] : nullptr;
    for (const std::int32_t page : pages) {
        const bool always = agnostic != nullptr && isIn(agnostic, page);
        record.blocks.emplace_back(page, always ? Origin::QueryAgnostic : Origin::QueryAware, isHit(page));
    }
    record.selections.push_back(selection);
    before.known = !row.clean && (before.known || !pages.empty());
    before.list = std::move(pages);
    LayerRecord& sums = record.layers[int(layer)];
    const bool firstOfLayer = sums.selected == 0;
    sums.selected += selection.selected;
    sums.hits += selection.hits;
    sums.misses += selection.misses;
    if (selection.selected == 0) return;
    sums.kept =
        (firstOfLayer || sums.kept >= 0) && selection.kept >= 0 ? (firstOfLayer ? 0 : sums.kept) + selection.kept : -1;
}

} // namespace kvscope

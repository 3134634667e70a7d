#include "core/engine/cpu/cpu_denoise_stages.h"

#include "core/diffusion/locality.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvscope {

CpuDenoiseStages::Places::Places(const ModelConfig& config, int sequences, int block, int sets)
    : memory(sequences, config.layers), head(sequences, config.kvHeads), change(sequences, sets, block),
      query(sequences * block, config.kvHeads, config.group(), config.headDim),
      out(sequences * block, config.kvHeads, config.group(), config.valueDim()),
      key(sequences * block, config.kvHeads, config.headDim), sum(sequences * block, config.queryHeads) {}

CpuDenoiseStages::CpuDenoiseStages(const DenoiseSetup& setup, Kernels& kernels, KvCache& cache, const RopeTables& rope,
                                   CpuLayerPasses& passes, StageClock& clock, Rows rows)
    : options_(setup.options),
      config_(setup.model->config()), recorded_{setup.level != RecordLevel::Counters || setup.observer != nullptr,
                                                recordsKv(setup), setup.observer},
      kernels_(kernels), cache_(cache), layout_(cache.layout()), rope_(rope), passes_(passes), clock_(clock),
      buffers_(rows), attention_(kernels, {config_.queryHeads, config_.kvHeads, config_.headDim, config_.valueDim(),
                                           layout_.blockSize, config_.attentionScale()}),
      sets_(options_.activePerHead ? config_.kvHeads : 1),
      at_(config_, int(setup.maxTokens.size()), options_.block, sets_), bounds_(kernels, config_.headDim) {
    const auto block = std::size_t(options_.block), recorded = recorded_.kvChanges ? block : 0; // tokens of a row
    for (std::size_t i = 0; i < at_.memory.size(); ++i)
        memories_.push_back(
            {AlignedBuffer<float>(block * at_.query.under(0)), AlignedBuffer<float>(block * at_.out.under(0)),
             AlignedBuffer<float>(block * at_.sum.under(0)), AlignedBuffer<float>(recorded * at_.key.under(0)),
             AlignedBuffer<float>(recorded * at_.key.under(0))});
    heads_.resize(at_.head.size());
    for (Head& head : heads_) head.own = AlignedBuffer<float>(std::size_t(pagesOf(options_.block)) * layout_.floats());
    if (setup.slots > 0)
        transfers_.emplace(kernels, cache, setup.link,
                           HeadExtents(at_.memory.length(0), config_.layers, config_.kvHeads));
    ahead_.lastIds.resize(at_.memory.length(0));
    if (options_.tiles) tiles_.emplace(kernels, config_, options_, at_.memory.length(0));
    within_.out.resize(at_.out.size());
    within_.sums.resize(at_.sum.size());
}

CpuDenoiseStages::Memory& CpuDenoiseStages::memory(LayerId layer, RowId sequence) {
    return memories_[at_.memory.offset(sequence, layer)];
}

const float* CpuDenoiseStages::queriesOf(int row) const {
    return passes_.rows().q + at_.query.first(row * options_.block);
}

bool CpuDenoiseStages::isSparse(const DenoiseRow& row) const {
    if (!options_.pages || row.first == 0) return false;
    return row.step >= options_.firstSparseStep() && (!row.clean || options_.finalSparse);
}

void CpuDenoiseStages::begin(std::span<const DenoiseRow> rows, StepRecord& record) {
    forward_.rows = rows;
    forward_.record = &record;
    forward_.tokens.clear();
    for (const DenoiseRow& row : rows) forward_.tokens.insert(forward_.tokens.end(), row.ids.begin(), row.ids.end());
    for (int i = 0; i < int(forward_.tokens.size()); ++i) {
        const DenoiseRow& row = rowAt(i / options_.block);
        passes_.rotateAs(i, rope_, rope_.first(int(row.sequence)) + row.first + i % options_.block);
    }
    if (transfers_ && options_.fetchAhead) askAhead();
}

void CpuDenoiseStages::embed() {
    clock_.run(*forward_.record, StepStage::Embed, [&] { passes_.embed(forward_.tokens, buffers_.x); });
}

void CpuDenoiseStages::project(LayerId layer) {
    clock_.beginLayer(recordOf(layer));
    passes_.project(layer, buffers_.x, int(forward_.tokens.size()), recordOf(layer));
}

/// Compares the queries with those of the forward before, and names the tokens that attend to the prefix.
void CpuDenoiseStages::append(LayerId layer) {
    timed(layer, Stage::Compression, [&] {
        changes_.resize(forward_.rows.size() * at_.change.under(0));
        kernels_.forEach(rowCount(), [&](int row) { compare(layer, row); });
        for (int row = 0; row < rowCount(); ++row) nameActive(row);
    });
}

void CpuDenoiseStages::compare(LayerId layer, int row) {
    if (!compares(rowAt(row))) return;
    // A set compares the queries of one KV head's group, or those of all heads.
    const Extents<int, int, int> setAt(options_.block, sets_, config_.queryHeads * config_.headDim / sets_);
    const float* const now = queriesOf(row);
    const float* const before = memory(layer, rowAt(row).sequence).queries.data();
    for (int set = 0; set < sets_; ++set)
        for (int i = 0; i < options_.block; ++i) {
            const std::size_t at = setAt.first(i, set), part = setAt.under(1);
            changes_[at_.change.offset(row, set, i)] = changeScore({now + at, part}, {before + at, part});
        }
}

void CpuDenoiseStages::nameActive(int row) {
    const bool all = !isSparse(rowAt(row)) || options_.everyToken || rowAt(row).step == 0;
    for (const KvHeadId g : kvHeads()) {
        const std::size_t changes = at_.change.first(row, sets_ > 1 ? int(g) : 0);
        headOf(row, g).active =
            all ? allTokens(options_.block) : activeTokens(options_, {changes_.data() + changes, at_.change.under(1)});
    }
}

void CpuDenoiseStages::choose(LayerId layer) {
    if (!options_.pages) return;
    clock_.run(recordOf(layer), Stage::Stage1, [&] {
        if (!tiles_) scorePages(layer);
        for (int row = 0; row < rowCount(); ++row) {
            if (makesMask(rowAt(row))) makeMask(layer, row);
            if (options_.agnosticPages > 0 && rowAt(row).step == 0) chooseAgnostic(layer, row);
        }
    });
    clock_.run(recordOf(layer), Stage::Pooling, [&] {
        for (int row = 0; row < rowCount(); ++row)
            for (const KvHeadId g : kvHeads())
                if (isSparse(rowAt(row))) unite(layer, row, g);
    });
}

/// Chooses every query head's tiles for the later forwards of the block.
void CpuDenoiseStages::makeMask(LayerId layer, int row) {
    const RowId sequence = rowAt(row).sequence;
    const int first = rowAt(row).first;
    for (const KvHeadId g : kvHeads()) viewPrefix(layer, sequence, g, first, headOf(row, g).prefix);
    tiles_->make(layer, sequence, queriesOf(row), first,
                 [&](KvHeadId g) { return std::span<const KvBlockView>(headOf(row, g).prefix); });
}

/// Scores every complete page by Quest's bound for every query head of every active token.
void CpuDenoiseStages::scorePages(LayerId layer) {
    bounds_.clear();
    for (int row = 0; row < rowCount(); ++row)
        for (const KvHeadId g : kvHeads()) {
            const int pages = rowAt(row).first / options_.page; // complete ones
            if (isSparse(rowAt(row)))
                for (int token = 0; token < options_.block; ++token)
                    for (int h = 0; h < config_.group() && (headOf(row, g).active >> token & 1) != 0; ++h)
                        bounds_.add(passes_.rows().q + at_.query.first(row * options_.block + token, g, h),
                                    cache_.head(rowAt(row).sequence, layer, g).index.ranges(), pages);
            bounds_.endHead();
        }
    bounds_.score();
}

/// Unites the pages that the active queries of the KV head chose, and adds the last page where it is incomplete; under
/// a mask unites the tiles that the group's query heads keep.
void CpuDenoiseStages::unite(LayerId layer, int row, KvHeadId kvHead) {
    Head& head = headOf(row, kvHead);
    const int first = rowAt(row).first, complete = first / options_.page, pages = pagesOf(first);
    head.chosen.assign(pages, 0);
    if (tiles_) {
        tiles_->unite(layer, rowAt(row).sequence, kvHead, head.chosen);
    } else {
        if (head.active != 0) choosePagesOf(layer, row, kvHead, std::span(head.chosen).first(std::size_t(complete)));
        if (pages > complete && head.active != 0) head.chosen.back() = 1;
    }
    head.pages.clear();
    for (int page = 0; page < pages; ++page)
        if (head.chosen[page] != 0) head.pages.push_back(page);
    if (tiles_) return viewPrefix(layer, rowAt(row).sequence, kvHead, first, head.prefix);
    viewPages(layer, row, kvHead);
}

/// Lists views of the chosen pages, where these lie.
void CpuDenoiseStages::viewPages(LayerId layer, int row, KvHeadId kvHead) {
    Head& head = headOf(row, kvHead);
    const int first = rowAt(row).first;
    const KvHead& kept = cache_.head(rowAt(row).sequence, layer, kvHead);
    head.prefix.clear();
    for (const std::int32_t page : head.pages) {
        const float* const at =
            transfers_ ? transfers_->page(kept, BlockId{page}) : cache_.storeBlock(kept, BlockId{page});
        head.prefix.push_back(layout_.view(at, std::min(options_.page, first - page * options_.page)));
    }
}

/// Fetches the pages of all rows that are not on the device, where the prefix waits on the host.
void CpuDenoiseStages::load(LayerId layer) {
    if (!transfers_) return;
    clock_.run(recordOf(layer), Stage::Offloading, [&] {
        transfers_->arrive(layer, recordOf(layer));
        for (int row = 0; row < rowCount(); ++row)
            for (const KvHeadId g : kvHeads()) {
                const RowId sequence = rowAt(row).sequence;
                const int complete = rowAt(row).first / options_.page;
                if (isSparse(rowAt(row)))
                    transfers_->fetch(layer, sequence, g, headOf(row, g).pages, complete, forward_.record->step,
                                      headOf(row, g).hit);
                else
                    transfers_->passThrough(cache_.head(sequence, layer, g), complete);
            }
        transfers_->account(recordOf(layer), true);
        for (int row = 0; row < rowCount(); ++row)
            for (const KvHeadId g : kvHeads())
                if (isSparse(rowAt(row))) viewPages(layer, row, g);
    });
}

void CpuDenoiseStages::viewPrefix(LayerId layer, RowId sequence, KvHeadId kvHead, int tokens,
                                  std::vector<KvBlockView>& views) {
    const KvHead& head = cache_.head(sequence, layer, kvHead);
    views.clear();
    for (int page = 0; page < pagesOf(tokens); ++page)
        views.push_back(layout_.view(cache_.storeBlock(head, BlockId{page}),
                                     std::min(layout_.blockSize, tokens - page * layout_.blockSize)));
}

void CpuDenoiseStages::attend(LayerId layer) {
    const bool anySparse =
        std::any_of(forward_.rows.begin(), forward_.rows.end(), [&](const DenoiseRow& row) { return isSparse(row); });
    clock_.run(recordOf(layer), anySparse ? Stage::Stage2 : Stage::Attention, [&] {
        attendPrefix(layer);
        attendBlock();
        kernels_.forEach(rowCount(), [&](int row) { merge(layer, row); });
    });
}

void CpuDenoiseStages::attendPrefix(LayerId layer) {
    work_.clear();
    if (tiles_) tiles_->clear();
    for (int row = 0; row < rowCount(); ++row) {
        const RowId sequence = rowAt(row).sequence;
        Memory& kept = memory(layer, sequence);
        for (const KvHeadId g : kvHeads()) {
            Head& head = headOf(row, g);
            if (!isSparse(rowAt(row))) viewPrefix(layer, sequence, g, rowAt(row).first, head.prefix);
            if (tiles_ && isSparse(rowAt(row))) {
                tiles_->list(layer, sequence, g, queriesOf(row), head.prefix, kept.prefix.data(),
                             kept.prefixSums.data());
                continue;
            }
            work_.push_back({queriesOf(row), g, head.active, head.prefix, kept.prefix.data(), kept.prefixSums.data()});
        }
    }
    attention_.run(work_);
    if (tiles_) tiles_->run();
}

/// Packs the keys and values of the row's block into KV blocks.
void CpuDenoiseStages::packOwn(int row, KvHeadId kvHead) {
    Head& head = headOf(row, kvHead);
    const TokenRows rows = passes_.rows();
    const int size = layout_.blockSize;
    head.block.clear();
    for (int token = 0; token < options_.block; ++token) {
        const std::size_t at = at_.key.first(row * options_.block + token, kvHead);
        float* const block = head.own.data() + index(layout_.blockOf(token)) * layout_.floats();
        layout_.write(block, layout_.rowOf(token), rows.k + at, rows.v + at, 0.f);
        if (token % size == 0) head.block.push_back(layout_.view(block, std::min(size, options_.block - token)));
    }
}

void CpuDenoiseStages::attendBlock() {
    kernels_.forEach(rowCount() * config_.kvHeads,
                     [&](int i) { packOwn(i / config_.kvHeads, KvHeadId{i % config_.kvHeads}); });
    work_.clear();
    for (int row = 0; row < rowCount(); ++row)
        for (const KvHeadId g : kvHeads())
            work_.push_back({queriesOf(row), g, allTokens(options_.block), headOf(row, g).block,
                             within_.out.data() + at_.out.first(row * options_.block),
                             within_.sums.data() + at_.sum.first(row * options_.block)});
    attention_.run(work_);
}

/// Merges the attention over the prefix and that within the block into one softmax.
void CpuDenoiseStages::merge(LayerId layer, int row) {
    const Memory& kept = memory(layer, rowAt(row).sequence);
    const std::size_t queries = kept.prefixSums.size(), width = at_.out.under(2);
    const std::size_t firstSum = at_.sum.first(row * options_.block), firstOut = at_.out.first(row * options_.block);
    for (std::size_t i = 0; i < queries; ++i) {
        const float p = kept.prefixSums[i], b = within_.sums[firstSum + i], most = std::max(p, b);
        const float ofPrefix = std::exp(p - most), ofBlock = std::exp(b - most), sum = ofPrefix + ofBlock;
        const float* const prefix = kept.prefix.data() + i * width;
        const float* const block = within_.out.data() + firstOut + i * width;
        float* const out = passes_.rows().out + firstOut + i * width;
        for (std::size_t c = 0; c < width; ++c) out[c] = (ofPrefix * prefix[c] + ofBlock * block[c]) / sum;
    }
}

void CpuDenoiseStages::keep(LayerId layer, RowId sequence, int first, int tokens, const float* k, const float* v) {
    const KeyExtents keyAt(tokens, config_.kvHeads, config_.headDim);
    kernels_.forEach(config_.kvHeads, [&](int g) {
        KvHead& head = cache_.head(sequence, layer, KvHeadId{g});
        for (int token = 0; token < tokens; ++token) {
            const std::size_t at = keyAt.first(token, KvHeadId{g});
            const int position = first + token;
            layout_.write(cache_.storeBlock(head, layout_.blockOf(position)), layout_.rowOf(position), k + at, v + at,
                          0.f);
            if (cache_.indexed(layer)) head.index.append(k + at, 0.f);
        }
    });
    const int size = layout_.blockSize, complete = (first + tokens) / size - first / size;
    if (transfers_) transfers_->store(complete * config_.kvHeads);
}

void CpuDenoiseStages::after(LayerId layer) {
    timed(layer, Stage::Offloading, [&] {
        const TokenRows made = passes_.rows();
        for (int row = 0; row < rowCount(); ++row) {
            for (const KvHeadId g : kvHeads()) recordHead(layer, row, g);
            Memory& kept = memory(layer, rowAt(row).sequence);
            std::copy_n(queriesOf(row), kept.queries.size(), kept.queries.data());
            if (rowAt(row).clean)
                keep(layer, rowAt(row).sequence, rowAt(row).first, options_.block,
                     made.k + at_.key.first(row * options_.block), made.v + at_.key.first(row * options_.block));
        }
        accountStored(recordOf(layer));
    });
}

/// Adds the KV head's row of the trace to the record, and its selection where it chose pages.
void CpuDenoiseStages::recordHead(LayerId layer, int row, KvHeadId kvHead) {
    const DenoiseRow& of = rowAt(row);
    Head& head = headOf(row, kvHead);
    KvHead& kept = cache_.head(of.sequence, layer, kvHead);
    const bool sparse = isSparse(of);
    DenoiseLayer out;
    out.layer = int(layer), out.sequence = int(of.sequence), out.kvHead = int(kvHead), out.sparse = sparse;
    DenoiseStep& denoise = forward_.record->denoise;
    if (recorded_.changes && compares(of) && (kvHead == KvHeadId{0} || options_.activePerHead)) {
        const float* const from = changes_.data() + at_.change.first(row, int(kvHead));
        out.firstChange = std::int64_t(denoise.changes.size());
        denoise.changes.insert(denoise.changes.end(), from, from + options_.block);
    }
    if (!sparse) {
        kept.hasPrevious = false;
        denoise.layers.push_back(out);
        return;
    }
    std::int64_t tokens = 0;
    for (const std::int32_t page : head.pages) tokens += std::min(options_.page, of.first - page * options_.page);
    out.active = head.active;
    out.pages = std::int32_t(head.pages.size());
    out.density = float(double(tokens) / of.first);
    if (tiles_) recordTiles(layer, row, kvHead, out);
    denoise.layers.push_back(out);

    SelectionRecord selection;
    selection.layer = out.layer, selection.sequence = out.sequence, selection.kvHead = out.kvHead;
    selection.selected = selection.hits = out.pages;
    if (transfers_) selection.hits = std::int32_t(std::count(head.hit.begin(), head.hit.end(), std::uint8_t(1)));
    selection.misses = selection.selected - selection.hits;
    if (transfers_) transfers_->recordAhead(layer, of.sequence, kvHead, selection);
    selection.first = std::uint32_t(forward_.record->blocks.size());
    // Selections are compared between sparse forwards of one block; that of the clean forward is compared with none. A
    // choice of nothing keeps nothing.
    if (out.pages == 0)
        selection.kept = 0;
    else if (kept.hasPrevious && !of.clean)
        selection.kept = std::int32_t(std::count_if(head.pages.begin(), head.pages.end(), [&](std::int32_t page) {
            return std::binary_search(kept.previous.begin(), kept.previous.end(), page);
        }));
    kept.previous = head.pages;
    kept.hasPrevious = !of.clean && (kept.hasPrevious || out.pages > 0);
    const std::span<const std::uint8_t> agnostic = agnosticPages(layer, of.sequence, kvHead);
    for (std::size_t i = 0; i < head.pages.size(); ++i) {
        const auto page = std::size_t(head.pages[i]);
        const bool always = page < agnostic.size() && agnostic[page] != 0;
        forward_.record->blocks.emplace_back(head.pages[i], always ? Origin::QueryAgnostic : Origin::QueryAware,
                                             !transfers_ || head.hit[i] != 0);
    }
    forward_.record->selections.push_back(selection);
    LayerRecord& sums = recordOf(layer);
    const bool firstOfLayer = sums.selected == 0;
    sums.selected += selection.selected;
    sums.hits += selection.hits;
    sums.misses += selection.misses;
    if (selection.selected == 0) return;
    sums.kept =
        (firstOfLayer || sums.kept >= 0) && selection.kept >= 0 ? (firstOfLayer ? 0 : sums.kept) + selection.kept : -1;
}

/// Records the share of the prefix that each query head keeps for each row of tiles; the selection has the union.
void CpuDenoiseStages::recordTiles(LayerId layer, int row, KvHeadId kvHead, DenoiseLayer& out) {
    if (!recorded_.changes) return; // like the changes, the shares are not recorded at level Counters
    const TileMask& mask = tiles_->mask(layer, rowAt(row).sequence);
    std::vector<float>& densities = forward_.record->denoise.rowDensities;
    out.firstRow = std::int64_t(densities.size());
    out.rows = config_.group() * mask.rows();
    const int firstHead = int(kvHead) * config_.group(); // of the group's query heads
    for (int head = firstHead; head < firstHead + config_.group(); ++head)
        for (int tileRow = 0; tileRow < mask.rows(); ++tileRow) densities.push_back(mask.density(head, tileRow));
}

/// Records how much each token's keys and values changed since the forward before, once for all KV heads.
void CpuDenoiseStages::recordKvChanges(LayerId layer, int row) {
    const TokenRows made = passes_.rows();
    const std::size_t first = at_.key.first(row * options_.block), width = at_.key.under(0);
    Memory& kept = memory(layer, rowAt(row).sequence);
    DenoiseStep& denoise = forward_.record->denoise;
    if (rowAt(row).step > 0) {
        DenoiseLayer& out = denoise.layers[denoise.layers.size() - std::size_t((rowCount() - row) * config_.kvHeads)];
        out.firstKvChange = std::int64_t(denoise.kvChanges.size());
        for (const auto& [now, before] :
             {std::pair(made.k + first, kept.keys.data()), {made.v + first, kept.values.data()}})
            for (std::size_t at = 0; at < kept.keys.size(); at += width)
                denoise.kvChanges.push_back(changeScore({now + at, width}, {before + at, width}));
    }
    std::copy_n(made.k + first, kept.keys.size(), kept.keys.data());
    std::copy_n(made.v + first, kept.values.size(), kept.values.data());
}

/// Records what only traces and observers need. Its time counts for no stage.
void CpuDenoiseStages::measure(LayerId layer) {
    for (int row = 0; recorded_.kvChanges && row < rowCount(); ++row) recordKvChanges(layer, row);
    if (recorded_.kvChanges) clock_.skip();
    if (recorded_.observer == nullptr) return;
    for (int row = 0; row < rowCount(); ++row) {
        const Memory& kept = memory(layer, rowAt(row).sequence);
        recorded_.observer->attended(layer, rowAt(row).sequence,
                                     {passes_.rows().out + at_.out.first(row * options_.block), kept.prefix.size()},
                                     {kept.prefixSums.data(), kept.prefixSums.size()});
    }
    clock_.skip();
}

void CpuDenoiseStages::finish(LayerId layer) {
    passes_.finish(layer, buffers_.x, int(forward_.tokens.size()), recordOf(layer));
}

/// Computes logits of the wanted tokens only. Their rows are moved together first.
void CpuDenoiseStages::head() {
    clock_.run(*forward_.record, StepStage::LmHead, [&] {
        const Extents<int, int> streamAt(int(forward_.tokens.size()), config_.hidden);
        forward_.logitsAt.assign(forward_.tokens.size(), -1);
        int wanted = 0;
        for (int i = 0; i < streamAt.length(0); ++i) {
            const bool isWanted = (rowAt(i / options_.block).wanted >> (i % options_.block) & 1) != 0;
            if (recorded_.observer == nullptr && !isWanted) continue;
            if (wanted != i)
                std::copy_n(buffers_.x + streamAt.first(i), streamAt.under(0), buffers_.x + streamAt.first(wanted));
            forward_.logitsAt[i] = wanted++;
        }
        if (wanted > 0) passes_.head(buffers_.x, wanted, buffers_.logits);
    });
    if (recorded_.observer == nullptr) return;
    const Extents<int, int, int> logitAt(rowCount(), options_.block, config_.vocab);
    for (int row = 0; row < rowCount(); ++row)
        recorded_.observer->logits(rowAt(row).sequence, {buffers_.logits + logitAt.first(row), logitAt.under(0)});
    clock_.skip();
}

std::span<const float> CpuDenoiseStages::logits(int row, int token) const {
    const Extents<int, int> logitAt(int(forward_.logitsAt.size()), config_.vocab);
    const int at = forward_.logitsAt[row * options_.block + token];
    return {buffers_.logits + logitAt.first(at), logitAt.under(0)};
}

} // namespace kvscope

#include "core/engine/cpu/cpu_denoise_stages.h"

#include "core/diffusion/locality.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kvscope {

CpuDenoiseStages::CpuDenoiseStages(const DenoiseSetup& setup, Kernels& kernels, KvCache& cache, const RopeTables& rope,
                                   CpuLayerPasses& passes, StageClock& clock, Rows rows)
    : options_(setup.options), config_(setup.model->config()),
      comparesAlways_(setup.level != RecordLevel::Counters || setup.observer != nullptr), observer_(setup.observer),
      kernels_(kernels), cache_(cache), layout_(cache.layout()), rope_(rope), passes_(passes), clock_(clock),
      buffers_(rows), attention_(kernels, {config_.queryHeads, config_.kvHeads, config_.headDim, config_.valueDim(),
                                           layout_.blockSize, config_.attentionScale()}) {
    const std::size_t sequences = setup.maxTokens.size(), block = std::size_t(options_.block),
                      queries = block * std::size_t(config_.queryHeads);
    for (std::size_t i = 0; i < sequences * std::size_t(config_.layers); ++i)
        memories_.push_back({AlignedBuffer<float>(queries * std::size_t(config_.headDim)),
                             AlignedBuffer<float>(queries * std::size_t(config_.valueDim())),
                             AlignedBuffer<float>(queries)});
    heads_.resize(sequences * std::size_t(config_.kvHeads));
    for (Head& head : heads_) head.own = AlignedBuffer<float>(std::size_t(pagesOf(options_.block)) * layout_.floats());
    block_.resize(sequences * queries * std::size_t(config_.valueDim()));
    blockSums_.resize(sequences * queries);
}

CpuDenoiseStages::Memory& CpuDenoiseStages::memory(int layer, int sequence) {
    return memories_[std::size_t(sequence) * std::size_t(config_.layers) + std::size_t(layer)];
}

const float* CpuDenoiseStages::queriesOf(std::size_t row) const {
    return passes_.rows().q + row * std::size_t(options_.block) * std::size_t(config_.queryHeads * config_.headDim);
}

bool CpuDenoiseStages::isSparse(const DenoiseRow& row) const {
    if (!options_.pages || row.first == 0) return false;
    return (row.step > 0 || options_.firstSparse) && (!row.clean || options_.finalSparse);
}

void CpuDenoiseStages::begin(std::span<const DenoiseRow> rows, StepRecord& record) {
    rows_ = rows;
    record_ = &record;
    tokens_.clear();
    for (const DenoiseRow& row : rows) tokens_.insert(tokens_.end(), row.ids.begin(), row.ids.end());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
        const DenoiseRow& row = rows[i / std::size_t(options_.block)];
        passes_.rotateAs(i, rope_, rope_.first(row.sequence) + row.first + int(i) % options_.block);
    }
}

void CpuDenoiseStages::embed() {
    clock_.run(*record_, StepStage::Embed, [&] { passes_.embed(tokens_, buffers_.x); });
}

void CpuDenoiseStages::project(int layer) {
    clock_.beginLayer(recordOf(layer));
    passes_.project(layer, buffers_.x, int(tokens_.size()), recordOf(layer));
}

/// Compares the queries with those of the forward before, and names the tokens that attend to the prefix.
void CpuDenoiseStages::append(int layer) {
    timed(layer, Stage::Compression, [&] {
        const std::size_t sets = options_.activePerHead ? std::size_t(config_.kvHeads) : 1;
        changes_.resize(rows_.size() * sets * std::size_t(options_.block));
        kernels_.forEach(int(rows_.size()), [&](int row) { compare(layer, std::size_t(row)); });
        for (std::size_t row = 0; row < rows_.size(); ++row) nameActive(row);
    });
}

void CpuDenoiseStages::compare(int layer, std::size_t row) {
    if (!compares(rows_[row])) return;
    const std::size_t block = std::size_t(options_.block),
                      sets = options_.activePerHead ? std::size_t(config_.kvHeads) : 1,
                      width = std::size_t(config_.queryHeads * config_.headDim), part = width / sets;
    const float* const now = queriesOf(row);
    const float* const before = memory(layer, rows_[row].sequence).queries.data();
    for (std::size_t set = 0; set < sets; ++set)
        for (std::size_t i = 0; i < block; ++i) {
            const std::size_t at = i * width + set * part;
            changes_[(row * sets + set) * block + i] = changeScore({now + at, part}, {before + at, part});
        }
}

void CpuDenoiseStages::nameActive(std::size_t row) {
    const std::size_t block = std::size_t(options_.block),
                      sets = options_.activePerHead ? std::size_t(config_.kvHeads) : 1;
    const bool all = !isSparse(rows_[row]) || options_.everyToken || rows_[row].step == 0;
    for (int g = 0; g < config_.kvHeads; ++g) {
        const std::size_t set = row * sets + (sets > 1 ? std::size_t(g) : 0);
        headOf(row, g).active =
            all ? allTokens(options_.block) : activeTokens(options_, {changes_.data() + set * block, block});
    }
}

void CpuDenoiseStages::choose(int layer) {
    if (!options_.pages) return;
    clock_.run(recordOf(layer), Stage::Stage1, [&] { scorePages(layer); });
    clock_.run(recordOf(layer), Stage::Pooling, [&] {
        for (std::size_t row = 0; row < rows_.size(); ++row)
            for (int g = 0; g < config_.kvHeads; ++g)
                if (isSparse(rows_[row])) unite(layer, row, g);
    });
}

/// Quest's bound of every complete page for every query head of every active token.
void CpuDenoiseStages::scorePages(int layer) {
    const auto group = std::size_t(config_.group()), dim = std::size_t(config_.headDim);
    bounds_.clear();
    boundsOf_.assign(1, 0);
    for (std::size_t row = 0; row < rows_.size(); ++row)
        for (int g = 0; g < config_.kvHeads; ++g) {
            const int pages = rows_[row].first / options_.page; // complete ones
            if (isSparse(rows_[row]))
                for (int token = 0; token < options_.block; ++token)
                    for (std::size_t h = 0; h < group && (headOf(row, g).active >> token & 1) != 0; ++h)
                        bounds_.push_back(
                            {queriesOf(row) +
                                 (std::size_t(token * config_.queryHeads) + std::size_t(g) * group + h) * dim,
                             cache_.head(rows_[row].sequence, layer, g).index.ranges(), pages, nullptr});
            boundsOf_.push_back(bounds_.size());
        }
    std::size_t scores = 0;
    for (const RangeBoundItem& item : bounds_) scores += std::size_t(item.blocks);
    scores_.resize(scores);
    float* next = scores_.data();
    for (RangeBoundItem& item : bounds_) {
        item.scores = next;
        next += item.blocks;
    }
    RangeBoundArgs args;
    args.group = 1;
    args.dim = args.qStride = config_.headDim;
    args.items = bounds_;
    kernels_.rangeBound(args);
}

/// The pages that any active query of the KV head chose, and the last one where it is incomplete.
void CpuDenoiseStages::unite(int layer, std::size_t row, int kvHead) {
    Head& head = headOf(row, kvHead);
    const int first = rows_[row].first, complete = first / options_.page, pages = pagesOf(first);
    head.chosen.assign(std::size_t(pages), 0);
    const std::size_t at = row * std::size_t(config_.kvHeads) + std::size_t(kvHead);
    for (std::size_t i = boundsOf_[at]; i < boundsOf_[at + 1]; ++i)
        choosePages({bounds_[i].scores, std::size_t(complete)}, options_.pagesPerQuery, head.chosen, order_);
    if (pages > complete && head.active != 0) head.chosen.back() = 1;
    head.pages.clear();
    for (int page = 0; page < pages; ++page)
        if (head.chosen[std::size_t(page)] != 0) head.pages.push_back(page);
    KvHead& kept = cache_.head(rows_[row].sequence, layer, kvHead);
    head.prefix.clear();
    for (const std::int32_t page : head.pages)
        head.prefix.push_back(
            layout_.view(cache_.storeBlock(kept, page), std::min(options_.page, first - page * options_.page)));
}

void CpuDenoiseStages::viewPrefix(int layer, int sequence, int kvHead, int tokens, std::vector<KvBlockView>& views) {
    KvHead& head = cache_.head(sequence, layer, kvHead);
    views.clear();
    for (int page = 0; page < pagesOf(tokens); ++page)
        views.push_back(layout_.view(cache_.storeBlock(head, page),
                                     std::min(layout_.blockSize, tokens - page * layout_.blockSize)));
}

void CpuDenoiseStages::attend(int layer) {
    const bool anySparse =
        std::any_of(rows_.begin(), rows_.end(), [&](const DenoiseRow& row) { return isSparse(row); });
    clock_.run(recordOf(layer), anySparse ? Stage::Stage2 : Stage::Attention, [&] {
        attendPrefix(layer);
        attendBlock();
        kernels_.forEach(int(rows_.size()), [&](int row) { merge(layer, std::size_t(row)); });
    });
}

void CpuDenoiseStages::attendPrefix(int layer) {
    work_.clear();
    for (std::size_t row = 0; row < rows_.size(); ++row) {
        Memory& kept = memory(layer, rows_[row].sequence);
        for (int g = 0; g < config_.kvHeads; ++g) {
            Head& head = headOf(row, g);
            if (!isSparse(rows_[row])) viewPrefix(layer, rows_[row].sequence, g, rows_[row].first, head.prefix);
            work_.push_back({queriesOf(row), g, head.active, head.prefix, kept.prefix.data(), kept.prefixSums.data()});
        }
    }
    attention_.run(work_);
}

/// Keys and values of the row's block, as KV blocks.
void CpuDenoiseStages::packOwn(std::size_t row, int kvHead) {
    Head& head = headOf(row, kvHead);
    const TokenRows rows = passes_.rows();
    const int size = layout_.blockSize;
    const auto dim = std::size_t(config_.headDim);
    head.block.clear();
    for (int token = 0; token < options_.block; ++token) {
        const std::size_t at =
            ((row * std::size_t(options_.block) + std::size_t(token)) * std::size_t(config_.kvHeads) +
             std::size_t(kvHead)) *
            dim;
        float* const block = head.own.data() + std::size_t(token / size) * layout_.floats();
        layout_.write(block, token % size, rows.k + at, rows.v + at, 0.f);
        if (token % size == 0) head.block.push_back(layout_.view(block, std::min(size, options_.block - token)));
    }
}

void CpuDenoiseStages::attendBlock() {
    const auto heads = std::size_t(config_.kvHeads), queries = std::size_t(options_.block * config_.queryHeads);
    kernels_.forEach(int(rows_.size() * heads), [&](int i) { packOwn(std::size_t(i) / heads, i % config_.kvHeads); });
    work_.clear();
    for (std::size_t row = 0; row < rows_.size(); ++row)
        for (int g = 0; g < config_.kvHeads; ++g)
            work_.push_back({queriesOf(row), g, allTokens(options_.block), headOf(row, g).block,
                             block_.data() + row * queries * std::size_t(config_.valueDim()),
                             blockSums_.data() + row * queries});
    attention_.run(work_);
}

/// Both parts become one softmax.
void CpuDenoiseStages::merge(int layer, std::size_t row) {
    const Memory& kept = memory(layer, rows_[row].sequence);
    const auto queries = std::size_t(options_.block * config_.queryHeads), width = std::size_t(config_.valueDim());
    for (std::size_t i = 0; i < queries; ++i) {
        const float p = kept.prefixSums[i], b = blockSums_[row * queries + i], most = std::max(p, b);
        const float ofPrefix = std::exp(p - most), ofBlock = std::exp(b - most), sum = ofPrefix + ofBlock;
        const float* const prefix = kept.prefix.data() + i * width;
        const float* const block = block_.data() + (row * queries + i) * width;
        float* const out = passes_.rows().out + (row * queries + i) * width;
        for (std::size_t c = 0; c < width; ++c) out[c] = (ofPrefix * prefix[c] + ofBlock * block[c]) / sum;
    }
}

void CpuDenoiseStages::keep(int layer, int sequence, int first, int tokens, const float* k, const float* v) {
    const auto heads = std::size_t(config_.kvHeads), dim = std::size_t(config_.headDim);
    kernels_.forEach(config_.kvHeads, [&](int g) {
        KvHead& head = cache_.head(sequence, layer, g);
        for (int token = 0; token < tokens; ++token) {
            const std::size_t at = (std::size_t(token) * heads + std::size_t(g)) * dim;
            const int position = first + token;
            layout_.write(cache_.storeBlock(head, position / layout_.blockSize), position % layout_.blockSize, k + at,
                          v + at, 0.f);
            if (cache_.indexed(layer)) head.index.append(k + at, 0.f);
        }
    });
}

void CpuDenoiseStages::after(int layer) {
    timed(layer, Stage::Offloading, [&] {
        const TokenRows made = passes_.rows();
        const std::size_t block = std::size_t(options_.block),
                          kvWidth = block * std::size_t(config_.kvHeads * config_.headDim);
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            for (int g = 0; g < config_.kvHeads; ++g) recordHead(layer, row, g);
            Memory& kept = memory(layer, rows_[row].sequence);
            std::copy_n(queriesOf(row), kept.queries.size(), kept.queries.data());
            if (rows_[row].clean)
                keep(layer, rows_[row].sequence, rows_[row].first, options_.block, made.k + row * kvWidth,
                     made.v + row * kvWidth);
        }
    });
}

/// The KV head's row of the trace, and its selection where it chose pages.
void CpuDenoiseStages::recordHead(int layer, std::size_t row, int kvHead) {
    const DenoiseRow& of = rows_[row];
    Head& head = headOf(row, kvHead);
    KvHead& kept = cache_.head(of.sequence, layer, kvHead);
    const bool sparse = isSparse(of);
    DenoiseLayer out;
    out.layer = layer, out.sequence = of.sequence, out.kvHead = kvHead, out.sparse = sparse;
    DenoiseStep& denoise = record_->denoise;
    if (comparesAlways_ && compares(of) && (kvHead == 0 || options_.activePerHead)) {
        const std::size_t sets = options_.activePerHead ? std::size_t(config_.kvHeads) : 1;
        const auto from =
            changes_.begin() + std::ptrdiff_t((row * sets + std::size_t(kvHead)) * std::size_t(options_.block));
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
    denoise.layers.push_back(out);

    SelectionRecord selection;
    selection.layer = layer, selection.sequence = of.sequence, selection.kvHead = kvHead;
    selection.selected = selection.hits = out.pages;
    selection.first = std::uint32_t(record_->blocks.size());
    // Comparable are the sparse forwards of one block, without the clean one.
    if (kept.hasPrevious && !of.clean && out.pages > 0)
        selection.kept = std::int32_t(std::count_if(head.pages.begin(), head.pages.end(), [&](std::int32_t page) {
            return std::binary_search(kept.previous.begin(), kept.previous.end(), page);
        }));
    kept.previous = head.pages;
    kept.hasPrevious = !of.clean;
    record_->blocks.insert(record_->blocks.end(), head.pages.begin(), head.pages.end());
    record_->origins.insert(record_->origins.end(), head.pages.size(), Origin::QueryAware);
    record_->hit.insert(record_->hit.end(), head.pages.size(), std::uint8_t(1));
    record_->selections.push_back(selection);
    LayerRecord& sums = recordOf(layer);
    const bool firstOfLayer = sums.selected == 0;
    sums.selected += selection.selected;
    sums.hits += selection.hits;
    if (selection.selected == 0) return;
    sums.kept =
        (firstOfLayer || sums.kept >= 0) && selection.kept >= 0 ? (firstOfLayer ? 0 : sums.kept) + selection.kept : -1;
}

/// The observer: no stage of the method; its time is nobody's.
void CpuDenoiseStages::measure(int layer) {
    if (observer_ == nullptr) return;
    const auto queries = std::size_t(options_.block * config_.queryHeads), width = std::size_t(config_.valueDim());
    for (std::size_t row = 0; row < rows_.size(); ++row)
        observer_->attended(layer, rows_[row].sequence, {passes_.rows().out + row * queries * width, queries * width},
                            {memory(layer, rows_[row].sequence).prefixSums.data(), queries});
    clock_.skip();
}

void CpuDenoiseStages::finish(int layer) { passes_.finish(layer, buffers_.x, int(tokens_.size()), recordOf(layer)); }

/// Of the wanted tokens alone: their rows are moved together first.
void CpuDenoiseStages::head() {
    clock_.run(*record_, StepStage::LmHead, [&] {
        const std::size_t hidden = std::size_t(config_.hidden), block = std::size_t(options_.block);
        logitsAt_.assign(tokens_.size(), -1);
        int wanted = 0;
        for (std::size_t i = 0; i < tokens_.size(); ++i) {
            if (observer_ == nullptr && (rows_[i / block].wanted >> (i % block) & 1) == 0) continue;
            if (std::size_t(wanted) != i)
                std::copy_n(buffers_.x + i * hidden, hidden, buffers_.x + std::size_t(wanted) * hidden);
            logitsAt_[i] = wanted++;
        }
        if (wanted > 0) passes_.head(buffers_.x, wanted, buffers_.logits);
    });
    if (observer_ == nullptr) return;
    const std::size_t numbers = std::size_t(options_.block) * std::size_t(config_.vocab);
    for (std::size_t row = 0; row < rows_.size(); ++row)
        observer_->logits(rows_[row].sequence, {buffers_.logits + row * numbers, numbers});
    clock_.skip();
}

std::span<const float> CpuDenoiseStages::logits(int row, int token) const {
    const std::size_t vocab = std::size_t(config_.vocab);
    return {buffers_.logits + std::size_t(logitsAt_[std::size_t(row * options_.block + token)]) * vocab, vocab};
}

} // namespace kvscope

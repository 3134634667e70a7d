#include "core/session/layer_attention.h"

#include "core/session/oracle_best.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope {
namespace {

/// |a and b| of two ascending lists.
int intersection(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    int common = 0;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        if (a[i] == b[j])
            ++common, ++i, ++j;
        else if (a[i] < b[j])
            ++i;
        else
            ++j;
    }
    return common;
}

constexpr int kSparsePrefillTokens = 64; // query tokens selected and attended together

} // namespace

LayerAttention::LayerAttention(Kernels& kernels, KvCache& cache, const SelectionSpec& spec, const KvShape& shape,
                               const AttentionRules& rules, const Link& link, int sequences, bool oracle,
                               OracleObserver* observer)
    : kernels_(kernels), cache_(cache), spec_(spec), shape_(shape), rules_(rules),
      group_(rules.queryHeads / shape.kvHeads), link_(link), oracle_(oracle), observer_(observer),
      work_(std::size_t(sequences * shape.kvHeads)), prefillViews_(std::size_t(shape.kvHeads)) {}

void LayerAttention::decode(int layerIndex, std::span<const ActiveSequence> active, const TokenRows& rows, int step,
                            StageClock& clock, LayerRecord& layer, StepRecord& record) {
    const int heads = shape_.kvHeads, dim = shape_.dim, queryHeads = rules_.queryHeads;
    const bool denseLayer = spec_.dense || layerIndex < spec_.denseLayers;
    const std::span<Work> work(work_.data(), active.size() * std::size_t(heads));
    bool anySparse = false;
    for (std::size_t row = 0; row < active.size(); ++row)
        for (int g = 0; g < heads; ++g) {
            Work& item = work[row * std::size_t(heads) + std::size_t(g)];
            item.head = &cache_.head(active[row].sequence, layerIndex, g);
            item.sequence = active[row].sequence;
            item.kvHead = g;
            place(item, layerIndex, active[row].position);
            item.dense = denseLayer || item.position + 1 < spec_.denseBelowTokens;
            const std::size_t firstHead = row * std::size_t(queryHeads) + std::size_t(g * group_);
            item.q = rows.q + firstHead * std::size_t(dim);
            item.key = rows.k + (row * std::size_t(heads) + std::size_t(g)) * std::size_t(dim);
            if (rows.v) item.value = rows.v + (row * std::size_t(heads) + std::size_t(g)) * std::size_t(dim);
            item.score = rows.score ? rows.score[row * std::size_t(heads) + std::size_t(g)] : 0.f;
            item.out = rows.out + firstHead * std::size_t(shape_.valueDim);
            anySparse |= !item.dense;
        }
    if (cache_.indexed(layerIndex)) clock.run(layer, Stage::Compression, [&] { appendIndex(work); });
    if (!anySparse) {
        clock.run(layer, Stage::Attention, [&] {
            kernels_.forEach(int(work.size()), [&](int i) { listAll(work[std::size_t(i)]); });
            offload(layerIndex, work, step, layer);
            attend(work);
        });
        return;
    }
    if (spec_.queryScore != QueryScore::None) clock.run(layer, Stage::Stage1, [&] { scoreBlocks(work); });
    clock.run(layer, Stage::Pooling,
              [&] { kernels_.forEach(int(work.size()), [&](int i) { choose(work[std::size_t(i)]); }); });
    clock.run(layer, Stage::Offloading, [&] { offload(layerIndex, work, step, layer); });
    clock.run(layer, Stage::Stage2, [&] { attend(work); });
    const std::size_t firstSelection = record.selections.size();
    recordSelections(layerIndex, work, layer, record);
    if (oracle_) {
        measureMass(layerIndex, work, record, firstSelection);
        clock.skip(); // the oracle is no stage of the method
    }
}

void LayerAttention::place(Work& item, int layerIndex, int position) const {
    const int window = rules_.windowOf(layerIndex);
    item.position = position;
    item.firstToken = window > 0 ? std::max(0, position + 1 - window) : 0;
    item.firstBlock = item.firstToken / spec_.blockSize;
}

KvBlockView LayerAttention::viewOf(const Work& item, const float* block, std::int32_t id) const {
    const int begin = id == item.firstBlock ? item.firstToken % spec_.blockSize : 0;
    const bool current = id == item.position / spec_.blockSize;
    return cache_.layout().view(block, current ? item.position % spec_.blockSize + 1 : spec_.blockSize, begin);
}

void LayerAttention::appendIndex(std::span<Work> work) {
    kernels_.forEach(int(work.size()), [&](int i) {
        Work& item = work[std::size_t(i)];
        item.head->index.append(item.key, item.score);
    });
}

void LayerAttention::scoreBlocks(std::span<Work> work) {
    groupItems_.clear();
    rangeItems_.clear();
    for (Work& item : work) {
        if (item.dense) continue;
        if (spec_.queryScore == QueryScore::PooledSoftmax) {
            const int windows = spec_.grid.windows(item.position + 1);
            const int hidden = item.firstToken - spec_.grid.kernel + 1; // windows that end before the first token
            const int first = hidden > 0 ? (hidden + spec_.grid.stride - 1) / spec_.grid.stride : 0;
            item.windowScores.resize(std::size_t(windows));
            groupItems_.push_back(
                {item.q, item.head->index.tiles(), windows, item.windowScores.data(), std::min(first, windows)});
        } else {
            const int blocks = item.position / spec_.blockSize + 1;
            item.queryAware.resize(std::size_t(blocks));
            rangeItems_.push_back(
                {item.q, item.head->index.ranges() + std::size_t(item.firstBlock) * 2 * std::size_t(shape_.dim),
                 blocks - item.firstBlock, item.queryAware.data() + item.firstBlock});
        }
    }
    if (!groupItems_.empty())
        kernels_.groupScores({group_, shape_.dim, BlockIndex::kTileWindows, shape_.dim, rules_.scale, groupItems_});
    if (!rangeItems_.empty()) kernels_.rangeBound({group_, shape_.dim, shape_.dim, spec_.rangeReduce, rangeItems_});
}

void LayerAttention::choose(Work& item) const {
    if (item.dense) return listAll(item);
    const int current = item.position / spec_.blockSize;
    const std::size_t blocks = std::size_t(current) + 1;
    if (spec_.queryScore == QueryScore::PooledSoftmax) {
        item.queryAware.resize(blocks);
        poolToBlocks(spec_.grid, item.windowScores, item.queryAware);
    }
    if (spec_.agnosticScore != AgnosticScore::None) {
        item.queryAgnostic.resize(blocks);
        const auto windows = std::size_t(spec_.grid.windows(item.position + 1));
        poolToBlocks(spec_.grid, item.head->index.pooledScores().first(windows), item.queryAgnostic);
    }
    // Chosen among the blocks from the first visible one on, which are then given their own numbers.
    SelectionBudget budget = spec_.budget;
    if (item.firstBlock > 0) { // the sink has left the window: its share goes to the method's choice
        if (spec_.queryScore != QueryScore::None)
            budget.queryAware += budget.sink;
        else if (spec_.agnosticScore != AgnosticScore::None)
            budget.queryAgnostic += budget.sink;
        budget.sink = 0;
    }
    const auto visible = [&](const std::vector<float>& scores) {
        return std::span(scores).subspan(scores.empty() ? 0 : std::size_t(item.firstBlock));
    };
    selectBlocks(budget, current - item.firstBlock, visible(item.queryAware), visible(item.queryAgnostic),
                 item.selected);
    item.wanted.clear();
    for (SelectedBlock& block : item.selected) {
        block.block += item.firstBlock;
        item.wanted.push_back(block.block);
    }
}

void LayerAttention::listAll(Work& item) const {
    item.selected.clear();
    item.wanted.clear();
    for (int b = item.firstBlock; b <= item.position / spec_.blockSize; ++b) item.wanted.push_back(b);
}

void LayerAttention::offload(int layerIndex, std::span<Work> work, int step, LayerRecord& layer) {
    const BlockLayout& layout = cache_.layout();
    const bool offloaded = cache_.offloaded(layerIndex);
    kernels_.forEach(int(work.size()), [&](int i) {
        Work& item = work[std::size_t(i)];
        const int current = item.position / spec_.blockSize, row = item.position % spec_.blockSize;
        const bool begins = row == 0;
        item.hit.assign(item.wanted.size(), 1);
        item.copies.clear();
        item.loads = 0;
        if (offloaded)
            item.loads = item.head->device.admit(item.wanted, begins ? current : -1, step, item.head->store, item.hit,
                                                 item.copies);
        float* tail = offloaded ? item.head->device.block(current) : cache_.storeBlock(*item.head, current);
        layout.write(tail, row, item.key, item.value, item.score);
        item.views.clear();
        for (const std::int32_t id : item.wanted) {
            const float* block = offloaded ? item.head->device.block(id) : cache_.storeBlock(*item.head, id);
            item.views.push_back(viewOf(item, block, id));
        }
    });
    if (!offloaded) return;
    copies_.clear();
    for (const Work& item : work) {
        copies_.insert(copies_.end(), item.copies.begin(), item.copies.end());
        layer.h2dBlocks += item.loads;
    }
    // A tail that has just become full goes to the store once; blocks never change after that.
    for (const Work& item : work) {
        if ((item.position + 1) % spec_.blockSize != 0) continue;
        const int current = item.position / spec_.blockSize;
        copies_.push_back(
            {item.head->device.block(current), cache_.storeBlock(*item.head, current), std::size_t(layout.bytes())});
        ++layer.d2hBlocks;
    }
    kernels_.copy(copies_);
    layer.h2dBytes = layer.h2dBlocks * layout.bytes();
    layer.d2hBytes = layer.d2hBlocks * layout.bytes();
    layer.exposedNs = link_.transferNs(layer.h2dBytes); // on demand: the attention waits for all of it
    layer.transferNs = layer.exposedNs + link_.transferNs(layer.d2hBytes);
}

void LayerAttention::attend(std::span<Work> work) { attendItems(work, oracle_, &Work::lse); }

void LayerAttention::attendItems(std::span<Work> work, bool withLse, std::vector<float> Work::*lse) {
    items_.clear();
    for (Work& item : work) {
        if (withLse) (item.*lse).resize(std::size_t(group_));
        items_.push_back({item.q, item.views.data(), std::int32_t(item.views.size()), item.out,
                          withLse ? (item.*lse).data() : nullptr});
    }
    kernels_.blockAttention({group_, shape_.dim, spec_.blockSize, shape_.dim, shape_.valueDim, rules_.scale,
                             spec_.bias.scale, items_, shape_.valueDim});
}

void LayerAttention::recordSelections(int layerIndex, std::span<Work> work, LayerRecord& layer,
                                      StepRecord& record) const {
    bool keptDefined = true;
    int kept = 0;
    for (Work& item : work) {
        if (item.dense) {
            item.head->hasPrevious = false;
            continue;
        }
        SelectionRecord selection;
        selection.layer = layerIndex;
        selection.sequence = item.sequence;
        selection.kvHead = item.kvHead;
        selection.selected = std::int32_t(item.wanted.size());
        selection.misses = item.loads;
        selection.hits = selection.selected - selection.misses;
        if (item.head->hasPrevious) selection.kept = intersection(item.wanted, item.head->previous);
        item.head->previous.assign(item.wanted.begin(), item.wanted.end());
        item.head->hasPrevious = true;
        selection.first = std::uint32_t(record.blocks.size());
        for (std::size_t i = 0; i < item.selected.size(); ++i) {
            record.blocks.push_back(item.selected[i].block);
            record.origins.push_back(item.selected[i].origin);
            record.hit.push_back(item.hit[i]);
            record.scores.push_back(item.selected[i].score);
        }
        layer.selected += selection.selected;
        layer.hits += selection.hits;
        layer.misses += selection.misses;
        keptDefined &= selection.kept >= 0;
        kept += std::max(selection.kept, 0);
        record.selections.push_back(selection);
    }
    layer.kept = keptDefined ? kept : -1;
}

void LayerAttention::measureMass(int layerIndex, std::span<Work> work, StepRecord& record, std::size_t firstSelection) {
    const bool offloaded = cache_.offloaded(layerIndex);
    const std::size_t outFloats = std::size_t(group_) * std::size_t(shape_.valueDim);
    massOut_.resize(work.size() * outFloats);
    for (std::size_t i = 0; i < work.size(); ++i) {
        Work& item = work[i];
        const int current = item.position / spec_.blockSize;
        item.views.clear();
        for (int b = item.firstBlock; b <= current; ++b) {
            const bool onDevice = offloaded && b == current; // the tail's store copy comes when it is full
            const float* block = onDevice ? item.head->device.block(b) : cache_.storeBlock(*item.head, b);
            item.views.push_back(viewOf(item, block, b));
        }
        item.out = massOut_.data() + i * outFloats; // the method's own output stays as it is
    }
    attendItems(work, true, &Work::fullLse);
    std::size_t next = firstSelection;
    for (const Work& item : work) {
        if (item.dense) continue;
        double mass = 0;
        for (int h = 0; h < group_; ++h)
            mass += std::exp(double(item.lse[std::size_t(h)]) - double(item.fullLse[std::size_t(h)]));
        record.selections[next++].mass = float(std::min(1.0, mass / group_));
    }
    if (observer_ == nullptr) return;
    for (Work& item : work)
        if (!item.dense) observeBest(layerIndex, item, record.step);
}

/// Needs the views of all blocks within reach, in order, and fullLse.
void LayerAttention::observeBest(int layerIndex, Work& item, int step) {
    const std::size_t blocks = item.views.size(), group = std::size_t(group_);
    blockLse_.resize(blocks * group);
    const std::size_t outFloats = group * std::size_t(shape_.valueDim);
    massOut_.resize(std::max(massOut_.size(), blocks * outFloats));
    items_.clear();
    for (std::size_t b = 0; b < blocks; ++b) // attention over one block at a time
        items_.push_back({item.q, &item.views[b], 1, massOut_.data() + b * outFloats, blockLse_.data() + b * group});
    kernels_.blockAttention({group_, shape_.dim, spec_.blockSize, shape_.dim, shape_.valueDim, rules_.scale,
                             spec_.bias.scale, items_, shape_.valueDim});
    blockMass_.assign(blocks, 0.f);
    for (std::size_t b = 0; b < blocks; ++b)
        for (std::size_t h = 0; h < group; ++h)
            blockMass_[b] += std::exp(blockLse_[b * group + h] - item.fullLse[h]) / float(group_);

    chosen_.clear();
    origins_.clear();
    for (const SelectedBlock& block : item.selected) {
        chosen_.push_back(block.block - item.firstBlock);
        origins_.push_back(block.origin);
    }
    OracleRecord out{step, layerIndex, item.sequence, item.kvHead};
    describeSelection(blockMass_, chosen_, origins_, out);
    observer_->observe(out);
}

void LayerAttention::prefill(int layerIndex, int sequence, int first, int n, const TokenRows& rows, StageClock& clock,
                             LayerRecord& layer) {
    const BlockLayout& layout = cache_.layout();
    const int heads = shape_.kvHeads, dim = shape_.dim;
    const auto keyOf = [&](int token, int g) {
        return rows.k + (std::size_t(token * heads) + std::size_t(g)) * std::size_t(dim);
    };
    const auto scoreOf = [&](int token, int g) { return rows.score ? rows.score[token * heads + g] : 0.f; };
    if (cache_.indexed(layerIndex))
        clock.run(layer, Stage::Compression, [&] {
            kernels_.forEach(heads, [&](int g) {
                KvHead& head = cache_.head(sequence, layerIndex, g);
                for (int token = 0; token < n; ++token) head.index.append(keyOf(token, g), scoreOf(token, g));
            });
        });
    clock.run(layer, Stage::Offloading, [&] {
        kernels_.forEach(heads, [&](int g) {
            KvHead& head = cache_.head(sequence, layerIndex, g);
            for (int token = 0; token < n; ++token) {
                const int position = first + token;
                const float* value =
                    rows.v ? rows.v + (std::size_t(token * heads) + std::size_t(g)) * std::size_t(dim) : nullptr;
                layout.write(cache_.storeBlock(head, position / layout.blockSize), position % layout.blockSize,
                             keyOf(token, g), value, scoreOf(token, g));
            }
        });
    });
    const bool sparse = spec_.sparsePrefill && !spec_.dense && layerIndex >= spec_.denseLayers;
    if (sparse) return prefillSparse(layerIndex, sequence, first, n, rows, clock, layer);
    clock.run(layer, Stage::Attention, [&] { prefillFull(layerIndex, sequence, first, n, rows); });
}

void LayerAttention::keepTail(int layerIndex, int sequence, int tokens) {
    if (!cache_.offloaded(layerIndex) || tokens % spec_.blockSize == 0) return;
    const std::int32_t tail = tokens / spec_.blockSize;
    for (int g = 0; g < shape_.kvHeads; ++g) {
        KvHead& head = cache_.head(sequence, layerIndex, g);
        std::uint8_t hit = 0;
        copies_.clear();
        head.device.admit({&tail, 1}, -1, 0, head.store, {&hit, 1}, copies_);
        kernels_.copy(copies_);
    }
}

void LayerAttention::prefillFull(int layerIndex, int sequence, int first, int n, const TokenRows& rows) {
    const BlockLayout& layout = cache_.layout();
    const int end = first + n, blocks = (end + layout.blockSize - 1) / layout.blockSize;
    std::vector<const KvBlockView*> lists;
    for (int g = 0; g < shape_.kvHeads; ++g) {
        auto& views = prefillViews_[std::size_t(g)];
        views.clear();
        KvHead& head = cache_.head(sequence, layerIndex, g);
        for (int b = 0; b < blocks; ++b)
            views.push_back(
                layout.view(cache_.storeBlock(head, b), std::min(layout.blockSize, end - b * layout.blockSize)));
        lists.push_back(views.data());
    }
    PrefillAttentionArgs args;
    args.q = rows.q;
    args.n = n;
    args.qStride = rules_.queryHeads * shape_.dim;
    args.outStride = rules_.queryHeads * shape_.valueDim;
    args.firstPosition = first;
    args.kvHeads = shape_.kvHeads;
    args.group = group_;
    args.dim = shape_.dim;
    args.valueDim = shape_.valueDim;
    args.window = rules_.windowOf(layerIndex);
    args.blockSize = layout.blockSize;
    args.blocks = lists.data();
    args.scale = rules_.scale;
    args.biasScale = spec_.bias.scale;
    args.out = rows.out;
    kernels_.prefillAttention(args);
}

void LayerAttention::prefillSparse(int layerIndex, int sequence, int first, int n, const TokenRows& rows,
                                   StageClock& clock, LayerRecord& layer) {
    const int heads = shape_.kvHeads, dim = shape_.dim;
    for (int start = 0; start < n; start += kSparsePrefillTokens) {
        const int count = std::min(kSparsePrefillTokens, n - start);
        if (work_.size() < std::size_t(count * heads)) work_.resize(std::size_t(count * heads));
        const std::span<Work> work(work_.data(), std::size_t(count * heads));
        for (int token = 0; token < count; ++token)
            for (int g = 0; g < heads; ++g) {
                Work& item = work[std::size_t(token * heads + g)];
                const std::size_t row = std::size_t(start + token);
                item.head = &cache_.head(sequence, layerIndex, g);
                place(item, layerIndex, first + start + token);
                item.dense = item.position + 1 < spec_.denseBelowTokens;
                const std::size_t firstHead = row * std::size_t(rules_.queryHeads) + std::size_t(g * group_);
                item.q = rows.q + firstHead * std::size_t(dim);
                item.out = rows.out + firstHead * std::size_t(shape_.valueDim);
            }
        // Windows and ranges of later tokens exist already; a query sees only the windows complete at its own position,
        // and the only block whose range could be ahead of it is its own, which the window forces.
        if (spec_.queryScore != QueryScore::None) clock.run(layer, Stage::Stage1, [&] { scoreBlocks(work); });
        clock.run(layer, Stage::Pooling,
                  [&] { kernels_.forEach(int(work.size()), [&](int i) { choose(work[std::size_t(i)]); }); });
        clock.run(layer, Stage::Stage2, [&] {
            for (Work& item : work) {
                item.views.clear();
                for (const std::int32_t id : item.wanted)
                    item.views.push_back(viewOf(item, cache_.storeBlock(*item.head, id), id));
            }
            attendItems(work, false, &Work::lse);
        });
    }
}

} // namespace kvscope

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

LayerAttention::LayerAttention(const SelectorContext& context, std::unique_ptr<Selector> selector, const Link& link,
                               bool oracle, OracleObserver* observer)
    : context_(context), selector_(std::move(selector)), needs_(selector_->needs()), kernels_(context.kernels),
      cache_(context.cache), spec_(context.spec), shape_(context.shape), rules_(context.rules), group_(context.group()),
      link_(link), oracle_(oracle), observer_(observer),
      work_(std::size_t(context.sequences() * context.shape.kvHeads)), prefillViews_(std::size_t(shape_.kvHeads)) {
    if (!needs_.ahead) return;
    ahead_.resize(work_.size() * std::size_t(shape_.layers));
    aheadTransfers_.resize(std::size_t(shape_.layers));
}

void LayerAttention::decode(int layerIndex, std::span<const ActiveSequence> active, const TokenRows& rows, int step,
                            StageClock& clock, LayerRecord& layer, StepRecord& record) {
    const std::size_t heads = std::size_t(shape_.kvHeads);
    const bool denseLayer = spec_.dense || layerIndex < spec_.denseLayers;
    const std::span<HeadStep> work(work_.data(), active.size() * heads);
    bool anySparse = false;
    for (std::size_t row = 0; row < active.size(); ++row)
        for (std::size_t g = 0; g < heads; ++g) {
            HeadStep& item = work[row * heads + g];
            item.head = &cache_.head(active[row].sequence, layerIndex, int(g));
            item.sequence = active[row].sequence;
            item.kvHead = int(g);
            place(item, layerIndex, active[row].position);
            item.dense = denseLayer || item.position + 1 < spec_.denseBelowTokens;
            pointAt(item, rows, row);
            item.score = rows.score ? rows.score[row * heads + g] : 0.f;
            item.byToken = item.ofPrompt = false;
            item.predicted = -1;
            item.used = item.wasted = item.late = 0;
            item.stale = -1;
            anySparse |= !item.dense;
        }
    if (cache_.indexed(layerIndex)) clock.run(layer, Stage::Compression, [&] { selector_->append(work); });
    if (!anySparse) {
        clock.run(layer, Stage::Attention, [&] {
            kernels_.forEach(int(work.size()), [&](int i) { listAll(work[std::size_t(i)]); });
            if (needs_.ahead) {
                requests_.clear();
                selector_->lookAhead(work, requests_);
                fetchAhead(work, step);
            }
            offload(layerIndex, work, step, layer);
            attend(work);
        });
        return;
    }
    if (needs_.scores) clock.run(layer, Stage::Stage1, [&] { selector_->score(work); });
    clock.run(layer, Stage::Pooling, [&] {
        for (HeadStep& item : work)
            if (item.dense) listAll(item);
        selector_->choose(work);
        if (needs_.ahead) {
            requests_.clear();
            selector_->lookAhead(work, requests_);
        }
    });
    clock.run(layer, Stage::Offloading, [&] {
        if (needs_.ahead) fetchAhead(work, step);
        offload(layerIndex, work, step, layer);
    });
    clock.run(layer, Stage::Stage2, [&] { attend(work); });
    const std::size_t firstSelection = record.selections.size();
    recordSelections(layerIndex, work, layer, record);
    if (needs_.ahead) {
        clock.run(layer, Stage::Pooling, [&] {
            requests_.clear();
            selector_->after(work, requests_);
        });
        clock.run(layer, Stage::Offloading, [&] { fetchAhead(work, step); });
    } else if (needs_.after) {
        clock.run(layer, Stage::Compression, [&] { selector_->after(work, requests_); });
    }
    if (oracle_) {
        measureMass(layerIndex, work, record, firstSelection);
        clock.skip(); // the oracle is no stage of the method
    }
}

void LayerAttention::place(HeadStep& item, int layerIndex, int position) const {
    const int window = rules_.windowOf(layerIndex);
    item.layer = layerIndex;
    item.position = position;
    item.firstToken = window > 0 ? std::max(0, position + 1 - window) : 0;
    item.firstBlock = item.firstToken / spec_.blockSize;
}

/// The item's rows of the projections, its KV head being set.
void LayerAttention::pointAt(HeadStep& item, const TokenRows& rows, std::size_t row) const {
    const std::size_t dim = std::size_t(shape_.dim);
    const std::size_t firstHead = row * std::size_t(rules_.queryHeads) + std::size_t(item.kvHead * group_);
    const std::size_t kvHead = row * std::size_t(shape_.kvHeads) + std::size_t(item.kvHead);
    item.q = rows.q + firstHead * dim;
    item.key = rows.k + kvHead * dim;
    item.value = rows.v ? rows.v + kvHead * dim : nullptr;
    item.plainQ = rows.plainQ ? rows.plainQ + firstHead * dim : nullptr;
    item.plainKey = rows.plainK ? rows.plainK + kvHead * dim : nullptr;
    item.input = rows.input ? rows.input + row * std::size_t(context_.model.config().hidden) : nullptr;
    item.out = rows.out + firstHead * std::size_t(shape_.valueDim);
}

KvBlockView LayerAttention::viewOf(const HeadStep& item, const float* block, std::int32_t id) const {
    const int begin = id == item.firstBlock ? item.firstToken % spec_.blockSize : 0;
    const bool current = id == item.position / spec_.blockSize;
    return cache_.layout().view(block, current ? item.position % spec_.blockSize + 1 : spec_.blockSize, begin);
}

/// Where the block is attended: in its device slot, or in the store of a layer that has no slots.
const float* LayerAttention::blockOf(HeadStep& item, std::int32_t id) const {
    return cache_.offloaded(item.layer) ? item.head->device.block(id) : cache_.storeBlock(*item.head, id);
}

void LayerAttention::listAll(HeadStep& item) const {
    item.selected.clear();
    item.wanted.clear();
    for (int b = item.firstBlock; b <= item.position / spec_.blockSize; ++b) item.wanted.push_back(b);
}

/// Sends what was asked for ahead on its way: the copies are made now, when they arrive is modelled.
void LayerAttention::fetchAhead(std::span<const HeadStep> work, int step) {
    if (requests_.empty()) return;
    if (spec_.ownDeviceTier) return sendAhead();
    copies_.clear();
    for (PrefetchRequest& request : requests_) {
        const auto of = std::find_if(work.begin(), work.end(),
                                     [&](const HeadStep& item) { return item.sequence == request.sequence; });
        const int current = of->position / spec_.blockSize;
        const bool later = request.layer > of->layer; // in this step; else in the next one
        const bool begins = later && of->position % spec_.blockSize == 0;
        KvHead& head = cache_.head(request.sequence, request.layer, request.kvHead);
        Ahead& ahead = aheadOf(request.layer, request.sequence, request.kvHead);
        ahead.blocks.swap(request.blocks);
        ahead.hit.assign(ahead.blocks.size(), 1);
        ahead.loads = head.device.admit(ahead.blocks, begins ? current : -1, step, head.store, ahead.hit, copies_);
        ahead.waiting = true;
        AheadTransfer& transfer = aheadTransfers_[std::size_t(request.layer)];
        ahead.firstLoad = transfer.blocks;
        transfer.blocks += ahead.loads;
    }
    kernels_.copy(copies_);
    for (const PrefetchRequest& request : requests_) {
        AheadTransfer& transfer = aheadTransfers_[std::size_t(request.layer)];
        if (transfer.queued) continue;
        transfer.transfer = link_.start(link_.modelled(steadyNowNs()), transfer.blocks * cache_.layout().bytes());
        transfer.queued = true;
    }
    requests_.clear();
}

/// Likewise for a method that keeps what is on the device itself: bytes are all there is to model.
void LayerAttention::sendAhead() {
    for (const PrefetchRequest& request : requests_) aheadTransfers_[std::size_t(request.layer)].bytes += request.bytes;
    for (const PrefetchRequest& request : requests_) {
        AheadTransfer& transfer = aheadTransfers_[std::size_t(request.layer)];
        if (transfer.queued) continue;
        transfer.transfer = link_.start(link_.modelled(steadyNowNs()), transfer.bytes);
        transfer.queued = true;
    }
    requests_.clear();
}

void LayerAttention::loadOwnTier(int layerIndex, std::span<HeadStep> work, LayerRecord& layer) {
    const Selector::Loads loads = selector_->load(work);
    layer.h2dBlocks = std::int32_t(loads.units);
    layer.h2dBytes = loads.bytes;
    layer.d2hBytes = loads.storedBytes;
    layer.transferNs = link_.link().transferNs(loads.storedBytes);
    std::int64_t onDemand = loads.bytes;
    if (needs_.ahead) {
        AheadTransfer& transfer = aheadTransfers_[std::size_t(layerIndex)];
        if (transfer.queued) {
            layer.exposedNs += link_.wait(link_.modelled(steadyNowNs()), transfer.transfer.doneNs);
            layer.transferNs += transfer.transfer.doneNs - transfer.transfer.startNs;
            onDemand -= transfer.bytes;
        }
        transfer = {};
    }
    const std::int64_t onDemandNs = link_.link().transferNs(onDemand);
    layer.exposedNs += onDemandNs;
    layer.transferNs += onDemandNs;
}

/// Gives the item's wanted blocks device slots, writes the new token, and lists what is attended.
void LayerAttention::admit(HeadStep& item, int step) {
    const BlockLayout& layout = cache_.layout();
    const int current = item.position / spec_.blockSize, row = item.position % spec_.blockSize;
    item.hit.assign(item.wanted.size(), 1);
    item.copies.clear();
    item.loads = 0;
    const bool offloaded = cache_.offloaded(item.layer);
    if (offloaded)
        item.loads = item.head->device.admit(item.wanted, row == 0 ? current : -1, step, item.head->store, item.hit,
                                             item.copies);
    float* tail = offloaded ? item.head->device.block(current) : cache_.storeBlock(*item.head, current);
    layout.write(tail, row, item.key, item.value, item.score);
    item.views.clear();
    if (item.byToken) return; // gathered when they are attended, after the copies
    const auto view = [&](std::int32_t id) { item.views.push_back(viewOf(item, blockOf(item, id), id)); };
    if (item.dense)
        for (const std::int32_t id : item.wanted) view(id);
    else
        for (const SelectedBlock& block : item.selected) view(block.block);
}

void LayerAttention::offload(int layerIndex, std::span<HeadStep> work, int step, LayerRecord& layer) {
    const BlockLayout& layout = cache_.layout();
    kernels_.forEach(int(work.size()), [&](int i) { admit(work[std::size_t(i)], step); });
    if (spec_.ownDeviceTier && !work[0].dense) {
        loadOwnTier(layerIndex, work, layer);
        return;
    }
    if (!cache_.offloaded(layerIndex)) return;
    std::int64_t aheadNs = 0;
    int aheadBlocks = 0;
    if (needs_.ahead) {
        AheadTransfer& transfer = aheadTransfers_[std::size_t(layerIndex)];
        const std::int64_t now = link_.modelled(steadyNowNs());
        const int arrived = transfer.blocks - int(link_.missingBytes(transfer.transfer, now) / layout.bytes());
        for (HeadStep& item : work) {
            Ahead& ahead = aheadOf(layerIndex, item.sequence, item.kvHead);
            if (ahead.waiting) compareWithAhead(item, ahead, arrived);
        }
        if (transfer.queued) {
            layer.exposedNs += link_.wait(now, transfer.transfer.doneNs);
            aheadNs = transfer.transfer.doneNs - transfer.transfer.startNs;
            aheadBlocks = transfer.blocks;
        }
        transfer = {};
    }
    copies_.clear();
    std::int32_t onDemand = 0;
    for (const HeadStep& item : work) {
        copies_.insert(copies_.end(), item.copies.begin(), item.copies.end());
        onDemand += item.loads;
    }
    // A tail that has just become full goes to the store once; blocks never change after that.
    for (const HeadStep& item : work) {
        if ((item.position + 1) % spec_.blockSize != 0) continue;
        const int current = item.position / spec_.blockSize;
        copies_.push_back(
            {item.head->device.block(current), cache_.storeBlock(*item.head, current), std::size_t(layout.bytes())});
        ++layer.d2hBlocks;
    }
    kernels_.copy(copies_);
    layer.h2dBlocks = onDemand + aheadBlocks;
    layer.h2dBytes = layer.h2dBlocks * layout.bytes();
    layer.d2hBytes = layer.d2hBlocks * layout.bytes();
    // On demand the attention waits for all of it, behind what is still on its way.
    std::int64_t onDemandNs = link_.link().transferNs(onDemand * layout.bytes());
    if (needs_.ahead && onDemand > 0) {
        const std::int64_t now = link_.modelled(steadyNowNs());
        layer.exposedNs += link_.wait(now, link_.start(now, onDemand * layout.bytes()).doneNs);
    } else {
        layer.exposedNs += onDemandNs;
    }
    layer.transferNs = aheadNs + onDemandNs + link_.link().transferNs(layer.d2hBytes);
}

/// What was fetched ahead against what is wanted now: a block that travelled ahead is no hit.
void LayerAttention::compareWithAhead(HeadStep& item, Ahead& ahead, int arrived) const {
    ahead.waiting = false;
    item.predicted = int(ahead.blocks.size());
    item.late = std::clamp(ahead.firstLoad + ahead.loads - arrived, 0, ahead.loads);
    auto selected = item.selected.begin();
    auto wanted = item.wanted.begin();
    for (std::size_t i = 0; i < ahead.blocks.size(); ++i) {
        const std::int32_t id = ahead.blocks[i];
        while (selected != item.selected.end() && selected->block < id) ++selected;
        const bool used = selected != item.selected.end() && selected->block == id;
        item.used += used ? 1 : 0;
        if (ahead.hit[i] != 0) continue;
        item.wasted += used ? 0 : 1;
        while (wanted != item.wanted.end() && *wanted < id) ++wanted;
        if (wanted != item.wanted.end() && *wanted == id) item.hit[std::size_t(wanted - item.wanted.begin())] = 0;
    }
}

void LayerAttention::attend(std::span<HeadStep> work) {
    kernels_.forEach(int(work.size()), [&](int i) {
        if (work[std::size_t(i)].byToken && !work[std::size_t(i)].dense) gatherTokens(work[std::size_t(i)]);
    });
    if (oracle_)
        for (HeadStep& item : work) item.lse.assign(std::size_t(group_), std::numeric_limits<float>::quiet_NaN());
    if (work[0].dense || !selector_->attend(work)) attendItems(work, oracle_, &HeadStep::lse);
}

/// The chosen tokens, packed into blocks of their own.
void LayerAttention::gatherTokens(HeadStep& item) {
    const BlockLayout& layout = cache_.layout();
    const int size = layout.blockSize, count = int(item.tokens.size()), blocks = (count + size - 1) / size;
    const std::size_t floats = layout.floats() * std::size_t(blocks);
    if (item.gathered.size() < floats) item.gathered = AlignedBuffer<float>(floats);
    item.views.clear();
    for (int i = 0; i < count; ++i) {
        const std::int32_t token = item.tokens[std::size_t(i)];
        layout.copyToken(blockOf(item, token / size), token % size,
                         item.gathered.data() + std::size_t(i / size) * layout.floats(), i % size);
    }
    for (int b = 0; b < blocks; ++b)
        item.views.push_back(
            layout.view(item.gathered.data() + std::size_t(b) * layout.floats(), std::min(size, count - b * size)));
}

void LayerAttention::attendItems(std::span<HeadStep> work, bool withLse, std::vector<float> HeadStep::*lse) {
    items_.clear();
    for (HeadStep& item : work) {
        if (withLse) (item.*lse).resize(std::size_t(group_));
        items_.push_back({item.q, item.views.data(), std::int32_t(item.views.size()), item.out,
                          withLse ? (item.*lse).data() : nullptr});
    }
    kernels_.blockAttention({group_, shape_.dim, spec_.blockSize, shape_.dim, shape_.valueDim, rules_.scale,
                             spec_.bias.scale, items_, shape_.valueDim});
}

void LayerAttention::recordSelections(int layerIndex, std::span<HeadStep> work, LayerRecord& layer,
                                      StepRecord& record) const {
    bool keptDefined = true;
    int kept = 0;
    std::vector<std::int32_t> ids;
    for (HeadStep& item : work) {
        if (item.dense) {
            item.head->hasPrevious = false;
            continue;
        }
        SelectionRecord selection;
        selection.layer = layerIndex;
        selection.sequence = item.sequence;
        selection.kvHead = item.kvHead;
        selection.selected = std::int32_t(item.selected.size());
        selection.predicted = item.predicted;
        selection.used = item.used;
        selection.wasted = item.wasted;
        selection.late = item.late;
        selection.stale = item.stale;
        selection.first = std::uint32_t(record.blocks.size());
        ids.clear();
        std::size_t at = 0; // in `wanted`, which holds every selected block
        for (const SelectedBlock& block : item.selected) {
            while (item.wanted[at] != block.block) ++at;
            ids.push_back(block.block);
            record.blocks.push_back(block.block);
            record.origins.push_back(block.origin);
            record.hit.push_back(item.hit[at]);
            record.scores.push_back(block.score);
            selection.hits += item.hit[at];
        }
        selection.misses = selection.selected - selection.hits;
        if (item.head->hasPrevious) selection.kept = intersection(ids, item.head->previous);
        item.head->previous.assign(ids.begin(), ids.end());
        item.head->hasPrevious = true;
        layer.selected += selection.selected;
        layer.hits += selection.hits;
        layer.misses += selection.misses;
        keptDefined &= selection.kept >= 0;
        kept += std::max(selection.kept, 0);
        record.selections.push_back(selection);
    }
    layer.kept = keptDefined ? kept : -1;
}

void LayerAttention::measureMass(int layerIndex, std::span<HeadStep> work, StepRecord& record,
                                 std::size_t firstSelection) {
    const bool offloaded = cache_.offloaded(layerIndex);
    const std::size_t outFloats = std::size_t(group_) * std::size_t(shape_.valueDim);
    massOut_.resize(work.size() * outFloats);
    for (std::size_t i = 0; i < work.size(); ++i) {
        HeadStep& item = work[i];
        const int current = item.position / spec_.blockSize;
        item.views.clear();
        for (int b = item.firstBlock; b <= current; ++b) {
            const bool onDevice = offloaded && b == current; // the tail's store copy comes when it is full
            const float* block = onDevice ? item.head->device.block(b) : cache_.storeBlock(*item.head, b);
            item.views.push_back(viewOf(item, block, b));
        }
        item.out = massOut_.data() + i * outFloats; // the method's own output stays as it is
    }
    attendItems(work, true, &HeadStep::fullLse);
    std::size_t next = firstSelection;
    for (HeadStep& item : work) {
        if (item.dense) continue;
        double mass = 0;
        for (int h = 0; h < group_; ++h)
            mass += std::exp(double(item.lse[std::size_t(h)]) - double(item.fullLse[std::size_t(h)]));
        SelectionRecord& selection = record.selections[next++];
        selection.mass = float(std::min(1.0, mass / group_));
        compareWithBest(layerIndex, item, record.step, selection);
    }
}

/// Splits the views of whole blocks into views of what the method selects, where that is less than a block.
void LayerAttention::splitIntoUnits(HeadStep& item) const {
    const int unit = spec_.unitTokens();
    if (unit == spec_.blockSize) return;
    std::vector<KvBlockView> units;
    for (const KvBlockView& view : item.views)
        for (int begin = view.begin / unit * unit; begin < view.tokens; begin += unit) {
            units.push_back(view);
            units.back().begin = std::max(begin, view.begin);
            units.back().tokens = std::min(begin + unit, view.tokens);
        }
    item.views.swap(units);
}

/// Needs the views of all blocks within reach, in order, and fullLse.
void LayerAttention::compareWithBest(int layerIndex, HeadStep& item, int step, SelectionRecord& selection) {
    splitIntoUnits(item);
    const int firstUnit = item.firstToken / spec_.unitTokens();
    const std::size_t blocks = item.views.size(), group = std::size_t(group_); // or units
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
        chosen_.push_back(block.block - firstUnit);
        origins_.push_back(block.origin);
    }
    OracleRecord out{step, layerIndex, item.sequence, item.kvHead};
    describeSelection(blockMass_, chosen_, origins_, out);
    if (needs_.ownKeys) selection.mass = std::min(1.f, out.mass);
    keepOracle(out, selection);
    if (observer_ != nullptr) observer_->observe(out);
}

void LayerAttention::prefill(const PromptChunk& chunk, StageClock& clock, LayerRecord& layer) {
    const BlockLayout& layout = cache_.layout();
    const TokenRows& rows = chunk.rows;
    const std::size_t heads = std::size_t(shape_.kvHeads), dim = std::size_t(shape_.dim);
    const auto keyOf = [&](std::size_t token, std::size_t g) { return rows.k + (token * heads + g) * dim; };
    const auto scoreOf = [&](std::size_t token, std::size_t g) {
        return rows.score ? rows.score[token * heads + g] : 0.f;
    };
    if (cache_.indexed(chunk.layer))
        clock.run(layer, Stage::Compression, [&] {
            kernels_.forEach(shape_.kvHeads, [&](int g) {
                KvHead& head = cache_.head(chunk.sequence, chunk.layer, g);
                for (std::size_t token = 0; token < std::size_t(chunk.n); ++token)
                    head.index.append(keyOf(token, std::size_t(g)), scoreOf(token, std::size_t(g)));
            });
        });
    clock.run(layer, Stage::Offloading, [&] {
        kernels_.forEach(shape_.kvHeads, [&](int g) {
            KvHead& head = cache_.head(chunk.sequence, chunk.layer, g);
            for (std::size_t token = 0; token < std::size_t(chunk.n); ++token) {
                const int position = chunk.first + int(token);
                const float* value = rows.v ? rows.v + (token * heads + std::size_t(g)) * dim : nullptr;
                layout.write(cache_.storeBlock(head, position / layout.blockSize), position % layout.blockSize,
                             keyOf(token, std::size_t(g)), value, scoreOf(token, std::size_t(g)));
            }
        });
    });
    const bool sparse = spec_.sparsePrefill && !spec_.dense && chunk.layer >= spec_.denseLayers;
    if (sparse)
        prefillSparse(chunk, clock, layer);
    else if (needs_.promptAttention && !spec_.dense && chunk.layer >= spec_.denseLayers)
        clock.run(layer, Stage::Attention, [&] { selector_->attendPrompt(chunk); });
    else
        clock.run(layer, Stage::Attention, [&] { prefillFull(chunk); });
    if (needs_.prompt) clock.run(layer, Stage::Compression, [&] { selector_->prompt(chunk); });
}

void LayerAttention::finishPrompt(int layerIndex, int sequence, int tokens) {
    requests_.clear();
    if (needs_.prompt) selector_->promptDone(layerIndex, sequence, tokens, requests_);
    if (!cache_.offloaded(layerIndex)) return;
    // Blocks the method seeds its cache with, and the tail, are on the device since they were computed: no transfer.
    for (int g = 0; g < shape_.kvHeads; ++g) {
        KvHead& head = cache_.head(sequence, layerIndex, g);
        std::vector<std::int32_t> blocks;
        for (const PrefetchRequest& request : requests_)
            if (request.kvHead == g) blocks = request.blocks;
        const std::int32_t tail = tokens / spec_.blockSize;
        if (tokens % spec_.blockSize != 0 && (blocks.empty() || blocks.back() != tail)) blocks.push_back(tail);
        if (blocks.empty()) continue;
        std::vector<std::uint8_t> hit(blocks.size());
        copies_.clear();
        head.device.admit(blocks, -1, 0, head.store, hit, copies_);
        kernels_.copy(copies_);
    }
    requests_.clear();
}

void LayerAttention::prefillFull(const PromptChunk& chunk) {
    const BlockLayout& layout = cache_.layout();
    const int end = chunk.first + chunk.n, blocks = (end + layout.blockSize - 1) / layout.blockSize;
    std::vector<const KvBlockView*> lists;
    for (int g = 0; g < shape_.kvHeads; ++g) {
        auto& views = prefillViews_[std::size_t(g)];
        views.clear();
        KvHead& head = cache_.head(chunk.sequence, chunk.layer, g);
        for (int b = 0; b < blocks; ++b)
            views.push_back(
                layout.view(cache_.storeBlock(head, b), std::min(layout.blockSize, end - b * layout.blockSize)));
        lists.push_back(views.data());
    }
    PrefillAttentionArgs args;
    args.q = chunk.rows.q;
    args.n = chunk.n;
    args.qStride = rules_.queryHeads * shape_.dim;
    args.outStride = rules_.queryHeads * shape_.valueDim;
    args.firstPosition = chunk.first;
    args.kvHeads = shape_.kvHeads;
    args.group = group_;
    args.dim = shape_.dim;
    args.valueDim = shape_.valueDim;
    args.window = rules_.windowOf(chunk.layer);
    args.blockSize = layout.blockSize;
    args.blocks = lists.data();
    args.scale = rules_.scale;
    args.biasScale = spec_.bias.scale;
    args.out = chunk.rows.out;
    kernels_.prefillAttention(args);
}

void LayerAttention::prefillSparse(const PromptChunk& chunk, StageClock& clock, LayerRecord& layer) {
    const std::size_t heads = std::size_t(shape_.kvHeads);
    for (int start = 0; start < chunk.n; start += kSparsePrefillTokens) {
        const std::size_t count = std::size_t(std::min(kSparsePrefillTokens, chunk.n - start));
        if (work_.size() < count * heads) work_.resize(count * heads);
        const std::span<HeadStep> work(work_.data(), count * heads);
        for (std::size_t token = 0; token < count; ++token)
            for (std::size_t g = 0; g < heads; ++g) {
                HeadStep& item = work[token * heads + g];
                item.head = &cache_.head(chunk.sequence, chunk.layer, int(g));
                item.sequence = chunk.sequence;
                item.kvHead = int(g);
                place(item, chunk.layer, chunk.first + start + int(token));
                item.dense = item.position + 1 < spec_.denseBelowTokens;
                item.byToken = false;
                item.ofPrompt = true;
                pointAt(item, chunk.rows, std::size_t(start) + token);
                if (item.dense) listAll(item);
            }
        // Windows and ranges of later tokens exist already; a query sees only the windows complete at its own position,
        // and the only block whose range could be ahead of it is its own, which the window forces.
        if (needs_.scores) clock.run(layer, Stage::Stage1, [&] { selector_->score(work); });
        clock.run(layer, Stage::Pooling, [&] { selector_->choose(work); });
        clock.run(layer, Stage::Stage2, [&] {
            for (HeadStep& item : work) {
                item.views.clear();
                for (const std::int32_t id : item.wanted)
                    item.views.push_back(viewOf(item, cache_.storeBlock(*item.head, id), id));
            }
            attendItems(work, false, &HeadStep::lse);
        });
    }
}

} // namespace kvscope

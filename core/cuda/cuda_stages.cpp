#include "core/cuda/cuda_stages.h"

#include "kernels/cuda/attention/block_mass.h"
#include "kernels/cuda/transfer/quantised_blocks.h"

#include <utility>

namespace kvscope {

using enum StepReport::Mark;
using enum StepReport::StepMark;

void CudaStages::embed() {
    p_.ranges.at(StepStage::Embed);
    p_.passes.embed(p_.rows.next, p_.layout.rows, p_.buffers.x, p_.transfers.counters, p_.transfers.clearedCounters(),
                    report_->mark(kEmbed));
}

void CudaStages::project(LayerId layer) {
    p_.passes.projectAndAppend(layer, appendArgs(layer), p_.selector != nullptr, report_->mark(layer, kQkv));
    beginAttention(layer);
}

void CudaStages::takeProducts(LayerId layer, int row) {
    p_.passes.appendRow(appendArgs(layer), row);
    beginAttention(layer);
}

void CudaStages::beginAttention(LayerId layer) {
    if (__nv_bfloat16* const all = stateOf(layer).allKeys)
        cuda::keepKeys(p_.launch, {p_.layout.shape, p_.layout.rows, p_.rows.position, p_.rows.active, p_.buffers.newKey,
                                   all, p_.rows.blockFirst});
    attention_ = attentionArgs(layer);
}

void CudaStages::append(LayerId layer) {
    if (!p_.selector || !stateOf(layer).indexed) return;
    p_.ranges.at(layer, Stage::Compression);
    p_.selector->append(deviceStep(layer));
}

void CudaStages::choose(LayerId layer) {
    if (!stateOf(layer).sparse) return;
    if (!p_.order.chosenAhead(layer)) return chooseInLayer(layer);
    quantiseFull(layer);
    attendToList(layer);
}

/// Quantises, in a layer whose transfers run beside the step, the blocks that the step's tokens have filled. On demand
/// the transfer does this.
void CudaStages::quantiseFull(LayerId layer) const {
    if (!p_.options.quantised || !stateOf(layer).offloaded || !p_.order.movesBeside()) return;
    p_.ranges.at(layer, Stage::Offloading);
    p_.transfers.quantiseFull(layer, *report_);
}

/// Chooses the blocks of a layer that the layer before has not chosen for, gives them slots and starts their transfers.
void CudaStages::chooseInLayer(LayerId layer) {
    cuda::SelectArgs select = p_.choice.stepArgs(layer, *report_);
    select.marks.offloading = report_->mark(layer, kOffloading);
    select.marks.end = std::exchange(choiceEnd_, nullptr);
    p_.ranges.at(layer, Stage::Stage1); // one kernel does stage1, pooling and the set difference
    if (p_.selector) {                  // the selector's kernels write the marks of stage1 and pooling
        p_.selector->choose(deviceStep(layer), select);
    } else {
        select.marks.stage1 = report_->mark(layer, kStage1);
        select.marks.pooling = report_->mark(layer, kPooling);
    }
    const DeviceLayerState& state = stateOf(layer);
    // The step before has listed these blocks, and resident blocks need neither slots nor transfers.
    const bool listed = p_.selector && state.chosen == Chosen::StepAhead && !state.offloaded;
    if (state.ownTier || listed) return;
    cuda::selectBlocksOnDevice(p_.launch, select);
    if (state.offloaded && p_.options.pooled) {
        if (pool_ != nullptr) {
            pool_->lookUp(p_.launch, layer, p_.layout.capacity, p_.choice.valuesByToken(layer));
            fetch(layer);
        }
        return attendToList(layer);
    }
    if (state.offloaded) startTransfers(layer);
    quantiseFull(layer);
    attendToList(layer);
}

void CudaStages::startTransfers(LayerId layer) {
    const bool loop = p_.transfers.hasLoop();
    if (loop && p_.order.isInHalves()) return; // HalfRows tells the loop of both halves
    if (loop)
        p_.transfers.handOver(layer, std::nullopt, nullptr);
    else if (p_.order.movesBeside())
        p_.transfers.besideNow(layer, *report_);
    else
        p_.transfers.onDemand(layer, *report_);
}

/// Gives the attention of the layer the lists that the choice has written.
void CudaStages::attendToList(LayerId layer) {
    const ChoiceLists lists = p_.choice.listsOf(layer);
    if (stateOf(layer).offloaded) attention_.list.slot = lists.slot;
    attention_.list.block = lists.block;
    attention_.list.count = lists.count;
    attention_.list.capacity = p_.layout.capacity;
    attention_.maxBlocks = p_.layout.capacity;
}

void CudaStages::lookAhead(LayerId layer) {
    if (!p_.order.looksAhead()) return;
    const DeviceLayerState& state = stateOf(layer);
    const LayerId target = next(layer);
    if (p_.order.ownAhead(target)) { // the selector keeps the lists and makes the transfers
        p_.ranges.at(layer, Stage::Stage1);
        cuda::SelectArgs none;
        return p_.selector->lookAhead(deviceStep(layer), target, none);
    }
    const bool nextChosen = p_.order.chosenAhead(target);
    if (nextChosen) chooseNext(layer);
    // Tells the transfer loop that the lists of the next layer are complete, and waits until the blocks of this layer
    // are there.
    if (p_.transfers.hasLoop()) {
        const bool awaited = nextChosen ? state.offloaded : state.sparse;
        if (nextChosen || state.sparse)
            p_.transfers.handOver(target, awaited ? std::optional(layer) : std::nullopt, report_->mark(layer, kReady));
        return;
    }
    if (!nextChosen && state.sparse && p_.options.record) cuda::stampNow(p_.launch, report_->mark(layer, kReady));
    p_.transfers.besideLater(layer, nextChosen && stateOf(target).offloaded,
                             state.offloaded && p_.order.chosenAhead(layer), *report_);
}

/// Chooses the next layer's blocks. The next layer has not seen the step's token yet (SelectArgs::unseen).
void CudaStages::chooseNext(LayerId layer) {
    const LayerId target = next(layer);
    cuda::SelectArgs select = p_.choice.stepArgs(target, *report_);
    select.unseen = 1;
    select.slots.newKey = select.slots.newValue = nullptr; // the next layer writes its own key and value
    DeviceStep step = deviceStep(layer);
    // Where this layer makes its own choice, that choice writes the layer's marks, and this one writes none.
    if (p_.order.chosenAhead(layer) || !stateOf(layer).sparse)
        select.marks.offloading = step.offloadingMark;
    else
        step.stage1Mark = step.poolingMark = step.offloadingMark = nullptr;
    if (!p_.transfers.hasLoop()) select.marks.end = report_->mark(layer, kReady);
    p_.ranges.at(layer, Stage::Stage1);
    p_.selector->lookAhead(step, target, select);
    cuda::selectBlocksOnDevice(p_.launch, select);
}

void CudaStages::load(LayerId layer) {
    p_.ranges.at(layer, stateOf(layer).sparse ? Stage::Stage2 : Stage::Attention);
    if (std::exchange(stampsReady_, false) && p_.options.record)
        cuda::stampNow(p_.launch, report_->mark(layer, kReady));
    attentionLaunch_ = p_.transfers.join(layer);
    if (p_.options.quantised && !stateOf(layer).offloaded) roundNewest(layer);
}

/// Quantises, in a layer without slots, the blocks that the step's tokens have filled. In a layer with slots the
/// transfer does this.
void CudaStages::roundNewest(LayerId layer) const {
    cuda::RoundNewestArgs args;
    args.format = *p_.options.quantised;
    args.blocks = stateOf(layer).blocks;
    args.headFirst = p_.rows.blockFirst;
    args.position = p_.rows.position;
    args.active = p_.rows.active;
    args.rows = p_.layout.rows;
    args.kvHeads = p_.layout.kvHeads;
    cuda::roundNewest(p_.launch, args);
}

void CudaStages::attend(LayerId layer) {
    if (isMethods(layer) && p_.selector->attend(deviceStep(layer), attention_)) return;
    cuda::decodeAttention(attentionLaunch_, attention_);
}

void CudaStages::after(LayerId layer) {
    if (p_.options.oracle && stateOf(layer).sparse) measureMass(layer);
    if (!isMethods(layer)) return;
    p_.ranges.at(layer, Stage::Offloading);
    p_.selector->after(deviceStep(layer));
}

void CudaStages::finish(LayerId layer) {
    p_.passes.finish(layer, p_.buffers.x, p_.layout.rows, report_->mark(layer, kOLinear), report_->mark(layer, kFfn));
}

void CudaStages::head() {
    p_.ranges.at(StepStage::LmHead);
    p_.passes.head(logits_, report_->mark(kLmHead));
}

cuda::AppendArgs CudaStages::appendArgs(LayerId index) const {
    const DeviceLayer& weights = p_.model.layers[index];
    const DeviceLayerState& layer = stateOf(index);
    cuda::AppendArgs append;
    append.shape = p_.layout.shape;
    append.qkv = p_.buffers.qkv;
    append.cos = p_.rows.ropeCos;
    append.sin = p_.rows.ropeSin;
    append.ropeFirst = p_.rows.ropeFirst;
    append.cosFirst = p_.rows.cosFirst;
    append.sinFirst = p_.rows.sinFirst;
    append.interleaved = p_.model.config.rope.interleaved;
    append.eviction = weights.eviction;
    append.norms = weights.headNorms;
    append.q = p_.buffers.q;
    append.index = layer.index;
    append.rows = p_.layout.rows;
    append.position = p_.rows.position;
    append.active = p_.rows.active;
    if (layer.offloaded && p_.order.chosenAhead(index)) { // the choice has given the newest block a slot already
        const ChoiceLists lists = p_.choice.listsOf(index);
        append.newestOnly = p_.options.quantised.has_value(); // slots hold full blocks alone
        append.blocks = append.newestOnly ? layer.newest : layer.blocks;
        append.headFirst = p_.rows.poolFirst;
        append.listSlot = append.newestOnly ? nullptr : lists.slot;
        append.listCount = lists.count;
        append.capacity = p_.layout.capacity;
    } else if (!layer.offloaded && !layer.ownTier) {
        append.blocks = layer.blocks;
        append.headFirst = layer.places.blocks != nullptr ? layer.places.blocks : p_.rows.blockFirst;
    }
    append.valuesByToken = p_.choice.valuesByToken(index);
    if (append.blocks == nullptr || p_.selector)
        append.newKey = p_.buffers.newKey, append.newValue = p_.buffers.newValue;
    append.marks[0] = report_->mark(index, kRope);
    if (layer.indexed) append.marks[1] = report_->mark(index, kCompression);
    return append;
}

DeviceStep CudaStages::deviceStep(LayerId index) const {
    DeviceStep step;
    step.layer = index;
    step.position = p_.rows.position;
    step.active = p_.rows.active;
    step.x = p_.buffers.x;
    step.qkv = p_.buffers.qkv;
    step.q = p_.buffers.q;
    step.newKey = p_.buffers.newKey;
    step.newValue = p_.buffers.newValue;
    if (!p_.options.record) return step;
    step.blockLogSums = p_.buffers.blockLogSums;
    step.stage1Mark = report_->mark(index, kStage1);
    step.poolingMark = report_->mark(index, kPooling);
    step.offloadingMark = report_->mark(index, kOffloading);
    step.report = report_->ownOf(index);
    return step;
}

/// Arguments of an attention over all blocks that the layer's queries see.
cuda::DecodeAttentionArgs CudaStages::attentionArgs(LayerId index) const {
    const DeviceLayerState& layer = stateOf(index);
    cuda::DecodeAttentionArgs attend;
    attend.shape = p_.layout.shape;
    attend.rows = p_.layout.rows;
    attend.position = p_.rows.position;
    attend.active = p_.rows.active;
    attend.q = p_.buffers.q;
    attend.blocks = layer.blocks;
    attend.headFirst = layer.places.blocks != nullptr ? layer.places.blocks
                       : layer.offloaded              ? p_.rows.poolFirst
                                                      : p_.rows.blockFirst;
    attend.maxBlocks = p_.layout.blocksInSight(index);
    attend.window = layer.window;
    attend.bias.scores = layer.index.tokenScores;
    attend.bias.first = layer.index.tokenFirst;
    attend.scale = p_.model.config.attentionScale();
    attend.bias.scale = spec_.bias.scale;
    attend.out = p_.buffers.attended;
    attend.scratch.partial = p_.buffers.partial;
    attend.scratch.arrivals = p_.buffers.arrivals;
    attend.mark = report_->mark(index, kAttention);
    if (p_.options.quantised && layer.sparse) {
        attend.format = *p_.options.quantised;
        if (layer.offloaded) attend.newest = layer.newest;
    }
    return attend;
}

/// Launches the oracle's kernels, which measure how much attention every cached block would get.
void CudaStages::measureMass(LayerId index) {
    const DeviceLayerState& layer = stateOf(index);
    cuda::BlockMassArgs args;
    args.shape = p_.layout.shape;
    args.rows = p_.layout.rows;
    args.position = p_.rows.position;
    args.active = p_.rows.active;
    args.q = p_.buffers.q;
    args.blocks = layer.allKeys != nullptr ? layer.allKeys : layer.offloaded ? layer.store : layer.blocks;
    args.headFirst = p_.rows.blockFirst;
    if (layer.offloaded && layer.allKeys == nullptr) { // the host store gets the newest block only when it is full
        args.slots = p_.options.slots;
        args.pool = layer.blocks;
        args.map = layer.map;
    }
    args.tokenBias = layer.index.tokenScores;
    args.biasFirst = p_.rows.tokenFirst;
    args.scale = p_.model.config.attentionScale();
    args.biasScale = spec_.bias.scale;
    args.maxBlocks = p_.layout.maxBlocks;
    args.window = layer.window;
    args.unit = spec_.unitTokens();
    args.logSums = p_.buffers.blockLogSums;
    args.mass = report_->massesOf(index);
    args.mark = report_->mark(index, kOracle);
    cuda::measureBlockMass(p_.launch, args);
}

} // namespace kvscope

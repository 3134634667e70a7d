#include "core/cuda/row_batch.h"

#include "base/clock.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <thread>
#include <utility>

namespace kvscope {
namespace {

/// Tokens of a context that is longer than any.
constexpr int kLongest = 1 << 20;

/// Threads that fill the records of a step of so many rows: at level `selections` a row's is a few 100 KB. Half of the
/// cores stay free.
int recordThreads(int rows) {
    constexpr int kMost = 8;
    return std::max(1, std::min({rows, kMost, int(std::thread::hardware_concurrency()) / 2}));
}

CudaEngineOptions optionsOf(const CudaEngineOptions& usual, const CudaRowParts& parts, int rows) {
    CudaEngineOptions options = parts.rowOptions(usual);
    options.maxTokens.assign(rows, kLongest);
    options.promptTokens.clear();
    options.maxPrompt = 1;
    options.sampling = {};
    options.store = nullptr;
    options.method.makeSelector = nullptr; // rows with a selector are not batched (suits)
    return options;
}

} // namespace

RowBatch::RowBatch(const CudaEngineOptions& usual, const CudaRowParts& parts, int rows)
    : p_(parts), rows_(bucketOf(rows)), oneByOne_(std::getenv("KVSCOPE_NO_GRAPH") != nullptr),
      options_(optionsOf(usual, parts, rows_)), layout_(p_.model->config, options_), launch_(parts.launch),
      steps_({*p_.model, options_, layout_, buffers_, launch_, p_.passes, p_.clock, p_.ranges}),
      places_(options_, *p_.model, layout_.shape, rows_), team_(recordThreads(rows)) {}

int RowBatch::bucketOf(int rows) {
    const int power = int(std::bit_ceil(unsigned(rows)));
    return power > 8 && rows <= power / 4 * 3 ? power / 4 * 3 : power;
}

int RowBatch::roomOf(int blocks) {
    const int step = std::max(8, int(std::bit_floor(unsigned(blocks))) / 8);
    return (blocks + step - 1) / step * step;
}

/// The lists and reports of the most rows with the longest context are the largest. How the attention cuts a list into
/// parts depends on both, so that its work space is the most that any of them takes.
void RowBatch::plan(DeviceArena& arena) {
    steps_.planSteps(arena);
    places_.plan(arena);
    std::size_t partial = 0;
    const int blockSize = layout_.shape.blockSize;
    for (int blocks = 8; blocks * blockSize <= kLongest; blocks = roomOf(blocks + 1)) {
        CudaEngineOptions options = options_;
        options.maxTokens.assign(rows_, blocks * blockSize);
        partial = std::max(partial, BatchLayout(p_.model->config, options).partialFloats(launch_));
    }
    arena.plan(partial_, partial, "activations");
    arena.plan(arrivals_, cuda::attentionArrivals(layout_.shape, layout_.selectRows), "session state");
}

void RowBatch::open() {
    launch_ = p_.launch;
    buffers_ = p_.shared;
    buffers_.partial = partial_;
    buffers_.arrivals = arrivals_;
    steps_.openSteps();
    places_.open(steps_);
    if (options_.pooled) steps_.stages.usePool(*p_.pool);
}

bool RowBatch::takes(const CudaRow& row) const {
    const CudaEngineOptions& its = row.options();
    const auto sameLayers = [&] {
        return std::equal(its.plans.begin(), its.plans.end(), options_.plans.begin(), options_.plans.end(),
                          [](const LayerPlan& a, const LayerPlan& b) {
                              return a.sparse == b.sparse && a.offloaded == b.offloaded && a.indexed == b.indexed;
                          });
    };
    return suits(row) && its.changes == options_.changes && its.level == options_.level &&
           its.record == options_.record && its.planted.size() == options_.planted.size() &&
           its.leastRecentlyUsed == options_.leastRecentlyUsed && its.spec.blockSize == options_.spec.blockSize &&
           its.spec.budgetBlocks() == options_.spec.budgetBlocks() && sameLayers() && places_.reaches(row.sequences);
}

RowBatch::Shape RowBatch::shapeOf(std::span<CudaRow* const> rows) const {
    Shape shape;
    shape.rows = bucketOf(int(rows.size()));
    for (const CudaRow* row : rows) {
        shape.blocks = std::max(shape.blocks, row->layout().maxBlocks);
        shape.slots = std::max(shape.slots, row->options().slots);
        shape.samples |= row->options().sampling.temperature > 0;
    }
    shape.blocks = roomOf(shape.blocks);
    return shape;
}

/// Gives everything that is worked out for a step the sizes of this shape. @return whether they were others
bool RowBatch::take(const Shape& shape) {
    if (shape == shape_) return false;
    shape_ = shape;
    options_.maxTokens.assign(shape.rows, shape.blocks * layout_.shape.blockSize);
    options_.slots = shape.slots;
    layout_ = BatchLayout(p_.model->config, options_);
    steps_.reports.layOut(steps_.reportNeeds());
    return true;
}

void RowBatch::settle() {
    for (CudaRow* row : placed_)
        if (row != nullptr) row->keepLogits();
    placed_.clear(), step_.clear();
}

void RowBatch::leave(const CudaRow& row) {
    step_.clear(); // the next step looks for places
    std::replace(placed_.begin(), placed_.end(), const_cast<CudaRow*>(&row), static_cast<CudaRow*>(nullptr));
}

/// Rows of the step before stay in their places where these are among the first; the others fill the gaps. @return
/// whether the rows are others than those of the step before
bool RowBatch::place(std::span<CudaRow* const> rows) {
    if (std::equal(rows.begin(), rows.end(), step_.begin(), step_.end())) return false;
    const std::vector<CudaRow*> before = std::exchange(placed_, std::vector<CudaRow*>(rows.size()));
    const auto isHere = [&](const CudaRow* row) { return std::find(rows.begin(), rows.end(), row) != rows.end(); };
    for (std::size_t at = 0; at < before.size(); ++at) {
        if (before[at] == nullptr) continue;
        if (!isHere(before[at]))
            before[at]->keepLogits(); // the row may still be asked for its logits
        else if (at < placed_.size())
            placed_[at] = before[at];
    }
    step_.assign(rows.begin(), rows.end());
    placeOf_.clear();
    for (CudaRow* row : rows) {
        auto at = std::find(placed_.begin(), placed_.end(), row);
        if (at == placed_.end()) *(at = std::find(placed_.begin(), placed_.end(), nullptr)) = row;
        placeOf_.push_back(int(at - placed_.begin()));
    }
    for (std::size_t at = 0; at < placed_.size(); ++at)
        if (at >= before.size() || before[at] != placed_[at])
            places_.put(int(at), placed_[at]->sequences, placed_[at]->layout(), placed_[at]->options());
    places_.clear(int(rows.size()), shape_.rows);
    places_.copyTables(launch_.stream);
    return true;
}

/// Tells the pool where the step has the rows' choices, and where their memory lies.
void RowBatch::putIntoPool(std::span<const int> order) {
    const int kvHeads = layout_.kvHeads;
    const RowsOf newKeys(buffers_.newKey, {kvHeads, layout_.dim}), newValues(buffers_.newValue, {kvHeads, layout_.dim});
    const Elements capacity(std::max(layout_.capacity, 1));
    const std::int64_t slotFirst = places_.blocksTo(p_.pool->blocks());
    const StepReport& report = steps_.reports.device(0);
    for (const LayerId i : steps_.layers.ids()) {
        const DeviceLayerState& layer = steps_.layers[i];
        if (!layer.offloaded) continue;
        const ChoiceLists lists = steps_.choice.listsOf(i);
        const cuda::MoveList moves = steps_.choice.movesOf(i);
        for (std::size_t n = 0; n < order.size(); ++n) {
            const int place = placeOf_[order[n]], head = place * kvHeads;
            const CudaRow& own = *placed_[place];
            cuda::PoolRow& row = p_.pool->put(i, int(n), own.number(), own.sequences.layers[i], own.layout().maxBlocks);
            row.position = steps_.rows.position + place;
            row.capacity = layout_.capacity;
            row.listBlock = RowsOf(lists.block, capacity)[head], row.listSlot = RowsOf(lists.slot, capacity)[head];
            row.listCount = lists.count + head;
            row.slotFirst = slotFirst;
            row.storeFirst = layer.places.store + head;
            row.newKey = newKeys[place], row.newValue = newValues[place];
            row.moves = moves;
            if (!options_.record) continue;
            row.recordHead = report.headsOf(i) + head;
            if (PackedBlock* const blocks = report.blocksOf(i)) row.recordBlocks = RowsOf(blocks, capacity)[head];
        }
    }
}

void RowBatch::launchKernels() {
    p_.products.rows = shape_.rows;
    const StepReport& report = steps_.reports.device(0);
    float* const logits = buffers_.logits[0];
    steps_.stages.begin(report, logits);
    runStep(steps_.stages, p_.model->config.layers);
    p_.ranges.at(StepStage::Sample);
    cuda::NextTokenArgs next = steps_.rows.nextTokens(logits, report.tokens);
    next.mark = report.mark(StepReport::kSample);
    next.endMark = report.mark(StepReport::kEnd);
    next.each = places_.sampling();
    next.sampling.temperature = shape_.samples ? 1 : 0;
    cuda::nextTokens(launch_, next);
    p_.ranges.leave();
}

void RowBatch::launch() {
    if (graphs_.size() > kMostGraphs) graphs_.clear();
    Step& step = graphs_[shape_];
    // By calls of the driver the host reads lists of blocks in the middle of a step, which no graph can hold.
    const bool calls = options_.transfers.plan.loads != TransferPlan::Kernel && options_.plans.offloaded() > 0;
    if (oneByOne_ || calls || !step.tried) { // makes what must not be made during a capture, see StepGraphs::capture
        launchKernels();
        step.tried = true;
        return;
    }
    if (!step.graph) step.graph = cuda::Executable::of(cuda::Graph::capture(launch_.stream, [&] { launchKernels(); }));
    cuda::check(cudaGraphLaunch(step.graph.get(), launch_.stream), "starting a step");
}

void RowBatch::decode(std::span<CudaRow* const> rows, std::span<const RowToken> tokens, std::span<const int> order) {
    const std::int64_t begin = steadyNowNs();
    const bool resized = take(shapeOf(rows)), moved = place(rows) || resized;
    if (options_.pooled) {
        const bool differs = moved || !std::equal(order.begin(), order.end(), order_.begin(), order_.end());
        order_.assign(order.begin(), order.end());
        if (differs) putIntoPool(order);
        p_.pool->begin(int(rows.size()), differs, launch_.stream);
    }
    ids_.resize(rows.size()), positions_.resize(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const int at = placeOf_[i];
        ids_[at] = tokens[i].id, positions_[at] = tokens[i].position;
    }
    places_.feed(ids_, positions_, shape_.rows, launch_.stream);
    launch();
    steps_.reports.copyOut(0, launch_.stream);
    if (options_.pooled) p_.pool->end(launch_.stream);
    const std::int64_t launched = steadyNowNs();
    cuda::check(cudaStreamSynchronize(launch_.stream), "decoding");
    const std::int64_t over = steadyNowNs();
    const StepReport& report = steps_.reports.host(0);
    fillRecords();
    places_.advance(report.tokens);
    times_ = {launched - begin, over - launched, steadyNowNs() - over, 0};
    if (options_.record)
        times_.gpuNs = std::int64_t(report.stepMarks[StepReport::kEnd] - report.stepMarks[StepReport::kEmbed]);
}

/// Every row has a record of its own, so that threads fill them beside each other.
void RowBatch::fillRecords() {
    const StepReport& report = steps_.reports.host(0);
    const RowsOf logits(buffers_.logits[0], p_.model->config.vocab);
    const bool alone = placed_.size() == 1;
    failures_.assign(placed_.size(), nullptr);
    team_.each(int(placed_.size()), [&](int place, int) {
        try {
            placed_[place]->finishStep(report, steps_.reader, place, alone, logits[place]);
        } catch (...) {
            failures_[place] = std::current_exception();
        }
    });
    for (const std::exception_ptr& failure : failures_)
        if (failure) std::rethrow_exception(failure);
}

} // namespace kvscope

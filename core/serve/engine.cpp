#include "core/serve/engine.h"

#include "base/clock.h"
#include "core/model/mapped_watch.h"
#include "core/plan/kv_format.h"
#include "core/plan/memory_plan.h"
#include "core/serve/engine_checks.h"
#include "core/session/end_rule.h"
#include "core/session/engine_setup.h"
#include "core/session/kv_estimate.h"
#include "core/session/session_checks.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

namespace kvscope::serve {
namespace {

Budget budgetOf(const EngineOptions& options) {
    Budget budget = options.budget;
    budget.rows = options.scheduler.rows;
    budget.workingSetControl = options.scheduler.workingSetControl;
    return budget;
}

SessionOptions checked(SessionOptions options) {
    options.maxNewTokens = 1;
    checkSessionOptions(options);
    return options;
}

MethodUse useOf(const Model& model, const EngineOptions& options, const ParameterValues& parameters,
                const SelectionSpec& spec) {
    return {parameters, spec, model.config(), options.session.backend, options.scheduler.offload, &model};
}

Abilities abilitiesWith(const Model& model, const EngineOptions& options, const MethodEntry& method,
                        const ParameterValues& parameters, const SelectionSpec& spec) {
    return abilitiesOf(method, useOf(model, options, parameters, spec));
}

LayerPlans layersOf(const Model& model, const EngineOptions& options, const MethodEntry& method,
                    const ParameterValues& parameters, const SelectionSpec& spec) {
    return {model.config(),
            spec,
            {options.scheduler.offload, method.hasSelector(parameters),
             abilitiesWith(model, options, method, parameters, spec).ahead}};
}

/// The sizes from which the memory that requests need is computed, here and in the simulator. The simulator may compute
/// them for a server that offloads although this one does not, so plans are those of an engine that offloads.
MemoryShape shapeOf(const Model& model, Backend backend, const SelectionSpec& spec, const LayerPlans& plans,
                    int pieceTokens) {
    const ModelConfig& config = model.config();
    MemoryShape shape;
    shape.layers = config.layers, shape.kvHeads = config.kvHeads, shape.hidden = config.hidden;
    shape.blockTokens = spec.blockSize;
    shape.blockBytes = kvFormat(backend, config, spec).blockBytes();
    shape.selectedBlocks = std::max(1, spec.neededSlots());
    shape.hostRunBlocks = 1;
    shape.pieceTokens = pieceTokens;
    shape.residentLayers = plans.resident();
    return shape;
}

std::int64_t blockBytesOf(const Model& model, const EngineOptions& options, const SelectionSpec& spec) {
    return kvFormat(options.session.backend, model.config(), spec).blockBytes();
}

/// How the rows of this engine's requests move their blocks.
RowTransfers transfersOf(const SchedulerOptions& options) {
    RowTransfers transfers;
    if (options.offload) transfers.loads = options.transfers, transfers.stores = options.d2h;
    if (options.prefill == PrefillPlan::Chunks) transfers.chunkTokens = options.chunkTokens;
    return transfers;
}

/// How many prompt tokens the segment reads in the layer in which it ends.
int tokensOfLastLayer(const PrefillSegment& segment, bool chunks, int promptTokens) {
    if (chunks) return segment.to.token - segment.from.token;
    const bool within = segment.to.token > 0; // the segment ends before its last layer does
    const int last = within ? segment.to.layer : segment.to.layer - 1;
    return (within ? segment.to.token : promptTokens) - (last == segment.from.layer ? segment.from.token : 0);
}

} // namespace

/// A request from its arrival to its end. While the request has a row, the row uses what is stored here.
struct Engine::Served {
    std::vector<std::vector<std::int32_t>> prompts; // one
    SessionOptions options;
    std::unique_ptr<Sampler> sampler;
    int row = -1;
    bool scheduled = false, cold = true;
    int generated = 0;
    std::int32_t last = 0;     // the newest token
    Numbered<WorkingSet> sets; // with global-lru, one for each [offloaded layer][KV head]
    RequestId id = 0;
    std::function<bool(std::int32_t)> endsWith; // of the submission

    int position() const { return int(prompts.front().size()) + generated - 1; } // of the newest token
};

Engine::Engine(std::shared_ptr<const Model> model, EngineOptions options, EngineObserver& observer)
    : model_(std::move(model)), options_(std::move(options)), observer_(observer),
      method_(findMethod(checked(options_.session).method)),
      parameters_(methodParameters(method_, *model_, options_.session.settings)),
      spec_(methodSpec(method_, parameters_, *model_)), planted_(makePlanted()),
      plans_(layersOf(*model_, options_, method_, parameters_, spec_)), scheduler_(options_.scheduler, options_.costs),
      table_(budgetOf(options_)) {
    pool_.used = options_.scheduler.offload && options_.scheduler.cache == CachePlan::GlobalLru &&
                 plans_.offloaded() + plans_.ownTiers() > 0;
    pool_.modelled = pool_.used && options_.session.backend == Backend::Cpu;
    checkServable(options_, method_, useOf(*model_, options_, parameters_, spec_), pool_.used);
    RowEngineSetup setup{model_,
                         abilitiesWith(*model_, options_, method_, parameters_, spec_),
                         options_.scheduler.rows,
                         options_.session.threads,
                         options_.scheduler.batchInvariant,
                         nullptr,
                         transfersOf(options_.scheduler)};
    const std::vector<std::vector<std::int32_t>> anyPrompt{{0}};
    SessionOptions anyOptions = rowOptions();
    if (options_.session.backend == Backend::Cuda) {
        EngineSetup usual = engineSetup(model_, anyPrompt, anyOptions, method_, parameters_, spec_, options_.level);
        usual.plans = plans_;
        setup.usual = &usual;
        if (pool_.used) setup.poolSlots = options_.budget.device / blockBytesOf(*model_, options_, spec_);
        setup.hostBytes = options_.budget.host;
        rows_ = makeCudaRowEngine(setup);
    } else {
        rows_ = makeCpuRowEngine(setup);
    }
    checkChunks(options_.scheduler, rows_->pieceTokens());
    checkBudgets(table_.ledger().budget(), rows_->deviceRoom());
    ServiceCosts costs = options_.costs;
    EngineOptions offloading = options_;
    offloading.scheduler.offload = true;
    costs.shape = shapeOf(*model_, options_.session.backend, spec_,
                          layersOf(*model_, offloading, method_, parameters_, spec_), rows_->pieceTokens());
    constexpr ContextLength kUsual{3968, 128}; // the size of the index is taken from a usual request
    costs.shape.indexBytesPerToken = (indexBytes(kUsual) + kUsual.tokens() - 1) / kUsual.tokens();
    scheduler_ = Scheduler(options_.scheduler, costs);
    measureRows(costs.shape);
    scheduler_ = Scheduler(options_.scheduler, costs);
    Served smallest;
    smallest.prompts.push_back({0});
    checkSmallestRequest(scheduler_.neverFits(table_.ledger().budget(), requestOf(smallest, Submission(), 0)));
    for (int row = options_.scheduler.rows; row-- > 0;) freeRows_.push_back(row);
    if (options_.session.backend == Backend::Cuda) refuseWrittenWeights(*model_); // the GPU has a copy of them by now
}

Engine::~Engine() {
    for (auto& [id, served] : served_)
        if (served->row >= 0) rows_->close(RowId{served->row});
}

void Engine::submit(Submission submission) {
    const std::lock_guard lock(mutex_);
    inbox_.submissions.push_back(std::move(submission));
}

void Engine::cancel(RequestId id) {
    const std::lock_guard lock(mutex_);
    inbox_.cancelled.push_back(id);
}

int Engine::openRows() const { return options_.scheduler.rows - int(freeRows_.size()); }

/// Takes submissions in before cancellations, so that a request that was submitted and cancelled between two iterations
/// is not served.
void Engine::takeIn() {
    Inbox inbox;
    {
        const std::lock_guard lock(mutex_);
        std::swap(inbox, inbox_);
    }
    const std::int64_t ns = now();
    for (Submission& submission : inbox.submissions) take(std::move(submission), ns);
    for (const RequestId id : inbox.cancelled)
        if (served_.count(id) > 0) end(id, Ending::Cancelled, ns);
}

void Engine::take(Submission submission, std::int64_t ns) {
    if (served_.count(submission.id) > 0)
        throw std::logic_error(fmt::format("two requests have the number {}", submission.id));
    auto served = std::make_unique<Served>();
    served->id = submission.id;
    served->prompts.push_back(std::move(submission.prompt));
    served->endsWith = std::move(submission.endsWith);
    try {
        ServeRequest request = requestOf(*served, submission, ns);
        served_.emplace(submission.id, std::move(served));
        table_.arrive(request);
        ++gap_.cameOrWent;
    } catch (Error& error) { // this engine cannot serve the request
        error.during(fmt::format("request {}", submission.id));
        observer_.ended(submission.id, Ending::Refused, ns, &error);
    }
}

/// What draws selections in place of the method's, where that is asked for. @throws Error(Unsupported)
std::shared_ptr<const PlantedSelections> Engine::makePlanted() const {
    if (options_.planted.empty()) return nullptr;
    const bool common = !spec_.dense && (!method_.hasSelector(parameters_) || spec_.givesBlockScores);
    if (!common || spec_.ownDeviceTier || spec_.unitTokens() != spec_.blockSize || spec_.budget.queryAware == 0)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("method {} as set does not choose blocks by scores alone, so that no selections can be "
                                "planted",
                                method_.name),
                    "plant selections of nosa or quest");
    return std::make_shared<const PlantedSelections>(options_.planted, spec_,
                                                     spec_.grid.blocks(model_->config().maxPositions));
}

/// What all rows have in common.
SessionOptions Engine::rowOptions() const {
    SessionOptions options = options_.session;
    options.maxNewTokens = 1;
    options.deviceKvBytes.reset();
    options.deviceKvBlocks.reset();
    if (planted_) options.planted = PlantedSequence{planted_};
    // With a modelled pool, which only counts what would be copied, rows attend to their blocks where these lie.
    options.offload = options_.scheduler.offload && !pool_.modelled;
    if (options.offload && plans_.offloaded() > 0 && options.cachePolicy.empty()) options.cachePolicy = "lru";
    return options;
}

/// Slots that a row has for each layer and KV head, unless its request has fewer blocks; 0: rows have no slots of their
/// own.
int Engine::rowSlots() const {
    const bool own = options_.scheduler.offload && !pool_.used && plans_.offloaded() > 0;
    return own ? int(costs().shape.partitionBlocks(options_.scheduler)) : 0;
}

/// Works out the setup with which a row of the request would be made, and from it the memory that the request needs.
ServeRequest Engine::requestOf(Served& served, const Submission& submission, std::int64_t ns) const {
    SessionOptions& options = served.options;
    options = rowOptions();
    options.maxNewTokens = submission.maxTokens;
    options.stopAtEos = submission.stopAtEos;
    options.sampling = submission.sampling;
    if (options.planted) options.planted->seed = std::uint64_t(submission.id);
    checkSessionOptions(options);
    checkPrompts(served.prompts, *model_, submission.maxTokens, submission.maxTokens - 1);
    if (const int slots = rowSlots(); slots > 0) options.deviceKvBlocks = slots;
    const EngineSetup setup = engineSetup(model_, served.prompts, options, method_, parameters_, spec_, options_.level);
    served.sampler = std::make_unique<Sampler>(options.sampling, 0);
    if (pool_.used)
        served.sets.assign(plans_.offloaded() * model_->config().kvHeads, WorkingSet(options_.scheduler.window));

    const ContextLength length{int(served.prompts.front().size()), submission.maxTokens};
    const MemoryShape& shape = costs().shape;
    ServeRequest request;
    request.id = submission.id;
    request.queuedNs = submission.queuedNs < 0 ? ns : submission.queuedNs;
    request.promptTokens = length.prompt;
    request.maxTokens = length.added;
    request.ttftBoundNs = std::int64_t(submission.ttftBoundMs * 1e6);
    request.needs = shape.needsOf(options_.scheduler, length.prompt, length.added);
    // MemoryShape counts the index per token; the engine knows the exact size for this length.
    request.needs.deviceBytes += indexBytes(length) - length.tokens() * shape.indexBytesPerToken;
    if (plans_.ownTiers() > 0) { // the method keeps a fixed amount on the device
        request.needs.stepBytes = request.needs.hardBytes = 0;
    } else if (setup.slots > 0 && !pool_.used) { // a short request has no more slots than blocks
        request.workingSetBytes = setup.slots * std::int64_t(plans_.offloaded()) * shape.kvHeads * shape.blockBytes;
        request.needs.hardBytes = std::min(request.needs.hardBytes, request.workingSetBytes);
    } else {
        request.workingSetBytes = shape.firstWorkingSet(options_.scheduler, length.tokens());
    }
    // On a GPU the rows declare what one takes, slots included, and this replaces the numbers of the shape.
    if (const std::optional<RowMemory> row = rows_->memoryOf(setup)) {
        request.needs.hostBytes = row->host;
        request.needs.deviceBytes = row->device - row->slots;
        request.needs.scratchBytes = row->prompt;
        request.needs.chunkTokenBytes = 0; // in chunks row->prompt holds the keys and values of all layers
        if (pool_.used) return request;    // the slots are not the row's
        request.needs.hardBytes = request.workingSetBytes = row->slots;
        request.needs.stepBytes = std::min(request.needs.stepBytes, row->slots);
    }
    return request;
}

/// Slots that the pool has now: what fixed reservations leave of the device's memory (M_avl in docs/glossary.md), in
/// blocks.
std::int64_t Engine::poolSlots() const {
    const Ledger& ledger = table_.ledger();
    return std::max<std::int64_t>(0, ledger.budget().available(ledger.used())) / costs().shape.blockBytes;
}

/// Adds to the shape what rows take of the device besides what it counts, so that a simulated server admits as many
/// requests as this one: the difference at two lengths, as a straight line.
void Engine::measureRows(MemoryShape& shape) const {
    if (options_.session.backend == Backend::Cpu) return; // there the shape says it all
    const int longer = std::min(16384, model_->config().maxPositions), shorter = longer / 4;
    const auto besides = [&](int tokens) {
        Served served;
        served.prompts.emplace_back(tokens - 1, 0);
        Submission submission;
        submission.maxTokens = 1;
        const std::int64_t taken = requestOf(served, submission, 0).needs.deviceBytes;
        return std::max<std::int64_t>(0, taken - shape.needsOf(options_.scheduler, tokens - 1, 1).deviceBytes);
    };
    if (shorter < 2) return;
    try {
        const std::int64_t few = besides(shorter), many = besides(longer);
        shape.rowBytesPerToken = std::max<std::int64_t>(0, many - few) / (longer - shorter);
        shape.rowBytes = std::max<std::int64_t>(0, few - shape.rowBytesPerToken * shorter);
    } catch (const Error&) { // this engine serves no requests of these lengths, so they say nothing of those it serves
    }
}

/// Bytes of the index, and of what the method keeps on the device for a request of this length.
std::int64_t Engine::indexBytes(ContextLength length) const {
    const ModelConfig& config = model_->config();
    const std::int64_t index = std::int64_t(plans_.sparse()) * config.kvHeads *
                               blockIndexBytes(options_.session.backend, spec_, config.headDim, length.tokens());
    if (method_.memory == nullptr) return index;
    MemoryPlan plan(config, plans_);
    plan.add(method_.memory(
        {parameters_, spec_, config, options_.session.backend, options_.scheduler.offload, model_.get()}, length));
    return index + plan.most(MemoryTier::Device);
}

std::int64_t Engine::now() const { return options_.now ? options_.now() : steadyNowNs(); }

bool Engine::iterate() {
    takeIn();
    const std::int64_t begin = now();
    const std::int64_t gap = gap_.lastEndNs < 0 ? -1 : begin - gap_.lastEndNs;
    const int gapRequests = std::exchange(gap_.cameOrWent, 0);
    gap_.lastEndNs = -1;
    scheduler_.plan(table_.snapshot(begin, hitRate_), running_.plan);
    running_.failed.clear();
    for (const Refusal& refusal : running_.plan.refused)
        running_.failed.emplace_back(refusal.request.id, whyRefused(refusal, *table_.find(refusal.request.id)));
    pauseAndResume(begin);
    table_.begin(running_.plan, begin);
    for (const auto& [id, error] : running_.failed) end(id, Ending::Refused, begin, &error);
    running_.failed.clear();
    if (running_.plan.empty()) {
        if (!table_.idle()) throw std::logic_error("the scheduler has requests and no work");
        return false;
    }
    running_.carriesOut = true;
    admit(begin);
    readSegments();
    const std::int64_t decodes = now();
    decode();
    IterationReport report{running_.plan,          begin, 0,       0, running_.segmentNs, 0, 0, 0, 0, 0, 0,
                           table_.ledger().used(), {},    decodes, {}};
    report.decodeNs = now() - decodes;
    // Refuses the iteration before a client gets a token of it if somebody has written the file of the weights. A GPU
    // has its own copy of the weights, which was made with the engine.
    if (options_.session.backend == Backend::Cpu) refuseWrittenWeights(*model_);
    account(report);
    report.members = running_.members;
    report.poolMisses = pool_.misses;
    report.endNs = now();
    report.gapNs = gap, report.gapRows = gap_.lastRows, report.gapRequests = gapRequests;
    gap_.cameOrWent = 0;
    handOut(report.endNs);
    running_.carriesOut = false;
    if (!table_.idle()) gap_.lastEndNs = report.endNs;
    gap_.lastRows = running_.plan.decodeRows();
    observer_.iteration(report);
    return true;
}

void Engine::pauseAndResume(std::int64_t ns) {
    for (const Member& member : running_.plan.paused) {
        const int row = served_.at(member.id)->row;
        pool_.slots.release(row);
        if (pool_.used) rows_->leavePool(RowId{row});
        observer_.paused(member.id, ns);
    }
    for (const Member& member : running_.plan.resumed) {
        served_.at(member.id)->cold = true;
        observer_.resumed(member.id, ns);
    }
}

/// Opens rows for the requests that the plan admits: takes the memory that the table has reserved.
void Engine::admit(std::int64_t ns) {
    for (const Member& member : running_.plan.admitted) {
        Served& served = *served_.at(member.id);
        const int row = freeRows_.back();
        try {
            rows_->open(RowId{row}, engineSetup(model_, served.prompts, served.options, method_, parameters_, spec_,
                                                options_.level));
        } catch (const Error& error) {
            running_.failed.emplace_back(member.id, error);
            continue;
        }
        served.row = row;
        freeRows_.pop_back();
        observer_.admitted(member.id, row, ns);
    }
    for (const auto& [id, error] : running_.failed) end(id, Ending::Failed, now(), &error);
    running_.failed.clear();
}

void Engine::readSegments() {
    running_.segmentNs.assign(running_.plan.segments.size(), 0);
    running_.members.clear();
    for (std::size_t i = 0; i < running_.plan.segments.size(); ++i) {
        const PrefillSegment& segment = running_.plan.segments[i];
        const auto found = served_.find(segment.id);
        if (found == served_.end()) continue; // the request has no row, because it could not be opened
        Served& served = *found->second;
        const std::int64_t begin = now();
        if (!served.scheduled) observer_.scheduled(segment.id, begin);
        served.scheduled = true;
        const bool read =
            options_.scheduler.prefill == PrefillPlan::Chunks
                ? rows_->readChunk(RowId{served.row}, segment.to.token, options_.stop)
                : rows_->readLayers(RowId{served.row}, LayerId{segment.to.layer}, segment.to.token, options_.stop);
        if (read != segment.last) throw std::logic_error("a plan and a prompt disagree about the prompt's end");
        if (read) choose(served);
        running_.segmentNs[i] = now() - begin;
        MemberReport& member = running_.members.emplace_back();
        member.id = segment.id, member.row = served.row, member.prefill = true;
        member.madeToken = read && !hasFailed(segment.id);
        const bool chunks = options_.scheduler.prefill == PrefillPlan::Chunks;
        member.tokens = tokensOfLastLayer(segment, chunks, int(served.prompts.front().size()));
        member.layerFrom = segment.from.layer, member.layerTo = chunks ? model_->config().layers : segment.to.layer;
        member.workingSetBytes = table_.find(segment.id)->workingSetBytes;
    }
}

/// Makes one token for every request that decodes. The record of its row says what the row selected and moved.
void Engine::decode() {
    running_.decoding.clear(), running_.step.clear();
    for (const auto* members : {&running_.plan.decode, &running_.plan.resumed})
        for (const Member& member : *members) {
            Served& served = *served_.at(member.id);
            running_.decoding.push_back(&served);
            running_.step.push_back({RowId{served.row}, served.last, served.position()});
        }
    if (running_.step.empty()) return;
    if (pool_.used) rows_->setPoolSlots(poolSlots());
    rows_->decode(running_.step);
    for (Served* served : running_.decoding) choose(*served);
}

/// Chooses the row's next token with the random numbers of its request.
void Engine::choose(Served& served) {
    if (rows_->samples()) {
        served.last = rows_->chosenToken(RowId{served.row});
        if (served.last >= 0) return;
    } else {
        const std::span<const float> logits{rows_->logits(RowId{served.row}), std::size_t(model_->config().vocab)};
        if (allFinite(logits)) {
            served.last = served.sampler->sample(logits);
            return;
        }
    }
    running_.failed.emplace_back(
        served.id, Error(ErrorKind::BadInput,
                         fmt::format("{}: the logits of request {} are not all finite numbers, so that no next "
                                     "token can be chosen",
                                     model_->name(), served.id),
                         "weights of the model are infinite or NaN, or too large for their type: check its "
                         "files, or download them again"));
}

/// Counts the blocks that the decoded rows selected, and those of them that were on the device.
void Engine::account(IterationReport& report) {
    const std::int64_t unitBytes = costs().shape.blockBytes * spec_.unitTokens() / spec_.blockSize;
    std::int64_t warmHits = 0, warmMisses = 0;
    pool_.missesOf.assign(options_.scheduler.rows, 0);
    pool_.misses.clear();
    if (pool_.modelled) accountPool();
    for (Served* decoded : running_.decoding) {
        Served& served = *decoded;
        const StepRecord& record = rows_->record(RowId{served.row});
        std::int64_t selected = 0, misses = pool_.missesOf[served.row], bytes = misses * unitBytes;
        for (const LayerRecord& layer : record.layers) {
            selected += layer.hits + layer.misses;
            if (!pool_.modelled) misses += layer.misses, bytes += layer.h2dBytes;
        }
        report.hits += selected - misses, report.misses += misses;
        report.selectedBytes += selected * unitBytes, report.missedBytes += bytes;
        report.contextTokens += served.position() + 1;
        if (!served.cold) warmHits += selected - misses, warmMisses += misses;
        if (pool_.used) report.surprises += keepWorkingSet(served, record);
        served.cold = false;
        MemberReport& member = running_.members.emplace_back();
        member.id = served.id, member.row = served.row, member.madeToken = !hasFailed(served.id);
        member.hits = selected - misses, member.misses = misses, member.missedBytes = bytes;
        member.workingSetBytes = table_.find(served.id)->workingSetBytes;
    }
    if (warmHits + warmMisses > 0) hitRate_ += 0.1 * (double(warmHits) / double(warmHits + warmMisses) - hitRate_);
}

/// Looks the selections of a step up in the pool, layer by layer, in the order in which the step made them. The newest
/// block of a row lies outside the pool until it is full.
void Engine::accountPool() {
    const std::int64_t slots = poolSlots();
    const int size = spec_.blockSize;
    std::vector<std::size_t> next(running_.decoding.size(), 0); // [row] index of the next selection in the row's record
    for (int layer = 0; layer < plans_.size(); ++layer) {
        pool_.wanted.clear();
        for (std::size_t i = 0; i < running_.decoding.size(); ++i) {
            const Served& served = *running_.decoding[i];
            const StepRecord& record = rows_->record(RowId{served.row});
            for (; next[i] < record.selections.size() && record.selections[next[i]].layer == layer; ++next[i]) {
                if (!plans_[LayerId{layer}].offloaded) continue;
                const SelectionRecord& selection = record.selections[next[i]];
                for (const PackedBlock block : record.blocksOf(selection))
                    if (block.id() != served.position() / size)
                        pool_.wanted.push_back({served.row, layer, selection.kvHead, block.id()});
            }
        }
        for (const PooledBlock& missed : pool_.slots.select(pool_.wanted, slots)) {
            ++pool_.missesOf[missed.row];
            pool_.misses.push_back(missed);
        }
        if (!plans_[LayerId{layer}].offloaded) continue;
        for (const Served* served : running_.decoding)
            if ((served->position() + 1) % size == 0)
                for (int g = 0; g < costs().shape.kvHeads; ++g)
                    pool_.slots.keep({served->row, layer, g, served->position() / size});
    }
}

/// @return how many blocks of the step were outside of the row's working set
std::int64_t Engine::keepWorkingSet(Served& served, const StepRecord& record) {
    Numbered<int> placeOf(plans_.size(), -1);
    for (int layer = 0, place = 0; layer < plans_.size(); ++layer)
        if (plans_[LayerId{layer}].offloaded) placeOf[layer] = place++;
    std::int64_t surprises = 0, blocks = 0;
    for (const SelectionRecord& selection : record.selections) {
        const int place = placeOf[selection.layer];
        if (place < 0) continue;
        WorkingSet& set = served.sets[place * costs().shape.kvHeads + selection.kvHead];
        const bool first = set.steps() == 0;
        set.step(record.blocksOf(selection));
        if (!first) surprises += set.surprises();
    }
    for (const WorkingSet& set : served.sets) blocks += set.blocks();
    if (blocks > 0) table_.setWorkingSet(served.id, blocks * costs().shape.blockBytes);
    return surprises;
}

/// Whether the request failed in this iteration.
bool Engine::hasFailed(RequestId id) const {
    return std::any_of(running_.failed.begin(), running_.failed.end(),
                       [id](const auto& failed) { return failed.first == id; });
}

/// Ends the iteration: hands tokens to the clients, and ends the requests that are done.
void Engine::handOut(std::int64_t ns) {
    std::vector<std::pair<RequestId, Ending>> done;
    for (const RequestTable::Token& token : table_.end(running_.plan, ns)) {
        Served& served = *served_.at(token.id);
        if (hasFailed(token.id)) continue;
        served.generated = token.generated;
        if (token.first) served.cold = true;
        observer_.token(token.id, served.last, token.generated, ns, rows_->record(RowId{served.row}));
        if (served.endsWith && served.endsWith(served.last))
            done.emplace_back(token.id, Ending::Stop);
        else if (EndRule(served.options, model_->config()).ends(token.generated, served.last))
            done.emplace_back(token.id, token.generated >= served.options.maxNewTokens ? Ending::Length : Ending::Stop);
    }
    for (const auto& [id, ending] : done) end(id, ending, ns);
    for (const auto& [id, error] : running_.failed) end(id, Ending::Failed, ns, &error);
    running_.failed.clear();
}

void Engine::end(RequestId id, Ending ending, std::int64_t ns, const Error* error) {
    const auto found = served_.find(id);
    const int row = found->second->row;
    table_.finish(id);
    ++gap_.cameOrWent;
    if (row >= 0) {
        rows_->close(RowId{row});
        pool_.slots.release(row);
        freeRows_.push_back(row);
        observer_.released(id, row, running_.carriesOut, ns);
    }
    served_.erase(found);
    observer_.ended(id, ending, ns, error);
}

} // namespace kvscope::serve

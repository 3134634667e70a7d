#include "core/cuda/cuda_row_engine.h"

#include "base/clock.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/gpu_device.h"
#include "core/cuda/gpu_memory.h"
#include "core/cuda/rehearsal.h"

#include <algorithm>

namespace kvscope {
namespace {

/// Options from which the shared passes take their sizes: `rows` rows, and the longest piece of a prompt.
CudaEngineOptions passOptions(int rows) {
    CudaEngineOptions options;
    options.maxTokens.assign(rows, 1);
    options.maxPrompt = PromptReader::kPiece;
    return options;
}

/// The pool of slots of an engine whose rows are like `usual`; null: its rows have no offloaded layers, or no slots.
std::unique_ptr<DevicePool> poolOf(const DeviceModel& model, const CudaEngineOptions* usual, int rows,
                                   std::int64_t slots) {
    if (slots <= 0 || usual == nullptr || usual->plans.offloaded() == 0) return nullptr;
    constexpr int kLongest = 1 << 20; // tokens
    CudaEngineOptions longest = *usual;
    longest.maxTokens.assign(1, kLongest);
    const BatchLayout layout(model.config, longest);
    return std::make_unique<DevicePool>(layout.shape, usual->plans, rows, slots, layout.capacity);
}

/// A request whose prompt is one whole piece: requests to come are not known, and long prompts consist of such pieces.
CudaEngineOptions requestToRehearse(CudaEngineOptions usual, const RowTransfers& transfers) {
    const int piece = PromptReader::pieceTokens(transfers.chunkTokens);
    usual.promptTokens = {piece};
    usual.maxTokens = {piece + 1};
    usual.maxPrompt = piece;
    return usual;
}

} // namespace

CudaRowEngine::CudaRowEngine(std::shared_ptr<const DeviceModel> model, const Abilities& abilities, int rows,
                             bool invariant, const CudaEngineOptions* usual, RowTransfers transfers,
                             std::int64_t poolSlots, std::int64_t hostBytes)
    : model_(std::move(model)), invariant_(invariant), transfers_(transfers),
      scatter_(transfers.stores == StorePlan::Bounce ? std::make_unique<Scatter>() : nullptr),
      pool_(poolOf(*model_, usual, rows, poolSlots)),
      stores_(hostBytes > 0 ? std::make_unique<HostStores>(hostBytes) : nullptr), unshared_(gpuLaunch(usableGpu())),
      launch_(unshared_), products_(model_->config, passOptions(RowBatch::bucketOf(rows))),
      passes_(*model_, products_, buffers_, launch_, ranges_), rows_(rows), placed_(rows),
      stages_(parts(), launch_, ids_) {
    // Where transfers run beside a step, kernels count on fewer multiprocessors, as in a session: see CudaSequences.
    if (abilities.ahead == Ahead::NextLayer)
        launch_.multiprocessors -= std::min(Transfers::usualBlocks(1), launch_.multiprocessors / 2);
    planSharedBuffers(arena_, buffers_, model_->config, products_);
    passes_.plan(arena_, true);
    const std::vector<std::int32_t> noPrompt;
    if (usual != nullptr && !invariant && RowBatch::suits(CudaRow(noPrompt, *usual, parts()))) {
        batch_ = std::make_unique<RowBatch>(*usual, parts(), rows);
        batch_->plan(arena_);
    }
    if (pool_) pool_->plan(arena_);
    arena_.plan(ids_, rows, "session state");
    arena_.planHost(hostIds_, rows, "the tokens of a step");
    arena_.planHost(mark_, 1, "a mark of the GPU's timer");
    stream_ = cuda::Stream::make();
    unshared_.stream = launch_.stream = stream_.get();
    arena_.take();
    passes_.open();
    stages_.open();
    if (batch_) batch_->open();
    if (pool_) pool_->open(unshared_);
    clock_.calibrate(launch_, mark_);
}

void CudaRowEngine::decode(std::span<const RowToken> tokens) {
    step_.tokens.assign(tokens.begin(), tokens.end());
    std::sort(step_.tokens.begin(), step_.tokens.end(),
              [](const RowToken& a, const RowToken& b) { return a.row < b.row; });
    step_.rows.clear(), step_.numbers.clear();
    for (const RowToken& token : step_.tokens) {
        step_.rows.push_back(&at(token.row));
        step_.numbers.push_back(int(token.row));
        step_.rows.back()->beginStep(token);
    }
    const std::int64_t begin = steadyNowNs();
    step_.order.clear();
    for (const RowToken& token : tokens)
        step_.order.push_back(
            int(std::find(step_.numbers.begin(), step_.numbers.end(), int(token.row)) - step_.numbers.begin()));
    step_.batched = allPlaced();
    if (step_.batched) {
        batch_->decode(step_.rows, step_.tokens, step_.order);
        if (pool_) pool_->check();
        const std::int64_t took = steadyNowNs() - begin;
        for (CudaRow* row : step_.rows)
            if (step_.rows.size() > 1) row->record.durationNs = took;
        return;
    }
    if (batch_) batch_->settle();
    const bool together = (step_.rows.size() > 1 || pool_) && !invariant_;
    for (std::size_t i = 0; i < step_.rows.size(); ++i) step_.rows[i]->takePosition(step_.tokens[i]);
    if (together) {
        for (std::size_t i = 0; i < step_.rows.size(); ++i) hostIds_[i] = step_.tokens[i].id;
        cuda::check(cudaMemcpyAsync(ids_, hostIds_, step_.rows.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                    stream_.get()),
                    "copying the tokens");
    } else {
        for (std::size_t i = 0; i < step_.rows.size(); ++i) step_.rows[i]->feed(step_.tokens[i]);
    }
    if (pool_) {
        for (std::size_t i = 0; i < step_.rows.size(); ++i) step_.rows[i]->takePlace(int(i));
        for (std::size_t n = 0; n < step_.order.size(); ++n) step_.rows[step_.order[n]]->putIntoPool(int(n));
        pool_->begin(int(step_.rows.size()), true, stream_.get());
    }
    const auto launchRows = [&] {
        if (together)
            launchTogether();
        else
            for (CudaRow* row : step_.rows) row->launchStep();
    };
    if (transfers_.loads == TransferPlan::Kernel)
        graph_.launch(step_.numbers, stream_.get(), launchRows);
    else
        launchRows(); // the host reads lists of blocks in the middle of the step, which no graph can hold
    for (const CudaRow* row : step_.rows) row->copyReport();
    if (pool_) pool_->end(stream_.get());
    cuda::check(cudaStreamSynchronize(stream_.get()), "decoding");
    if (pool_) pool_->check();
    const std::int64_t took = steadyNowNs() - begin;
    for (CudaRow* row : step_.rows) {
        row->finishStep(!together);
        if (together) row->record.durationNs = took;
    }
}

/// Whether the kernels of a step reach all of its rows.
bool CudaRowEngine::allPlaced() const {
    return std::all_of(step_.numbers.begin(), step_.numbers.end(), [&](int row) { return placed_[row]; });
}

void CudaRowEngine::launchTogether() {
    stages_.begin(step_.rows);
    runStep(stages_, model_->config.layers);
    stages_.sample();
}

std::string CudaRowEngine::description() const { return describeGpuEngine(*passes_.linear()); }

std::unique_ptr<RowEngine> makeCudaRowEngine(const RowEngineSetup& setup) {
    requireGpu();
    std::optional<CudaEngineOptions> usual;
    if (setup.usual != nullptr) usual = gpuEngineOptions(*setup.usual);
    auto model = usual ? uploadRehearsing(setup.model, requestToRehearse(*usual, setup.transfers))
                       : DeviceModel::of(setup.model);
    return std::make_unique<CudaRowEngine>(std::move(model), setup.abilities, setup.rows, setup.invariant,
                                           usual ? &*usual : nullptr, setup.transfers, setup.poolSlots,
                                           setup.hostBytes);
}

} // namespace kvscope

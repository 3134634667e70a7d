// What the run of an engine that serves says of itself in a trace.
#include "core/serve/engine.h"

#include "core/model/model_shape.h"
#include "core/session/processor.h"
#include "core/session/products.h"
#include "core/trace/run_meta.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::serve {
namespace {

/// The server as it is set, for a trace: knobs by their names, and budgets.
nlohmann::ordered_json factsOf(const SchedulerOptions& knobs, const Budget& budget) {
    return {{"rows", knobs.rows},
            {"iteration_tokens", knobs.iterationTokens},
            {"iteration_ms", knobs.iterationMs},
            {"tbt_bound_ms", knobs.tbtBoundMs},
            {"ttft_bound_ms", knobs.ttftBoundMs},
            {"offload", knobs.offload},
            {"working_set_control", knobs.workingSetControl},
            {"cache", choiceName("cache", int(knobs.cache))},
            {"partition_blocks", knobs.partitionBlocks},
            {"transfers", choiceName("transfers", int(knobs.transfers))},
            {"d2h", choiceName("d2h", int(knobs.d2h))},
            {"window", knobs.window},
            {"prefill", choiceName("prefill", int(knobs.prefill))},
            {"chunk_tokens", knobs.chunkTokens},
            {"token_layers", knobs.tokenLayers},
            {"parking", choiceName("parking", int(knobs.parking))},
            {"long_prefills", knobs.longPrefills},
            {"short_tokens", knobs.shortTokens},
            {"short_turns", knobs.shortTurns},
            {"aging_ms", knobs.agingMs},
            {"max_suspend_ms", knobs.maxSuspendMs},
            {"max_skips", knobs.maxSkips},
            {"pause_after", knobs.pauseAfter},
            {"resume_tokens", knobs.resumeTokens},
            {"max_waiting", knobs.maxWaiting},
            {"batch_invariant", knobs.batchInvariant},
            {"device_kv_bytes", budget.device},
            {"host_kv_bytes", budget.host},
            {"scratch_bytes", budget.scratch}};
}

} // namespace

RunInfo Engine::runInfo() const {
    const ModelConfig& config = model_->config();
    const SessionOptions& session = options_.session;
    RunInfo info;
    info.name = session.name.empty() ? fmt::format("{} serving on {}", method_.title, model_->name()) : session.name;
    info.model = model_->name();
    info.method = method_.name;
    const SchedulerOptions& knobs = options_.scheduler;
    auto params = nlohmann::ordered_json::parse(parameters_.toJson(parametersFor(method_, config)));
    params["offload"] = knobs.offload;
    if (knobs.offload && plans_.offloaded() > 0) params["cache_policy"] = pool_.used ? "lru" : rowOptions().cachePolicy;
    if (planted_) params["planted_localities"] = options_.planted;
    info.paramsJson = params.dump();
    info.backend = nameOf(session.backend);
    info.device = rows_->description();
    info.link = session.backend == Backend::Cuda ? "PCIe (measured)" : "none: blocks are read where they lie";
    info.linkTiming = Timing::Measured;
    info.blockSize = spec_.unitTokens();
    info.layers = config.layers, info.kvHeads = config.kvHeads, info.queryHeads = config.queryHeads;
    info.headDim = config.headDim;
    info.sequences = options_.scheduler.rows;
    info.budgetBlocks = spec_.dense ? 0 : spec_.budgetUnits();
    info.blockBytes = costs().shape.blockBytes * spec_.unitTokens() / spec_.blockSize;
    info.deviceSlots = rowSlots();
    info.level = options_.level;
    // Rows share the passes around their attention, so that nobody knows which stage of a layer took how long. Link
    // times are not told apart from the time of a step.
    info.knows = info.knows.without(Known::StageTimes).without(Known::TransferTimes).without(Known::ExposedTimes);
    nlohmann::ordered_json serving = factsOf(knobs, table_.ledger().budget());
    serving["planted"] = planted_ != nullptr;
    serving["costs"] = nlohmann::ordered_json::parse(costs().toJson());
    info.meta = {{run_meta::kModelShape, toJson(shapeOf(*model_))},
                 {run_meta::kModelFingerprint, model_->fingerprint()},
                 {run_meta::kProcessor, processorName()},
                 {run_meta::kServing, serving.dump()}};
    if (const std::string products = productsInUse(); session.backend == Backend::Cuda && !products.empty())
        info.meta.emplace_back(kProductsMeta, products);
    if (session.recordModelPath) info.meta.emplace_back(run_meta::kModelPath, model_->path());
    if (const std::string leaders = indexLeaders(config); method_.hasIndexer != nullptr && !leaders.empty())
        info.meta.emplace_back(run_meta::kIndexLeader, leaders);
    if (spec_.unitTokens() != spec_.blockSize)
        info.meta.emplace_back(run_meta::kKvBlockTokens, std::to_string(spec_.blockSize));
    return info;
}

} // namespace kvscope::serve

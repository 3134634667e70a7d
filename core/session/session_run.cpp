#include "core/session/session_run.h"

#include "core/model/model_shape.h"
#include "core/session/processor.h"
#include "core/session/products.h"
#include "core/session/session_checks.h"
#include "core/trace/run_meta.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope {
SessionRun::SessionRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                       SessionOptions sessionOptions, TraceSink& traceSink)
    : model(std::move(loaded)), promptIds(std::make_shared<const RunPrompts::Ids>(std::move(ids))), prompts(*promptIds),
      options(std::move(sessionOptions)), sink(traceSink), method(findMethod(options.method)) {
    checkSessionOptions(options);
}

void SessionRun::checkPrompts(int added) const { kvscope::checkPrompts(prompts, *model, options.maxNewTokens, added); }

void SessionRun::resolveParameters() { parameters = methodParameters(method, *model, options.settings); }

void SessionRun::describe(const std::string& device) {
    const ModelConfig& config = model->config();
    info.name = options.name.empty() ? fmt::format("{} on {}", method.title, model->name()) : options.name;
    info.model = model->name();
    info.method = method.name;
    auto params = nlohmann::ordered_json::parse(parameters.toJson(parametersFor(method, config)));
    params["cache_policy"] = options.cachePolicy;
    params["offload"] = options.offload;
    if (options.kvType && *options.kvType != ownKvType(options.backend)) params["kv_type"] = nameOf(*options.kvType);
    // The options that a person needs to run this again. Those that are not here had their defaults.
    params["max_new_tokens"] = options.maxNewTokens;
    if (!options.stopAtEos) params["ignore_eos"] = true;
    if (options.sampling.temperature > 0) {
        params["temperature"] = options.sampling.temperature;
        params["top_p"] = options.sampling.topP;
        params["top_k"] = options.sampling.topK;
        params["seed"] = options.sampling.seed;
    }
    if (options.oracle) params["oracle"] = true;
    if (options.threads > 0) params["threads"] = options.threads;
    info.paramsJson = params.dump();
    info.backend = nameOf(options.backend);
    info.device = device;
    info.blockSize = spec.unitTokens();
    info.layers = config.layers;
    info.kvHeads = config.kvHeads;
    info.queryHeads = config.queryHeads;
    info.headDim = config.headDim;
    info.sequences = int(prompts.size());
    info.budgetBlocks = spec.dense ? 0 : spec.budgetUnits();
    info.level = sink.level();
    info.meta = {{run_meta::kModelShape, toJson(shapeOf(*model))},
                 {run_meta::kModelFingerprint, model->fingerprint()},
                 {run_meta::kProcessor, processorName()}};
    if (const std::string products = productsInUse(); options.backend == Backend::Cuda && !products.empty())
        info.meta.emplace_back(kProductsMeta, products);
    if (const std::string leaders = indexLeaders(config); method.hasIndexer != nullptr && !leaders.empty())
        info.meta.emplace_back(run_meta::kIndexLeader, leaders);
    info.meta.insert(info.meta.end(), options.meta.begin(), options.meta.end());
    if (options.recordModelPath) info.meta.emplace_back(run_meta::kModelPath, model->path());
    info.prompts = {promptIds, [model = model](std::int32_t id) { return model->tokenizer().bytesOf(id); }};
}

void SessionRun::commit(std::unique_ptr<StepRecord> record) {
    if (options.backend == Backend::Cpu) refuseCutWeights(*model); // a GPU has its own copy
    ++stepNumber;
    if (sink.level() == RecordLevel::Counters) record->blocks.clear();
    if (sink.level() != RecordLevel::Full) record->scores.clear();
    sink.take(std::move(record));
}

void SessionRun::end(RunStatus status, const std::string& message) {
    if (ended) return;
    ended = true;
    endGpuTrace();
    sink.endRun(status, message);
}

} // namespace kvscope

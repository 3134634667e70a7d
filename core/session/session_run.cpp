#include "core/session/session_run.h"

#include "base/error.h"
#include "core/model/model_shape.h"
#include "core/session/processor.h"
#include "core/trace/run_meta.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

void checkOptions(const SessionOptions& options) {
    if (options.maxNewTokens < 1)
        refuse(fmt::format("cannot generate {} tokens", options.maxNewTokens), "ask for at least 1 new token");
    const Sampling& s = options.sampling;
    if (!(s.temperature >= 0 && s.temperature <= 100))
        refuse(fmt::format("temperature {} is out of range", s.temperature), "use 0 (greedy) to 100");
    if (!(s.topP > 0 && s.topP <= 1))
        refuse(fmt::format("top-p {} is out of range", s.topP), "use a number above 0, at most 1");
    if (s.topK < 0) refuse(fmt::format("top-k {} is negative", s.topK), "use 0 for all tokens, or a positive number");
    if (options.threads < 0 || options.threads > 1024)
        refuse(fmt::format("cannot run on {} threads", options.threads), "use 0 for all cores, or 1 to 1024");
}

} // namespace

void refuse(const std::string& message, const std::string& hint) { throw Error(ErrorKind::BadInput, message, hint); }

SessionRun::SessionRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                       SessionOptions sessionOptions, TraceSink& traceSink)
    : model(std::move(loaded)), promptIds(std::make_shared<const RunPrompts::Ids>(std::move(ids))), prompts(*promptIds),
      options(std::move(sessionOptions)), sink(traceSink), method(findMethod(options.method)) {
    checkOptions(options);
}

void SessionRun::checkPrompts(int added) const {
    const ModelConfig& config = model->config();
    if (prompts.empty()) refuse("there is no prompt", "give at least one");
    if (prompts.size() > 256) refuse(fmt::format("{} sequences are too many", prompts.size()), "use at most 256");
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        if (prompts[i].empty()) refuse(fmt::format("prompt {} is empty", i), "give it at least one token");
        if (std::int64_t(prompts[i].size()) + added > config.maxPositions)
            refuse(fmt::format("a prompt of {} tokens and {} new ones exceed the context of {} ({} tokens)",
                               prompts[i].size(), options.maxNewTokens, model->name(), config.maxPositions),
                   "shorten the prompt or ask for fewer new tokens");
        for (const std::int32_t id : prompts[i])
            if (id < 0 || id >= config.vocab)
                refuse(fmt::format("prompt {} holds token id {}, outside the vocabulary of {} ({} entries)", i, id,
                                   model->name(), config.vocab),
                       "use ids of this model's tokenizer");
    }
}

void SessionRun::resolveParameters() {
    if (!hasWeightsFor(method, *model))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("method {} needs {}, and {} has none", method.name, method.needs, model->name()),
                    "choose another method or a checkpoint trained for it");
    const ModelConfig& config = model->config();
    parameters = resolveDefaults(method, config);
    for (const auto& [key, value] : options.settings) {
        try {
            parameters.set(parametersFor(method, config), key, value);
        } catch (Error& error) {
            error.during("method " + method.name);
            throw;
        }
    }
}

void SessionRun::describe(const std::string& device) {
    const ModelConfig& config = model->config();
    info.name = options.name.empty() ? fmt::format("{} on {}", method.title, model->name()) : options.name;
    info.model = model->name();
    info.method = method.name;
    auto params = nlohmann::ordered_json::parse(parameters.toJson(parametersFor(method, config)));
    params["cache_policy"] = options.cachePolicy;
    params["offload"] = options.offload;
    // What a person needs to run this again; what is not here had its default.
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
    if (options.recordModelPath) info.meta.emplace_back(run_meta::kModelPath, model->path());
    info.prompts = {promptIds, [model = model](std::int32_t id) { return model->tokenizer().bytesOf(id); }};
}

void SessionRun::commit(std::unique_ptr<StepRecord> record) {
    ++stepNumber;
    if (sink.level() == RecordLevel::Counters) record->blocks.clear(), record->origins.clear(), record->hit.clear();
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

#include "profiler/run/recorded_settings.h"

#include "base/error.h"
#include "core/cache/cache_policy.h"
#include "core/model/model.h"
#include "core/select/method.h"
#include "core/select/recorded_heads.h"
#include "core/trace/run_meta.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kvscope {
namespace {

using PlainJson = nlohmann::json;

constexpr const char* kOnlyOwn = "only sessions that KVScope recorded can be run again";

Error refusal(const RunRow& row, const std::string& what, const std::string& mend) {
    return Error(ErrorKind::BadInput, fmt::format("run {} {}", row.runId, what), mend);
}

/// The parameters of a run, each taken once: what is left over is a key that nobody here knows.
class Parameters {
public:
    explicit Parameters(const RunRow& row) : row_(row), values_(PlainJson::parse(row.paramsJson, nullptr, false)) {
        if (!values_.is_object())
            throw refusal(row, "does not say its settings: params_json is not an object", kOnlyOwn);
    }
    bool has(const char* key) const { return values_.contains(key); }
    std::string text(const std::string& key) {
        const PlainJson value = take(key);
        if (!value.is_primitive() || value.is_null()) throw wrong(key, value);
        return value.is_string() ? value.get<std::string>() : value.dump();
    }
    bool flag(const char* key, bool otherwise) {
        if (!has(key)) return otherwise;
        const PlainJson value = take(key);
        if (!value.is_boolean()) throw wrong(key, value);
        return value.get<bool>();
    }
    double number(const char* key, double otherwise) {
        if (!has(key)) return otherwise;
        const PlainJson value = take(key);
        if (!value.is_number()) throw wrong(key, value);
        return value.get<double>();
    }
    std::int64_t integer(const char* key, std::int64_t otherwise, std::int64_t least) {
        if (!has(key)) return otherwise;
        const PlainJson value = take(key);
        if (!value.is_number_integer() || value.get<std::int64_t>() < least ||
            value.get<std::int64_t>() > std::numeric_limits<int>::max())
            throw wrong(key, value);
        return value.get<std::int64_t>();
    }
    void requireEmpty() const {
        if (values_.empty()) return;
        throw refusal(row_,
                      fmt::format("was recorded with '{}', a setting that this version does not know",
                                  values_.begin().key().substr(0, 60)),
                      "run it again with the version that recorded it");
    }

private:
    PlainJson take(const std::string& key) {
        PlainJson value = values_.at(key);
        values_.erase(key);
        return value;
    }
    Error wrong(const std::string& key, const PlainJson& value) const {
        return refusal(row_,
                       fmt::format("says {} = {}, which is not a value of it", key,
                                   value.dump(-1, ' ', false, PlainJson::error_handler_t::replace).substr(0, 60)),
                       "record it again");
    }

    const RunRow& row_;
    PlainJson values_;
};

std::string modelOf(const RunRow& row) {
    const std::vector<std::string> embedded = embeddedModels();
    const std::string& path = row.metaOr(run_meta::kModelPath);
    if (!path.empty()) return path;
    if (std::find(embedded.begin(), embedded.end(), row.model) != embedded.end()) return row.model;
    throw refusal(row, "does not say where its model lies: it was recorded without the model's path",
                  "choose the model, the prompt and the settings in the session form");
}

Link linkOf(const RunRow& row) {
    Link link;
    if (row.timing != Timing::Modelled) return link;
    const std::string name = row.link.substr(0, row.link.find(','));
    const bool isNamed = name == "pcie4" || name == "pcie5";
    if (isNamed && Link::parse(name).gigabytesPerSecond == row.linkGbps)
        link = Link::parse(name);
    else if (row.linkGbps > 0)
        link = Link::parse(fmt::format("{}", row.linkGbps));
    if (row.linkLatencyUs != link.latencyUs)
        throw refusal(row,
                      fmt::format("has a link with {} us per transfer, and sessions here have {} us", row.linkLatencyUs,
                                  link.latencyUs),
                      kOnlyOwn);
    return link;
}

RecordLevel levelOf(const RunRow& row) {
    if (row.level.value()) return *row.level.value();
    throw refusal(row, fmt::format("has the level '{}', which does not exist", row.level.text().substr(0, 60)),
                  "record it again");
}

} // namespace

RecordedSettings recordedSettings(const RunRow& row, const std::string& model) {
    if (row.backend == RunBackend::Imported) throw refusal(row, "is a timeline of another tool", kOnlyOwn);
    if (const std::string& engine = row.metaOr(run_meta::kEngine); !engine.empty() && engine != run_meta::kOurEngine)
        throw refusal(row, fmt::format("was recorded by {}", engine.substr(0, 60)), kOnlyOwn);
    if (row.serves())
        throw refusal(row, "served requests that came at their times", "kvscope-cli load serves a workload again");
    const MethodEntry* method = knownMethod(row.method);
    if (method == nullptr)
        throw refusal(
            row,
            fmt::format("was recorded with method '{}', which this program does not have", row.method.substr(0, 60)),
            kOnlyOwn);
    Parameters parameters(row);
    RecordedSettings recorded;
    recorded.runId = row.runId;
    recorded.fingerprint = row.metaOr(run_meta::kModelFingerprint);
    recorded.layers = row.layers, recorded.queryHeads = row.queryHeads, recorded.kvHeads = row.kvHeads;
    recorded.headDim = row.headDim;
    SessionOptions& options = recorded.options;
    options.method = row.method;
    ParameterValues checked;
    for (const Parameter& parameter : method->parameters) {
        if (!parameters.has(parameter.key.c_str())) continue;
        const std::string value = parameters.text(parameter.key);
        checked.set(method->parameters, parameter.key, value);
        options.settings.emplace_back(parameter.key, checked.text(parameter.key));
    }
    if (!parameters.has("cache_policy"))
        throw refusal(row, "does not say its cache policy: no session of KVScope wrote it", kOnlyOwn);
    options.cachePolicy = parameters.text("cache_policy");
    if (!options.cachePolicy.empty()) findCachePolicy(options.cachePolicy);
    options.offload = parameters.flag("offload", true);
    if (parameters.has("kv_type")) {
        const std::string type = parameters.text("kv_type");
        options.kvType = kvTypeNamed(type);
        if (!options.kvType)
            throw refusal(
                row, fmt::format("has KV blocks of type '{}', which this program does not know", type.substr(0, 60)),
                "run it again with the version that recorded it");
    }
    // The recorded session had fewer slots than the method needs, because each block of its short sequence had one. A
    // session that is not asked for a number gets the same again, and enough slots when its sequence becomes longer.
    const ModelConfig config = configOfHeads(row.queryHeads, row.kvHeads, row.headDim);
    if (options.offload && row.deviceSlots >= std::max(1, specOf(*method, options.settings, config).neededSlots()))
        options.deviceKvBlocks = row.deviceSlots;
    if (!parameters.has("max_new_tokens")) // an older trace: as many as it has steps
        recorded.remarks.push_back(
            fmt::format("The trace does not say how many tokens were asked for; it holds {} steps.", row.steps));
    options.maxNewTokens = int(parameters.integer("max_new_tokens", std::max(1, row.steps), 1));
    options.stopAtEos = !parameters.flag("ignore_eos", false);
    options.sampling.temperature = parameters.number("temperature", 0);
    options.sampling.topP = parameters.number("top_p", options.sampling.topP);
    options.sampling.topK = int(parameters.integer("top_k", options.sampling.topK, 0));
    options.sampling.seed = std::uint64_t(parameters.integer("seed", std::int64_t(options.sampling.seed), 0));
    options.oracle = parameters.flag("oracle", false);
    options.threads = int(parameters.integer("threads", 0, 0));
    parameters.requireEmpty();
    if (row.backend != RunBackend::Cpu && row.backend != RunBackend::Cuda)
        throw refusal(row,
                      fmt::format("ran on '{}', which this program does not have", row.backend.text().substr(0, 60)),
                      kOnlyOwn);
    options.backend = row.backend == RunBackend::Cuda ? Backend::Cuda : Backend::Cpu;
    options.link = linkOf(row);
    recorded.level = levelOf(row);
    recorded.model = model.empty() ? modelOf(row) : model;
    if (row.status != RunStatus::Finished)
        recorded.remarks.emplace_back("The recorded run did not end by itself, so that this one may be longer.");
    return recorded;
}

void requireRecordedModel(const RecordedSettings& recorded, const Model& model) {
    const ModelConfig& config = model.config();
    const std::string now = model.fingerprint();
    if (!recorded.fingerprint.empty() && now != recorded.fingerprint)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} is not the model that run {} was recorded with: its weight files have the "
                                "fingerprint {}, the recorded ones {}",
                                model.path(), recorded.runId, now, recorded.fingerprint.substr(0, 80)),
                    "put the recorded model back there, or choose model, prompt and settings in the session form");
    if (config.layers != recorded.layers || config.kvHeads != recorded.kvHeads ||
        config.queryHeads != recorded.queryHeads || config.headDim != recorded.headDim)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} is not the model that run {} was recorded with: it has {} layers, {} query and {} "
                                "KV heads of {}, the recorded one {}, {}, {} and {}",
                                model.path(), recorded.runId, config.layers, config.queryHeads, config.kvHeads,
                                config.headDim, recorded.layers, recorded.queryHeads, recorded.kvHeads,
                                recorded.headDim),
                    "put the recorded model back there, or choose model, prompt and settings in the session form");
}

} // namespace kvscope

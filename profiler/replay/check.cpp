#include "profiler/replay/check.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "core/cache/cache_policy.h"
#include "core/trace/run_meta.h"
#include "profiler/read/recorded_oracle.h"
#include "profiler/run/recorded_session.h"
#include "profiler/run/recorded_text.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

void requireSameModel(const RunRow& run, const Model& model) {
    const ModelConfig& config = model.config();
    if (config.layers != run.layers || config.kvHeads != run.kvHeads || config.queryHeads != run.queryHeads ||
        config.headDim != run.headDim)
        throw Error(
            ErrorKind::BadInput,
            fmt::format("{} is not the recorded model {}: it has {} layers, {} query and {} KV heads of {}, the "
                        "recorded one {}, {}, {} and {}",
                        model.name(), run.model, config.layers, config.queryHeads, config.kvHeads, config.headDim,
                        run.layers, run.queryHeads, run.kvHeads, run.headDim),
            "give the recorded model's folder with --model");
    requireSameWeights(run, model);
}

} // namespace

void requireSameWeights(const RunRow& run, const Model& model) {
    const std::string& recorded = run.metaOr(run_meta::kModelFingerprint);
    if (recorded.empty()) return; // an older trace
    const std::string now = model.fingerprint();
    if (now != recorded)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} is not the model that run {} was recorded with: its weight files have the "
                                "fingerprint {}, the recorded ones {}",
                                model.path(), run.runId, now, recorded),
                    "give the recorded model's folder with --model");
}

namespace {

/// The recorded run's session, but for cache and link.
SessionOptions recordedOptions(const TraceReader& reader, const RunRow& run, const Model& model,
                               const RecordedText& text) {
    SessionOptions options;
    options.backend = run.backend == RunBackend::Cuda ? Backend::Cuda : Backend::Cpu;
    options.method = run.method;
    const auto parameters = nlohmann::json::parse(run.paramsJson, nullptr, false);
    for (const Parameter& parameter : findMethod(run.method).parameters) {
        if (!parameters.is_object() || !parameters.contains(parameter.key)) continue;
        const auto& value = parameters[parameter.key];
        options.settings.emplace_back(parameter.key, value.is_string() ? value.get<std::string>() : value.dump());
    }
    if (const auto& type = member(parameters, "kv_type"); type.is_string()) {
        options.kvType = kvTypeNamed(type.get<std::string>());
        if (!options.kvType)
            throw Error(ErrorKind::BadInput,
                        fmt::format("run {} of {} has KV blocks of type '{}', which this program does not know",
                                    run.runId, reader.path(), shown(type.get<std::string>())),
                        "check it with the version that recorded it");
    }
    options.maxNewTokens = int(text.longest());
    const auto& eos = model.config().eosIds;
    // If the recording has tokens behind an end-of-text token, it was made with stopAtEos off.
    for (const auto& ids : text.generated)
        for (std::size_t i = 0; i + 1 < ids.size(); ++i)
            if (std::find(eos.begin(), eos.end(), ids[i]) != eos.end()) options.stopAtEos = false;
    options.oracle = recordedOracle(reader, run.runId);
    return options;
}

/// Decodes as many steps as were recorded. A CPU session is fed the recorded tokens, so that a run with sampling is
/// repeated too. A GPU session cannot be fed: its next step has begun by then. It repeats greedy tokens by itself.
RunOutcome decode(const std::shared_ptr<const Model>& model, const RecordedText& text, const SessionOptions& options,
                  std::size_t steps, const Progress& progress, const std::stop_token& stop) {
    RecordedSession run(options, {}); // recorded nowhere
    run.begin(model, text.prompts);
    constexpr double kPrefillShare = 0.5; // share of the progress bar for reading the prompt
    std::vector<std::int32_t> next(text.prompts.size());
    std::size_t step = 0;
    const auto reads = [&](double f, std::string_view what) { report(progress, f * kPrefillShare, what); };
    run.run(reads, stop, [&](DecodeSession& session) {
        if (step == steps) return RecordedSession::Go::Stop;
        throwIfCancelled(stop);
        report(progress, kPrefillShare + (1 - kPrefillShare) * double(step) / double(steps), "decoding again");
        if (options.backend == Backend::Cpu) {
            for (std::size_t s = 0; s < next.size(); ++s)
                if (step < text.generated[s].size()) next[s] = text.generated[s][step];
            session.forceNextTokens(next);
        }
        ++step;
        return RecordedSession::Go::On;
    });
    const DecodeSession& session = run.session();
    const SessionSummary& summary = session.summary();
    const bool measured = session.runInfo().linkTiming == Timing::Measured;
    RunOutcome out{summary.hits, summary.misses, summary.h2dBytes, summary.exposedNs, 0, 0, true};
    // The clock has not run while a modelled link transferred; measured transfers are part of the measured time.
    out.computeNs = double(summary.decodeNs) - (measured ? double(summary.exposedNs) : 0.);
    const double ns = out.computeNs + double(summary.exposedNs);
    out.tokensPerSecond = ns > 0 ? double(summary.decodedTokens) * 1e9 / ns : 0;
    out.sameTokens = session.generated() == text.generated;
    return out;
}

} // namespace

std::vector<EngineCache> otherCaches(const SelectionTrace& trace, int count) {
    const int slots = std::max({trace.run.deviceSlots, trace.run.budgetBlocks, trace.largest});
    const bool measured = trace.run.timing == Timing::Measured;
    const Link other = measured ? trace.link : Link::parse(trace.link.gigabytesPerSecond < 40 ? "pcie5" : "pcie4");
    std::vector<EngineCache> caches;
    for (int i = 0; i < count;
         ++i) { // lru with more and more slots; every third one keep-selected, which makes no use of more slots
        const bool keeps = i % 3 == 2;
        const int quarters = keeps ? i / 3 + 1 : i - i / 3 + 1;
        caches.push_back(
            {keeps ? "keep-selected" : "lru", slots + (slots * quarters + 3) / 4, i % 2 == 1 ? other : trace.link});
    }
    return caches;
}

double errorPercent(double predicted, double truth) {
    if (predicted == truth) return 0;
    return truth == 0 ? std::numeric_limits<double>::infinity() : 100 * (predicted - truth) / truth;
}

std::vector<CheckedConfig> checkReplay(const TraceReader& reader, const SelectionTrace& trace,
                                       std::shared_ptr<const Model> model, const std::vector<EngineCache>& configs,
                                       int threads, const Progress& progress, const std::stop_token& stop) {
    const RunRow& run = trace.run;
    const std::optional<RunRow> recorded = reader.run(run.runId);
    if (trace.shared || !recorded || recorded->blockSize != run.blockSize)
        throw Error(ErrorKind::BadInput, "the engine has neither shared pools nor merged blocks",
                    "check without --shared-pool and --block-size");
    if (run.droppedSteps > 0)
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} lacks {} dropped steps, so its sums are not those of a whole run",
                                run.runId, reader.path(), run.droppedSteps),
                    "record it again");
    if (knownMethod(run.method) == nullptr)
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} was recorded with method '{}', which this program's engine does not have",
                                run.runId, reader.path(), run.method),
                    "replay it without --check; only runs of KVScope's own methods can be decoded again");
    requireSameModel(run, *model);
    for (const EngineCache& config : configs) {
        findCachePolicy(config.policy); // the policy must be one of the engine's, not only of the replay's
        if (run.timing == Timing::Measured && config.link.gigabytesPerSecond != trace.link.gigabytesPerSecond)
            throw Error(ErrorKind::BadInput, "the link of a measured run is the machine's own, no other can be tried",
                        "check without --link");
    }
    const RecordedText text = readText(reader, run);
    SessionOptions options = recordedOptions(reader, run, *model, text);
    options.threads = threads;
    std::vector<CheckedConfig> checked;
    for (const EngineCache& config : configs) {
        const double done = double(checked.size()), all = double(configs.size());
        const auto part = [&](double f, std::string_view what) { report(progress, (done + f) / all, what); };
        options.deviceKvBlocks = config.cacheBlocks;
        options.cachePolicy = config.policy;
        options.link = config.link;
        CheckedConfig& entry = checked.emplace_back();
        entry.predicted =
            replay(trace, {{config.policy}, {config.cacheBlocks}, {config.link}, threads}, {}, stop).front();
        entry.run = decode(model, text, options, trace.steps.size(), part, stop);
    }
    return checked;
}

} // namespace kvscope

#include "profiler/run/fork.h"

#include "base/error.h"
#include "core/select/method.h"
#include "core/select/recorded_heads.h"
#include "core/trace/run_meta.h"
#include "profiler/read/setting_words.h"
#include "profiler/run/recorded_session.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

Error cannotFork(const RunRow& run, const std::string& what, const std::string& mend) {
    return Error(ErrorKind::BadInput, fmt::format("run {} cannot be forked: {}", run.runId, what), mend);
}

void refuseRun(const RunRow& run) {
    constexpr const char* kOther = "fork a run of a model that decodes token by token";
    if (!run.metaOr(run_meta::kDenoisingBlock).empty() || !run.metaOr(run_meta::kDenoisingCanvas).empty())
        throw cannotFork(run, "its steps are denoising forwards, which write tokens in any order", kOther);
    if (run.droppedSteps > 0)
        throw cannotFork(run, fmt::format("it lacks {} dropped steps, and with them tokens", run.droppedSteps),
                         "record it again");
}

/// A setting of the method; one that the recorded run has is replaced in its place.
void setParameter(SessionOptions& options, const std::string& key, const std::string& value) {
    for (auto& [known, old] : options.settings)
        if (known == key) {
            old = value;
            return;
        }
    options.settings.emplace_back(key, value);
}

/// The recorded number of slots and policy were chosen for the recorded method and budget.
void changeMethod(SessionOptions& options, const ForkChange& change, std::vector<std::string>& words) {
    if (change.method && *change.method != options.method) {
        findMethod(*change.method);
        options.method = *change.method;
        options.settings.clear();
        options.deviceKvBlocks.reset();
        options.cachePolicy.clear();
        words.push_back("method " + options.method);
    }
    for (const auto& [key, value] : change.settings) {
        const auto before = options.settings;
        setParameter(options, key, value);
        if (options.settings == before) continue;
        words.push_back(key + " " + value);
    }
}

void changeCache(SessionOptions& options, const ForkChange& change, const ModelConfig& shape,
                 std::vector<std::string>& words) {
    if (change.offload && *change.offload != options.offload) {
        options.offload = *change.offload;
        words.emplace_back(options.offload ? "with offloading" : "every block on the device");
        if (!options.offload) options.deviceKvBlocks.reset(), options.cachePolicy.clear();
    }
    if (change.deviceKvBlocks && change.deviceKvBlocks != options.deviceKvBlocks)
        words.push_back(fmt::format("{} block slots", *change.deviceKvBlocks));
    if (change.deviceKvBytes) words.push_back(fmt::format("{} bytes for the device tier", *change.deviceKvBytes));
    if (change.deviceKvBlocks || change.deviceKvBytes) {
        options.deviceKvBlocks = change.deviceKvBlocks;
        options.deviceKvBytes = change.deviceKvBytes;
    } else if (options.deviceKvBlocks &&
               specOf(findMethod(options.method), options.settings, shape).neededSlots() > *options.deviceKvBlocks) {
        options.deviceKvBlocks.reset(); // the budget needs more slots than were recorded
    }
    if (change.cachePolicy && *change.cachePolicy != options.cachePolicy) {
        options.cachePolicy = *change.cachePolicy;
        words.push_back("cache policy " + options.cachePolicy);
    }
    const KvType own = ownKvType(options.backend);
    if (change.kvType && *change.kvType != options.kvType.value_or(own)) {
        options.kvType = change.kvType;
        words.push_back(fmt::format("KV blocks as {}", nameOf(*change.kvType)));
    }
    if (change.link && change.link->describe() != options.link.describe()) {
        options.link = *change.link;
        words.push_back("link " + options.link.describe());
    }
}

template <class T, class U>
void take(T& value, const std::optional<U>& wanted, const char* name, std::vector<std::string>& words) {
    if (!wanted || T(*wanted) == value) return;
    value = T(*wanted);
    words.push_back(fmt::format("{} {}", name, value));
}

void changeText(SessionOptions& options, const ForkChange& change, std::vector<std::string>& words) {
    if (change.backend && *change.backend != options.backend) {
        options.backend = *change.backend;
        words.push_back(fmt::format("backend {}", nameOf(options.backend)));
    }
    take(options.maxNewTokens, change.maxNewTokens, "max-new-tokens", words);
    take(options.sampling.temperature, change.temperature, "temperature", words);
    take(options.sampling.topP, change.topP, "top-p", words);
    take(options.sampling.topK, change.topK, "top-k", words);
    take(options.sampling.seed, change.seed, "seed", words);
}

std::string keyOf(const TraceReader& reader, const RunRow& run, const Fork& fork, bool sameFile) {
    nlohmann::ordered_json key;
    if (!sameFile) key["file"] = std::filesystem::path(reader.path()).filename().string();
    key["run"] = run.runId;
    key["created_utc"] = run.createdUtc;
    key["step"] = fork.step;
    key["changes"] = fork.changes;
    return key.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + changeWords(word);
    return text;
}

} // namespace

std::vector<std::vector<std::int32_t>> Fork::given() const {
    auto tokens = text.generated;
    for (auto& ids : tokens) ids.resize(std::min(ids.size(), std::size_t(step)));
    return tokens;
}

std::string whyNoFork(const RunRow& run) {
    try {
        refuseRun(run);
        recordedSettings(run);
        return {};
    } catch (const Error& error) {
        return oneLine(error);
    }
}

Fork planFork(const TraceReader& reader, int runId, int step, const ForkChange& change, bool sameFile,
              const std::string& model) {
    const std::optional<RunRow> found = reader.run(runId);
    if (!found)
        throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), runId),
                    "kvscope-cli info lists its runs");
    const RunRow& run = *found;
    refuseRun(run);
    Fork fork;
    fork.recorded = recordedSettings(run, model);
    fork.text = readText(reader, run);
    fork.step = step;
    const int last = int(fork.text.longest()) - 1;
    if (step < 0 || step > last)
        throw cannotFork(
            run, last < 0 ? "it has written no token" : fmt::format("it has no step {}; its last is {}", step, last),
            last < 0 ? "record it again" : fmt::format("name a step of 0 to {}", last));
    fork.options = fork.recorded.options;
    changeMethod(fork.options, change, fork.changes);
    const ModelConfig shape = configOfHeads(run.queryHeads, run.kvHeads, run.headDim);
    changeCache(fork.options, change, shape, fork.changes);
    changeText(fork.options, change, fork.changes);
    if (fork.options.maxNewTokens <= step)
        throw cannotFork(run, fmt::format("{} tokens end before step {} writes one", fork.options.maxNewTokens, step),
                         fmt::format("ask for at least --max-new-tokens {}", step + 1));
    if (change.leftOut) {
        fork.options.leftOut = change.leftOut;
        fork.options.leftOut->fromStep = step;
        fork.changes.push_back(fmt::format("without block {}", change.leftOut->block));
    }
    fork.options.given = fork.given();
    fork.options.name =
        fmt::format("fork at {}: {}", step, fork.changes.empty() ? "unchanged" : joined(fork.changes)).substr(0, 120);
    fork.options.meta.emplace_back(run_meta::kFork, keyOf(reader, run, fork, sameFile));
    if (const std::string& needles = run.metaOr(run_meta::kNeedles); !needles.empty())
        fork.options.meta.emplace_back(run_meta::kNeedles, needles);
    return fork;
}

SessionOptions unchangedOptions(const TraceReader& reader, const Fork& fork) {
    SessionOptions options = fork.recorded.options;
    const std::optional<RunRow> run = reader.run(fork.recorded.runId);
    if (!run) return options;
    options.name = ("again: " + run->name).substr(0, 120);
    if (const std::string& needles = run->metaOr(run_meta::kNeedles); !needles.empty())
        options.meta.emplace_back(run_meta::kNeedles, needles);
    return options;
}

std::optional<UnlikeToken> firstUnlike(const RecordedText::Ids& recorded, const RecordedText::Ids& now, int steps) {
    for (std::size_t step = 0; step < std::size_t(std::max(steps, 0)); ++step)
        for (std::size_t s = 0; s < std::min(recorded.size(), now.size()); ++s) {
            const auto tokenOf = [step](const std::vector<std::int32_t>& ids) {
                return step < ids.size() ? ids[step] : -1;
            };
            const std::int32_t before = tokenOf(recorded[s]), after = tokenOf(now[s]);
            if (before != after) return UnlikeToken{int(step), int(s), before, after};
        }
    return {};
}

void refuseUnlike(const Fork& fork, const UnlikeToken& token, const Model& model) {
    const auto textOf = [&](std::int32_t id) {
        return id < 0 ? std::string("no token") : fmt::format("'{}' (id {})", model.tokenizer().decode({id}), id);
    };
    throw Error(ErrorKind::BadInput,
                fmt::format("the state of run {} at step {} cannot be restored here: run again with the recorded "
                            "settings, step {} writes {} where {} was recorded",
                            fork.recorded.runId, fork.step, token.step, textOf(token.now), textOf(token.recorded)),
                "fork a run that was recorded on this kind of machine and with this version");
}

void checkRestored(const Fork& fork, const std::shared_ptr<const Model>& model, const Progress& progress,
                   const std::stop_token& stop) {
    if (fork.step == 0) return;                       // nothing comes before it
    RecordedSession again(fork.recorded.options, {}); // recorded nowhere
    again.begin(model, fork.text.prompts);
    constexpr double kPromptShare = 0.7; // of the progress
    int step = 0;                        // the next one
    const auto reads = [&](double share, std::string_view what) { report(progress, share * kPromptShare, what); };
    again.run(reads, stop, [&](const DecodeSession&) {
        throwIfCancelled(stop);
        report(progress, kPromptShare + (1 - kPromptShare) * double(++step) / double(fork.step + 1),
               "running again up to the fork");
        return step < fork.step ? RecordedSession::Go::On : RecordedSession::Go::Stop;
    });
    if (const auto token = firstUnlike(fork.text.generated, again.session().generated(), fork.step))
        refuseUnlike(fork, *token, *model);
}

} // namespace kvscope

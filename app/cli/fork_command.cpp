// kvscope-cli run --fork: a recorded run goes on from one of its steps under other settings.
#include "app/cli/long_action.h"
#include "app/cli/product_option.h"
#include "app/cli/run_arguments.h"
#include "app/cli/run_choice.h"
#include "app/cli/setting_options.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "core/session/products.h"
#include "core/session/vain_options.h"
#include "profiler/compare/parting.h"
#include "profiler/run/fork.h"
#include "profiler/run/recorded_session.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRecordedName = "the recorded run";
constexpr const char* kForkName = "the fork";

struct Place {
    std::string trace;
    int run = 0, step = 0;
};

/// TRACE[:RUN]@STEP. The last @ counts, so that a file's name may have one.
Place parsePlace(const std::string& text) {
    const std::size_t at = text.rfind('@');
    Place place;
    const char* const end = text.data() + text.size();
    const auto [stop, code] = at == std::string::npos ? std::from_chars_result{end, std::errc::invalid_argument}
                                                      : std::from_chars(text.data() + at + 1, end, place.step);
    if (code != std::errc() || stop != end || at == 0 || place.step < 0)
        throw Error(ErrorKind::BadInput, fmt::format("cannot read --fork '{}'", text),
                    "name a trace, a run and a step: run.kvtrace:1@40, or run.kvtrace@40 for its last run");
    std::tie(place.trace, place.run) = splitRun(text.substr(0, at));
    return place;
}

void refuseUseless(const Options& given) {
    for (const char* option : {"--prompt", "--prompt-file", "--prompt-ids", "--prompt-trace", "--prompt-needle",
                               "--needles", "--needle-depth", "--prompt-document", "--chat", "--system",
                               "--prompt-seed", "--batch", "--ignore-eos", "--logits", "--oracle", "--verify"})
        if (given.has(option))
            throw Error(
                ErrorKind::BadInput,
                fmt::format("{} has no effect on a fork, which has the recorded run's prompt and ends as that run does",
                            option),
                "leave it out, or leave out --fork");
    if (!given.has("--trace"))
        throw Error(ErrorKind::BadInput, "a fork is recorded, so that it can be compared",
                    "name the trace with --trace; the recorded run's own trace gets the fork alone");
}

ForkChange changeOf(const RunArguments& arguments, const Options& given, int step) {
    ForkChange change;
    const SessionOptions& session = arguments.session;
    if (given.has("--method")) change.method = session.method;
    change.settings = parseSettings("--set", arguments.settings);
    if (given.has("--device-kv")) {
        SessionOptions tier;
        parseDeviceKv(arguments.deviceKv, tier);
        change.deviceKvBlocks = tier.deviceKvBlocks;
        change.deviceKvBytes = tier.deviceKvBytes;
    }
    if (given.has("--cache-policy")) change.cachePolicy = session.cachePolicy;
    if (given.has("--no-offload")) change.offload = false;
    if (given.has("--kv-type")) change.kvType = kvTypeNamed(arguments.kvType);
    if (given.has("--link")) change.link = Link::parse(arguments.link);
    if (given.has("--backend")) change.backend = parseBackend(arguments.backend);
    if (given.has("--max-new-tokens")) change.maxNewTokens = session.maxNewTokens;
    if (given.has("--temperature")) change.temperature = session.sampling.temperature;
    if (given.has("--top-p")) change.topP = session.sampling.topP;
    if (given.has("--top-k")) change.topK = session.sampling.topK;
    if (given.has("--seed")) change.seed = session.sampling.seed;
    if (given.has("--without-block")) change.leftOut = LeftOutBlock{arguments.withoutBlock, step, arguments.ofSequence};
    return change;
}

void refuseVainChange(const Fork& fork, const ForkChange& change, const Options& given) {
    const SessionOptions& options = fork.options;
    refuseVainOptions(options, given, false);
    refuseVainSettings(change.settings,
                       {findMethod(options.method), options.backend, options.offload,
                        options.deviceKvBlocks || options.deviceKvBytes, options.sampling.temperature, false});
}

bool isSameFile(const std::string& a, const std::string& b) {
    std::error_code ignored;
    return std::filesystem::equivalent(a, b, ignored);
}

struct Finished {
    int runId = 0;
    RecordedText::Ids generated;
    int givenUnlike = -1;
    bool completed = false;
};

/// Records one of the two runs of a fork. expected: the recorded tokens, if the run must write the same ones up to the
/// fork's step: it then ends at the first step that writes another one. Null: it writes what it writes.
Finished recordRun(const SessionOptions& options, const RecordingRequest& request, const Fork& fork,
                   const std::shared_ptr<const Model>& model, const RecordedText::Ids* expected, LongAction& action,
                   std::pair<double, double> share) {
    RecordedSession recorded(options, request);
    recorded.begin(model, fork.text.prompts);
    if (const std::string refusal = recorded.recording().kernelRefusal(); !refusal.empty()) {
        action.clear();
        printErr("kernels are not recorded: {}\n", refusal);
    }
    const double prompt = share.first + (share.second - share.first) * 0.5;
    const Progress reads = action.part(share.first, prompt), decodes = action.part(prompt, share.second);
    int written = 0;
    Finished out;
    out.completed = recorded.run(reads, action.stop(), [&](const DecodeSession& session) {
        ++written;
        if (expected != nullptr && written <= fork.step)
            if (const auto token = firstUnlike(*expected, session.generated(), written))
                refuseUnlike(fork, *token, *model);
        report(decodes, std::min(1.0, double(written) / double(std::max(1, options.maxNewTokens))),
               written <= fork.step ? "running again up to the fork" : "decoding on");
        return action.stop().stop_requested() ? RecordedSession::Go::Stop : RecordedSession::Go::On;
    });
    out.generated = recorded.session().generated();
    out.givenUnlike = recorded.session().summary().givenUnlike;
    recorded.recording().finish();
    out.runId = recorded.recording().runId();
    return out;
}

Json partingJson(const Parting& parting) {
    Json out{{"sequence", parting.sequence}, {"step", nullptr}, {"token", nullptr}};
    if (const auto& token = parting.tokens.first) {
        out["step"] = token->stepB;
        out["token"] = token->position;
    }
    out["same_text"] = !parting.tokens.first && parting.tokens.lengthA == parting.tokens.lengthB;
    out["selections_not_compared"] = parting.notCompared.empty() ? Json() : Json(parting.notCompared);
    out["first_selection"] = nullptr;
    if (const auto& first = parting.first)
        out["first_selection"] = {{"step", first->step},
                                  {"layer", first->layer},
                                  {"kv_head", first->kvHead},
                                  {"only_recorded", first->onlyA},
                                  {"only_fork", first->onlyB}};
    out["missing_block"] = nullptr;
    if (const auto& missing = parting.missing)
        out["missing_block"] = {{"step", parting.step},
                                {"block", missing->block},
                                {"heads_recorded", missing->headsA},
                                {"heads_fork", missing->headsB},
                                {"text", missing->text}};
    out["sentences"] = sentencesOf(parting, kRecordedName, kForkName);
    return out;
}

struct ForkOutcome {
    std::string trace; // of the run with the recorded settings
    int baseRun = 0;
    Finished fork;
    std::vector<Parting> partings; // [sequence]
};

std::string textFrom(const std::vector<std::int32_t>& ids, int step, const Model& model) {
    const auto first = ids.begin() + std::ptrdiff_t(std::min(ids.size(), std::size_t(step)));
    return model.tokenizer().decode({first, ids.end()});
}

Json reportOf(const Fork& fork, const ForkOutcome& outcome, const RunArguments& arguments,
              const RecordedText::Ids& base, const Model& model) {
    Json out{{"forked_run", fork.recorded.runId},
             {"step", fork.step},
             {"changes", fork.changes},
             {"trace", arguments.trace},
             {"run_id", outcome.fork.runId},
             {"unchanged", {{"trace", outcome.trace}, {"run_id", outcome.baseRun}}},
             {"restored", true},
             {"given_unlike_step", outcome.fork.givenUnlike < 0 ? Json() : Json(outcome.fork.givenUnlike)},
             {"completed", outcome.fork.completed},
             {"generated_ids", outcome.fork.generated},
             {"sequences", Json::array()}};
    for (std::size_t s = 0; s < outcome.partings.size(); ++s) {
        Json sequence = partingJson(outcome.partings[s]);
        sequence["text_recorded"] = textFrom(base[s], fork.step, model);
        sequence["text_fork"] = textFrom(outcome.fork.generated[s], fork.step, model);
        out["sequences"].push_back(std::move(sequence));
    }
    return out;
}

void print(const Fork& fork, const ForkOutcome& outcome, const RunArguments& arguments, const Json& report) {
    printOut("run {} forked at step {}: {}\n", fork.recorded.runId, fork.step,
             fork.changes.empty() ? std::string("nothing changed") : fmt::format("{}", fmt::join(fork.changes, ", ")));
    printOut("its first {} tokens came out again with the recorded settings\n", fork.step);
    if (outcome.fork.givenUnlike >= 0)
        printOut("left to itself, the fork would have parted before: in step {} it chose another token than the one "
                 "that it was given\n",
                 outcome.fork.givenUnlike);
    const bool several = report["sequences"].size() > 1;
    for (const Json& sequence : report["sequences"]) {
        if (several) printOut("\nsequence {}\n", sequence["sequence"].get<int>());
        printOut("recorded  {}\n", sequence["text_recorded"].get<std::string>());
        printOut("fork      {}\n", sequence["text_fork"].get<std::string>());
        for (const Json& sentence : sequence["sentences"]) printOut("{}\n", sentence.get<std::string>());
    }
    printErr("recorded in {}, run {}; more: kvscope-cli compare {} {} --run-a {} --run-b {}\n", arguments.trace,
             outcome.fork.runId, outcome.trace, arguments.trace, outcome.baseRun, outcome.fork.runId);
}

} // namespace

int runFork(RunArguments& arguments, const Options& given) {
    refuseUseless(given);
    const Place place = parsePlace(arguments.fork);
    const TraceReader source(place.trace);
    const int runId = chooseRun(source, place.run);
    const bool same = isSameFile(place.trace, arguments.trace);
    if (same && arguments.overwrite)
        throw Error(ErrorKind::BadInput, "--overwrite would replace the trace of the run that is forked",
                    "leave it out: the trace gets another run; or record into another file");
    const ForkChange change = changeOf(arguments, given, place.step);
    Fork fork = planFork(source, runId, place.step, change, same, given.has("--model") ? arguments.model : "");
    refuseVainChange(fork, change, given);
    const std::string products = source.run(runId).value().metaOr(kProductsMeta);
    chooseProducts(arguments.products, fork.options.backend, products);
    for (SessionOptions* options : {&fork.options, &fork.recorded.options}) {
        options->threads = arguments.session.threads;
        options->recordModelPath = !arguments.noModelPath;
    }
    if (given.has("--name")) fork.options.name = arguments.session.name;
    const auto model = loadModel(fork.recorded.model, arguments.calibration);
    requireRecordedModel(fork.recorded, *model);

    RecordingRequest request =
        recordingOf(arguments, given.has("--record") ? parseLevel(arguments.level) : fork.recorded.level);
    ForkOutcome outcome{place.trace, runId, {}, {}};
    RecordedText::Ids base = fork.text.generated;
    {
        LongAction action;
        if (same) {
            checkRestored(fork, model, action.part(0, 0.5), action.stop());
        } else {
            const auto recorded =
                recordRun(unchangedOptions(source, fork), request, fork, model, &base, action, {0, 0.5});
            if (!recorded.completed) return Interruption::exitStatus();
            base = recorded.generated;
            outcome.trace = arguments.trace;
            outcome.baseRun = recorded.runId;
            request.overwrite = false;
        }
        outcome.fork = recordRun(fork.options, request, fork, model, nullptr, action, {0.5, 1});
    }
    remarkOnProducts(products);
    const TraceReader forked(arguments.trace), unchanged(outcome.trace);
    for (int s = 0; s < int(base.size()); ++s)
        outcome.partings.push_back(
            partingOf(unchanged, outcome.baseRun, forked, outcome.fork.runId, s, std::max(1, fork.step)));
    const Json report = reportOf(fork, outcome, arguments, base, *model);
    if (arguments.json)
        printOut("{}\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    else
        print(fork, outcome, arguments, report);
    return outcome.fork.completed ? 0 : Interruption::exitStatus();
}

} // namespace kvscope::cli

// kvscope-cli sweep: one run for every combination of values, all in one trace.
#include "app/cli/commands.h"
#include "app/cli/json_number.h"
#include "app/cli/long_action.h"
#include "app/cli/prompt_options.h"
#include "app/cli/run_arguments.h"
#include "app/cli/setting_options.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/session/sweep.h"
#include "profiler/run/recorded_session.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

/// What the command line sweeps: --sweep and --set.
SweepRequest sweepOf(const std::vector<std::string>& sweeps, const SessionOptions& base, const Settings& settings) {
    SweepRequest request{{}, base, settings, {}};
    for (auto& [key, values] : parseSettings("--sweep", sweeps)) request.axes.push_back(sweepAxis(key, values));
    return request;
}

bool isOption(const std::string& key) {
    return std::find(sweepOptions().begin(), sweepOptions().end(), key) != sweepOptions().end();
}

/// Refuses what was given beside --sweep and changes nothing: a value that every run has from --sweep, and an option
/// that has an effect in none of the runs. @throws Error(BadInput) for the first
void refuseVainBesideSweep(const SweepRequest& request, const std::vector<SweepPoint>& points, bool denoises,
                           const Options& given) {
    for (const SweepAxis& axis : request.axes) {
        const bool set = std::any_of(request.settings.begin(), request.settings.end(),
                                     [&](const auto& setting) { return setting.first == axis.key; });
        if (set || (isOption(axis.key) && given.has("--" + axis.key)))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}{} has no effect: every run has its value from --sweep {}",
                                    set ? "--set " : "--", axis.key, axis.key),
                        "leave one of them out");
    }
    for (const char* key : {"link", "cache-policy", "seed"}) {
        if (!given.has(fmt::format("--{}", key))) continue;
        const auto vain = [&](const SweepPoint& point) {
            return vainOption(fmt::format("--{}", key), choicesOf(point.options, denoises));
        };
        if (std::all_of(points.begin(), points.end(), [&](const SweepPoint& point) { return vain(point).has_value(); }))
            throw Error(*vain(points.front()));
    }
}

/// "nosa total_blocks=8 device-kv=12"
std::string nameOf(const SweepPoint& point) {
    std::string name = point.options.method;
    for (const auto& [key, value] : point.varied)
        if (key != "method") name += fmt::format(" {}={}", key, value);
    return name;
}

struct SweepOutcome {
    std::string name, problem; // problem: why it could not run; empty: it ran
    int runId = 0;
    bool completed = false;
    SessionSummary summary;
    std::vector<std::vector<std::int32_t>> generated;
};

SweepOutcome runPoint(const std::shared_ptr<const Model>& model, const SweepPoint& point,
                      const std::vector<std::vector<std::int32_t>>& prompts, const RecordingRequest& request,
                      const Progress& progress, const std::stop_token& stop) {
    SweepOutcome outcome;
    outcome.name = nameOf(point);
    SessionOptions options = point.options;
    options.name = outcome.name;
    const int tokens = options.maxNewTokens;
    try {
        RecordedSession recorded(options, request);
        recorded.begin(model, prompts);
        constexpr double kPromptShare = 0.5; // share of the progress for reading the prompt
        const Progress reading = [&](double f, std::string_view) { report(progress, kPromptShare * f, outcome.name); };
        outcome.completed = recorded.run(reading, stop, [&](DecodeSession& session) {
            report(progress, kPromptShare + (1 - kPromptShare) * session.summary().steps / tokens, outcome.name);
            return stop.stop_requested() ? RecordedSession::Go::Stop : RecordedSession::Go::On;
        });
        outcome.summary = recorded.session().summary();
        outcome.generated = recorded.session().generated();
        recorded.recording().finish();
        outcome.runId = recorded.recording().runId();
    } catch (const Error& error) {
        if (error.kind == ErrorKind::Storage) throw; // the others would fail, too
        if (error.kind == ErrorKind::Cancelled) return outcome;
        outcome.problem = oneLine(error);
    }
    return outcome;
}

Json sweepPointJson(const SweepPoint& point, const SweepOutcome& outcome, const SweepOutcome& first) {
    Json varied = Json::object();
    for (const auto& [key, value] : point.varied) varied[key] = value;
    Json out{{"name", outcome.name}, {"method", point.options.method}, {"varied", varied}};
    if (!outcome.problem.empty()) {
        out["problem"] = outcome.problem;
        return out;
    }
    const SessionSummary& s = outcome.summary;
    out["run_id"] = outcome.runId;
    out["completed"] = outcome.completed;
    out["steps"] = s.steps;
    out["tokens_per_s"] = s.steps > 0 ? numberOrNull(s.tokensPerSecond()) : Json(nullptr);
    out["hit_rate"] = numberOrNull(s.hitRate());
    out["h2d_bytes"] = s.h2dBytes;
    out["exposed_ms"] = double(s.exposedNs) / 1e6;
    out["same_tokens_as_first"] = outcome.generated == first.generated;
    return out;
}

void printTable(const Json& document) {
    printOut("{:>4}  {:<48} {:>7} {:>10} {:>9} {:>10} {:>11}  {}\n", "run", "name", "steps", "tokens/s", "hit rate",
             "MiB moved", "exposed ms", "tokens");
    for (const Json& run : document["runs"]) {
        const std::string name = run["name"];
        if (run.contains("problem")) {
            printOut("{:>4}  {:<48} {}\n", "-", name, run["problem"].get<std::string>());
            continue;
        }
        const auto value = [&](const char* key, int digits) {
            return run[key].is_null() ? std::string("-") : fmt::format("{:.{}f}", run[key].get<double>(), digits);
        };
        printOut("{:>4}  {:<48} {:>7} {:>10} {:>9} {:>10.1f} {:>11}  {}\n", run["run_id"].get<int>(), name,
                 run["steps"].get<int>(), value("tokens_per_s", 1), value("hit_rate", 3),
                 run["h2d_bytes"].get<double>() / 1048576, value("exposed_ms", 2),
                 !run["completed"].get<bool>()             ? "stopped"
                 : run["same_tokens_as_first"].get<bool>() ? "as the first"
                                                           : "others");
    }
}

struct SweepArguments : RunArguments {
    std::vector<std::string> sweeps;
};

/// The outcome whose tokens the others are compared with.
const SweepOutcome& firstThatRan(const std::vector<SweepOutcome>& outcomes) {
    const auto ran = std::find_if(outcomes.begin(), outcomes.end(),
                                  [](const SweepOutcome& outcome) { return outcome.problem.empty(); });
    return ran == outcomes.end() ? outcomes.front() : *ran;
}

int run(SweepArguments& arguments, const Options& given) {
    SessionOptions base = arguments.session;
    base.backend = parseBackend(arguments.backend);
    base.link = Link::parse(arguments.link);
    base.stopAtEos = !arguments.noEos;
    parseDeviceKv(arguments.deviceKv, base);
    const SweepRequest sweep = sweepOf(arguments.sweeps, base, parseSettings("--set", arguments.settings));
    RecordingRequest request = recordingOf(arguments, parseLevel(arguments.level));
    LongAction action;
    const auto model = Model::load(arguments.model, action.part(0, 0.02), action.stop(), arguments.calibration);
    const std::vector<SweepPoint> points = sweepPoints(sweep, model->config());
    refuseVainBesideSweep(sweep, points, model->config().diffusion.has_value(), given);
    const auto prompts = readPrompts(arguments.prompts, *model, arguments.batch);
    std::vector<SweepOutcome> outcomes;
    for (const SweepPoint& point : points) {
        if (action.stop().stop_requested()) break;
        const double done = double(outcomes.size()), all = double(points.size());
        const Progress part = action.part(0.02 + 0.98 * done / all, 0.02 + 0.98 * (done + 1) / all);
        outcomes.push_back(runPoint(model, point, prompts, request, part, action.stop()));
        request.overwrite = false; // the next runs join the first
        if (outcomes.back().runId == 0 && outcomes.back().problem.empty())
            outcomes.pop_back(); // cancelled before it began
    }
    action.clear();
    Json document{{"model", model->name()}, {"trace", arguments.trace}, {"runs", Json::array()}};
    for (std::size_t i = 0; i < outcomes.size(); ++i)
        document["runs"].push_back(sweepPointJson(points[i], outcomes[i], firstThatRan(outcomes)));
    document["completed"] = !action.stop().stop_requested();
    if (arguments.json)
        printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printTable(document);
    if (action.stop().stop_requested()) return Interruption::exitStatus();
    const auto failed =
        std::count_if(outcomes.begin(), outcomes.end(), [](const SweepOutcome& each) { return !each.problem.empty(); });
    if (failed == 0) return 0;
    printErr("kvscope-cli: {} of {} runs could not be made; their lines say why\n", failed, outcomes.size());
    return 1;
}

} // namespace

Command addSweep(Options& program) {
    auto arguments = std::make_shared<SweepArguments>();
    Options sub = program.command("sweep", "Decode one prompt for every combination of values, into one trace");
    sub.add("--sweep", arguments->sweeps,
            "key=a,b,c: a parameter of methods (k: total_blocks, k_q: select_blocks), or method, device-kv, "
            "cache-policy, link, offload (on, off), max-new-tokens, temperature, seed; repeatable: every combination")
        .required()
        .repeatable();
    sub.add("--trace", arguments->trace, "Record into this .kvtrace file; an existing trace gets more runs").required();
    sub.flag("--overwrite", arguments->overwrite, "Replace the trace file");
    sub.add("--model", arguments->model,
            "Hugging Face folder, .safetensors or .gguf file, or an embedded model (nosa-tiny)")
        .showsDefault();
    sub.add("--calibration", arguments->calibration,
            "Folder with what kvscope-cli calibrate wrote; default: the model's own folder");
    addPromptOptions(sub, arguments->prompts);
    sub.add("--method", arguments->session.method, "Attention method where none is swept").showsDefault();
    sub.add("--set", arguments->settings, "Parameter of all methods that have it, key=value; repeatable");
    sub.add("--max-new-tokens", arguments->session.maxNewTokens, "Tokens to generate per sequence").showsDefault();
    sub.flag("--ignore-eos", arguments->noEos, "Do not stop at the end-of-text token");
    sub.add("--temperature", arguments->session.sampling.temperature, "Sampling temperature; 0: greedy");
    sub.add("--seed", arguments->session.sampling.seed, "Seed of the sampling");
    sub.add("--backend", arguments->backend, "cpu or cuda").oneOf({"cpu", "cuda"}).showsDefault();
    sub.add("--batch", arguments->batch, "Sequences decoded together; prompts are repeated to fill it").range(1, 256);
    sub.add("--device-kv", arguments->deviceKv,
            "Device tier: block slots per (sequence, layer, KV head), or the pool's size such as 256MiB");
    sub.add("--cache-policy", arguments->session.cachePolicy, "keep-selected, lru, or lru-s with infllm");
    sub.add("--link", arguments->link, "Modelled link: pcie4, pcie5 or GB/s").showsDefault();
    sub.add("--threads", arguments->session.threads, "CPU threads; 0: all cores").range(0, 1024).showsDefault();
    sub.add("--record", arguments->level, "counters, selections or full").showsDefault();
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments, sub] { return run(*arguments, sub); };
}

} // namespace kvscope::cli

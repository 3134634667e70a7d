// kvscope-cli run: one decode run, optionally recorded and verified.
#include "app/cli/commands.h"
#include "app/cli/json_number.h"
#include "app/cli/logits_file.h"
#include "app/cli/long_action.h"
#include "app/cli/name_option.h"
#include "app/cli/product_option.h"
#include "app/cli/prompt_options.h"
#include "app/cli/result_file.h"
#include "app/cli/run_arguments.h"
#include "app/cli/setting_options.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "core/session/model_summary.h"
#include "core/session/vain_options.h"
#include "core/trace/needles.h"
#include "core/trace/run_meta.h"
#include "profiler/run/recorded_session.h"

#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>

namespace kvscope::cli {

Backend parseBackend(const std::string& text) {
    for (const Backend backend : {Backend::Cpu, Backend::Cuda})
        if (text == nameOf(backend)) return backend;
    throw Error(ErrorKind::BadInput, fmt::format("unknown backend '{}'", text), "use cpu or cuda");
}

RecordLevel parseLevel(const std::string& text) {
    for (const RecordLevel level : {RecordLevel::Counters, RecordLevel::Selections, RecordLevel::Full})
        if (text == nameOf(level)) return level;
    throw Error(ErrorKind::BadInput, fmt::format("unknown record level '{}'", text),
                "use counters, selections or full");
}

RecordingRequest recordingOf(const RunArguments& arguments, RecordLevel level) {
    RecordingRequest request;
    request.trace = arguments.trace;
    request.level = level;
    request.overwrite = arguments.overwrite;
    request.calls = !arguments.noCalls;
    request.pcie = parsePcieCounting(arguments.pcieCounters);
    return request;
}

void refuseVainOptions(const SessionOptions& options, const Options& given, bool denoises) {
    const RunChoices choices = choicesOf(options, denoises);
    for (const char* option :
         {"--link", "--cache-policy", "--top-k", "--top-p", "--seed", "--no-cuda-calls", "--pcie-counters"})
        if (const auto refusal = given.has(option) ? vainOption(option, choices) : std::nullopt) throw Error(*refusal);
}

namespace {

/// Refuses options and settings that change nothing in this run. @throws Error(BadInput) for the first one that was
/// given
void refuseVainSetting(const SessionOptions& options, const Options& given, bool denoises = false) {
    refuseVainOptions(options, given, denoises);
    refuseVainSettings(options.settings, choicesOf(options, denoises));
}

SessionOptions sessionOptions(const RunArguments& arguments, const Options& given) {
    SessionOptions options = arguments.session;
    options.settings = parseSettings("--set", arguments.settings);
    options.backend = parseBackend(arguments.backend);
    parseDeviceKv(arguments.deviceKv, options);
    options.link = Link::parse(arguments.link);
    options.stopAtEos = !arguments.noEos;
    options.offload = !arguments.resident;
    options.kvType = kvTypeNamed(arguments.kvType);
    options.recordModelPath = !arguments.noModelPath;
    refuseVainSetting(options, given);
    chooseProducts(arguments.products, options.backend);
    return options;
}

enum class Streaming : std::uint8_t { Off, WhileRead, ToTheEnd }; // WhileRead: a run that nobody reads ends

/// Runs to the end. @return true when nobody ended it before
bool decode(RecordedSession& run, Streaming stream, const Model& model, LogitsFile* logits = nullptr) {
    using Go = RecordedSession::Go;
    const std::stop_token stop = Interruption::token();
    std::size_t shown = 0;
    TokenStream text(model.tokenizer());
    bool unread = false; // standard output takes nothing more
    const auto print = [&](const std::string& part) {
        writeOut(part);
        unread = outputFailure() != 0;
    };
    const auto wanted = [&] {
        return !stop.stop_requested() && !(unread && stream == Streaming::WhileRead) ? Go::On : Go::Stop;
    };
    return run.run({}, stop, [&](DecodeSession& session) {
        if (logits != nullptr) logits->keep(session);
        if (stream == Streaming::Off) return wanted();
        const auto& ids = session.generated().front();
        while (shown < ids.size()) print(text.push(ids[shown++]));
        const Go next = wanted();
        if (next == Go::On && !session.finished()) return next;
        print(text.finish() + "\n");
        return wanted();
    });
}

nlohmann::ordered_json runReport(const DecodeSession& session, const Model& model) {
    const SessionSummary& summary = session.summary();
    nlohmann::ordered_json out;
    std::vector<std::string> texts;
    for (const auto& ids : session.generated()) texts.push_back(model.tokenizer().decode(ids));
    if (texts.size() == 1)
        out["generated_ids"] = session.generated().front(), out["text"] = texts.front();
    else
        out["generated_ids"] = session.generated(), out["text"] = texts;
    out["model"] = model.name();
    if (const std::vector<std::string> notes = notesOf(model); !notes.empty()) out["notes"] = notes;
    out["method"] = session.runInfo().method;
    out["parameters"] = nlohmann::ordered_json::parse(session.runInfo().paramsJson);
    out["sequences"] = session.generated().size();
    out["prompt_tokens"] = summary.promptTokens;
    out["steps"] = summary.steps;
    const bool canvas = model.config().diffusion && model.config().diffusion->canvas;
    out["prefill_ms"] = canvas ? nlohmann::json() : nlohmann::json(double(summary.prefillNs) / 1e6);
    out["decode_ms"] = double(summary.decodeNs) / 1e6;
    out["tokens_per_s"] = numberOrNull(summary.tokensPerSecond());
    out["cold_steps"] = summary.cold.steps;
    out["rates_count"] = summary.cold.steps < summary.steps ? "decode steps without cold ones" : "all decode steps";
    out["hit_rate"] = numberOrNull(summary.hitRate());
    out["locality_mean"] = numberOrNull(summary.localityMean);
    out["locality_min"] = numberOrNull(summary.localityMin);
    if (std::isfinite(summary.densityMean)) out["density_mean"] = summary.densityMean;
    out["hits"] = summary.hits;
    out["misses"] = summary.misses;
    out["h2d_bytes"] = summary.h2dBytes;
    out["d2h_bytes"] = summary.d2hBytes;
    out["exposed_ms"] = double(summary.exposedNs) / 1e6;
    out["link"] = nameOf(session.runInfo().linkTiming);
    out["link_description"] = session.runInfo().link;
    out["device_slots"] = session.runInfo().deviceSlots;
    out["backend"] = session.runInfo().backend;
    out["device"] = session.runInfo().device;
    return out;
}

/// Decodes again without recording, and again with everything resident: the tokens must be the same.
bool sameTokensAgain(const std::shared_ptr<const Model>& model, const std::vector<std::vector<std::int32_t>>& prompts,
                     SessionOptions options, const std::vector<std::vector<std::int32_t>>& expected) {
    for (const bool offload : {true, false}) {
        options.offload = offload;
        RecordedSession again(options, {});
        again.begin(model, prompts);
        if (!decode(again, Streaming::Off, *model)) throw Error(ErrorKind::Cancelled, "interrupted while verifying");
        if (again.session().generated() != expected) return false;
    }
    return true;
}

void printSummary(const nlohmann::ordered_json& out, const std::string& trace) {
    const int cold = out["cold_steps"].get<int>(), steps = out["steps"].get<int>();
    const std::string read = out["prefill_ms"].is_null()
                                 ? "read by every forward"
                                 : fmt::format("read in {:.0f} ms", out["prefill_ms"].get<double>());
    const auto many = [](int number, const char* what) {
        return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
    };
    std::string speed; // empty: no step was decoded, or its time is not known
    if (steps > 0 && !out["tokens_per_s"].is_null())
        speed = fmt::format(": {:.1f} tokens/s", out["tokens_per_s"].get<double>());
    if (!speed.empty() && cold > 0 && cold < steps) speed += " without " + many(cold, "cold step");
    printErr("{} {}; {} in {:.0f} ms{}\n", many(out["prompt_tokens"].get<int>(), "token"), read,
             many(steps, "decode step"), out["decode_ms"].get<double>(), speed);
    if (!out["locality_mean"].is_null())
        printErr("locality {:.3f} mean, {:.3f} lowest; {} hits, {} misses, {:.1f} MiB to the device, {:.1f} ms exposed "
                 "({})\n",
                 out["locality_mean"].get<double>(), out["locality_min"].get<double>(), out["hits"].get<std::int64_t>(),
                 out["misses"].get<std::int64_t>(), out["h2d_bytes"].get<double>() / 1048576,
                 out["exposed_ms"].get<double>(), out["link"].get<std::string>());
    if (out.contains("density_mean"))
        printErr("density {:.3f} mean: the share of the tokens outside the block that a KV head attends to\n",
                 out["density_mean"].get<double>());
    if (!trace.empty()) printErr("recorded in {}\n", trace);
}

int run(RunArguments& arguments, const Options& given) {
    checkRunName(arguments.session.name);
    checkResultFile(arguments.logits);
    if (!arguments.fork.empty()) return runFork(arguments, given);
    SessionOptions options = sessionOptions(arguments, given);
    const RecordingRequest request = recordingOf(arguments, parseLevel(arguments.level));
    if (!arguments.logits.empty()) options.twoInFlight = false; // the next step would overwrite them
    // The needles of the prompt are known when the model is, and the GPU's recorder attaches before it.
    RecordedSession recorded(options, request);
    RunRecording& recording = recorded.recording();
    const auto model = loadModel(arguments.model, arguments.calibration);
    for (const std::string& note : notesOf(*model)) printErr("note: {}\n", note);
    if (model->config().diffusion) refuseVainSetting(options, given, true);
    std::vector<NeedlePlace> needles;
    auto prompts = readPrompts(arguments.prompts, *model, arguments.batch, &needles);
    if (!needles.empty()) recorded.addMeta(run_meta::kNeedles, needlesJson(needles));
    const std::size_t sequences = prompts.size();
    const Interruption interruption; // ends the run cleanly and keeps what was recorded

    std::unique_ptr<LogitsFile> logits;
    if (!arguments.logits.empty()) {
        if (model->config().diffusion)
            throw Error(
                ErrorKind::Unsupported,
                fmt::format("--logits keeps the logits of each next token, and {} decodes by block diffusion, which "
                            "has none",
                            model->name()),
                "leave --logits out, or use another model");
        logits = std::make_unique<LogitsFile>(arguments.logits, sequences, model->config().vocab);
    }
    recorded.begin(model, std::move(prompts));
    remarkOnProducts();
    if (const std::string refusal = recording.kernelRefusal(); !refusal.empty())
        printErr(
            "kernels are not recorded: {}; steps, selections and transfers are, with times of the GPU's own timer\n",
            refusal);
    const Streaming stream = arguments.json || sequences != 1 ? Streaming::Off
                             : arguments.trace.empty()        ? Streaming::WhileRead
                                                              : Streaming::ToTheEnd;
    const bool completed = decode(recorded, stream, *model, logits.get());
    const DecodeSession& session = recorded.session();
    if (logits) logits->write();
    if (const std::string remark = recording.pcieRemark(); !remark.empty()) printErr("{}\n", remark);
    auto out = runReport(session, *model);
    out["completed"] = completed;
    if (recording.records()) {
        const RecorderHealth health = recording.finish();
        out["trace"] = arguments.trace;
        out["run_id"] = recording.runId();
        out["dropped_steps"] = health.droppedSteps;
        setCommandRemark(fmt::format("the run is whole in {}", arguments.trace));
    }
    bool verified = true;
    if (arguments.verify && completed) {
        verified = sameTokensAgain(model, *session.runInfo().prompts.ids(), options, session.generated());
        out["verified"] = verified;
    }
    if (arguments.json) {
        printOut("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
        if (sequences > 1)
            for (std::size_t i = 0; i < out["text"].size(); ++i)
                printOut("[{}] {}\n", i, out["text"][i].get<std::string>());
        printSummary(out, arguments.trace);
        if (arguments.verify && !completed)
            printErr("not verified: the run was ended before its end\n");
        else if (arguments.verify && verified)
            printErr("verified: the same tokens without recording and with every block resident\n");
    }
    if (!verified)
        throw Error(ErrorKind::Device,
                    "verification failed: the tokens differ without recording or with every block resident",
                    "this is a bug in KVScope; keep the trace and report it");
    return completed ? 0 : Interruption::exitStatus();
}

} // namespace

Command addRun(Options& program) {
    auto arguments = std::make_shared<RunArguments>();
    Options sub = program.command("run", "Decode a prompt under a method, optionally recording a trace");
    sub.add("--calibration", arguments->calibration,
            "Folder with what kvscope-cli calibrate wrote; default: the model's own folder");
    sub.add("--model", arguments->model,
            "Hugging Face folder, .safetensors or .gguf file, or an embedded model (nosa-tiny, losa-tiny)")
        .showsDefault();
    const Option fork =
        sub.add("--fork", arguments->fork,
                "Go on from a step of a recorded run: model, prompt and settings are the recorded ones, but for the "
                "settings that are given here; without :RUN the last run of the trace")
            .valueName("TRACE[:RUN]@STEP");
    sub.add("--without-block", arguments->withoutBlock, "Of a fork: this KV block is not selected from the step on")
        .needs(fork)
        .range(0, 1 << 24);
    sub.add("--of-sequence", arguments->ofSequence, "Sequence of the block that is left out").needs(fork).range(0, 255);
    addPromptOptions(sub, arguments->prompts);
    sub.add("--method", arguments->session.method, "Attention method; see kvscope-cli methods").showsDefault();
    sub.add("--set", arguments->settings, "Parameter of the method, key=value; repeatable");
    sub.add("--max-new-tokens", arguments->session.maxNewTokens, "Tokens to generate per sequence").showsDefault();
    sub.flag("--ignore-eos", arguments->noEos, "Do not stop at the end-of-text token");
    sub.add("--temperature", arguments->session.sampling.temperature, "Sampling temperature; 0: greedy");
    sub.add("--top-p", arguments->session.sampling.topP, "Keep the best tokens up to this probability");
    sub.add("--top-k", arguments->session.sampling.topK, "Keep this many best tokens; 0: all");
    sub.add("--seed", arguments->session.sampling.seed, "Seed of the sampling");
    sub.add("--backend", arguments->backend, "cpu or cuda").showsDefault();
    addProductOption(sub, arguments->products);
    sub.add("--batch", arguments->batch, "Sequences decoded together; prompts are repeated to fill it").range(1, 256);
    const Option deviceKv =
        sub.add("--device-kv", arguments->deviceKv,
                "Device tier: block slots per (sequence, layer, KV head), or the pool's size such as 256MiB");
    sub.flag("--no-offload", arguments->resident, "Keep every block on the device; nothing is transferred")
        .excludes(deviceKv);
    sub.add(
           "--kv-type", arguments->kvType,
           "Type of full KV blocks, on the device, on the host and on the link: f32, bf16, fp8, int8 or int4; default: "
           "the backend's own, f32 on the CPU and bf16 on a GPU")
        .oneOf({"f32", "bf16", "fp8", "int8", "int4"});
    sub.add("--cache-policy", arguments->session.cachePolicy,
            "keep-selected, lru, or lru-s with infllm; default: lru when there are slots to spare");
    sub.add("--link", arguments->link, "Modelled link: pcie4, pcie5 or GB/s").showsDefault();
    sub.add("--threads", arguments->session.threads, "CPU threads; 0: all cores").range(0, 4096).showsDefault();
    const Option trace =
        sub.add("--trace", arguments->trace, "Record into this .kvtrace file; an existing trace gets another run");
    sub.flag("--overwrite", arguments->overwrite, "Replace the trace file").needs(trace);
    sub.flag("--no-model-path", arguments->noModelPath,
             "Leave out of the trace where the model lies; replay --check then needs --model")
        .needs(trace);
    sub.add("--logits", arguments->logits, "Write the logits of every step into this .safetensors file");
    sub.add("--record", arguments->level, "counters, selections or full").needs(trace).showsDefault();
    sub.flag("--no-cuda-calls", arguments->noCalls, "Leave the CUDA runtime's calls out of a recording at level full")
        .needs(trace);
    sub.add("--pcie-counters", arguments->pcieCounters,
            "At level full on a GPU, its own count of PCIe bytes: pm (PM sampling), nvml, off, or auto (pm where "
            "the driver allows it, else nvml)")
        .needs(trace)
        .showsDefault();
    addNameOption(sub, arguments->session.name, trace);
    sub.flag("--oracle", arguments->session.oracle, "Also measure the attention mass the selection captures (slow)");
    sub.flag("--verify", arguments->verify,
             "Decode twice more, without recording and with every block resident: the tokens must be the same");
    sub.flag("--json", arguments->json, "Print one JSON document instead of text");
    return [arguments, sub] { return run(*arguments, sub); };
}

} // namespace kvscope::cli

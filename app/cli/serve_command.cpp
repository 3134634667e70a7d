// kvscope-cli serve: an HTTP server for OpenAI's clients.
#include "app/cli/commands.h"
#include "app/cli/engine_arguments.h"
#include "app/cli/name_option.h"
#include "app/cli/product_option.h"
#include "app/cli/setting_options.h"
#include "app/cli/vain.h"
#include "app/server/server.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/calibrate/calibrate.h"
#include "core/prompt/prompts.h"
#include "core/serve/load.h"
#include "profiler/run/run_recording.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

struct ServeArguments : EngineArguments {
    std::string host = "127.0.0.1", keyFile, trace, name, record = "serving";
    std::vector<std::string> aliases, hosts, limits;
    int port = 8000, chatTokens = 512;
    double deadline = 0, comments = 5;
    bool benchmark = false, listLimits = false, overwrite = false, noModelPath = false;
};

server::Limits limitsOf(const std::vector<std::string>& given) {
    server::Limits limits;
    for (const auto& [key, text] : parseSettings("--limit", given)) {
        const auto& rows = server::limitRows();
        const auto row =
            std::find_if(rows.begin(), rows.end(), [&, &key = key](const auto& r) { return key == r.key; });
        if (row == rows.end())
            throw Error(ErrorKind::BadInput, fmt::format("cannot read --limit '{}={}'", key, text),
                        "serve --list-limits says which there are");
        double value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, code] = std::from_chars(text.data(), end, value);
        if (code != std::errc() || stop != end || !(value >= row->lowest && value <= row->highest))
            throw Error(ErrorKind::BadInput, fmt::format("the limit {}={} is not a number in its range", key, text),
                        fmt::format("give {} to {}", row->lowest, row->highest));
        limits.*row->value = value;
    }
    return limits;
}

void printLimits() {
    const server::Limits defaults;
    for (const server::LimitRow& row : server::limitRows())
        printOut("{:<14} {:>9}  {}\n", row.key, fmt::format("{}", defaults.*row.value), row.meaning);
}

/// Loads the model, opens the trace and, without --costs, measures what its iterations cost.
server::LoadedEngine loadEngine(const ServeArguments& arguments, serve::EngineOptions options, RunRecording& recording,
                                const std::stop_token& stop) {
    server::LoadedEngine loaded{Model::load(arguments.model, {}, stop, arguments.calibration), std::move(options)};
    remarkOnShape(arguments, loaded.options.costs, *loaded.model);
    recording.open();
    if (recording.records()) {
        loaded.sink = &recording.sink();
        loaded.recorderDrops = [&recording] { return recording.health().droppedSteps; };
    }
    loaded.recordSteps = levelOfSteps(arguments.record).has_value();
    if (!arguments.costs.empty()) return loaded;
    const SplicedPrompts prompts(*loaded.model);
    serve::LoadOptions measuring;
    measuring.prompt = [&](const serve::WorkloadLine& line, std::int64_t request) {
        return prompts.prompt(line.promptTokens, request, line.seed);
    };
    measuring.between = [&](double) {
        if (stop.stop_requested()) throw Error(ErrorKind::Cancelled, "cancelled");
    };
    serve::EngineOptions measured = loaded.options;
    measured.stop = stop;
    loaded.options.costs = serve::measureCosts(loaded.model, measured, measuring);
    remarkOnProducts();
    return loaded;
}

int runServe(const ServeArguments& arguments) {
    checkRunName(arguments.name);
    if (arguments.listLimits) {
        printLimits();
        return 0;
    }
    if (const std::string why = server::whyNoServer(); !why.empty())
        throw Error(ErrorKind::Unsupported, why, "install libasio-dev and build again");
    server::ServerOptions options;
    options.address = arguments.host, options.port = arguments.port;
    options.limits = limitsOf(arguments.limits);
    refuseRepeated("--alias", arguments.aliases);
    options.service.aliases = arguments.aliases;
    options.service.deadlineSeconds = arguments.deadline;
    options.service.commentSeconds = arguments.benchmark ? 0 : arguments.comments;
    options.service.benchmark = arguments.benchmark;
    options.service.chatTokens = arguments.chatTokens;
    if (!arguments.calibration.empty()) checkCalibration(arguments.calibration); // before the server listens
    if (!arguments.keyFile.empty()) options.service.keys = server::ApiKeys(arguments.keyFile);
    if (!server::isLoopback(arguments.host) && arguments.keyFile.empty())
        throw Error(ErrorKind::BadInput, fmt::format("{} can be reached from other machines", arguments.host),
                    "give --api-key-file, or leave --host out");
    std::vector<std::string> hosts = arguments.hosts;
    if (arguments.host != "0.0.0.0" && arguments.host != "::")
        hosts.push_back(arguments.host.find(':') == std::string::npos ? arguments.host : "[" + arguments.host + "]");
    options.service.hosts = server::HostCheck(hosts);
    const ServingChoices choices = servingChoices(arguments, costsOf(arguments));
    serve::EngineOptions engine = engineOf(arguments, choices);
    engine.session.name = arguments.name;
    engine.session.recordModelPath = !arguments.noModelPath;
    options.service.maxWaiting = engine.scheduler.maxWaiting;
    RecordingRequest request;
    request.trace = arguments.trace, request.overwrite = arguments.overwrite;
    request.level = levelOfSteps(arguments.record).value_or(RecordLevel::Counters);
    request.kernels = false;
    std::error_code ignored;
    const bool held = std::filesystem::exists(arguments.trace, ignored);
    RunRecording recording(request, engine.session.backend);
    const int status = server::serve(
        options, [&](const std::stop_token& stop) { return loadEngine(arguments, engine, recording, stop); });
    if (recording.runId() > 0) {
        recording.finish();
        printErr("recorded in {}\n", arguments.trace);
    } else if (!arguments.trace.empty()) { // it was ended while it loaded the model or measured costs
        printErr("nothing was recorded, because the server was not ready yet: {} {}\n", arguments.trace,
                 held ? "is as it was" : "was not made");
    }
    return status;
}

} // namespace

Command addServe(Options& program) {
    auto arguments = std::make_shared<ServeArguments>();
    Options sub = program.command("serve", "Answer OpenAI's completions and chats over HTTP");
    addModelOptions(sub, *arguments);
    addEngineOptions(sub, *arguments, KnobOption::Knob);
    sub.add("--host", arguments->host, "Address to listen on; one that others can reach needs --api-key-file")
        .showsDefault();
    sub.add("--port", arguments->port, "Port; 0: one that is free").range(0, 65535).showsDefault();
    sub.add("--api-key-file", arguments->keyFile, "Keys that clients must have, one a line").valueName("FILE");
    sub.add("--allow-host", arguments->hosts, "A name under which clients may call this machine; repeatable");
    sub.add("--alias", arguments->aliases, "Another name of the model; repeatable");
    sub.add("--chat-tokens", arguments->chatTokens, "New tokens of a chat that does not say how many")
        .range(1, 1 << 24)
        .showsDefault();
    sub.add("--deadline", arguments->deadline, "Seconds after which a request is cancelled; default: none")
        .range(0.001, 86400.0);
    const Option comments =
        sub.add("--comment-seconds", arguments->comments, "A silent stream gets a comment this often; 0: never")
            .range(0.0, 3600.0)
            .showsDefault();
    sub.flag("--benchmark", arguments->benchmark, "No comments, and clients are told not to try again")
        .excludes(comments);
    const Option trace =
        sub.add("--trace", arguments->trace, "Record requests and iterations into this .kvtrace file while it serves")
            .valueName("FILE");
    addRecordOption(sub, arguments->record, trace);
    sub.flag("--overwrite", arguments->overwrite, "Replace the trace file").needs(trace);
    addNameOption(sub, arguments->name, trace);
    sub.flag("--no-model-path", arguments->noModelPath, "Leave out of the trace where the model lies").needs(trace);
    sub.add("--limit", arguments->limits, "A limit of connections, key=value; --list-limits lists them");
    sub.excludeAllBut(sub.flag("--list-limits", arguments->listLimits, "List the limits and end"), {});
    return [arguments] { return runServe(*arguments); };
}

} // namespace kvscope::cli

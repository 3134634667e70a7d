// What serving costs beside the engine's work: the scheduler's plans, recording, HTTP. What a step of served rows takes
// beside a session's step is the benchmark `served-steps`.
#include "bench/serving.h"

#include "base/error.h"
#include "bench/settings.h"
#include "core/model/model.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <sstream>
#include <vector>

namespace kvscope::bench {

using Json = nlohmann::ordered_json;

namespace {

struct Part {
    const char* name;
    Json (*measure)(const ServingJob& job, const Log& log);
};
constexpr std::array kParts{Part{"plans", servingPlans}, Part{"recording", servingRecording}, Part{"http", servingHttp},
                            Part{"connects", servingConnects}};

/// The parts of a list with commas. @throws Error(BadInput) naming a part that there is not
std::vector<Part> partsOf(const std::string& names) {
    std::vector<Part> parts;
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
        const auto part =
            std::find_if(kParts.begin(), kParts.end(), [&](const Part& candidate) { return name == candidate.name; });
        if (part == kParts.end())
            throw Error(ErrorKind::BadInput, fmt::format("serving has no part '{}'", name),
                        "its parts are plans, recording, http and connects");
        parts.push_back(*part);
    }
    return parts;
}

Backend backendOf(const std::string& name) {
    for (const Backend backend : {Backend::Cpu, Backend::Cuda})
        if (name == nameOf(backend)) return backend;
    throw Error(ErrorKind::BadInput, fmt::format("unknown backend '{}'", name), "use cpu or cuda");
}

} // namespace

Json besideAim(double value, double below) {
    return {{"value", value}, {"aim_below", below}, {"missed", value >= below}};
}

std::string inWords(const Json& number) {
    return fmt::format("{:.3g} (aim: below {:g}{})", number["value"].get<double>(), number["aim_below"].get<double>(),
                       number["missed"].get<bool>() ? ", missed" : "");
}

/// Settings: only=plans,recording,http,connects, backend=cpu, model=nosa-tiny, method=nosa, threads=0, streams=64,
/// prompt=512, tokens=256, requests=10, pairs=8, connects=1000, device-mib=2048, host-mib=4096, scratch-mib=512;
/// costs=FILE, as `serve --costs`; processor-time=false, for the recording of a CPU engine with threads=1 on a busy
/// machine.
Json serving(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"only", "backend", "model", "method", "threads", "streams", "prompt",
                                          "tokens", "requests", "pairs", "connects", "device-mib", "host-mib",
                                          "scratch-mib", "costs", "processor-time"});
    const std::vector<Part> parts = partsOf(settings.text("only", "plans,recording,http,connects"));
    ServingJob job;
    job.backend = backendOf(settings.text("backend", nameOf(Backend::Cpu)));
    job.model = settings.text("model", kDefaultModel);
    job.method = settings.text("method", "nosa");
    job.costs = settings.text("costs", "");
    job.threads = settings.integer("threads", job.threads, 0, 1024);
    job.processorTime = settings.flag("processor-time", false);
    job.streams = settings.integer("streams", job.streams, 1, 1024);
    job.prompt = settings.integer("prompt", job.prompt, 1, 1 << 20);
    job.tokens = settings.integer("tokens", job.tokens, 8, 1 << 16);
    job.requests = settings.integer("requests", job.requests, 3, 10'000);
    job.pairs = settings.integer("pairs", job.pairs, 1, 1000);
    job.connects = settings.integer("connects", job.connects, 1, 1024);
    job.deviceMiB = settings.integer("device-mib", job.deviceMiB, 1, 1 << 20);
    job.hostMiB = settings.integer("host-mib", job.hostMiB, 1, 1 << 20);
    job.scratchMiB = settings.integer("scratch-mib", job.scratchMiB, 1, 1 << 20);
    Json out{{"backend", nameOf(job.backend)},
             {"model", job.model},
             {"method", job.method},
             {"streams", job.streams},
             {"prompt_tokens", job.prompt}};
    for (const Part& part : parts) {
        log(fmt::format("part {}", part.name));
        out[part.name] = part.measure(job, log);
    }
    return out;
}

} // namespace kvscope::bench

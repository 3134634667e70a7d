// Decode steps of published model shapes with random weights: tokens per second beside the floor of their bytes.
#include "base/error.h"
#include "base/host_memory.h"
#include "bench/bench.h"
#include "bench/cuda/decode_grids.h"
#include "bench/cuda/decode_job.h"
#include "bench/cuda/gpu.h"
#include "bench/settings.h"
#include "core/model/model_shape.h"

#include <algorithm>
#include <fmt/format.h>
#include <sstream>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

DecodeJob jobOf(const SettingsReader& settings) {
    DecodeJob job;
    job.shape = settings.text("shape", job.shape);
    job.method = settings.text("method", job.method);
    job.context = settings.integer("context", job.context, 64, 1 << 20);
    job.batch = settings.integer("batch", job.batch, 1, 256);
    job.steps = settings.integer("steps", job.steps, 4, 100'000);
    job.offload = settings.flag("offload", job.offload);
    if (const std::string type = settings.text("kv-type", ""); !type.empty()) {
        job.kvType = kvTypeNamed(type);
        if (!job.kvType || job.kvType == KvType::F32)
            throw Error(ErrorKind::BadInput, fmt::format("no KV block of a GPU is of the type {}", type),
                        "give kv-type=bf16, fp8, int8 or int4");
    }
    job.record = settings.flag("record", job.record);
    job.gamma = settings.number("planted", job.gamma);
    job.slots = settings.integer("slots", job.slots, 0, 1 << 20);
    job.leastRecentlyUsed = settings.text("policy", "keep-selected") == "lru";
    job.trace = settings.text("trace", "");
    job.pcie = parsePcieCounting(settings.text("pcie", nameOf(job.pcie)));
    job.aheadBlocks = settings.integer("ahead-blocks", 0, 0, 64);
    if (const std::string loop = settings.text("transfer-loop", ""); !loop.empty())
        job.transferLoop = settings.flag("transfer-loop", false);
    job.storedSequences = settings.integer("stored-sequences", 0, 0, 256);
    std::istringstream parameters(settings.text("parameters", "")); // key:value,key:value
    for (std::string part; std::getline(parameters, part, ',');) {
        const std::size_t colon = part.find(':');
        if (colon == std::string::npos)
            throw Error(ErrorKind::BadInput, fmt::format("'{}' is not a parameter of a method", part),
                        "write --set parameters=key:value,key:value");
        job.parameters.emplace_back(part.substr(0, colon), part.substr(colon + 1));
    }
    const std::string level = settings.text("level", job.trace.empty() ? "selections" : "full");
    if (level != "selections" && level != "full")
        throw Error(ErrorKind::BadInput, "--set level=" + level + " is not a level of recording",
                    "choose selections, or full for the kernels too");
    job.level = level == "full" ? RecordLevel::Full : RecordLevel::Selections;
    return job;
}

} // namespace

Json decodeShapes(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"grid",
                                          "shape",
                                          "method",
                                          "context",
                                          "batch",
                                          "steps",
                                          "offload",
                                          "record",
                                          "planted",
                                          "slots",
                                          "policy",
                                          "trace",
                                          "level",
                                          "pcie",
                                          "ahead-blocks",
                                          "transfer-loop",
                                          "stored-sequences",
                                          "parameters",
                                          "rounds",
                                          "kv-type"});
    const bool single = !given.empty() && !given.contains("grid");
    const int rounds = settings.integer("rounds", 1, 1, 100); // all jobs in turns, so that drift shows as spread
    const DecodeGrid& grid = findDecodeGrid(settings.text("grid", "steps"));
    std::vector<DecodeJob> jobs = single ? std::vector{jobOf(settings)} : grid.jobs();
    if (!single && given.contains("context"))
        std::erase_if(jobs,
                      [&](const DecodeJob& job) { return job.context != settings.integer("context", 0, 1, 1 << 20); });
    if (!single && given.contains("batch"))
        std::erase_if(jobs, [&](const DecodeJob& job) { return job.batch != settings.integer("batch", 0, 1, 256); });
    if (!single && given.contains("planted"))
        std::erase_if(jobs, [&](const DecodeJob& job) { return job.gamma != settings.number("planted", job.gamma); });

    for (DecodeJob& job : jobs) {
        if (single) break;
        job.steps = settings.integer("steps", job.steps, 4, 100'000);
        job.storedSequences = settings.integer("stored-sequences", job.storedSequences, 0, 256);
    }

    const std::size_t once = jobs.size();
    for (std::size_t i = once; i < once * std::size_t(rounds); ++i) jobs.push_back(jobs[i - once]);

    Gpu gpu;
    const Ceilings ceilings{gpu.readBytesPerSecond(), gpu.copyBytesPerSecond()};
    log(fmt::format("read probe {:.0f} GB/s, pinned copy {:.1f} GB/s", ceilings.read * 1e-9, ceilings.copy * 1e-9));
    Json out{{"read_gb_per_s", ceilings.read * 1e-9}, {"copy_gb_per_s", ceilings.copy * 1e-9}, {"rows", Json::array()}};
    // Pinning takes longer than the steps: one store serves all jobs it is large enough for.
    std::size_t largest = 0;
    for (const DecodeJob& job : jobs)
        if (const std::size_t bytes = hostStoreBytes(job); bytes < availableHostMemory() / 10 * 9)
            largest = std::max(largest, bytes);
    const PinnedMemory store = jobs.size() > 1 ? PinnedMemory(largest, "the KV store") : PinnedMemory();
    std::shared_ptr<const DeviceModel> model;
    std::string loaded;
    for (const DecodeJob& job : jobs) {
        if (job.shape != loaded) {
            model.reset();
            const ModelShape& shape = findModelShape(job.shape);
            model = DeviceModel::random(configOf(shape, 131072), shape.evictionHead, 1, true);
            loaded = job.shape;
        }
        try {
            Json row = measureDecode(job, model, ceilings, &store);
            log(describe(row));
            out["rows"].push_back(std::move(row));
        } catch (const Error& error) {
            if (error.kind != ErrorKind::OutOfMemory || single) throw;
            log(oneLine(error));
            out["rows"].push_back({{"shape", job.shape},
                                   {"method", job.method},
                                   {"context", job.context},
                                   {"batch", job.batch},
                                   {"offload", job.offload},
                                   {"refused", oneLine(error)}});
        }
    }
    if (!single) {
        const Json conclusions = grid.conclusions(out["rows"]);
        for (const auto& [key, entries] : conclusions.items())
            for (const Json& entry : entries) log(fmt::format("{}: {}", key, entry.dump()));
        out.update(conclusions);
    }
    return out;
}

} // namespace kvscope::bench

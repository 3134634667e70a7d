// A decode step of a published model shape with random weights: tokens per second beside the floor of its bytes.
#include "bench/bench.h"
#include "bench/cuda/gpu.h"
#include "core/cuda/cuda_engine.h"
#include "core/model/model_shape.h"
#include "core/select/method.h"
#include "profiler/cupti/gpu_tracer.h"
#include "profiler/record/recorder.h"
#include "profiler/roofline/cost_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Job {
    std::string shape = "nosa-8b", method = "nosa";
    int context = 16384, batch = 1, steps = 64;
    bool offload = false, record = true;
    double gamma = -1; // planted locality; negative: the model's own selection
    RecordLevel level = RecordLevel::Selections;
    std::string trace; // record the measured steps into this file, with the kernels where CUPTI is there
};

/// Records the steps of a benchmark like a session's.
class BenchRecording {
public:
    BenchRecording(const Job& job, const CudaEngine& engine, const ModelConfig& config,
                   const CudaEngineOptions& options)
        : recorder_(job.trace, recorderOptions(job.level)) {
        RunInfo info;
        info.name = fmt::format("{} on {}, {} sequences of {} tokens", findMethod(job.method).title, job.shape,
                                job.batch, job.context);
        info.model = job.shape + " (random weights)";
        info.method = job.method;
        info.paramsJson = Json{
            {"offload", job.offload},
            {"planted_locality", job.gamma},
            {"context", job.context},
            {"batch",
             job.batch}}.dump();
        info.backend = nameOf(Backend::Cuda);
        info.device = engine.description();
        info.link = "PCIe (measured)";
        info.linkTiming = Timing::Measured;
        info.blockSize = options.spec.blockSize;
        info.layers = config.layers;
        info.kvHeads = config.kvHeads;
        info.queryHeads = config.queryHeads;
        info.headDim = config.headDim;
        info.sequences = job.batch;
        info.deviceSlots = job.offload ? options.slots : 0;
        info.budgetBlocks = options.spec.dense ? 0 : options.spec.budgetBlocks();
        info.blockBytes = std::int64_t(cuda::blockBytes(options.spec.blockSize, config.headDim));
        info.level = job.level;
        recorder_.beginRun(info);
    }
    void add(const StepRecord& record, int step) {
        auto copy = recorder_.acquire();
        *copy = record;
        copy->step = step;
        copy->tokens = int(copy->generated.size());
        recorder_.commit(std::move(copy));
    }
    void finish(std::vector<SpanRecord> spans) {
        recorder_.addSpans(std::move(spans));
        recorder_.endRun(RunStatus::Finished, {});
        recorder_.flush();
    }

private:
    static RecorderOptions recorderOptions(RecordLevel level) {
        RecorderOptions options;
        options.level = level;
        options.overwrite = true;
        return options;
    }
    Recorder recorder_;
};

/// The share of candidates that must draw anew each step for a selection of this locality.
float drawShare(const SelectionSpec& spec, double gamma, int blocks) {
    if (gamma < 0) return -1;
    const double changing = spec.budget.queryAware, total = spec.budgetBlocks();
    const double candidates = std::max(1.0, double(blocks) - (total - changing));
    if (changing <= 0) return 0;
    const double leave = std::min(1.0, (1 - gamma) * total / changing);
    return float(std::min(1.0, leave / std::max(0.05, 1 - changing / candidates)));
}

/// What reading the weights, the attended keys and values and the index takes.
double floorSeconds(const Job& job, const SelectionSpec& method, double readRate) {
    DecodeScenario scenario;
    scenario.model = findModelShape(job.shape);
    scenario.gpu.readGbps = readRate / 1e9;
    scenario.gpu.tflops = scenario.gpu.linkGbps = 1;
    scenario.gpu.memoryGib = 1e6; // the run itself shows whether it fits
    scenario.method = method;
    scenario.context = job.context;
    scenario.batch = job.batch;
    return predictStep(scenario).hbmNs / 1e9;
}

Json measure(const Job& job, const std::shared_ptr<const DeviceModel>& model, double readRate, double copyRate) {
    const ModelConfig& config = model->config;
    const MethodEntry& method = findMethod(job.method);
    CudaEngineOptions options;
    ParameterValues values = resolveDefaults(method, config);
    options.spec = method.make(values, config);
    if (!model->evictionHead) options.spec.bias.scale = 0;
    const int tokens = job.context + job.steps + 16;
    options.maxTokens.assign(std::size_t(job.batch), tokens);
    const int blocks = options.spec.grid.blocks(tokens);
    for (int i = 0; i < config.layers; ++i) {
        const bool dense = options.spec.dense || i < options.spec.denseLayers;
        options.offloaded.push_back(!dense && job.offload);
        options.indexed.push_back(!dense && (options.spec.queryScore != QueryScore::None ||
                                             options.spec.agnosticScore != AgnosticScore::None));
    }
    options.slots = options.spec.dense ? 0 : std::min(options.spec.budgetBlocks(), blocks);
    options.record = job.record;
    options.level = job.level;
    options.planted = options.spec.dense ? -1 : drawShare(options.spec, job.gamma, blocks);
    // One per process, and never destroyed: at exit the CUDA runtime may be gone before it.
    static GpuTracing& tracing = *new GpuTracing;
    if (!job.trace.empty() && tracing.tracer == nullptr) tracing = startGpuTracing();
    options.trace = job.trace.empty() ? nullptr : tracing.tracer.get();
    CudaEngine engine(model, options);
    engine.fillContext(job.context, 7);
    std::optional<BenchRecording> recording;
    if (!job.trace.empty()) {
        recording.emplace(job, engine, config, options);
        engine.spans(true); // what filling the cache took is not the run's
    }

    StepRecord record;
    std::vector<ActiveSequence> active;
    for (int s = 0; s < job.batch; ++s) active.push_back({s, 0});
    std::int64_t hits = 0, misses = 0, h2d = 0, selectedTokens = 0;
    std::array<std::int64_t, kStageCount> stages{};
    std::int64_t stageSteps = 0, gpuNs = 0, exposedNs = 0;
    const int warm = std::min(8, job.steps / 4);
    std::chrono::steady_clock::time_point begin;
    engine.launch(1);
    for (int step = 0; step < job.steps; ++step) {
        if (step + 1 < job.steps) engine.launch(step + 2);
        engine.wait();
        if (step + 1 == warm) begin = std::chrono::steady_clock::now();
        if (!job.record || (step < warm && !recording)) continue;
        record.clear();
        engine.fill(record, active);
        if (recording) {
            for (int s = 0; s < job.batch; ++s)
                record.generated.push_back({s, engine.tokens()[std::size_t(s)], job.context + step + 1, {}});
            recording->add(record, step + 1);
            if (step < warm) continue;
        }
        for (const LayerRecord& layer : record.layers) {
            hits += layer.hits, misses += layer.misses, h2d += layer.h2dBytes;
            selectedTokens += layer.selected;
            exposedNs += layer.exposedNs;
            for (int s = 0; s < kStageCount; ++s) stages[std::size_t(s)] += layer.stageNs[std::size_t(s)];
        }
        gpuNs += engine.stepNs();
        ++stageSteps;
    }
    if (recording) recording->finish(engine.spans(true));
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double stepTime = wall / (job.steps - warm);
    const double floor = floorSeconds(job, options.spec, readRate);
    const double linkBytes = stageSteps > 0 ? double(h2d) / double(stageSteps) : 0;
    Json out{{"shape", job.shape},
             {"method", job.method},
             {"context", job.context},
             {"batch", job.batch},
             {"offload", job.offload},
             {"selection", job.gamma < 0 ? "model" : fmt::format("planted:{}", job.gamma)},
             {"step_ms", stepTime * 1e3},
             {"tokens_per_s", job.batch / stepTime},
             {"floor_ms", floor * 1e3},
             {"floor_over_step", floor / stepTime},
             {"gpu_gib", double(engine.deviceBytes()) / (1 << 30)},
             {"host_gib", double(engine.hostBytes()) / (1 << 30)}};
    if (stageSteps > 0) {
        out["gpu_step_ms"] = double(gpuNs) / double(stageSteps) * 1e-6;
        if (hits + misses > 0) out["hit_rate"] = double(hits) / double(hits + misses);
        if (job.offload) {
            out["h2d_mb_per_step"] = linkBytes * 1e-6;
            out["link_floor_ms"] = linkBytes / copyRate * 1e3;
            out["exposed_ms"] = double(exposedNs) / double(stageSteps) * 1e-6;
        }
        for (int s = 0; s < kStageCount; ++s)
            if (stages[std::size_t(s)] > 0)
                out["stage_us_" + std::string(kStageNames[std::size_t(s)])] =
                    double(stages[std::size_t(s)]) / double(stageSteps) / config.layers * 1e-3;
    }
    return out;
}

std::string line(const Json& row) {
    std::string text = fmt::format("{:9} {:9} {:6} tokens, batch {:3}, {:9} {:7.3f} ms, {:8.1f} tokens/s, floor {:.3f}",
                                   row["shape"].get<std::string>(), row["method"].get<std::string>(),
                                   row["context"].get<int>(), row["batch"].get<int>(),
                                   row["offload"].get<bool>() ? "offload," : "resident,", row["step_ms"].get<double>(),
                                   row["tokens_per_s"].get<double>(), row["floor_over_step"].get<double>());
    if (row.contains("hit_rate")) text += fmt::format(", hits {:.3f}", row["hit_rate"].get<double>());
    if (row.contains("exposed_ms"))
        text += fmt::format(", {:.1f} MB, exposed {:.3f} ms", row["h2d_mb_per_step"].get<double>(),
                            row["exposed_ms"].get<double>());
    return text;
}

} // namespace

Json decodeShapes(const Settings& settings, const Log& log) {
    Gpu gpu;
    const double read = gpu.readBytesPerSecond(), copy = gpu.copyBytesPerSecond();
    log(fmt::format("read probe {:.0f} GB/s, pinned copy {:.1f} GB/s", read * 1e-9, copy * 1e-9));
    Json out{{"read_gb_per_s", read * 1e-9}, {"copy_gb_per_s", copy * 1e-9}, {"rows", Json::array()}};
    std::vector<Job> jobs;
    const auto value = [&](const char* key, std::string fallback) {
        const auto found = settings.find(key);
        return found == settings.end() ? fallback : found->second;
    };
    if (!settings.empty()) {
        Job job;
        job.shape = value("shape", job.shape);
        job.method = value("method", job.method);
        job.context = std::stoi(value("context", "16384"));
        job.batch = std::stoi(value("batch", "1"));
        job.steps = std::stoi(value("steps", "64"));
        job.offload = value("offload", "false") == "true";
        job.record = value("record", "true") == "true";
        job.gamma = std::stod(value("planted", "-1"));
        job.trace = value("trace", "");
        if (!job.trace.empty()) job.level = RecordLevel::Full;
        jobs.push_back(job);
    } else {
        const auto add = [&](const char* shape, const char* method, int context, int batch,
                             double offloadedGamma = -1) {
            Job job;
            job.shape = shape;
            job.method = method;
            job.context = context;
            job.batch = batch;
            if (offloadedGamma >= 0) job.offload = true, job.gamma = offloadedGamma, job.steps = 48;
            jobs.push_back(job);
        };
        for (const char* shape : {"nosa-1b", "nosa-3b", "nosa-8b"}) add(shape, "full", 512, 1);
        for (const int context : {16384, 98304}) add("nosa-8b", "nosa", context, 4);
        add("nosa-8b", "full", 16384, 4);
        for (const int batch : {16, 64}) {
            add("nosa-8b", "nosa", 16384, batch, 0.95);
            add("nosa-8b", "infllmv2", 16384, batch, 0.9);
        }
    }
    std::shared_ptr<const DeviceModel> model;
    std::string loaded;
    for (const Job& job : jobs) {
        const std::string key = fmt::format("{}", job.shape);
        if (key != loaded) {
            model.reset();
            const ModelShape& shape = findModelShape(job.shape);
            model = DeviceModel::random(configOf(shape, 131072), shape.evictionHead, 1);
            loaded = key;
        }
        try {
            Json row = measure(job, model, read, copy);
            log(line(row));
            out["rows"].push_back(std::move(row));
        } catch (const Error& error) {
            if (error.kind != ErrorKind::OutOfMemory) throw;
            log(oneLine(error));
            out["rows"].push_back({{"shape", job.shape},
                                   {"method", job.method},
                                   {"context", job.context},
                                   {"batch", job.batch},
                                   {"refused", oneLine(error)}});
        }
    }
    return out;
}

} // namespace kvscope::bench

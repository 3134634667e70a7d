#include "bench/cuda/decode_job.h"

#include "base/elements.h"
#include "base/indexed.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/device_selector.h"
#include "core/cuda/testing/filled_context.h"
#include "core/cuda/testing/planted_steps.h"
#include "core/model/model_shape.h"
#include "core/plan/kv_format.h"
#include "core/select/overlap.h"
#include "core/select/refusal.h"
#include "core/session/gpu_bus_id.h"
#include "kernels/cuda/transfer/quantised_blocks.h"
#include "profiler/nvml/pcie_counters.h"
#include "profiler/roofline/cost_model.h"
#include "profiler/run/run_recording.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

RecordingRequest requestOf(const DecodeJob& job) {
    RecordingRequest request;
    request.trace = job.trace;
    request.level = job.level;
    request.overwrite = true;
    request.pcie = job.pcie;
    return request;
}

/// Records the steps of a benchmark like a session's. Made before the engine, and outlives it.
class BenchRecording {
public:
    explicit BenchRecording(const DecodeJob& job) : recording_(requestOf(job), Backend::Cuda) {}

    bool records() const { return recording_.records(); }
    GpuTrace* gpuTrace() { return recording_.gpuTrace(); }
    std::string pcieRemark() const { return recording_.pcieRemark(); }

    /// Begins with the context in place, so that the time of filling it does not count.
    void begin(const DecodeJob& job, CudaEngine& engine, const ModelConfig& config, const CudaEngineOptions& options) {
        recording_.open();
        RunInfo info;
        info.name = fmt::format("{} on {}, {} sequences of {} tokens", findMethod(job.method).title, job.shape,
                                job.batch, job.context);
        info.model = job.shape + " (random weights)";
        info.method = job.method;
        info.paramsJson = Json{{"offload", job.offload},
                               {"planted_locality", job.gamma},
                               {"context", job.context},
                               {"batch", job.batch},
                               {"cache_policy", job.leastRecentlyUsed ? "lru" : "keep-selected"}}
                              .dump();
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
        info.blockBytes = options.quantised ? options.quantised->blockBytes()
                                            : std::int64_t(cuda::blockBytes(options.spec.blockSize, config.headDim));
        info.level = job.level;
        recording_.sink().beginRun(info);
        if (gpuTrace() == nullptr) return;
        engine.settle();
        gpuTrace()->endRun();
        gpuTrace()->beginRun(recording_.sink());
    }
    void add(const StepRecord& record, int step) {
        auto copy = recording_.sink().acquire();
        *copy = record;
        copy->step = step;
        copy->tokens = int(copy->generated.size());
        recording_.sink().take(std::move(copy));
    }
    /// @throws Error(Storage) where the file does not hold the whole run
    void end(CudaEngine& engine) {
        if (gpuTrace() != nullptr) {
            engine.settle();
            gpuTrace()->endRun();
        }
        recording_.sink().endRun(RunStatus::Finished, {});
        recording_.finish();
    }

private:
    RunRecording recording_;
};

constexpr int kSpareTokens = 16; // beyond the last step

/// The share of candidates that must draw anew each step for a selection of this locality.
float drawShare(const SelectionSpec& spec, double gamma, int blocks) {
    if (gamma < 0) return -1;
    const double changing = spec.budget.queryAware, total = spec.budgetBlocks();
    const double candidates = std::max(1.0, double(blocks) - (total - changing));
    if (changing <= 0) return 0;
    const double leave = std::min(1.0, (1 - gamma) * total / changing);
    return float(std::min(1.0, leave / std::max(0.05, 1 - changing / candidates)));
}

ParameterValues parametersOf(const DecodeJob& job, const MethodEntry& method, const ModelConfig& config) {
    ParameterValues values = resolveDefaults(method, config);
    for (const auto& [key, value] : job.parameters) values.set(method.parameters, key, value);
    return values;
}

/// The least time of a step in seconds: it must read weights, attended keys and values, and the index.
double floorSeconds(const DecodeJob& job, const SelectionSpec& method, const ModelConfig& config, double readRate) {
    DecodeScenario scenario;
    scenario.model = findModelShape(job.shape);
    scenario.gpu.readGbps = readRate / 1e9;
    scenario.gpu.tflops = scenario.gpu.linkGbps = 1;
    scenario.gpu.memoryGib = 1e6; // no limit here: the run itself shows whether it fits
    scenario.method = method;
    scenario.context = job.context;
    scenario.batch = job.batch;
    if (job.offload) {
        scenario.placement = Placement::OnDemand;
        scenario.blockBytes = kvFormat(Backend::Cuda, config, method, job.kvType).blockBytes();
    }
    return predictStep(scenario).hbmNs / 1e9;
}

/// Sums over the measured steps.
struct Sums {
    std::int64_t steps = 0, gpuNs = 0, hits = 0, misses = 0, ahead = 0, late = 0, h2dBytes = 0, d2hBytes = 0,
                 exposedNs = 0;
    std::array<std::int64_t, kStageCount> stageNs{};

    void add(const StepRecord& record, std::int64_t stepNs) {
        for (const LayerRecord& layer : record.layers) {
            hits += layer.hits, misses += layer.misses;
            h2dBytes += layer.h2dBytes, d2hBytes += layer.d2hBytes;
            exposedNs += layer.exposedNs;
            for (std::size_t s = 0; s < stageNs.size(); ++s) stageNs[s] += layer.stageNs[s];
        }
        for (const SelectionRecord& selection : record.selections) {
            if (selection.predicted < 0) continue;
            ahead += selection.misses + selection.wasted, late += selection.late;
        }
        gpuNs += stepNs;
        ++steps;
    }
    double perStep(std::int64_t sum) const { return double(sum) / double(std::max<std::int64_t>(1, steps)); }
};

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

} // namespace

CudaEngineOptions engineOptions(const DecodeJob& job, const DeviceModel& model, PlantedSteps& changes) {
    const ModelConfig& config = model.config;
    const MethodEntry& method = findMethod(job.method);
    CudaEngineOptions options;
    options.method.parameters = parametersOf(job, method, config);
    options.spec = method.make(options.method.parameters, config);
    options.method.makeSelector = method.deviceMaker(options.method.parameters);
    options.offload = job.offload;
    options.halves = select::overlapsHalves(options.method.parameters);
    options.transfers.aheadBlocks = job.aheadBlocks;
    options.transfers.loop = job.transferLoop;
    if (job.kvType.value_or(KvType::BF16) != KvType::BF16) {
        options.quantised = kvFormat(Backend::Cuda, config, options.spec, job.kvType);
        cuda::checkQuantisedFormat(*options.quantised);
    }
    const SelectionSpec& spec = options.spec;
    if (!model.evictionHead) options.spec.bias.scale = 0;
    const int tokens = job.context + job.steps + kSpareTokens, blocks = spec.grid.blocks(tokens);
    options.maxTokens.assign(job.batch, tokens);
    options.promptTokens.assign(job.batch, job.context);
    const MethodUse use{options.method.parameters, spec, config, Backend::Cuda, job.offload, nullptr, job.kvType};
    refuseUnable(method, use, tokens);
    options.method.abilities = abilitiesOf(method, use);
    options.plans =
        LayerPlans(config, spec, {job.offload, method.makeSelector != nullptr, options.method.abilities.ahead, tokens});
    changes.planted = spec.dense ? -1 : drawShare(spec, job.gamma, blocks);
    if (job.storedSequences > 0 && job.storedSequences < job.batch) {
        if (spec.queryScore == QueryScore::RangeBound || spec.rewritesKeys || options.plans.offloaded() < config.layers)
            throw Error(ErrorKind::Unsupported,
                        fmt::format("sequences cannot share blocks on the host under method {}: some of what they "
                                    "share is on the GPU",
                                    method.name),
                        "leave stored-sequences out");
        if (changes.planted < 0)
            throw Error(ErrorKind::Unsupported,
                        "sequences that share blocks on the host write over each other's keys, which the model's own "
                        "selection would go by",
                        "plant the selection with --set planted=0.9, or leave stored-sequences out");
        changes.stored = job.storedSequences;
    }
    const int slots = std::max(spec.budgetBlocks() + spec.spareSlots, spec.deviceSlots);
    if (!spec.dense) options.slots = std::min(job.slots > 0 ? job.slots : slots, blocks);
    // As in a session: keep-selected would leave spare slots empty.
    changes.moveBlocks = job.moveBlocks;
    options.leastRecentlyUsed = job.leastRecentlyUsed || (spec.deviceSlots > 0 && job.slots == 0);
    options.record = job.record;
    options.level = job.level;
    return options;
}

std::size_t hostStoreBytes(const DecodeJob& job) {
    if (!job.offload) return 0;
    const ModelConfig config = configOf(findModelShape(job.shape), job.context);
    const MethodEntry& method = findMethod(job.method);
    const SelectionSpec spec = method.make(parametersOf(job, method, config), config);
    if (spec.ownDeviceTier) return 0; // such a method does not use the common store
    const int blocks = spec.grid.blocks(job.context + job.steps + kSpareTokens);
    const int stored = job.storedSequences > 0 ? std::min(job.storedSequences, job.batch) : job.batch;
    return Elements(config.layers, config.kvHeads, stored, blocks,
                    kvFormat(Backend::Cuda, config, spec, job.kvType).blockBytes());
}

Json measureDecode(const DecodeJob& job, const std::shared_ptr<const DeviceModel>& model, const Ceilings& ceilings,
                   const PinnedMemory* store) {
    const ModelConfig& config = model->config;
    PlantedSteps changes;
    CudaEngineOptions options = engineOptions(job, *model, changes);
    options.changes = &changes;
    options.store = store;
    BenchRecording recording(job); // made before the engine, which uses its GPU recorder
    options.trace = recording.gpuTrace();
    CudaEngine engine(model, options);
    fillContext(engine, job.context, 7);
    if (recording.records()) recording.begin(job, engine, config, options);
    std::string refusal;
    const auto counters = PcieCounters::open(gpuBusId(), refusal);
    PcieBytes before;

    StepRecord record;
    std::vector<ActiveSequence> active;
    for (int s = 0; s < job.batch; ++s) active.push_back({RowId{s}, 0});
    Sums sums;
    const int warm = std::min(8, job.steps / 4);
    Numbered<Clock::time_point> ends{Clock::now()};
    engine.launch(1);
    for (int step = 0; step < job.steps; ++step) {
        if (step + 1 < job.steps) engine.launch(step + 2);
        engine.wait();
        ends.push_back(Clock::now());
        if (step + 1 == warm && counters != nullptr) before = counters->total();
        if (!job.record || (step < warm && !recording.records())) continue;
        record.clear();
        engine.fill(record, active);
        if (recording.records()) {
            for (int s = 0; s < job.batch; ++s)
                record.generated.push_back({s, engine.tokens()[std::size_t(s)], job.context + step + 1, {}});
            recording.add(record, step + 1);
        }
        if (step >= warm) sums.add(record, engine.stepNs());
    }
    const PcieBytes after = counters != nullptr ? counters->total() : PcieBytes();
    if (recording.records()) recording.end(engine);
    const auto between = [&](int first, int last) { // mean of steps [first, last), seconds
        return seconds(ends[last] - ends[first]) / (last - first);
    };
    const double stepTime = between(warm, job.steps), floor = floorSeconds(job, options.spec, config, ceilings.read);
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
             {"us_a_layer_above_floor", (stepTime - floor) / config.layers * 1e6},
             {"gpu_gib", double(engine.deviceBytes()) / (1 << 30)},
             {"host_gib", double(engine.hostBytes()) / (1 << 30)}};
    if (options.quantised) out["kv_type"] = nameOf(options.quantised->type);
    for (const auto& [key, value] : job.parameters) out["parameters"][key] = value;
    if (job.aheadBlocks > 0) out["ahead_blocks"] = job.aheadBlocks;
    if (engine.transferLoop()) out["transfers"] = "one kernel per step";
    if (job.storedSequences > 0 && job.storedSequences < job.batch) out["stored_sequences"] = job.storedSequences;
    if (!job.moveBlocks) out["moves_blocks"] = false;
    if (job.equivalentBatch > 0) out["equivalent_batch"] = job.equivalentBatch;
    if (!job.note.empty()) out["note"] = job.note;
    if (const std::string remark = recording.pcieRemark(); !remark.empty()) out["pcie_remark"] = remark;
    if (job.steps >= 1200) out["tokens_200_to_1200_over_1_to_4"] = between(0, 4) / between(200, 1200);
    if (counters != nullptr && job.offload) {
        out["pcie_counter_h2d_mb_per_step"] = double(after.received - before.received) / (job.steps - warm) * 1e-6;
        out["pcie_counter_d2h_mb_per_step"] = double(after.sent - before.sent) / (job.steps - warm) * 1e-6;
    }
    if (sums.steps == 0) return out;
    out["gpu_step_ms"] = sums.perStep(sums.gpuNs) * 1e-6;
    if (sums.hits + sums.misses > 0) out["hit_rate"] = double(sums.hits) / double(sums.hits + sums.misses);
    if (job.offload) {
        out["h2d_mb_per_step"] = sums.perStep(sums.h2dBytes) * 1e-6;
        out["d2h_mb_per_step"] = sums.perStep(sums.d2hBytes) * 1e-6;
        out["link_floor_ms"] = sums.perStep(sums.h2dBytes) / ceilings.copy * 1e3;
        out["exposed_ms"] = sums.perStep(sums.exposedNs) * 1e-6;
        if (sums.ahead > 0) out["late_share"] = double(sums.late) / double(sums.ahead);
    }
    for (std::size_t s = 0; s < sums.stageNs.size(); ++s)
        if (sums.stageNs[s] > 0)
            out["stage_us_" + std::string(kStageNames[s])] = sums.perStep(sums.stageNs[s]) / config.layers * 1e-3;
    return out;
}

std::string describe(const Json& row) {
    std::string text = fmt::format("{:9} {:9} {:6} tokens, batch {:3}, {:9} {:7.3f} ms, {:8.1f} tokens/s, floor {:.3f}",
                                   row["shape"].get<std::string>(), row["method"].get<std::string>(),
                                   row["context"].get<int>(), row["batch"].get<int>(),
                                   row["offload"].get<bool>() ? "offload," : "resident,", row["step_ms"].get<double>(),
                                   row["tokens_per_s"].get<double>(), row["floor_over_step"].get<double>());
    if (row.contains("hit_rate")) text += fmt::format(", hits {:.3f}", row["hit_rate"].get<double>());
    if (row.contains("moves_blocks"))
        text += ", nothing moved";
    else if (row.contains("exposed_ms"))
        text += fmt::format(", {:.1f} MB, exposed {:.3f} ms", row["h2d_mb_per_step"].get<double>(),
                            row["exposed_ms"].get<double>());
    return text;
}

} // namespace kvscope::bench

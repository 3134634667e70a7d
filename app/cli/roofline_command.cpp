// kvscope-cli roofline: what a decode step costs at best on a GPU, and how near a recorded run came to it.
#include "app/cli/cold_option.h"
#include "app/cli/commands.h"
#include "app/cli/json_number.h"
#include "app/cli/long_action.h"
#include "app/cli/run_choice.h"
#include "app/cli/setting_options.h"
#include "app/cli/vain.h"
#include "app/cli/waterfall_json.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "bench/limits.h"
#include "core/model/model.h"
#include "core/select/method.h"
#include "core/trace/run_meta.h"
#include "core/transfer/link.h"
#include "profiler/roofline/measured_run.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct RooflineArguments {
    std::string shape, model, trace, gpu, table, link, method, measure;
    std::vector<std::string> settings, hitRates;
    std::vector<int> contexts, batches;
    double latencyUs = -1, kvGib = 0;
    int run = 0, slots = 0;
    bool list = false, json = false, waterfall = false;
};

Json toJson(const GpuSpec& gpu) {
    Json out{{"name", gpu.name},          {"title", gpu.title},
             {"link", gpu.link},          {"read_gbps", gpu.readGbps},
             {"tflops", gpu.tflops},      {"memory_gib", gpu.memoryGib},
             {"link_gbps", gpu.linkGbps}, {"latency_us", gpu.latencyUs},
             {"cache_mib", gpu.cacheMib}, {"cache_read_gbps", gpu.cacheReadGbps},
             {"host_gib", gpu.hostGib},   {"measured", gpu.measured},
             {"note", gpu.note}};
    return out;
}

int listGpus(const RooflineArguments& arguments) {
    const GpuTable table = GpuTable::load(arguments.table);
    if (arguments.json) {
        Json out{{"gpus", Json::array()}};
        for (const GpuSpec& gpu : table.all()) out["gpus"].push_back(toJson(gpu));
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
        return 0;
    }
    printOut("{:<15} {:<34} {:>11} {:>10} {:>8} {:>11} {:>8}\n", "name", "GPU", "read GB/s", "TFLOP/s", "GiB",
             "link GB/s", "us");
    for (const GpuSpec& gpu : table.all()) {
        const auto cell = [&](const char* key, double value) {
            return fmt::format("{:.4g}{}", value, gpu.isMeasured(key) ? "*" : " ");
        };
        printOut("{:<15} {:<34} {:>11} {:>10} {:>8} {:>11} {:>8}\n", gpu.name, gpu.title,
                 cell("read_gbps", gpu.readGbps), cell("tflops", gpu.tflops), cell("memory_gib", gpu.memoryGib),
                 cell("link_gbps", gpu.linkGbps), cell("latency_us", gpu.latencyUs));
    }
    printOut("*measured; the others are nominal\n");
    return 0;
}

int measureHere(const RooflineArguments& arguments) {
    const std::string file = arguments.table.empty() ? userGpuFile() : arguments.table;
    checkGpuFile(file);
    const bench::Log log = [](std::string_view line) { printErr("  {}\n", line); };
    GpuSpec spec;
    if (arguments.measure == "cpu") {
        spec = bench::measureCpu(log);
    } else {
        try {
            spec = bench::measureGpu(log);
        } catch (const Error& error) {
            if (arguments.measure == "gpu") throw;
            printErr("  {}: measuring the processor\n", error.what());
            spec = bench::measureCpu(log);
        }
    }
    saveGpu(spec, file);
    if (arguments.json)
        printOut("{}\n", toJson(spec).dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printOut("'{}' ({}) is now in {}\n", spec.name, spec.title, file);
    return 0;
}

/// Selection method with its parameters on top of the model's own defaults.
SelectionSpec methodOf(const RooflineArguments& arguments, const ModelShape& shape, const ModelConfig& config) {
    const std::string name = !arguments.method.empty() ? arguments.method : shape.evictionHead ? "nosa" : "infllmv2";
    const MethodEntry& method = findMethod(name);
    ParameterValues values = resolveDefaults(method, config);
    for (const auto& [key, value] : parseSettings("--set", arguments.settings))
        values.set(method.parameters, key, value);
    return method.make(values, config);
}

double hitRateOf(const std::string& text, const SelectionSpec& method) {
    if (text == "bound") return localityBound(method);
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 1))
        throw Error(ErrorKind::BadInput, fmt::format("cannot read --hit-rate '{}'", text),
                    "give 0 to 1, or bound for 1 - k_q/k");
    return value;
}

struct Row {
    std::string name;
    DecodeScenario scenario;
    StepCost cost;
};

Json toJson(const StepCost& cost) {
    return {{"sequences_that_fit", cost.fits},
            {"decoded_together", cost.batch},
            {"step_ms", numberOrNull(cost.stepNs / 1e6)},
            {"tokens_per_s", cost.tokensPerSecond},
            {"bound_by", nameOf(cost.binding)},
            {"hbm_ms", cost.hbmNs / 1e6},
            {"compute_ms", cost.computeNs / 1e6},
            {"link_ms", cost.linkNs / 1e6},
            {"critical_path_ms",
             {{"hbm", cost.hbmBoundNs / 1e6}, {"compute", cost.computeBoundNs / 1e6}, {"link", cost.exposedNs / 1e6}}},
            {"weight_bytes", cost.weightBytes},
            {"kv_bytes", cost.kvBytes},
            {"index_bytes", cost.indexBytes},
            {"operations", cost.operations},
            {"h2d_bytes", cost.linkBytes},
            {"d2h_bytes", cost.writeBackBytes}};
}

std::vector<Row> predictAll(const RooflineArguments& arguments, DecodeScenario base,
                            const std::vector<std::string>& hitRates) {
    SelectionSpec full;
    full.dense = true;
    std::vector<Row> rows;
    const std::string method = !arguments.method.empty() ? arguments.method
                               : base.model.evictionHead ? "nosa"
                                                         : "infllmv2";
    const SelectionSpec sparse = base.method;
    for (const int context : arguments.contexts)
        for (const int batch : arguments.batches) {
            base.context = context;
            base.batch = batch;
            const auto add = [&](const std::string& name, const SelectionSpec& spec, Placement placement, double hits) {
                DecodeScenario scenario = base;
                scenario.method = spec;
                scenario.placement = placement;
                scenario.hitRate = hits;
                scenario.deviceSlots = spec.dense || placement == Placement::Resident ? 0 : arguments.slots;
                rows.push_back({name, scenario, predictStep(scenario)});
            };
            add("full", full, Placement::Resident, 1);
            if (sparse.dense) continue;
            add(method, sparse, Placement::Resident, 1);
            for (const Placement placement : {Placement::OnDemand, Placement::Lookahead})
                for (const std::string& text : hitRates) add(method, sparse, placement, hitRateOf(text, sparse));
        }
    return rows;
}

void printRows(const std::vector<Row>& rows) {
    printOut("{:<10} {:<10} {:>8} {:>6} {:>6} {:>6} {:>9} {:>8} {:>8} {:>8} {:>10}  {}\n", "method", "KV", "context",
             "batch", "at once", "hits", "step ms", "HBM ms", "comp ms", "link ms", "tokens/s", "bound by");
    for (const Row& row : rows) {
        const StepCost& c = row.cost;
        const bool link = row.scenario.placement != Placement::Resident;
        printOut("{:<10} {:<10} {:>8} {:>6} {:>7} {:>6} {:>9} {:>8.3f} {:>8.3f} {:>8} {:>10.1f}  {}\n", row.name,
                 nameOf(row.scenario.placement), row.scenario.context, row.scenario.batch, c.batch,
                 link ? fmt::format("{:.3g}", row.scenario.hitRate) : "-",
                 c.batch > 0 ? fmt::format("{:.3f}", c.stepNs / 1e6) : "-", c.hbmNs / 1e6, c.computeNs / 1e6,
                 link ? fmt::format("{:.3f}", c.linkNs / 1e6) : "-", c.tokensPerSecond,
                 c.batch > 0 ? nameOf(c.binding) : fmt::format("{}: not one sequence fits", nameOf(c.binding)));
    }
}

struct Recorded {
    MeasuredRun run;
    ModelShape shape;
    RunBesideFloor comparison;
};

std::string known(double value, int digits) {
    return std::isnan(value) ? "not known" : fmt::format("{:.{}f}", value, digits);
}

void printRecorded(const Recorded& recorded) {
    const auto& [run, shape, comparison] = recorded;
    printOut("run {}: {}; a batch of {:.3g} at {:.0f} tokens, mean of {} decode steps{}\n", run.row.runId, run.row.name,
             run.batch, run.context, run.steps,
             run.leftOut.empty() ? "" : fmt::format(", {} cold left out", run.leftOut.size()));
    printOut("  measured   {:>9.3f} ms {:>10.1f} tokens/s", run.stepNs / 1e6, run.tokensPerSecond);
    if (run.offloaded())
        printOut(", hits {}, {} MB over the link, exposed {}", known(run.hitRate, 3), known(run.linkBytes / 1e6, 2),
                 run.row.knows.has(Known::ExposedTimes)
                     ? fmt::format("{:.3f} ms ({})", run.exposedNs / 1e6, run.row.timing.text())
                     : "not known");
    printOut("\n  predicted  {:>9.3f} ms {:>10.1f} tokens/s", comparison.predictedNs / 1e6,
             run.batch / comparison.predictedNs * 1e9);
    if (run.offloaded())
        printOut(", {:.2f} MB over the link, exposed {:.3f} ms", comparison.predicted.linkBytes / 1e6,
                 comparison.predicted.exposedNs / 1e6);
    printOut(", bound by {}\n  predicted / measured {:.3f}: {}\n", nameOf(comparison.predicted.binding),
             comparison.shareOfFloor, comparison.why);
    if (run.offloaded() && !run.linkMeasured())
        printOut("  the link's time is modelled in this run and in neither of the two times\n");
    if (comparison.aboveRoof)
        printOut("  above its roof: look at the sentence before, one of these numbers is wrong\n");
    if (!run.methodKnown)
        printOut("  '{}' is not one of KVScope's methods: the prediction counts what it attends, not how it chooses\n",
                 run.row.method);
    printOut("\n");
}

Json toJson(const Recorded& recorded) {
    const auto& [run, shape, comparison] = recorded;
    const auto parts = [](const StepParts& p) {
        return Json{{"projections", p.projectionsNs / 1e6},
                    {"selection", p.selectionNs / 1e6},
                    {"attention", p.attentionNs / 1e6},
                    {"exposed", p.exposedNs / 1e6},
                    {"other", p.otherNs / 1e6}};
    };
    Json out{{"run_id", run.row.runId},
             {"name", run.row.name},
             {"shape", shape.name},
             {"method", run.row.method},
             {"method_known", run.methodKnown},
             {"cold_steps", run.coldSteps},
             {"cold_left_out", !run.leftOut.empty()},
             {"offloaded", run.offloaded()},
             {"context", run.context},
             {"batch", run.batch},
             {"hit_rate", numberOrNull(run.hitRate)},
             {"steps", run.steps},
             {"link_timing", run.row.timing.text()},
             {"measured",
              {{"step_ms", run.stepNs / 1e6},
               {"tokens_per_s", run.tokensPerSecond},
               {"exposed_ms", run.row.knows.has(Known::ExposedTimes) ? Json(run.exposedNs / 1e6) : Json()},
               {"h2d_bytes", numberOrNull(run.linkBytes)},
               {"parts_ms", parts(run.parts)}}},
             {"predicted", toJson(comparison.predicted)},
             {"predicted_ms", numberOrNull(comparison.predictedNs / 1e6)},
             {"predicted_over_measured", numberOrNull(comparison.shareOfFloor)},
             {"above_roof", comparison.aboveRoof},
             {"why", comparison.why}};
    out["predicted"]["parts_ms"] = parts(comparison.predicted.parts);
    if (run.row.prompts.inPieces()) out["mixed_steps"] = run.mixedSteps;
    return out;
}

std::string machineOf(const RunRow& run) {
    const std::string& processor = run.metaOr(run_meta::kProcessor);
    return run.backend == RunBackend::Cpu && !processor.empty() ? fmt::format("{} ({})", processor, run.device)
                                                                : run.device;
}

/// The shape and the configuration of the model that is predicted: the one that is named, else the run's, else
/// nosa-8b's.
/// @throws Error(BadInput) where the run does not say its model's shape, or has another one
std::pair<ModelShape, ModelConfig> modelOf(const RooflineArguments& arguments, const std::optional<MeasuredRun>& run) {
    const auto fitting = [&](ModelShape shape, ModelConfig config) {
        if (run && !fitsRun(shape, run->row))
            throw Error(ErrorKind::BadInput,
                        fmt::format("the shape {} is not that of the run's model '{}'", shape.name, run->row.model),
                        "its layers, heads or head dimension are others");
        return std::pair(std::move(shape), std::move(config));
    };
    if (!arguments.model.empty()) {
        const auto model = loadModel(arguments.model);
        return fitting(shapeOf(*model), model->config());
    }
    std::optional<ModelShape> shape;
    if (!arguments.shape.empty())
        shape = findModelShape(arguments.shape);
    else if (run)
        shape = shapeOfRun(run->row);
    else
        shape = findModelShape("nosa-8b");
    if (!shape)
        throw Error(ErrorKind::BadInput,
                    run->row.model.empty()
                        ? "the trace does not say of which model it is, so it has no roof"
                        : fmt::format("the trace does not say what its model '{}' looks like, so it has no roof",
                                      run->row.model),
                    "name the model with --model, or its shape with --shape; traces of this version say it");
    return fitting(*shape, configOf(*shape, 1 << 20));
}

/// The machine that is predicted: the one that is named, else the run's, else the table's preferred one, with the link
/// that is named. @throws Error(BadInput) where the table lacks it
GpuSpec machineFor(const RooflineArguments& arguments, const GpuTable& table, const std::optional<MeasuredRun>& run) {
    GpuSpec gpu;
    if (!arguments.gpu.empty()) {
        gpu = table.get(arguments.gpu);
    } else if (run) {
        const GpuSpec* own = gpuOfRun(table, run->row);
        if (own == nullptr)
            throw Error(ErrorKind::BadInput,
                        fmt::format("the table has no entry for the machine of the run, '{}'", machineOf(run->row)),
                        "measure this machine with kvscope-cli roofline --measure, or choose an entry with --gpu");
        gpu = *own;
    } else {
        gpu = table.preferred();
    }
    if (!arguments.link.empty()) {
        const Link link = Link::parse(arguments.link);
        gpu.link = link.name;
        gpu.linkGbps = link.gigabytesPerSecond;
        std::erase(gpu.measured, "link_gbps");
    }
    if (arguments.latencyUs >= 0) gpu.latencyUs = arguments.latencyUs;
    return gpu;
}

/// Takes method, context, batch and hit rate from the run, where the arguments do not name them.
void takeFromRun(RooflineArguments& arguments, DecodeScenario& base, const ModelConfig& config,
                 const MeasuredRun& run) {
    if (run.row.backend == RunBackend::Cpu) base.bytesPerElement = 4;
    const bool named = !arguments.method.empty() || !arguments.settings.empty();
    if (!named && (!run.methodKnown || !run.method.dense)) {
        arguments.method = run.row.method;
        base.method = run.method;
    } else {
        base.method = methodOf(arguments, base.model, config);
    }
    if (arguments.contexts.empty()) arguments.contexts = {std::max(1, int(std::lround(run.context)))};
    if (arguments.batches.empty()) arguments.batches = {std::max(1, int(std::lround(run.batch)))};
    if (arguments.hitRates.empty() && run.offloaded() && !std::isnan(run.hitRate))
        arguments.hitRates = {fmt::format("{:.4f}", run.hitRate)};
}

void printPredicted(const DecodeScenario& base, const std::vector<Row>& rows, const std::optional<Recorded>& recorded) {
    printOut("{} on {}: {:.4g} GB/s, {:.4g} TFLOP/s, {:.4g} GiB; link {:.4g} GB/s + {:.3g} us{}\n\n", base.model.name,
             base.gpu.title, base.gpu.readGbps, base.gpu.tflops, base.gpu.memoryGib, base.gpu.linkGbps,
             base.gpu.latencyUs, base.gpu.isMeasured("read_gbps") ? " (measured)" : " (nominal)");
    if (recorded) printRecorded(*recorded);
    printRows(rows);
    printOut(
        "all predicted: no step is faster than its bytes and operations allow; docs/roofline.md has the formulas\n");
}

Json jsonOfPredicted(const DecodeScenario& base, const std::vector<Row>& rows,
                     const std::optional<Recorded>& recorded) {
    Json out{{"shape", base.model.name},
             {"gpu", toJson(base.gpu)},
             {"hit_rate_bound", localityBound(base.method)},
             {"kv_gib", base.kvGib},
             {"configs", Json::array()}};
    for (const Row& row : rows) {
        const bool resident = row.scenario.placement == Placement::Resident;
        Json entry{{"method", row.name},
                   {"placement", nameOf(row.scenario.placement)},
                   {"context", row.scenario.context},
                   {"batch", row.scenario.batch},
                   {"hit_rate", resident ? Json(nullptr) : Json(row.scenario.hitRate)}};
        entry.update(toJson(row.cost));
        out["configs"].push_back(std::move(entry));
    }
    if (recorded) out["recorded"] = toJson(*recorded);
    out["configs_are"] = "predicted";
    return out;
}

int predict(RooflineArguments arguments) {
    refuseRepeated("--context", arguments.contexts);
    refuseRepeated("--batch", arguments.batches);
    refuseRepeated("--hit-rate", arguments.hitRates, sameNumber);
    const GpuTable table = GpuTable::load(arguments.table);
    std::optional<MeasuredRun> run;
    std::string broken;
    if (!arguments.trace.empty()) {
        const TraceReader reader(arguments.trace);
        const int runId = chooseRun(reader, arguments.run);
        run = measuredRun(reader, runId);
        broken = remarkOnBrokenRules(reader, runId);
    }
    DecodeScenario base;
    ModelConfig config;
    std::tie(base.model, config) = modelOf(arguments, run);
    base.gpu = machineFor(arguments, table, run);
    base.kvGib = arguments.kvGib;
    std::optional<Recorded> recorded;
    if (run) {
        recorded = Recorded{*run, base.model, compare(*run, base.model, base.gpu)};
        takeFromRun(arguments, base, config, *run);
    } else {
        base.method = methodOf(arguments, base.model, config);
    }
    if (arguments.contexts.empty()) arguments.contexts = {16384, 131072};
    if (arguments.batches.empty()) arguments.batches = {1, 16, 64};
    for (const auto& [option, given] :
         {std::pair("--slots", arguments.slots > 0), {"--hit-rate", !arguments.hitRates.empty()}})
        if (given && base.method.dense)
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} has no effect with a method that keeps every block on the device", option),
                        "leave it out, or choose a method that selects blocks");
    if (arguments.hitRates.empty()) arguments.hitRates = {"bound", "0.95"};
    if (arguments.slots > 0 && !base.method.dense && arguments.slots < base.method.budgetBlocks())
        throw Error(ErrorKind::BadInput,
                    fmt::format("--slots {} is fewer than the {} blocks attended at a time", arguments.slots,
                                base.method.budgetBlocks()),
                    "give at least as many");
    const std::vector<Row> rows = predictAll(arguments, base, arguments.hitRates);
    if (arguments.json) {
        Json out = jsonOfPredicted(base, rows, recorded);
        if (!broken.empty()) out["broken_rules"] = broken;
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        printPredicted(base, rows, recorded);
    }
    return 0;
}

/// The recorded run's losses, against its own model and machine where no others are named.
int explain(const RooflineArguments& arguments) {
    const GpuTable table = GpuTable::load(arguments.table);
    const TraceReader reader(arguments.trace);
    const int runId = chooseRun(reader, arguments.run);
    const std::optional<MeasuredRun> run = measuredSteps(reader, runId);
    NamedRoof named;
    if (!arguments.model.empty() || !arguments.shape.empty()) named.shape = modelOf(arguments, run).first;
    if (!arguments.gpu.empty() || !arguments.link.empty() || arguments.latencyUs >= 0)
        named.gpu = machineFor(arguments, table, run);
    const Waterfall waterfall = waterfallOf(reader, runId, table, named);
    const std::string broken = remarkOnBrokenRules(reader, runId);
    if (arguments.json) {
        Json out = waterfallJson(waterfall);
        if (!broken.empty()) out["broken_rules"] = broken;
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        printWaterfall(waterfall);
    }
    return 0;
}

int run(const RooflineArguments& arguments) {
    if (!arguments.measure.empty()) return measureHere(arguments);
    if (arguments.waterfall) return explain(arguments);
    return arguments.list ? listGpus(arguments) : predict(arguments);
}

} // namespace

Command addRoofline(Options& program) {
    auto arguments = std::make_shared<RooflineArguments>();
    Options sub = program.command("roofline",
                                  "Predict decode throughput from bytes, operations and the link, and what limits it");
    const Option shape =
        sub.add("--shape", arguments->shape, "A published model shape, e.g. nosa-8b; an unknown name lists all");
    const Option model =
        sub.add("--model", arguments->model, "Folder or name of a model, in place of a published shape")
            .excludes(shape);
    const Option trace = sub.add(
        "--trace", arguments->trace,
        "A recorded run, beside what is predicted for it; --measure first where the GPU table lacks its machine");
    sub.add("--run", arguments->run, "Run of the trace; default: the last").needs(trace).range(1, 255);
    std::vector<Option> ofPredictions{
        shape, model, trace,
        sub.add("--gpu", arguments->gpu, "Entry of the GPU table; default: this machine's, else the first")};
    sub.add("--gpus", arguments->table, "A GPU table of your own, over the built-in one");
    Option list = sub.flag("--list-gpus", arguments->list, "Print the GPU table");
    Option measure =
        sub.add("--measure", arguments->measure,
                "Measure this machine and write it into your GPU table: gpu, cpu, or auto (a GPU if there is one)")
            .valueOptional("auto")
            .oneOf({"auto", "gpu", "cpu"})
            .excludes(list);
    const auto predicts = [&](const Option& option) { ofPredictions.push_back(option); };
    predicts(sub.add("--link", arguments->link, "pcie4, pcie5 or GB/s instead of the GPU's own link"));
    predicts(sub.add("--latency", arguments->latencyUs, "Microseconds per transfer instead of the GPU's own")
                 .range(0.0, 1e9));
    Option waterfall = sub.flag("--waterfall", arguments->waterfall,
                                "What keeps the recorded run from its roof: a line for every loss, in place of the "
                                "predictions")
                           .needs(trace);
    predicts(waterfall);
    const auto predictsOthers = [&](const Option& option) { // for options that describe steps which were not recorded
        predicts(option);
        waterfall.excludes(option);
    };
    predictsOthers(
        sub.add("--method", arguments->method, "Sparse method; default: nosa with an eviction head, else infllmv2"));
    predictsOthers(sub.add("--set", arguments->settings, "A parameter of the method, key=value"));
    predictsOthers(sub.add("--context", arguments->contexts, "Tokens per sequence, e.g. 16384,65536")
                       .commaSeparated()
                       .range(1, 1 << 28));
    predictsOthers(
        sub.add("--batch", arguments->batches, "Sequences, e.g. 1,16,64").commaSeparated().range(1, 1 << 20));
    predictsOthers(sub.add("--hit-rate", arguments->hitRates,
                           "Shares of selected blocks found on the device, or bound (1 - k_q/k)")
                       .commaSeparated());
    predictsOthers(sub.add("--slots", arguments->slots,
                           "Block slots per sequence, layer and KV head; default: the method's budget")
                       .notNegative());
    predictsOthers(
        sub.add("--kv-memory", arguments->kvGib, "GiB of device memory for KV, to compare methods at equal memory")
            .notNegative());
    for (const Option& option : ofPredictions) list.excludes(option), measure.excludes(option);
    sub.flag("--json", arguments->json, "Print one JSON document");
    addColdOption(sub).needs(trace);
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli

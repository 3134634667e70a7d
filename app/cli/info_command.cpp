// kvscope-cli info: what a model or a trace is, and which traces a folder holds.
#include "app/cli/cold_option.h"
#include "app/cli/commands.h"
#include "app/cli/folder_listing.h"
#include "app/cli/import_first.h"
#include "app/cli/json_number.h"
#include "app/cli/long_action.h"
#include "app/cli/rank_report.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "core/model/model.h"
#include "core/select/method.h"
#include "core/serve/serving_metrics.h"
#include "core/session/model_summary.h"
#include "core/session/products.h"
#include "core/trace/run_meta.h"
#include "profiler/check/check.h"
#include "profiler/import/import.h"
#include "profiler/read/counters.h"
#include "profiler/read/denoising.h"
#include "profiler/read/lookahead.h"
#include "profiler/read/needle_evidence.h"
#include "profiler/read/recording_cost.h"
#include "profiler/read/serving.h"
#include "profiler/read/span_totals.h"
#include "profiler/read/summary.h"
#include "profiler/read/trace_list.h"
#include "profiler/read/trace_reader.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InfoArguments {
    std::string subject;
    int context = 0, batch = 1; // memory is shown for these; context 0: the model's own
    int depth = 0;              // levels of subfolders that are listed too
    bool json = false;
};

/// Whether the file is a trace by its content: an SQLite file, or a file that can be imported as one. Its name does not
/// count.
bool looksLikeTrace(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return path.ends_with(".kvtrace");
    char magic[16] = {};
    std::ifstream(path, std::ios::binary).read(magic, sizeof(magic));
    return std::string_view(magic, 15) == "SQLite format 3" || path.ends_with(".kvtrace") || findImportFormat(path);
}

Json describeMemory(const Model& model, int context, int batch) {
    Json out{{"context_tokens", context}, {"batch", batch}, {"needs", Json::array()}};
    for (const SessionMemory& need : memoryNeeds(model, context, batch))
        out["needs"].push_back({{"method", need.method},
                                {"backend", nameOf(need.backend)},
                                {"host_bytes", need.hostBytes()},
                                {"device_bytes", need.deviceBytes()},
                                {"host_kv_bytes", need.hostKvBytes},
                                {"device_kv_bytes", need.deviceKvBytes},
                                {"index_bytes", need.indexBytes},
                                {"weight_bytes", need.hostWeightBytes + need.deviceWeightBytes},
                                {"block_slots", need.blockSlots}});
    return out;
}

Json describeModel(const InfoArguments& arguments) {
    const auto model = loadModel(arguments.subject);
    const ModelConfig& c = model->config();
    const ModelSummary s = summarize(*model);
    Json out{{"kind", "model"},
             {"name", s.name},
             {"architecture", s.architecture},
             {"family", s.family},
             {"layers", s.layers},
             {"hidden", s.hidden},
             {"query_heads", s.queryHeads},
             {"kv_heads", s.kvHeads},
             {"head_dim", s.headDim},
             {"attention", s.attention},
             {"ffn", s.ffn},
             {"feed_forward", s.feedForward},
             {"vocabulary", s.vocabulary},
             {"context_tokens", s.context},
             {"rope", s.rope},
             {"rope_type", nameOf(c.rope.type)},
             {"rope_factor", c.rope.factor},
             {"rope_theta", c.rope.theta},
             {"scales", s.scales},
             {"tied_embeddings", s.tiedEmbeddings},
             {"eviction_head", s.evictionHead},
             {"forecast_heads", s.forecastHeads},
             {"weights", s.weights},
             {"file_bytes", s.fileBytes},
             {"weight_bytes_per_token", s.weightBytesPerToken},
             {"kv_bytes_per_token_f32", s.kvBytesPerTokenCpu},
             {"kv_bytes_per_token_bf16", s.kvBytesPerTokenGpu},
             {"gpu_backend", s.gpuProblem.empty() ? "runs this model" : s.gpuProblem}};
    if (!s.notes.empty()) out["notes"] = s.notes;
    out["methods"] = Json::array();
    for (const MethodFit& fit : s.methods) {
        Json entry{{"name", fit.name}, {"applies", fit.applies}};
        if (!fit.remark.empty()) entry[fit.applies ? "remark" : "needs"] = fit.remark;
        if (fit.applies) {
            const MethodEntry& method = findMethod(fit.name);
            entry["defaults"] = Json::parse(resolveDefaults(method, c).toJson(parametersFor(method, c)));
        }
        out["methods"].push_back(std::move(entry));
    }
    out["memory"] = describeMemory(*model, arguments.context > 0 ? arguments.context : c.maxPositions, arguments.batch);
    return out;
}

std::string size(const Json& bytes) {
    constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = bytes.get<double>();
    int unit = 0;
    for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
    return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

void printModel(const Json& m) {
    const auto line = [](const char* key, const std::string& value) {
        if (!value.empty()) printOut("{:<16} {}\n", key, value);
    };
    line("model", fmt::format("{} ({}, {})", m["name"].get<std::string>(), m["family"].get<std::string>(),
                              m["architecture"].get<std::string>()));
    line("layers", fmt::format("{}, {} channels", m["layers"].dump(), m["hidden"].dump()));
    line("attention", m["attention"]);
    line("feed-forward", m["feed_forward"]);
    line("scales", m["scales"]);
    line("vocabulary", fmt::format("{} tokens, {} output head", m["vocabulary"].dump(),
                                   m["tied_embeddings"].get<bool>() ? "tied" : "separate"));
    line("context", fmt::format("{} tokens", m["context_tokens"].dump()));
    line("positions", fmt::format("RoPE {}", m["rope"].get<std::string>()));
    line("weights", fmt::format("{}, {} on disk, {} read per token", m["weights"].get<std::string>(),
                                size(m["file_bytes"]), size(m["weight_bytes_per_token"])));
    line("KV cache", fmt::format("{} per token in float32 (CPU), {} in bf16 (GPU)", size(m["kv_bytes_per_token_f32"]),
                                 size(m["kv_bytes_per_token_bf16"])));
    if (m["eviction_head"].get<bool>()) line("eviction head", "yes (NOSA, DMA)");
    if (m["forecast_heads"].get<bool>()) line("forecast heads", "yes (SparDA)");
    line("GPU backend", m["gpu_backend"]);
    for (const Json& note : m.value("notes", Json::array())) line("note", note);
    printOut("methods\n");
    for (const Json& method : m["methods"]) {
        const bool applies = method["applies"];
        const std::string remark = method.value(applies ? "remark" : "needs", "");
        printOut("  {:<16} {}{}\n", method["name"].get<std::string>(), applies ? "applies" : "does not apply",
                 remark.empty() ? "" : ": " + remark);
        if (applies && method["defaults"].size() > 0) printOut("  {:<16} {}\n", "", method["defaults"].dump());
    }
    const Json& memory = m["memory"];
    printOut("memory for {} x {} tokens (--context, --batch)\n", memory["batch"].dump(),
             memory["context_tokens"].dump());
    printOut("  {:<16} {:<8} {:>12} {:>12} {:>12} {:>12} {:>8}\n", "method", "backend", "weights", "KV host",
             "KV device", "index", "slots");
    for (const Json& need : memory["needs"])
        printOut("  {:<16} {:<8} {:>12} {:>12} {:>12} {:>12} {:>8}\n", need["method"].get<std::string>(),
                 need["backend"].get<std::string>(), size(need["weight_bytes"]), size(need["host_kv_bytes"]),
                 size(need["device_kv_bytes"]), size(need["index_bytes"]), need["block_slots"].dump());
}

/// Where rows break rules of the format: sets the numbers to null that this makes worthless, and adds how many rows
/// break a rule.
void refuseBroken(const RunCheck& check, Json& out) {
    if (const std::string left = check.leftOut(); !left.empty()) out["not_tested"] = left;
    if (check.violations() == 0) return;
    const std::pair<Concern, std::vector<const char*>> numbers[] = {
        {Concern::Times,
         {"prefill_ms", "decode_ms", "step_ms", "tokens_per_s", "tokens_per_s_with_gaps", "components"}},
        {Concern::Tokens, {"prompt_tokens", "tokens_per_s", "tokens_per_s_with_gaps", "answer", "answers"}},
        {Concern::Selection, {"locality_mean", "locality_min", "hits", "misses"}},
        {Concern::Hits, {"hits", "misses", "hit_rate", "lookahead"}},
        {Concern::Bytes, {"h2d_bytes", "d2h_bytes"}},
        {Concern::Transfer, {"transfer_ms"}},
        {Concern::Exposed, {"exposed_ms"}}};
    for (const auto& [concern, keys] : numbers)
        if (check.concerns(concern))
            for (const char* key : keys)
                if (out.contains(key)) out[key] = nullptr;
    out["violations"] = check.violations();
    out["violated_rules"] = check.sentence();
}

/// The numbers of a serving run. Percentiles have intervals; one with fewer than 10 samples beyond it is left out.
Json servingJson(const ServingSummary& serving, bool ofOurs) {
    const auto latency = [](const std::vector<double>& samples) {
        if (samples.empty()) return Json();
        Json out{{"samples", samples.size()}, {"median", serve::percentile(samples, 0.5)}, {"max", samples.back()}};
        if (const auto p99 = serve::shownPercentile(samples, 0.99)) out["p99"] = p99->value;
        return out;
    };
    // another engine may tell of its requests alone
    const Json iterations = ofOurs || serving.iterations > 0 ? Json(serving.iterations) : Json();
    return {{"requests", serving.requests},
            {"finished", serving.finished},
            {"refused", serving.refused},
            {"without_end", serving.open},
            {"iterations", iterations},
            {"tokens", serving.tokens},
            {"queue_ms", latency(serving.queueMs)},
            {"ttft_ms", latency(serving.ttftMs)},
            {"tbt_ms", latency(serving.tbtMs)}};
}

/// What recording added to the steps; null: nobody measured it.
Json recordingCostJson(const RecordingCost& cost) {
    if (!cost.known()) return {};
    Json out{{"text", cost.text()},
             {"way", cost.way == RecordingCost::Way::Compared ? "with and without" : "in the thread that decodes"},
             {"share", cost.share},
             {"steps", cost.steps}};
    if (cost.way != RecordingCost::Way::Compared) return out;
    out["plain_ms"] = cost.plainMs;
    out["recorded_ms"] = cost.recordedMs;
    out["wall_share"] = cost.recordedMs / cost.plainMs - 1;
    if (cost.tokensEqual) out["tokens_equal"] = *cost.tokensEqual;
    return out;
}

/// Describes an imported run, which has a timeline, but none of the numbers that other runs have.
Json describeImported(const TraceReader& reader, const RunRow& run) {
    const SpanTotals totals = spanTotals(reader, run.runId);
    Json imported{{"run_id", run.runId},
                  {"name", run.name},
                  {"status", run.statusMessage},
                  {"created_utc", run.createdUtc},
                  {"device", run.device},
                  {"spans", totals.spans},
                  {"counter_values", totals.counterValues},
                  {"flows", totals.flows},
                  {"span_ms", double(totals.lastNs - totals.firstNs) / 1e6},
                  {"tracks", Json::array()}};
    for (const SpanTotals::Track& track : totals.tracks)
        imported["tracks"].push_back(
            {{"track", track.name}, {"spans", track.spans}, {"total_ms", double(track.totalNs) / 1e6}});
    return imported;
}

/// What the link's counters say beside what the engine moved.
void addPcieTraffic(const PcieTraffic& traffic, Json& out) {
    const auto beside = [](std::int64_t counted, std::int64_t engine, std::int64_t inPackets) {
        return Json{{"counted_bytes", counted},
                    {"engine_bytes", engine},
                    {"difference", std::int64_t(std::uint64_t(counted) - std::uint64_t(engine))},
                    {"engine_packet_bytes", inPackets}};
    };
    out["pcie_counted_by"] = traffic.sampled ? "pm" : "nvml";
    out["pcie_to_device"] = beside(traffic.countedToDevice, traffic.engineToDevice, traffic.expectedToDevice());
    out["pcie_to_host"] = beside(traffic.countedToHost, traffic.engineToHost, traffic.expectedToHost());
}

/// JSON that a trace holds; where it is damaged, its text.
Json recordedJson(const std::string& text) {
    Json parsed = Json::parse(text, nullptr, false);
    return parsed.is_discarded() ? Json(text) : parsed;
}

Json describeRun(const TraceReader& reader, const RunRow& run, const Progress& progress) {
    if (run.backend == RunBackend::Imported) return describeImported(reader, run);
    const RunSummary s = summarize(reader, run.runId, progress);
    const auto known = [&](Known what, Json value) { return run.knows.has(what) ? std::move(value) : Json(); };
    Json out{{"run_id", run.runId},
             {"name", run.name},
             {"created_utc", run.createdUtc},
             {"model", run.model},
             {"method", run.method},
             {"parameters", recordedJson(run.paramsJson)},
             {"backend", run.backend.text()},
             {"device", run.device},
             {"link", run.link},
             {"timing", run.timing.text()},
             {"status", run.stale ? "interrupted" : run.status.text()},
             {"record_level", run.level.text()},
             {"block_size", run.blockSize},
             {"layers", run.layers},
             {"kv_heads", run.kvHeads},
             {"sequences", run.sequences},
             {"device_slots", run.deviceSlots == 0 ? known(Known::Hits, 0) : Json(run.deviceSlots)},
             {"budget_blocks", run.budgetBlocks},
             {"block_bytes", run.blockBytes},
             // Without the prompt, which is no step, and without a server's iterations that decode nothing.
             {"steps", s.decodeSteps},
             // a serving run reads its prompts in iterations, which are no steps
             {"prompt_tokens", run.serves() ? Json() : Json(s.promptTokens)},
             {"decode_steps", s.decodeSteps},
             {"prefill_ms", run.serves() || denoisesCanvas(run) ? Json() : known(Known::StepTimes, s.prefillMs)},
             {"decode_ms", known(Known::StepTimes, s.decodeMs)},
             {"cold_steps", s.coldSteps},
             {"rates_count", s.ratesCount()},
             {"tokens_per_s", numberOrNull(s.tokensPerSecond)},
             {"tokens_per_s_with_gaps", numberOrNull(s.tokensPerSecondWithGaps)},
             {"step_ms", numberOrNull(s.stepMs)},
             {"hit_rate", numberOrNull(s.hitRate)},
             {"locality_mean", numberOrNull(s.localityMean)},
             {"locality_min", numberOrNull(s.localityMin)},
             {"hits", known(Known::Hits, s.hits)},
             {"misses", known(Known::Hits, s.misses)},
             {"h2d_bytes", known(Known::Bytes, s.h2dBytes)},
             {"d2h_bytes", known(Known::Bytes, s.d2hBytes)},
             {"transfer_ms", known(Known::TransferTimes, s.transferMs)},
             {"exposed_ms", known(Known::ExposedTimes, s.exposedMs)},
             {"dropped_steps", s.droppedSteps},
             {"writer_busy_ms", double(run.writerBusyNs) / 1e6},
             {"recording_overhead", recordingCostJson(recordingCost(reader, run))}};
    const Json parameters = Json::parse(run.paramsJson, nullptr, false);
    if (parameters.is_object() && parameters.contains("kv_type")) out["kv_type"] = parameters["kv_type"];
    if (!run.statusMessage.empty()) out["status_message"] = run.statusMessage;
    if (!run.error.empty()) out["error"] = run.error;
    for (const char* key : {run_meta::kEngine, run_meta::kEngineVersion, run_meta::kModelPath,
                            run_meta::kModelFingerprint, run_meta::kModelShape, run_meta::kProcessor, kProductsMeta})
        if (const std::string& value = run.metaOr(key); !value.empty()) {
            const Json parsed = Json::parse(value, nullptr, false);
            out[key] = parsed.is_object() ? parsed : Json(value);
        }
    if (const auto answers = needleAnswers(reader, run); !answers.empty()) {
        out["answer"] = answersText(answers);
        out["answers"] = Json::array();
        for (const NeedleAnswer& answer : answers)
            out["answers"].push_back({{"sequence", answer.needle.sequence},
                                      {"asked", answer.needle.name},
                                      {"expected", answer.needle.value},
                                      {"answered", answer.answered},
                                      {"verdict", nameOf(answer.verdict)}});
    }
    if (const std::string& fork = run.metaOr(run_meta::kFork); !fork.empty()) out["fork"] = recordedJson(fork);
    if (run.prompts.inPieces()) {
        out["mixed_steps"] = s.mixedSteps;
        out["prompt_steps"] = s.promptSteps;
    }
    if (run.knows != Knowledge::everything()) out["not_known"] = run.knows.list(true);
    if (const auto serving = summarizeServing(reader, run.runId)) out["serving"] = servingJson(*serving, run.serves());
    if (const auto traffic = pcieTraffic(reader, run.runId)) addPcieTraffic(*traffic, out);
    if (const auto ahead = lookaheadTotals(reader, run.runId)) {
        out["lookahead"] = {
            {"predicted", ahead->predicted}, {"used", ahead->used}, {"wasted", ahead->wasted}, {"late", ahead->late}};
        if (ahead->stale) out["lookahead"]["stale"] = *ahead->stale;
    }
    if (const auto lost = lostGpuRecords(reader, run.runId)) out["lost_gpu_records"] = *lost;
    if (const auto lost = lostPmSamples(reader, run.runId)) out["lost_pm_samples"] = *lost;
    out["components"] = known(Known::StageTimes, Json::array());
    for (const ComponentShare& part : s.components) {
        if (!run.knows.has(Known::StageTimes)) break; // without stage times all of a step would count as `other`
        out["components"].push_back({{"phase", nameOf(part.phase)},
                                     {"component", part.component},
                                     {"ms", double(part.totalNs) / 1e6},
                                     {"share", part.share}});
    }
    refuseBroken(checkRun(reader, run.runId, counting()), out);
    return out;
}

Json describeTrace(const std::string& subject) {
    importFirst(subject);
    const TraceReader reader(subject);
    Json out{{"kind", "trace"},
             {"file", subject},
             {"file_bytes", std::filesystem::file_size(subject)},
             {"runs", Json::array()}};
    LongAction action;
    refuseBroken(checkFile(reader, counting()), out); // rows that are of no run
    const std::vector<RunRow> runs = reader.runs();
    if (Json groups = rankGroupsOf(reader, runs); !groups.empty()) out["rank_groups"] = std::move(groups);
    for (std::size_t i = 0; i < runs.size(); ++i)
        out["runs"].push_back(describeRun(
            reader, runs[i], action.stopping(double(i) / double(runs.size()), double(i + 1) / double(runs.size()))));
    return out;
}

/// A few numbers in one line: "samples 25, median 258.822, max 601.427".
std::string listed(const Json& numbers) {
    std::vector<std::string> parts;
    for (const auto& [key, value] : numbers.items())
        parts.push_back(fmt::format(
            "{} {}", key, value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : value.dump()));
    return fmt::format("{}", fmt::join(parts, ", "));
}

void printServing(const Json& serving, int indent) {
    printOut("{:{}}serving\n", "", indent);
    for (const auto& [key, value] : serving.items())
        printOut("{:{}}{:<24} {}\n", "", indent + 2, key,
                 value.is_object() ? listed(value)
                 : value.is_null() ? "undefined"
                                   : value.dump());
}

void printText(const Json& object, int indent) {
    for (const auto& [key, value] : object.items()) {
        if (key == "serving") {
            printServing(value, indent);
            continue;
        }
        if (key == "recording_overhead") {
            printOut("{:{}}{:<24} {}\n", "", indent, key,
                     value.is_object() ? value["text"].get<std::string>() : RecordingCost().text());
        } else if (value.is_array() && !value.empty() && value.front().is_object()) {
            printOut("{:{}}{}\n", "", indent, key);
            for (const Json& entry : value) {
                if (entry.size() <= 5 && !entry.contains("steps"))
                    printOut("{:{}}  {}\n", "", indent, entry.dump());
                else
                    printText(entry, indent + 2), printOut("\n");
            }
        } else {
            printOut("{:{}}{:<24} {}\n", "", indent, key,
                     value.is_string() ? value.get<std::string>()
                     : value.is_null() ? (object.contains("not_known") ? "not known" : "undefined")
                                       : value.dump());
        }
    }
}

/// Refuses options about a model where a trace is described, and the other way round. @throws Error(BadInput)
void refuseVainInfo(const Options& given, bool trace) {
    for (const char* option : {"--context", "--batch"})
        if (trace && given.has(option))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} has no effect on a trace: it is about the memory that a model needs", option),
                        "leave it out, or name a model");
    if (!trace && given.has("--count-cold"))
        throw Error(ErrorKind::BadInput, "--count-cold has no effect on a model: only recorded runs have cold steps",
                    "leave it out, or name a trace");
}

/// @throws Error(BadInput) where an option is about one model or one trace
void refuseVainForFolder(const Options& given) {
    for (const char* option : {"--context", "--batch", "--count-cold"})
        if (given.has(option))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} has no effect on a folder of traces: its traces are listed", option),
                        "leave it out, or name a model or a trace");
}

int run(const InfoArguments& arguments, const Options& given) {
    if (isFolderOfTraces(arguments.subject)) {
        refuseVainForFolder(given);
        return listFolder(arguments.subject, arguments.depth, arguments.json);
    }
    if (given.has("--depth"))
        throw Error(ErrorKind::BadInput, "--depth has no effect here: it is for a folder of traces",
                    "leave it out, or name a folder that is not a model's");
    const bool trace = looksLikeTrace(arguments.subject);
    refuseVainInfo(given, trace);
    const Json out = trace ? describeTrace(arguments.subject) : describeModel(arguments);
    if (arguments.json)
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    else if (trace)
        printText(out, 0);
    else
        printModel(out);
    return 0;
}

} // namespace

Command addInfo(Options& program) {
    auto arguments = std::make_shared<InfoArguments>();
    Options sub = program.command("info", "Describe a model or a trace, or list a folder of traces");
    sub.add("subject", arguments->subject,
            "Model folder or name, .kvtrace file, a file that can be imported, or a folder whose traces are listed")
        .required();
    sub.add("--context", arguments->context, "Tokens of a sequence the memory is shown for; 0: the model's context")
        .range(0, 1 << 24);
    sub.add("--batch", arguments->batch, "Sequences for which the memory is shown").range(1, 256);
    sub.add("--depth", arguments->depth, "Levels of subfolders whose traces are listed too").range(0, kDeepestFolder);
    addColdOption(sub);
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments, sub] { return run(*arguments, sub); };
}

} // namespace kvscope::cli

// kvscope-cli info: what a model or a trace is.
#include "app/cli/commands.h"

#include "core/model/model.h"
#include "core/select/method.h"
#include "profiler/read/summary.h"
#include "profiler/read/trace_reader.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string subject;
    bool json = false;
};

/// By content, not by name: SQLite files are traces.
bool looksLikeTrace(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return path.ends_with(".kvtrace");
    char magic[16] = {};
    std::ifstream(path, std::ios::binary).read(magic, sizeof(magic));
    return std::string_view(magic, 15) == "SQLite format 3" || path.ends_with(".kvtrace");
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json describeModel(const std::string& subject) {
    const auto model = Model::load(subject);
    const ModelConfig& c = model->config();
    Json out{{"kind", "model"},
             {"name", model->name()},
             {"architecture", c.architecture},
             {"layers", c.layers},
             {"hidden", c.hidden},
             {"query_heads", c.queryHeads},
             {"kv_heads", c.kvHeads},
             {"head_dim", c.headDim},
             {"ffn", c.ffn},
             {"vocabulary", c.vocab},
             {"context_tokens", c.maxPositions},
             {"rope_theta", c.rope.theta},
             {"tied_embeddings", c.tiedEmbeddings},
             {"eviction_head", model->hasEvictionHead()},
             {"weights", nameOf(model->weightType())},
             {"file_bytes", model->fileBytes()},
             {"weight_bytes_per_token", model->weightBytes()},
             {"kv_bytes_per_token_f32", c.kvNumbersPerToken() * 4}};
    out["methods"] = Json::array();
    for (const MethodEntry& method : methods()) {
        Json entry{{"name", method.name}};
        const bool applies = !method.needsEvictionHead || model->hasEvictionHead();
        entry["applies"] = applies;
        if (!applies)
            entry["needs"] = method.needs;
        else
            entry["defaults"] = Json::parse(resolveDefaults(method, c).toJson(method.parameters));
        out["methods"].push_back(std::move(entry));
    }
    return out;
}

Json describeRun(const TraceReader& reader, const RunRow& run) {
    const RunSummary s = summarize(reader, run.runId);
    Json out{{"run_id", run.runId},
             {"name", run.name},
             {"created_utc", run.createdUtc},
             {"model", run.model},
             {"method", run.method},
             {"parameters", Json::parse(run.paramsJson, nullptr, false)},
             {"backend", run.backend},
             {"device", run.device},
             {"link", run.link},
             {"timing", run.timing},
             {"status", run.stale ? "interrupted" : run.status},
             {"record_level", run.level},
             {"block_size", run.blockSize},
             {"layers", run.layers},
             {"kv_heads", run.kvHeads},
             {"sequences", run.sequences},
             {"device_slots", run.deviceSlots},
             {"budget_blocks", run.budgetBlocks},
             {"block_bytes", run.blockBytes},
             {"steps", run.steps},
             {"prompt_tokens", s.promptTokens},
             {"decode_steps", s.decodeSteps},
             {"prefill_ms", s.prefillMs},
             {"decode_ms", s.decodeMs},
             {"tokens_per_s", s.tokensPerSecond},
             {"locality_mean", number(s.localityMean)},
             {"locality_min", number(s.localityMin)},
             {"hits", s.hits},
             {"misses", s.misses},
             {"h2d_bytes", s.h2dBytes},
             {"d2h_bytes", s.d2hBytes},
             {"transfer_ms", s.transferMs},
             {"exposed_ms", s.exposedMs},
             {"dropped_steps", s.droppedSteps}};
    out["components"] = Json::array();
    for (const ComponentShare& part : s.components)
        out["components"].push_back({{"phase", part.phase},
                                     {"component", part.component},
                                     {"ms", double(part.totalNs) / 1e6},
                                     {"share", part.share}});
    return out;
}

Json describeTrace(const std::string& subject) {
    const TraceReader reader(subject);
    Json out{{"kind", "trace"},
             {"file", subject},
             {"file_bytes", std::filesystem::file_size(subject)},
             {"runs", Json::array()}};
    for (const RunRow& run : reader.runs()) out["runs"].push_back(describeRun(reader, run));
    return out;
}

void printText(const Json& object, int indent) {
    for (const auto& [key, value] : object.items()) {
        if (value.is_array() && !value.empty() && value.front().is_object()) {
            fmt::print("{:{}}{}\n", "", indent, key);
            for (const Json& entry : value) {
                if (entry.size() <= 5 && !entry.contains("steps"))
                    fmt::print("{:{}}  {}\n", "", indent, entry.dump());
                else
                    printText(entry, indent + 2), fmt::print("\n");
            }
        } else {
            fmt::print("{:{}}{:<24} {}\n", "", indent, key,
                       value.is_string() ? value.get<std::string>() : value.dump());
        }
    }
}

int run(const Arguments& arguments) {
    const Json out =
        looksLikeTrace(arguments.subject) ? describeTrace(arguments.subject) : describeModel(arguments.subject);
    if (arguments.json)
        fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printText(out, 0);
    return 0;
}

} // namespace

Command addInfo(CLI::App& app) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* sub = app.add_subcommand("info", "Describe a model or a trace");
    sub->add_option("subject", arguments->subject, "Model folder or name, or .kvtrace file")->required();
    sub->add_flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli

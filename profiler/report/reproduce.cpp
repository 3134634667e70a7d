#include "profiler/report/reproduce.h"

#include "base/error.h"
#include "core/model/model.h"
#include "core/select/method.h"
#include "core/select/recorded_heads.h"
#include "core/session/vain_options.h"
#include "core/trace/run_meta.h"
#include "core/transfer/link.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::reports {
namespace {

/// The parameters that the method takes on the run's model. byDream: the run names parameters of Dream's loop
const std::vector<Parameter>& parametersOf(const MethodEntry& method, const RunRow& row, bool byDream) {
    if (row.metaOr(run_meta::kDenoisingBlock).empty()) return method.parameters;
    if (row.metaOr(run_meta::kDenoisingCanvas).empty()) return method.denoisingParameters;
    return byDream ? method.shiftedCanvasParameters : method.canvasParameters;
}

/// pcie5 and pcie4 by name, else the bandwidth.
std::string linkWord(const RunRow& run) {
    const std::string name = run.link.substr(0, run.link.find(','));
    for (const char* known : {"pcie5", "pcie4"})
        if (name == known && Link::parse(known).gigabytesPerSecond == run.linkGbps) return name;
    return fmt::format("{}", run.linkGbps);
}

std::string settingText(const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Whether a session gets this number of slots without being asked for it. It gets fewer than the method needs where
/// each block of a short sequence has a slot, and a method may size the device tier by its own parameters.
bool hasOwnSlots(const RunRow& row, const MethodEntry& method,
                 const std::vector<std::pair<std::string, std::string>>& settings) {
    const ModelConfig config = configOfHeads(row.queryHeads, row.kvHeads, row.headDim);
    try {
        const SelectionSpec spec = specOf(method, settings, config);
        return row.deviceSlots < spec.neededSlots() ||
               (spec.deviceSlots > 0 && row.deviceSlots == std::max(spec.neededSlots(), spec.deviceSlots));
    } catch (const Error&) {
        return false; // the method refuses the settings; the command says so when it is run
    }
}

} // namespace

std::string shellWord(const std::string& word) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("-_=./:,+@%").find(char(c)) != std::string_view::npos;
    });
    if (plain) return word;
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    return quoted + "'";
}

std::string Reproduction::command() const {
    if (arguments.empty()) return {};
    std::string line = "kvscope-cli";
    for (const std::string& argument : arguments) line += " " + shellWord(argument);
    return line;
}

Reproduction reproduce(const RunData& run) {
    Reproduction result;
    const RunRow& row = run.row;
    const auto params = nlohmann::json::parse(row.paramsJson, nullptr, false);
    const MethodEntry* method = knownMethod(row.method);
    if (method == nullptr || !params.is_object() || !params.contains("cache_policy")) {
        result.notes.push_back("This run was not recorded by KVScope's own engine, so there is no command of "
                               "KVScope that repeats it.");
        return result;
    }
    if (row.serves()) {
        result.notes.push_back("This run served requests that came at their times: kvscope-cli load with the workload "
                               "repeats it, and no command that decodes one batch does.");
        return result;
    }
    std::vector<std::string>& out = result.arguments;
    const auto add = [&](const std::string& option, const std::string& value) {
        out.push_back(option);
        out.push_back(value);
    };
    const auto flag = [&](const char* key) { return params.value(key, false); };
    out.push_back("run");
    add("--model", modelName(row));
    if (row.model != kDefaultModel)
        result.notes.push_back("A report names the model's folder without the way to it: write the whole path after "
                               "--model. kvscope-cli info shows where the trace says that it lies.");
    add("--prompt-trace", // the file alone: a report does not tell where it was made
        fmt::format("{}:{}", run.file, row.runId));
    add("--method", row.method);
    std::vector<std::pair<std::string, std::string>> settings;
    for (const Parameter& parameter : parametersOf(*method, row, params.contains("alg")))
        if (params.contains(parameter.key)) settings.emplace_back(parameter.key, settingText(params.at(parameter.key)));
    RunChoices choices{*method, row.backend == RunBackend::Cuda ? Backend::Cuda : Backend::Cpu,
                       params.value("offload", true), false, 0};
    choices.sizesDeviceTier = choices.offload && row.deviceSlots > 0 && !hasOwnSlots(row, *method, settings);
    if (const auto temperature = params.find("temperature"); temperature != params.end() && temperature->is_number())
        choices.temperature = temperature->get<double>();
    for (const auto& [key, value] : settings)
        if (!vainSetting(key, choices)) add("--set", key + "=" + value);
    if (const auto tokens = params.find("max_new_tokens"); tokens != params.end()) {
        add("--max-new-tokens", settingText(*tokens));
    } else { // an older trace: at least as many steps as it holds
        add("--max-new-tokens", fmt::format("{}", std::max(1, row.steps)));
        result.notes.push_back("The trace does not say how the tokens were sampled and when decoding had to stop; the "
                               "command decodes greedily for as many steps as were recorded.");
    }
    if (flag("ignore_eos")) out.push_back("--ignore-eos");
    for (const auto& [key, option] :
         {std::pair{"temperature", "--temperature"}, {"top_p", "--top-p"}, {"top_k", "--top-k"}, {"seed", "--seed"}})
        if (params.contains(key) && !vainOption(option, choices)) add(option, settingText(params.at(key)));
    add("--backend", row.backend.text());
    if (!choices.offload) out.push_back("--no-offload");
    if (params.contains("kv_type")) add("--kv-type", settingText(params.at("kv_type")));
    if (choices.sizesDeviceTier) add("--device-kv", fmt::format("{}", row.deviceSlots));
    if (!vainOption("--cache-policy", choices)) add("--cache-policy", settingText(params.at("cache_policy")));
    if (row.timing == Timing::Modelled && !vainOption("--link", choices)) add("--link", linkWord(row));
    if (params.contains("threads")) add("--threads", settingText(params.at("threads")));
    if (flag("oracle")) out.push_back("--oracle");
    add("--record", row.level.text());
    add("--trace", "again.kvtrace");
    if (row.status != RunStatus::Finished)
        result.notes.push_back("The recorded run did not end by itself, so the repetition may be longer.");
    return result;
}

} // namespace kvscope::reports

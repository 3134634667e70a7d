// kvscope-cli methods: every method with its parameters, from the declarations the engine uses.
#include "app/cli/commands.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "core/select/method.h"
#include "core/select/refusal.h"
#include "core/serve/engine.h"

#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace kvscope::cli {
namespace {

nlohmann::ordered_json describe(const Parameter& parameter) {
    nlohmann::ordered_json out;
    out["key"] = parameter.key;
    out["type"] = nameOf(parameter.type);
    const bool numeric = parameter.type == ParameterType::Integer || parameter.type == ParameterType::Number;
    if (parameter.type == ParameterType::Integer)
        out["default"] = std::strtoll(parameter.defaultValue.c_str(), nullptr, 10);
    else if (parameter.type == ParameterType::Number)
        out["default"] = std::strtod(parameter.defaultValue.c_str(), nullptr);
    else if (parameter.type == ParameterType::Boolean)
        out["default"] = parameter.defaultValue == "true";
    else
        out["default"] = parameter.defaultValue;
    out["min"] = numeric ? nlohmann::ordered_json(parameter.min) : nlohmann::ordered_json(nullptr);
    out["max"] = numeric ? nlohmann::ordered_json(parameter.max) : nlohmann::ordered_json(nullptr);
    out["unit"] = parameter.unit;
    out["help"] = parameter.help;
    if (!parameter.choices.empty()) out["choices"] = parameter.choices;
    return out;
}

void printJson(std::span<const MethodEntry> chosen) {
    auto out = nlohmann::ordered_json::array();
    for (const MethodEntry& method : chosen) {
        nlohmann::ordered_json entry{{"name", method.name},
                                     {"title", method.title},
                                     {"source", method.source},
                                     {"needs", method.needs},
                                     {"summary", method.summary}};
        // by an engine whose requests come and go, on the CPU backend
        const std::string whyNot = serve::whyNotServed(method);
        entry["serves"] = whyNot.empty();
        if (!whyNot.empty()) entry["serves_not_because"] = whyNot;
        for (const Backend backend : {Backend::Cpu, Backend::Cuda}) {
            const std::string because = serve::whyNotServed(method, backend);
            nlohmann::ordered_json& on = entry["serves_on"][nameOf(backend)];
            on["serves"] = because.empty();
            if (!because.empty()) on["because"] = because;
        }
        if (!method.denoisingParameters.empty() || !method.canvasParameters.empty())
            for (const Backend backend : {Backend::Cpu, Backend::Cuda}) {
                const DenoisingReach reach = denoisingReach(method);
                entry["denoises_on"][nameOf(backend)] = {
                    {"blocks", reach.blocks}, {"canvases", reach.canvases}, {"prefix_on_host", reach.prefixOnHost}};
            }
        for (const Backend backend : {Backend::Cpu, Backend::Cuda})
            for (const KvType type : kvTypesOf(method, backend))
                entry["kv_types"][nameOf(backend)].push_back(nameOf(type));
        entry["parameters"] = nlohmann::ordered_json::array();
        for (const Parameter& parameter : method.parameters) entry["parameters"].push_back(describe(parameter));
        if (!method.denoisingParameters.empty()) { // on block-diffusion models
            entry["denoising_parameters"] = nlohmann::ordered_json::array();
            for (const Parameter& parameter : method.denoisingParameters)
                entry["denoising_parameters"].push_back(describe(parameter));
        }
        for (const auto& [key, parameters] : {std::pair{"canvas_parameters", &method.canvasParameters},
                                              std::pair{"shifted_canvas_parameters", &method.shiftedCanvasParameters}})
            for (const Parameter& parameter : *parameters) entry[key].push_back(describe(parameter));
        out.push_back(std::move(entry));
    }
    printOut("{}\n", out.dump(2));
}

std::string rangeOf(const Parameter& parameter) {
    switch (parameter.type) {
    case ParameterType::Boolean:
        return "true, false";
    case ParameterType::Choice:
        return fmt::format("{}", fmt::join(parameter.choices, ", "));
    default:
        return fmt::format("{} to {}", parameter.min, parameter.max);
    }
}

/// Whether a method has other parameters on block-diffusion models than elsewhere.
bool hasOwnForDenoising(const MethodEntry& method) {
    return method.decodesTokens && !method.denoisingParameters.empty();
}

/// The families that denoise a canvas, with the parameters that a method has there, where these are not the parameters
/// that it is listed with first. A method that runs on canvases alone is listed with those for LLaDA first.
std::vector<std::pair<const char*, const std::vector<Parameter>*>> onCanvases(const MethodEntry& method) {
    std::vector<std::pair<const char*, const std::vector<Parameter>*>> families;
    if (!method.canvasParameters.empty() && (method.decodesTokens || !method.denoisingParameters.empty()))
        families.emplace_back("LLaDA", &method.canvasParameters);
    if (!method.shiftedCanvasParameters.empty()) families.emplace_back("Dream", &method.shiftedCanvasParameters);
    return families;
}

void printTable(const std::vector<Parameter>& parameters) {
    printOut("\n\n| key | default | range | unit | meaning |\n| --- | --- | --- | --- | --- |\n");
    for (const Parameter& p : parameters)
        printOut("| `{}` | {} | {} | {} | {} |\n", p.key, p.defaultValue, rangeOf(p), p.unit, p.help);
}

void printSettings(const std::vector<Parameter>& parameters) {
    for (const Parameter& p : parameters)
        printOut("    --set {}={}{}{}\n             {} ({})\n", p.key, p.defaultValue, p.unit.empty() ? "" : "  ",
                 p.unit, p.help, rangeOf(p));
}

/// The tables of docs/methods.md.
void printMarkdown(std::span<const MethodEntry> chosen) {
    for (const MethodEntry& method : chosen) {
        printOut("### `{}`: {}\n\n{}\n\nSource: {}.", method.name, method.title, method.summary, method.source);
        if (!method.needs.empty()) printOut(" Needs {}.", method.needs);
        printTable(method.parameters);
        if (hasOwnForDenoising(method)) {
            printOut("\nOn block-diffusion models, in their place:");
            printTable(method.denoisingParameters);
        }
        for (const auto& [family, parameters] : onCanvases(method)) {
            printOut("\nOn models of the family {}, in their place:", family);
            printTable(*parameters);
        }
        printOut("\n");
    }
}

void printText(std::span<const MethodEntry> chosen) {
    for (const MethodEntry& method : chosen) {
        printOut("{:<12} {}\n             {}\n", method.name, method.title, method.summary);
        if (!method.needs.empty()) printOut("             needs {}\n", method.needs);
        printSettings(method.parameters);
        if (hasOwnForDenoising(method)) {
            printOut("             on block-diffusion models, in their place:\n");
            printSettings(method.denoisingParameters);
        }
        for (const auto& [family, parameters] : onCanvases(method)) {
            printOut("             on models of the family {}, in their place:\n", family);
            printSettings(*parameters);
        }
        printOut("\n");
    }
}

} // namespace

Command addMethods(Options& program) {
    struct Arguments {
        std::string method;
        bool json = false, markdown = false;
    };
    auto arguments = std::make_shared<Arguments>();
    Options sub = program.command("methods", "List the attention methods and their parameters");
    sub.add("method", arguments->method, "The method to describe; default: all");
    const Option json = sub.flag("--json", arguments->json, "Print one JSON document");
    sub.flag("--markdown", arguments->markdown, "Print the tables of docs/methods.md").excludes(json);
    return [arguments] {
        const std::span<const MethodEntry> chosen =
            arguments->method.empty() ? methods() : std::span(&findMethod(arguments->method), 1);
        if (arguments->json)
            printJson(chosen);
        else if (arguments->markdown)
            printMarkdown(chosen);
        else
            printText(chosen);
        return 0;
    };
}

} // namespace kvscope::cli

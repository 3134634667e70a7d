// kvscope-cli check: whether a trace obeys the rules of its format.
#include "app/cli/commands.h"
#include "app/cli/import_first.h"
#include "app/cli/long_action.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "profiler/check/check.h"

#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CheckArguments {
    std::string trace;
    std::int64_t limit = 100;
    bool json = false;
};

Json toJson(const std::vector<RunCheck>& checks, const std::string& trace) {
    Json out{{"trace", trace}, {"violations", 0}, {"rules", 0}, {"not_tested", 0}, {"checks", Json::array()}};
    std::int64_t violations = 0, rules = 0, untested = 0;
    for (const RunCheck& check : checks) {
        Json entry{{"run_id", check.run > 0 ? Json(check.run) : Json(nullptr)},
                   {"violations", check.violations()},
                   {"rules", Json::array()},
                   {"examples", Json::array()}};
        for (const RuleResult& rule : check.rules)
            entry["rules"].push_back({{"id", rule.id},
                                      {"says", rule.says},
                                      {"tested", rule.tested},
                                      {"violations", rule.violations},
                                      {"concerns", nameOf(rule.concern)}});
        for (const Violation& each : check.examples)
            entry["examples"].push_back({{"rule", each.rule}, {"where", each.where}, {"what", each.what}});
        violations += check.violations();
        rules += std::int64_t(check.rules.size());
        untested += check.untested();
        out["checks"].push_back(std::move(entry));
    }
    out["violations"] = violations;
    out["rules"] = rules;
    out["not_tested"] = untested;
    return out;
}

void print(const std::vector<RunCheck>& checks, const Json& summary) {
    for (const RunCheck& check : checks) {
        const std::string run = check.run > 0 ? fmt::format("run {}", check.run) : "file";
        for (const RuleResult& rule : check.rules) {
            std::int64_t shown = 0;
            for (const Violation& each : check.examples) {
                if (each.rule != rule.id) continue;
                printOut("{}{}{}: {} ({}: {})\n", run, each.where.empty() ? "" : ", ", each.where, each.what, rule.id,
                         rule.says);
                ++shown;
            }
            if (rule.violations > shown) printOut("{}: {} more ({})\n", run, rule.violations - shown, rule.id);
        }
    }
    const auto count = [&](const char* key) { return summary[key].get<std::int64_t>(); };
    printOut("{} violation{}; {} rules, {} of them could not be tested\n", count("violations"),
             count("violations") == 1 ? "" : "s", count("rules"), count("not_tested"));
}

int run(const CheckArguments& arguments) {
    importFirst(arguments.trace);
    const TraceReader reader(arguments.trace);
    CheckOptions options;
    options.examples = arguments.limit == 0 ? -1 : arguments.limit;
    const std::vector<RunCheck> checks = [&] {
        LongAction action;
        options.progress = action.stopping();
        return checkTrace(reader, options);
    }();
    const Json out = toJson(checks, arguments.trace);
    if (arguments.json)
        printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        print(checks, out);
    return out["violations"] == 0 ? 0 : 3;
}

} // namespace

Command addCheck(Options& program) {
    auto arguments = std::make_shared<CheckArguments>();
    Options sub = program.command("check", "Test every rule of the trace format (docs/trace-format.md) on a trace; "
                                           "exit status 3 when one is broken");
    sub.add("trace", arguments->trace, "The .kvtrace file").required();
    sub.add("--limit", arguments->limit, "Violations printed of each rule and run; 0: all")
        .notNegative()
        .showsDefault();
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli

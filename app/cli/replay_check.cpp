#include "app/cli/replay_check.h"
#include "app/cli/json_number.h"
#include "app/terminal/output.h"

#include "profiler/compare/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

/// How far predicted tokens per second lie from those of the runs, in percent: the median and the largest distance.
struct Errors {
    double typical = 0, worst = 0;
};
/// computeNs: the compute time to predict with; negative: the one that each prediction has, which was recorded
Errors tokensErrors(const std::vector<CheckedConfig>& checked, double computeNs = -1) {
    std::vector<double> sizes;
    for (const CheckedConfig& c : checked) {
        const double ns = (computeNs < 0 ? c.predicted.computeNs : computeNs) + double(c.predicted.exposedNs);
        sizes.push_back(std::abs(errorPercent(c.predicted.tokens * 1e9 / ns, c.run.tokensPerSecond)));
    }
    return {medianOf(sizes), *std::max_element(sizes.begin(), sizes.end())};
}

Json toJson(const Errors& errors) {
    return {{"typical", numberOrNull(errors.typical)}, {"worst", numberOrNull(errors.worst)}};
}

Json toJson(const CheckedConfig& c) {
    const auto numbers = [](const auto& from) {
        return Json{{"hits", from.hits},
                    {"misses", from.misses},
                    {"h2d_bytes", from.h2dBytes},
                    {"exposed_ms", double(from.exposedNs) / 1e6},
                    {"compute_ms", from.computeNs / 1e6},
                    {"tokens_per_s", from.tokensPerSecond}};
    };
    const Json predicted = numbers(c.predicted), really = numbers(c.run);
    Json errors;
    for (const auto& [key, value] : predicted.items())
        errors[key] = numberOrNull(errorPercent(value.get<double>(), really[key].get<double>()));
    return {{"policy", c.predicted.policy},
            {"cache_blocks", c.predicted.cacheBlocks},
            {"link_gbps", c.predicted.linkGbps},
            {"predicted", predicted},
            {"run", really},
            {"error_percent", errors},
            {"same_tokens", c.run.sameTokens}};
}

} // namespace

bool CheckReport::exact() const {
    return std::all_of(configs.begin(), configs.end(), [](const CheckedConfig& c) { return c.exact(); });
}

void printChecked(const CheckReport& report, const RunRow& run) {
    const std::vector<CheckedConfig>& checked = report.configs;
    printOut("\nchecked by running {} again on {}, link times {}; each number: predicted, then really run\n",
             report.model, run.backend.text(), run.timing.text());
    printOut("{:<14} {:>12} {:>9} {:>20} {:>20} {:>22} {:>8} {:>20} {:>8}\n", "policy", "cache_blocks", "GB/s",
             "misses", "h2d_MB", "exposed_ms", "error %", "tokens/s", "error %");
    const auto pair = [](auto a, auto b) { return fmt::format("{} {}", a, b); };
    const auto rounded = [](double value, int digits) { return fmt::format("{:.{}f}", value, digits); };
    for (const CheckedConfig& c : checked) {
        const ReplayConfig& p = c.predicted;
        printOut("{:<14} {:>12} {:>9.4g} {:>20} {:>20} {:>22} {:>+8.2f} {:>20} {:>+8.2f}\n", p.policy, p.cacheBlocks,
                 p.linkGbps, pair(p.misses, c.run.misses),
                 pair(rounded(double(p.h2dBytes) / 1e6, 2), rounded(double(c.run.h2dBytes) / 1e6, 2)),
                 pair(rounded(double(p.exposedNs) / 1e6, 3), rounded(double(c.run.exposedNs) / 1e6, 3)),
                 errorPercent(double(p.exposedNs), double(c.run.exposedNs)),
                 pair(rounded(p.tokensPerSecond, 1), rounded(c.run.tokensPerSecond, 1)),
                 errorPercent(p.tokensPerSecond, c.run.tokensPerSecond));
    }
    const Errors errors = tokensErrors(checked);
    printOut("hits, misses and bytes: {}; error of tokens/s: {:.2f} % typical, {:.2f} % worst\n",
             report.exact() ? "exact" : "NOT exact", errors.typical, errors.worst);
    if (report.control) {
        const Errors again = tokensErrors(checked, report.control->run.computeNs);
        printOut("the recorded configuration run again: {:.1f} tokens/s instead of {:.1f} ({:+.2f} %): that much the "
                 "machine "
                 "differs now; predicted with that run's compute time, the error is {:.2f} % typical, {:.2f} % worst\n",
                 report.control->run.tokensPerSecond, report.control->predicted.tokensPerSecond,
                 errorPercent(report.control->run.tokensPerSecond, report.control->predicted.tokensPerSecond),
                 again.typical, again.worst);
    }
    if (std::any_of(checked.begin(), checked.end(), [](const CheckedConfig& c) { return !c.run.sameTokens; }))
        printOut("some of the runs chose other tokens than the recorded one: another machine, or it was sampled\n");
}

Json checkedJson(const CheckReport& report, const RunRow& run) {
    Json out{{"model", report.model},
             {"backend", run.backend.text()},
             {"timing", run.timing.text()},
             {"exact", report.exact()},
             {"tokens_per_s_error_percent", toJson(tokensErrors(report.configs))},
             {"control", report.control ? toJson(*report.control) : Json(nullptr)},
             {"configs", Json::array()}};
    if (report.control)
        out["tokens_per_s_error_percent"]["with_the_controls_compute_time"] =
            toJson(tokensErrors(report.configs, report.control->run.computeNs));
    for (const CheckedConfig& c : report.configs) out["configs"].push_back(toJson(c));
    return out;
}

} // namespace kvscope::cli

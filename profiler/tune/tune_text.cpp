#include "profiler/tune/tune_text.h"

#include "profiler/report/reproduce.h"

#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

using Json = nlohmann::ordered_json;

Json numberOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string linkWord(const Link& link) {
    return link.name == "pcie4" || link.name == "pcie5" ? link.name : fmt::format("{}", link.gigabytesPerSecond);
}

std::string floorText(const TuneRequest& request) {
    return fmt::format("{} {}at least {:g}",
                       request.measure == QualityMeasure::Answered ? "prompts answered" : "tokens as full attention",
                       request.sure ? "surely " : "", request.floor);
}

Json settingsJson(const TuneCandidate& candidate) {
    Json settings = Json::object();
    for (const auto& [key, value] : candidate.settings) settings[key] = value;
    return settings;
}

Json rowJson(const TuneResult& result, std::size_t index) {
    const TuneRow& row = result.rows[index];
    const TuneCandidate& c = row.candidate;
    const TunePrediction& p = row.predicted;
    Json out{{"method", c.method},
             {"settings", settingsJson(c)},
             {"block_size", c.blockSize},
             {"budget_tokens", c.spec.dense ? Json(nullptr) : Json(c.budgetTokens)},
             {"offload", c.offload},
             {"device_kv_blocks", c.deviceSlots ? Json(*c.deviceSlots) : Json(nullptr)},
             {"device_bytes", c.deviceBytes},
             {"predicted",
              {{"rank", index + 1},
               {"step_ms", numberOrNull(p.stepNs / 1e6)},
               {"exposed_ms", numberOrNull(p.exposedNs / 1e6)},
               {"tokens_per_s", numberOrNull(result.request.batch * 1e9 / p.stepNs)},
               {"h2d_bytes_per_token", numberOrNull(p.bytesPerToken)},
               {"hit_rate", numberOrNull(p.hitRate)},
               {"from", p.from}}},
             {"measured", nullptr},
             {"reaches_floor", nullptr},
             {"front", row.front},
             {"recommended", result.recommended == index}};
    if (!row.measured) return out;
    const StepSums& sums = row.measured->sums;
    const CountedShare& quality = row.measured->quality;
    const ShareInterval interval = quality.interval();
    out["measured"] = {{"step_ms", numberOrNull(sums.stepNs() / 1e6)},
                       {"tokens_per_s", numberOrNull(sums.tokensPerSecond())},
                       {"h2d_bytes_per_token", numberOrNull(sums.bytesPerToken())},
                       {"hit_rate", numberOrNull(sums.hitRate())},
                       {"quality", numberOrNull(quality.value())},
                       {"good", quality.good},
                       {"of", quality.all},
                       {"gave_up", row.measured->gaveUp},
                       {"low", interval.low},
                       {"high", interval.high}};
    out["reaches_floor"] = row.reaches;
    return out;
}

} // namespace

std::string qualityText(const CountedShare& quality) {
    const ShareInterval interval = quality.interval();
    return fmt::format("{}/{}, {:.2f}..{:.2f}", quality.good, quality.all, interval.low, interval.high);
}

std::string tuneVerdict(const TuneResult& result, const std::function<std::string(const TuneCandidate&)>& nameOf) {
    const std::string ended = result.cancelled ? " It was ended before all were run." : "";
    if (!result.recommended)
        return fmt::format("Nothing is recommended: of {} that were run, none reaches the floor ({}).{}",
                           result.order.size(), floorText(result.request), ended);
    const TuneRow& row = result.rows[*result.recommended];
    const TuneMeasurement& measured = *row.measured;
    std::string text = fmt::format("Recommended: {}, {:.1f} tokens/s, {:.3f} ms a step, {} {} ({}).",
                                   nameOf(row.candidate), measured.sums.tokensPerSecond(), measured.sums.stepNs() / 1e6,
                                   result.request.measure == QualityMeasure::Answered ? "answered" : "agreeing",
                                   qualityText(measured.quality), "95 %");
    if (*result.recommended == 0) return text + " It was the first predicted, too." + ended;
    const TuneRow& first = result.rows.front();
    text += fmt::format(" It was predicted in place {}; the first predicted, {},", *result.recommended + 1,
                        nameOf(first.candidate));
    if (!first.measured)
        text += " was not run.";
    else if (!first.reaches)
        text += fmt::format(" misses the floor ({}).", qualityText(first.measured->quality));
    else
        text += fmt::format(" was slower: {:.3f} ms a step.", first.measured->sums.stepNs() / 1e6);
    return text + ended;
}

std::string tuneCommand(const TuneResult& result, const TuneRow& row) {
    const TuneRequest& request = result.request;
    const TuneCandidate& candidate = row.candidate;
    std::string line = "kvscope-cli run --model " +
                       reports::shellWord(result.modelPath.empty() ? result.model : result.modelPath) +
                       fmt::format(" --prompt-needle {} --method {}", result.context, candidate.method);
    for (const auto& [key, value] : candidate.settings) line += " --set " + reports::shellWord(key + "=" + value);
    line += fmt::format(" --max-new-tokens {}", request.newTokens);
    if (request.batch > 1) line += fmt::format(" --batch {}", request.batch);
    if (!candidate.offload) line += " --no-offload";
    if (candidate.deviceSlots) line += fmt::format(" --device-kv {}", *candidate.deviceSlots);
    if (request.backend == Backend::Cuda)
        line += " --backend cuda";
    else if (candidate.travels)
        line += " --link " + reports::shellWord(linkWord(request.link));
    if (request.threads > 0) line += fmt::format(" --threads {}", request.threads);
    return line;
}

std::string tuneJson(const TuneResult& result) {
    const TuneRequest& request = result.request;
    Json out{{"model", result.model},
             {"model_path", result.modelPath},
             {"backend", nameOf(request.backend)},
             {"device_memory_bytes", request.deviceBytes > 0 ? Json(request.deviceBytes) : Json(nullptr)},
             {"link", request.link.describe()},
             {"batch", request.batch},
             {"context", result.context},
             {"new_tokens", request.newTokens},
             {"prompts", {{"name", result.prompts}, {"count", result.promptCount}}},
             {"floor", {{"measure", nameOf(request.measure)}, {"share", request.floor}, {"sure", request.sure}}},
             {"machine",
              {{"name", result.machine.gpu.name},
               {"scaled", result.machine.scaled},
               {"projections_scale", numberOrNull(result.machine.projections)},
               {"attention_scale", numberOrNull(result.machine.attention)},
               {"changed_share", result.machine.change},
               {"changed_share_from", result.machine.changeFrom}}},
             {"cancelled", result.cancelled},
             {"verdict", tuneVerdict(result)},
             {"choice", nullptr},
             {"rows", Json::array()},
             {"left_out", Json::array()},
             {"order", Json::array()}};
    for (std::size_t i = 0; i < result.rows.size(); ++i) out["rows"].push_back(rowJson(result, i));
    for (const LeftOut& left : result.leftOut) out["left_out"].push_back({{"name", left.name}, {"why", left.reason}});
    for (const std::size_t row : result.order) out["order"].push_back(row);
    if (result.recommended) {
        const TuneRow& row = result.rows[*result.recommended];
        out["choice"] = {{"row", *result.recommended},
                         {"method", row.candidate.method},
                         {"settings", settingsJson(row.candidate)},
                         {"first_predicted", *result.recommended == 0},
                         {"command", tuneCommand(result, row)}};
    }
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace kvscope

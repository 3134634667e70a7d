#include "app/cli/waterfall_json.h"

#include "app/terminal/output.h"

#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

Json toJson(const LossPlace& place) {
    if (place.step < 0) return nullptr;
    return {{"step", place.step},
            {"layer", place.layer < 0 ? Json(nullptr) : Json(place.layer)},
            {"start_ns", place.startNs},
            {"duration_ns", place.durationNs}};
}

} // namespace

Json waterfallJson(const Waterfall& waterfall) {
    Json bars = Json::array();
    for (const WaterfallBar& bar : waterfall.bars)
        bars.push_back({{"id", bar.id},
                        {"kind", nameOf(bar.kind)},
                        {"measured_ns", bar.measuredNs},
                        {"floor_ns", bar.floorNs},
                        {"loss_ns", bar.lossNs()},
                        {"bound_by", bar.floorNs > 0 ? Json(nameOf(bar.bound)) : Json(nullptr)},
                        {"tokens_per_s_without", waterfall.tokensPerSecondWithout(bar)},
                        {"most_of_it", toJson(bar.most)}});
    Json out{{"run_id", waterfall.run.row.runId},
             {"name", waterfall.run.row.name},
             {"headline", waterfall.headline},
             {"detail", waterfall.detail},
             {"steps", waterfall.run.steps},
             {"cold_left_out", waterfall.run.leftOut.size()},
             {"measured_ns", waterfall.measuredNs()},
             {"step_ns", waterfall.stepNs},
             {"between_steps_ns", waterfall.idleNs},
             {"predicted_ns", waterfall.predictedNs ? Json(*waterfall.predictedNs) : Json(nullptr)},
             {"difference_ns", waterfall.differenceNs()},
             {"machine", waterfall.machine.empty() ? Json(nullptr) : Json(waterfall.machine)},
             {"no_roof", waterfall.noRoof.empty() ? Json(nullptr) : Json(waterfall.noRoof)},
             {"above_roof", waterfall.aboveRoof},
             {"transfers_are", waterfall.transfers ? "in both times" : "in neither time"},
             {"gaps_known", waterfall.kernels},
             {"bars", std::move(bars)},
             {"prefill", nullptr}};
    if (const auto& prefill = waterfall.prefill)
        out["prefill"] = {{"wall_ns", prefill->wallNs},
                          {"gaps_known", prefill->kernels},
                          {"gaps_ns", prefill->gaps.ns},
                          {"initialisation_ns", prefill->initialisation.ns},
                          {"recorder_ns", prefill->recorder.ns}};
    return out;
}

void printWaterfall(const Waterfall& waterfall) {
    const MeasuredRun& run = waterfall.run;
    printOut("run {}: {}; mean of {} decode steps{}\n\n{}\n  {}\n\n", run.row.runId, run.row.name, run.steps,
             run.leftOut.empty() ? "" : fmt::format(", {} cold left out", run.leftOut.size()), waterfall.headline,
             waterfall.detail);
    const auto us = [](double ns) { return fmt::format("{:.1f}", ns / 1e3); };
    printOut("{:<34} {:>12} {:>12} {:>12} {:>8}  {}\n", "us per step", "measured", "at best", "loss", "of all",
             "most of it in");
    const bool roof = waterfall.predictedNs.has_value();
    const auto line = [&](const std::string& name, double measured, double floor, const std::string& place) {
        printOut("{:<34} {:>12} {:>12} {:>12} {:>7.1f}%  {}\n", name, us(measured), roof ? us(floor) : "-",
                 roof ? us(measured - floor) : "-",
                 waterfall.measuredNs() > 0 ? 100 * (roof ? measured - floor : measured) / waterfall.measuredNs() : 0,
                 place);
    };
    for (const WaterfallBar& bar : waterfall.bars) {
        std::string place;
        if (bar.most.step >= 0)
            place = fmt::format("step {}{}", bar.most.step,
                                bar.most.layer < 0 ? "" : fmt::format(", layer {}", bar.most.layer));
        line(bar.title, bar.measuredNs, bar.floorNs, place);
    }
    line("all", waterfall.measuredNs(), waterfall.predictedNs.value_or(0), "");
}

} // namespace kvscope::cli

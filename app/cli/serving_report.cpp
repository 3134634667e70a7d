#include "app/cli/serving_report.h"

#include "app/terminal/output.h"

#include <fmt/format.h>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve;

Json latencyJson(const Latency& latency) {
    if (latency.samples == 0) return nullptr;
    Json out{{"samples", latency.samples}, {"mean", latency.mean}, {"median", latency.median}, {"max", latency.max}};
    for (const Percentile& p : latency.shown)
        out[fmt::format("p{:g}", p.p * 100)] = Json{{"value", p.value}, {"low", p.low}, {"high", p.high}};
    out["p99_interpolated"] = latency.p99;
    return out;
}

void printLatency(const char* name, const Latency& latency, bool promised) {
    if (!promised) return printOut("  {:<18} not given\n", name);
    if (latency.samples == 0) return printOut("  {:<18} no samples\n", name);
    std::string text;
    for (const Percentile& p : latency.shown)
        text += fmt::format("  P{:g} {:.1f} [{:.1f}, {:.1f}]", p.p * 100, p.value, p.low, p.high);
    printOut("  {:<18} mean {:.1f}{}  max {:.1f} ms of {}\n", name, latency.mean, text, latency.max, latency.samples);
}

} // namespace

Json jsonOf(const ServingResult& r, const std::string& broken) {
    const bool promised = r.promisesTtft();
    Json limits = Json::object();
    for (int i = 0; i < kLimits; ++i)
        if (r.limitedBy[std::size_t(i)] > 0) limits[nameOf(Limit(i))] = r.limitedBy[std::size_t(i)];
    return {{"measured", r.measured},
            {"offered_per_s", r.offered},
            {"utilisation", r.utilisation},
            {"busy", r.busy},
            {"ttft_promised", promised},
            {"requests",
             {{"warm_up", r.warmUp},
              {"counted", r.counted},
              {"after", r.after},
              {"finished", r.finished},
              {"refused", r.refused},
              {"good", r.good},
              {"warm_up_short", r.warmUpShort},
              {"warm_up_by_mser5", r.mserWarmUp}}},
            {"window_s", r.seconds},
            {"attainment", promised ? Json(r.attainment) : Json(nullptr)},
            {"goodput_per_s", promised ? Json(r.goodput) : Json(nullptr)},
            {"output_tokens_per_s", r.outputRate},
            {"queue_ms", promised ? latencyJson(r.queue) : Json(nullptr)},
            {"ttft_ms", promised ? latencyJson(r.ttft) : Json(nullptr)},
            {"tbt_ms", latencyJson(r.tbt)},
            {"p99_tbt_of_requests_ms", latencyJson(r.worstTbt)},
            {"tpot_ms", latencyJson(r.tpot)},
            {"e2e_ms", promised ? latencyJson(r.e2e) : Json(nullptr)},
            {"backlog",
             {{"slope_per_s", r.trend.slope},
              {"low", r.trend.low},
              {"high", r.trend.high},
              {"grows", r.trend.grows()},
              {"mean", r.meanInSystem},
              {"by_littles_law", r.littleInSystem}}},
            {"iterations", r.iterations},
            {"decode_rows", r.meanRows},
            {"decode_iteration_ms", r.meanIterationMs},
            {"hit_rate", r.hitRate},
            {"loaded_bytes", r.loadedBytes},
            {"pauses", r.pauses},
            {"paused_longer_than_tbt", r.pausedLongerThanTbt},
            {"iterations_limited_by", limits},
            {"prediction_error_p50", r.predictedError},
            {"broken", broken.empty() ? Json(nullptr) : Json(broken)}};
}

void printResult(const ServingResult& r, const std::string& broken) {
    const bool promised = r.promisesTtft();
    printOut("{:.4g} requests/s offered: utilisation {:.3f}, {}\n", r.offered, r.utilisation,
             broken.empty() ? "sustained" : broken); // the bound on TTFT counts in attainment alone
    printOut("  {} counted in {:.1f} s after {} of warm-up, {} behind them; {} finished, {} refused\n", r.counted,
             r.seconds, r.warmUp, r.after, r.finished, r.refused);
    if (r.warmUpShort)
        printOut("  the warm-up lasted less than five mean times in the system: give --warm-up-seconds\n");
    if (!promised)
        printOut("  no waiting times: {}; near saturation a small error of a cost changes them without bound\n",
                 r.trend.grows() ? "the backlog grows"
                                 : fmt::format("utilisation is above {}", ServingResult::kPromised));
    printLatency("queue delay", r.queue, promised);
    printLatency("TTFT", r.ttft, promised);
    printLatency("TBT, all tokens", r.tbt, true);
    printLatency("P99 TBT, requests", r.worstTbt, true);
    printLatency("TPOT", r.tpot, true);
    printLatency("E2E", r.e2e, promised);
    if (promised)
        printOut("  attainment {:.3f}, goodput {:.4g} requests/s, {:.1f} tokens/s\n", r.attainment, r.goodput,
                 r.outputRate);
    else
        printOut("  attainment and goodput not given, {:.1f} tokens/s\n", r.outputRate);
    printOut("  backlog {:+.3g} requests/s [{:.3g}, {:.3g}]{}; {:.2f} in the system, {:.2f} by Little's law\n",
             r.trend.slope, r.trend.low, r.trend.high, r.trend.grows() ? ": it grows" : "", r.meanInSystem,
             r.littleInSystem);
    printOut("  {} iterations, busy {:.3f}; decode: {:.1f} rows, {:.2f} ms, hits {:.3f}, {:.1f} MB a step; {} pauses\n",
             r.iterations, r.busy, r.meanRows, r.meanIterationMs, r.hitRate,
             r.iterations > 0 ? r.loadedBytes / 1e6 / double(r.iterations) : 0.0, r.pauses);
    std::string limits;
    for (int i = 1; i < kLimits; ++i)
        if (r.limitedBy[std::size_t(i)] > 0)
            limits += fmt::format("{}{} {:.1f} %", limits.empty() ? "" : ", ", nameOf(Limit(i)),
                                  100.0 * double(r.limitedBy[std::size_t(i)]) / double(r.iterations));
    if (!limits.empty()) printOut("  plans bound by: {}\n", limits);
}

} // namespace kvscope::cli

#include "profiler/read/recording_cost.h"

#include "base/json_reading.h"
#include "profiler/read/counters.h"
#include "profiler/read/reader_impl.h"

#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

/// A positive number of an object; absent: there is none.
std::optional<double> positive(const nlohmann::json& object, const char* key) {
    const nlohmann::json& value = member(object, key);
    if (!value.is_number()) return std::nullopt;
    const double number = value.get<double>();
    return std::isfinite(number) && number > 0 ? std::optional(number) : std::nullopt;
}

} // namespace

std::string RecordingCost::text() const {
    if (way == Way::Unknown) return "not known";
    const double percent = 100 * share;
    const std::string amount =
        percent < 0.05 ? "less than 0.05 % of a step" : fmt::format("{:.2g} % of a step", percent);
    if (way == Way::Counted) return amount + ", of the thread that decodes";
    return amount +
           (wallShare ? " of processor time, measured with and without recording"
                      : ", measured with and without recording") +
           (tokensEqual == false ? "; the tokens were NOT the same" : "");
}

RecordingCost comparedRecordingCost(const RunRow& run) {
    RecordingCost cost;
    const nlohmann::json measured = parseJson(run.metaOr(kRecordingOverhead));
    const auto plain = positive(measured, "plain_ms"), recorded = positive(measured, "recorded_ms"),
               plainCpu = positive(measured, "plain_cpu_ms"), recordedCpu = positive(measured, "recorded_cpu_ms");
    if (!plain || !recorded) return cost;
    cost.way = RecordingCost::Way::Compared;
    cost.plainMs = *plain;
    cost.recordedMs = *recorded;
    cost.share = *recorded / *plain - 1;
    if (plainCpu && recordedCpu) {
        cost.wallShare = cost.share;
        cost.share = *recordedCpu / *plainCpu - 1;
    }
    if (const auto steps = positive(measured, "steps"); steps && *steps < 1e9) cost.steps = int(*steps);
    if (const nlohmann::json& equal = member(measured, "tokens_equal"); equal.is_boolean())
        cost.tokensEqual = equal.get<bool>();
    return cost;
}

RecordingCost recordingCost(const TraceReader& reader, const RunRow& run) {
    RecordingCost cost = comparedRecordingCost(run);
    if (cost.known() || !ReaderAccess::of(reader).hasTable("counter")) return cost;
    Statement sums(*ReaderAccess::of(reader).connection,
                   "SELECT count(*), total(value), total(duration_ns) FROM counter WHERE run_id = ? AND track ="
                   " (SELECT id FROM text WHERE value = ?) AND value >= 0 AND duration_ns > 0");
    sums.bindAll(run.runId, std::string_view(kRecordingTrack));
    if (!sums.step() || sums.int64(0) == 0) return cost;
    const double took = sums.real(1), all = sums.real(2);
    if (took >= all) return cost; // a part cannot be as long as its whole: the samples are damaged
    cost.way = RecordingCost::Way::Counted;
    cost.share = took / (all - took);
    cost.steps = int(std::min<std::int64_t>(sums.int64(0), 1 << 30));
    return cost;
}

} // namespace kvscope

// The table of costs against iterations that a server on an H200 took: fitted to one half, it predicts the other.
#include "core/serve/cost_fit.h"
#include "core/serve/serving_metrics.h"
#include "profiler/replay/recorded_server.h"
#include "tests/profiler/sql_rows.h"
#include "tests/support/places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace serve;

/// One iteration of the sample, in which every prompt was read whole.
struct Recorded {
    std::int64_t durationNs = 0, decodeNs = 0, prefillNs = 0, contextTokens = 0, missedBytes = 0;
    int rows = 0;
    std::vector<int> prompts, admitted; // tokens

    /// What the table says, hits as recorded.
    double predictedMs(const ServiceCosts& costs, const SchedulerOptions& options) const {
        double ms = costs.decode(rows, contextTokens, missedBytes, options) + costs.overhead(rows);
        for (const int tokens : admitted) ms += costs.admission(tokens);
        for (const int tokens : prompts) ms += costs.prefillAll(tokens);
        return ms;
    }
    void addTo(CostFit& fit, const MemoryShape& shape) const {
        IterationPlan plan;
        for (int row = 0; row < rows; ++row) plan.decode.push_back({row, row});
        std::vector<std::int64_t> segmentNs; // the trace has their sum alone
        std::int64_t all = 0;
        for (const int tokens : prompts) all += tokens;
        for (const int tokens : prompts) {
            plan.segments.emplace_back().to = {shape.layers, 0};
            segmentNs.push_back(prefillNs * tokens / all);
        }
        IterationReport report{plan, 0, durationNs, decodeNs, segmentNs, contextTokens, 1, 0, 1, missedBytes, 0};
        fit.add(report, shape, false, prompts, admitted);
    }
};

std::vector<Recorded> recordedIn(const std::string& file, int run) {
    const auto rowsOf = [&](const std::string& query) {
        std::string text = query;
        for (std::size_t at; (at = text.find('?')) != std::string::npos;) text.replace(at, 1, std::to_string(run));
        return test::sql(file, text).rows;
    };
    const auto number = [](const std::string& text) { return std::stoll(text); };
    std::vector<Recorded> out;
    for (const auto& row : rowsOf("SELECT duration_ns, decode_ns, prefill_ns, decode_rows FROM v_iteration WHERE "
                                  "run_id = ? ORDER BY iteration"))
        out.push_back({number(row[0]), number(row[1]), number(row[2]), 0, 0, int(number(row[3])), {}, {}});
    for (const auto& row : rowsOf("SELECT e.iteration, q.prompt_tokens FROM v_row_event e JOIN v_request q USING "
                                  "(run_id, request) WHERE run_id = ? AND e.kind = 'admitted'"))
        out[std::size_t(number(row[0]))].admitted.push_back(int(number(row[1])));
    for (const auto& row : rowsOf("SELECT iteration, tokens FROM v_member WHERE run_id = ? AND kind = 'prefill'"))
        out[std::size_t(number(row[0]))].prompts.push_back(int(number(row[1])));
    // A row attends to its prompt and to the tokens that it has made.
    for (const auto& row :
         rowsOf("SELECT m.iteration, sum(m.h2d_bytes), sum(q.prompt_tokens + (SELECT count(*) FROM v_member b WHERE "
                "b.run_id = m.run_id AND b.request = m.request AND b.iteration < m.iteration AND b.token_ns IS NOT "
                "NULL)) FROM v_member m JOIN v_request q USING (run_id, request) WHERE m.run_id = ? AND m.kind = "
                "'decode' GROUP BY m.iteration")) {
        Recorded& iteration = out[std::size_t(number(row[0]))];
        iteration.missedBytes = number(row[1]), iteration.contextTokens = number(row[2]);
    }
    return out;
}

/// The mean of what the host took in all iterations was 0.4 and 0.8 ms, 26 and 22 times the median of those that admit
/// nobody, so that the tables with which the sample was planned were off by 146 and 96 % in the median. Fitted to every
/// second iteration, the table is off by 5 % in the others.
TEST(RecordedCosts, FittedToHalfOfARunPredictTheOtherHalf) {
    const std::string file = test::source("resources/samples/h200-serving.kvtrace");
    const TraceReader reader(file);
    for (const RunRow& run : reader.runs()) {
        const RecordedServer server = readRecordedServer(reader, run);
        const std::vector<Recorded> iterations = recordedIn(file, run.runId);
        ASSERT_GT(iterations.size(), 300u);
        const SchedulerOptions& options = server.options.scheduler;
        for (const std::size_t half : {0u, 1u}) {
            CostFit fit;
            for (std::size_t i = half; i < iterations.size(); i += 2)
                iterations[i].addTo(fit, server.options.costs.shape);
            const ServiceCosts costs = fit.fit(server.options.costs, options);
            std::vector<double> errors;
            for (std::size_t i = 1 - half; i < iterations.size(); i += 2) {
                const double ms = double(iterations[i].durationNs) / 1e6;
                errors.push_back(std::abs(iterations[i].predictedMs(costs, options) - ms) / ms);
            }
            std::sort(errors.begin(), errors.end());
            EXPECT_LT(percentile(errors, 0.5), 0.06) << run.name;
            EXPECT_GT(server.predictionError, 0.9) << "as recorded";
            EXPECT_LT(costs.overhead(4), 0.05) << "ms";
            EXPECT_GT(costs.admission(1000), 1) << "made before rows gave host memory to each other";
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope

// Numbers of a trace whose last step has a far higher number than the step before it: rows bound the export, not their
// numbers.
#include "tests/ui/view_fixture.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"
#include "profiler/merge/merge.h"
#include "tests/profiler/renumbered_step.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "ui/frame/numbers.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

/// Counts pieces and remembers which steps have lines.
class StepSink final : public NumberSink {
public:
    void add(std::string_view lines) override {
        while (!lines.empty()) {
            const std::string_view line = lines.substr(0, lines.find('\n'));
            lines.remove_prefix(std::min(lines.size(), line.size() + 1));
            if (!line.empty() && std::isdigit(static_cast<unsigned char>(line[0])) != 0)
                steps.insert(std::stoi(std::string(line)));
        }
    }
    void progress(double) override {
        if (++pieces > 1000) throw Error(ErrorKind::Cancelled, "the export goes through steps that are not there");
    }
    std::set<int> steps;
    int pieces = 0;
};

class FarNumbers : public ViewTest {
protected:
    /// The steps that have lines in the export of a view on the trace.
    std::set<int> exported(const char* id, const std::string& trace, int& pieces) {
        open(QString::fromStdString(trace));
        show(id);
        const NumberWriter numbers = view->numbers();
        StepSink sink;
        if (numbers) numbers(sink);
        pieces = sink.pieces;
        return sink.steps;
    }
    static std::set<int> recordedSteps(const std::string& trace) {
        std::set<int> steps;
        for (const auto& row : test::sql(trace, "SELECT DISTINCT step FROM v_step").rows)
            steps.insert(std::stoi(row[0]));
        return steps;
    }
    static constexpr int kSteps = 20;
};

TEST_F(FarNumbers, OfSelectionsAndLocalityHaveLinesOfRecordedStepsOnly) {
    const std::string trace = recorded("far.kvtrace", {.decodeSteps = kSteps}).toStdString();
    test::renumberStep(trace, kSteps, trace::kMaxStep);
    int pieces = 0;
    EXPECT_EQ(exported("locality", trace, pieces), recordedSteps(trace));
    EXPECT_LE(pieces, 4);
    std::set<int> selecting = recordedSteps(trace);
    selecting.erase(0);
    EXPECT_EQ(exported("selection", trace, pieces), selecting);
    EXPECT_LE(pieces, 2);
}

TEST_F(FarNumbers, OfDenoisingHaveLinesOfRecordedForwardsOnly) {
    const std::string trace = file("far.kvtrace").toStdString();
    synthetic::recordDenoising(trace, {.decodeSteps = kSteps});
    test::renumberStep(trace, kSteps, trace::kMaxStep);
    const std::string by = std::to_string(trace::kMaxStep - kSteps), key = std::to_string(trace::stepKey(1, kSteps));
    test::sql(trace,
              "UPDATE denoise SET id = id + (" + by + " << 20) WHERE id >> 20 = " + key +
                  "; UPDATE denoise_token SET id = id + (" + by + " << 20) WHERE id >> 20 = " + key +
                  "; UPDATE denoise_layer SET id = id + (" + by + " << 30) WHERE id >> 30 = " + key,
              SQLITE_OPEN_READWRITE);
    int pieces = 0;
    std::set<int> forwards = recordedSteps(trace);
    forwards.erase(0);
    EXPECT_EQ(exported("denoising", trace, pieces), forwards);
    EXPECT_LE(pieces, 2);
}

TEST_F(FarNumbers, OfRanksHaveLinesOfRecordedStepsOnly) {
    constexpr int kFar = 500'000; // more steps of two ranks are not held in memory
    std::vector<std::string> ranks;
    for (const char* rank : {"0", "1"}) {
        ranks.push_back(recorded(std::string("rank") + rank + ".kvtrace", {.decodeSteps = kSteps}).toStdString());
        test::renumberStep(ranks.back(), kSteps, kFar);
        test::sql(ranks.back(),
                  std::string("INSERT OR REPLACE INTO run_meta VALUES (1, 'group', 'job'), (1, 'world', '2'), "
                              "(1, 'rank', '") +
                      rank + "')",
                  SQLITE_OPEN_READWRITE);
    }
    const std::string trace = file("ranks.kvtrace").toStdString();
    mergeTraces(ranks, trace, false);
    int pieces = 0;
    EXPECT_EQ(exported("ranks", trace, pieces), recordedSteps(trace));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

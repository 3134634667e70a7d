// The view Capacity: what it draws against the simulator and SQL, and how a person goes through its points.
#include "tests/ui/view_fixture.h"

#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_serving.h"

#include "profiler/replay/recorded_server.h"
#include "ui/frame/units.h"

#include <QComboBox>
#include <QLabel>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

enum { Attainment, Goodput, Pauses, Hits };

class CapacityViewTest : public ViewTest {
protected:
    void openServed(const char* facts = synthetic::kServerFacts, bool steps = true) {
        synthetic::recordServing(folder / "served.kvtrace", 24, true, RunStatus::Finished, steps, facts);
        trace = file("served.kvtrace").toStdString();
        open(file("served.kvtrace"));
        show("capacity", {1200, 800});
        ASSERT_TRUE(simulated());
    }
    bool simulated() {
        return waitFor([this] { return workspace.idle() && !status().isVisible(); });
    }
    QLabel& status() { return child<QLabel>("capacityStatus"); }
    /// Of each panel: the recorded run, and for each setting its line and those of its points that are unsure.
    const QCPGraph& graph(int panel, int index) { return *canvas().panels()[panel]->graphs()[index]; }
    RecordedServer server() const {
        const TraceReader reader(trace);
        return readRecordedServer(reader, reader.runs().front());
    }

    std::string trace;
};

TEST_F(CapacityViewTest, DrawsWhatTheSimulatorSaysOfEachDeviceMemory) {
    openServed();
    ASSERT_EQ(plot().emptyText(), QString());
    const RecordedServer recorded = server();
    const std::vector<double> values = valuesAround(recorded, ServerChange::DeviceMemory);
    ASSERT_EQ(std::size_t(graph(Attainment, 1).dataCount()), values.size());
    int unsure = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const serve::ServingResult result = simulateServer(changed(recorded, ServerChange::DeviceMemory, values[i]));
        EXPECT_NEAR(graph(Attainment, 1).data()->at(int(i))->key, std::log2(values[i] / (1 << 20)), 1e-9);
        EXPECT_NEAR(graph(Attainment, 1).data()->at(int(i))->value, 100 * result.attainment, 1e-9) << i;
        EXPECT_NEAR(graph(Goodput, 1).data()->at(int(i))->value, result.goodput, 1e-9) << i;
        EXPECT_NEAR(graph(Pauses, 1).data()->at(int(i))->value, result.pauses, 1e-9) << i;
        EXPECT_NEAR(graph(Hits, 1).data()->at(int(i))->value, 100 * result.hitRate, 1e-9) << i;
        unsure += !result.promisesTtft();
    }
    const auto hits = graph(Hits, 1).data();
    EXPECT_LT(hits->at(0)->value, hits->at(int(values.size()) - 1)->value) << "less memory, fewer hits";
    EXPECT_EQ(graph(Attainment, 2).dataCount(), unsure) << "those near saturation are hollow";
    // The second setting admits without regard to working sets.
    RecordedServer free = recorded;
    free.options.scheduler.workingSetControl = false;
    const serve::ServingResult result = simulateServer(changed(free, ServerChange::DeviceMemory, values.front()));
    EXPECT_NEAR(graph(Attainment, 3).data()->at(0)->value, 100 * result.attainment, 1e-9);
    EXPECT_NEAR(graph(Hits, 3).data()->at(0)->value, 100 * result.hitRate, 1e-9);
    EXPECT_TRUE(plot().noteText().contains("replays of the blocks that this run selected"))
        << plot().noteText().toStdString();
}

TEST_F(CapacityViewTest, TheRecordedPointIsThatOfTheTrace) {
    openServed();
    const auto one = [&](const char* sql) { return std::stod(test::value(trace, sql)); };
    EXPECT_NEAR(graph(Pauses, 0).data()->at(0)->value, one("SELECT sum(pauses) FROM v_request"), 1e-9);
    EXPECT_NEAR(graph(Hits, 0).data()->at(0)->value,
                100 * one("SELECT sum(hits) * 1.0 / (sum(hits) + sum(misses)) FROM v_request"), 1e-9);
    // Requests have few gaps, of which one far beyond the bound breaks their 99th percentile.
    const double good = one("SELECT count(*) FROM v_request r WHERE status IN ('length', 'stop') AND"
                            " ttft_ns <= slo_ttft_ms * 1e6 AND NOT EXISTS (SELECT 1 FROM (SELECT request, token_ns -"
                            " lag(token_ns) OVER (PARTITION BY request ORDER BY iteration) AS gap FROM v_member"
                            " WHERE token_ns IS NOT NULL) g WHERE g.request = r.request AND gap > slo_tbt_ms * 1e6)");
    EXPECT_NEAR(graph(Attainment, 0).data()->at(0)->value, 100 * good / 24, 1e-9);
    EXPECT_NEAR(graph(Goodput, 0).data()->at(0)->value, good / (double(server().workload.spanUs) / 1e6), 1e-9);
    EXPECT_NEAR(graph(Goodput, 0).data()->at(0)->key, -1, 1e-9) << "the recorded run had half a MiB";
    const QStringList lines = view->exportCsv().split('\n', Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 1 + 3 * 9 + 1);
    EXPECT_TRUE(lines.back().startsWith("recorded,device_kv_bytes,524288,false,")) << lines.back().toStdString();
}

TEST_F(CapacityViewTest, ChangesWhatIsChosen) {
    openServed();
    auto& change = child<QComboBox>("change");
    for (const ServerChange what : kServerChanges) {
        change.setCurrentIndex(int(what));
        ASSERT_TRUE(simulated());
        const RecordedServer recorded = server();
        const std::vector<double> values = valuesAround(recorded, what);
        ASSERT_EQ(std::size_t(graph(Goodput, 1).dataCount()), values.size());
        const serve::ServingResult last = simulateServer(changed(recorded, what, values.back()));
        EXPECT_NEAR(graph(Goodput, 1).data()->at(int(values.size()) - 1)->value, last.goodput, 1e-9) << int(what);
    }
}

TEST_F(CapacityViewTest, APointIsReadByAClickAndByKeys) {
    openServed();
    const auto point = graph(Goodput, 1).data()->at(4);
    const QCPAxisRect* panel = canvas().panels()[Goodput];
    QTest::mouseClick(&canvas(), Qt::LeftButton, {},
                      {int(panel->axis(QCPAxis::atBottom)->coordToPixel(point->key)),
                       int(panel->axis(QCPAxis::atLeft)->coordToPixel(point->value))});
    ASSERT_TRUE(status().isVisible());
    EXPECT_TRUE(status().text().startsWith("Simulated, ")) << status().text().toStdString();
    EXPECT_TRUE(status().text().contains("512 KiB of device memory")) << status().text().toStdString();
    canvas().setFocus();
    QTest::keyClick(&canvas(), Qt::Key_End);
    EXPECT_TRUE(status().text().contains("2048 KiB of device memory")) << status().text().toStdString();
    QTest::keyClick(&canvas(), Qt::Key_Left);
    EXPECT_FALSE(status().text().contains("2048 KiB of device memory"));
    for (QCPAxisRect* each : canvas().panels()) EXPECT_TRUE(canvas().overlay().markOf(each).x.has_value());
}

TEST_F(CapacityViewTest, SaysWhereHitsAreNotRecorded) {
    openServed(synthetic::kServerFacts, false);
    EXPECT_TRUE(plot().noteText().contains("Hits are those of a synthetic stream")) << plot().noteText().toStdString();
}

TEST_F(CapacityViewTest, SaysWhyAnOlderRunCannotBeSimulated) {
    synthetic::recordServing(folder / "old.kvtrace");
    open(file("old.kvtrace"));
    show("capacity");
    EXPECT_TRUE(waitFor([&] { return plot().emptyText().contains("does not say what its server's iterations cost"); }))
        << plot().emptyText().toStdString();
    EXPECT_TRUE(view->exportCsv().isEmpty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

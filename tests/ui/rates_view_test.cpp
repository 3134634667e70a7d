// The views Rates and SLO: what they draw against SQL over the same trace, and how they follow the cursor.
#include "tests/ui/view_fixture.h"

#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_serving.h"

#include "profiler/report/report.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"

#include <QComboBox>
#include <QLabel>
#include <QTableWidget>

#include <algorithm>
#include <cmath>
#include <map>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class ServedViewTest : public ViewTest {
protected:
    void openServed(int requests = 40, RunStatus status = RunStatus::Finished) {
        synthetic::recordServing(folder / "served.kvtrace", requests, true, status);
        trace = file("served.kvtrace").toStdString();
        open(file("served.kvtrace"));
    }
    /// What the view's own statement finds, row by row.
    test::SqlRows found() { return test::sql(trace, view->sql().toStdString()); }
    QList<QCPGraph*> graphsOf(int panel) { return canvas().panels()[panel]->graphs(); }
    QString text(const char* label) { return child<QLabel>(label).text(); }

    std::string trace;
};

class RatesViewTest : public ServedViewTest {};
class SloViewTest : public ServedViewTest {};

TEST_F(RatesViewTest, DrawsWhatItsStatementCounts) {
    openServed();
    show("rates", {1200, 800});
    ASSERT_EQ(plot().emptyText(), QString());
    const double end = std::stod(test::value(trace, "SELECT max(start_ns + duration_ns) FROM v_iteration"));
    const QList<QCPGraph*> requests = graphsOf(0);
    ASSERT_EQ(requests.size(), 3);
    ASSERT_EQ(requests[0]->dataCount(), 61) << "60 intervals, and the end of the last one";
    std::map<int, std::vector<double>> counted;
    const test::SqlRows rows = found();
    ASSERT_EQ(rows.columns, (std::vector<std::string>{"interval", "arrived", "finished", "lost", "tokens",
                                                      "prompt_tokens", "loaded_bytes"}));
    for (const auto& row : rows.rows)
        for (std::size_t column = 1; column < row.size(); ++column)
            counted[std::stoi(row[0])].push_back(std::stod(row[column]));
    const double seconds = end / 60 / 1e9;
    const auto expect = [&](const QCPGraph& graph, std::size_t column, double unit) {
        double sum = 0;
        for (int i = 0; i < 60; ++i) {
            const double count = counted.contains(i) ? counted[i][column] : 0;
            EXPECT_NEAR(graph.data()->at(i)->value, count / seconds / unit, 1e-6 * (1 + count / seconds))
                << column << " " << i;
            sum += count;
        }
        EXPECT_GT(sum, 0) << column;
    };
    expect(*requests[0], 0, 1);
    expect(*requests[1], 1, 1);
    expect(*requests[2], 2, 1);
    expect(*graphsOf(2)[0], 3, 1);
    expect(*graphsOf(3)[0], 4, 1);
    const QString unit = canvas().panels()[4]->axis(QCPAxis::atLeft)->label();
    expect(*graphsOf(4)[0], 5, unit.contains("MB/s") ? 1e6 : unit.contains("kB/s") ? 1e3 : 1);
    EXPECT_FALSE(graphsOf(4)[1]->visible()) << "the run has no PCIe counters";
    EXPECT_TRUE(plot().noteText().contains("no PCIe counters")) << plot().noteText().toStdString();
    // The exported numbers are the same ones.
    const QStringList lines = view->exportCsv().split('\n', Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 61);
    EXPECT_EQ(lines[1].section(',', 2, 2).toDouble(), counted[0][0]);
}

TEST_F(RatesViewTest, NamesEveryCurveAboveItsStripAndItsUnitBesideIt) {
    openServed();
    show("rates", {900, 560});
    for (const char* theme : {"light", "dark"}) {
        view->applyTheme(Theme::byId(QString::fromLatin1(theme)));
        QList<LegendStrip*> legends;
        const QCPLayoutGrid& grid = *canvas().plotLayout();
        for (int row = 0; row < grid.rowCount(); ++row)
            if (auto* legend = qobject_cast<LegendStrip*>(grid.element(row, 0))) legends << legend;
        ASSERT_EQ(std::size_t(legends.size()), canvas().panels().size());
        for (int strip = 0; strip < legends.size(); ++strip) {
            const QCPAxisRect* panel = canvas().panels()[strip];
            EXPECT_LE(legends[strip]->rect().bottom(), panel->rect().top()) << strip;
            EXPECT_LE(legends[strip]->rect().height(), 24) << "one line";
            const QList<QCPGraph*> graphs = graphsOf(strip);
            const auto shown =
                std::count_if(graphs.begin(), graphs.end(), [](auto* graph) { return graph->visible(); });
            EXPECT_EQ(legends[strip]->swatches().size(), shown) << strip;
            for (qsizetype i = 0; i < legends[strip]->swatches().size(); ++i)
                for (qsizetype j = 0; j < i; ++j)
                    EXPECT_NE(legends[strip]->swatches()[i].colour.rgb(), legends[strip]->swatches()[j].colour.rgb());
            EXPECT_TRUE(panel->axis(QCPAxis::atLeft)->label().contains(QLatin1Char('(')) || strip == 1)
                << panel->axis(QCPAxis::atLeft)->label().toStdString();
        }
    }
}

TEST_F(RatesViewTest, CountsInTheIntervalThatIsChosen) {
    openServed();
    show("rates", {1024, 700});
    const double end = std::stod(test::value(trace, "SELECT max(start_ns + duration_ns) FROM v_iteration"));
    auto& interval = child<QComboBox>("interval");
    interval.setCurrentIndex(interval.findData(0.1));
    ASSERT_TRUE(idle());
    const int count = int(std::round(end / 1e8));
    ASSERT_GE(count, 2);
    EXPECT_EQ(graphsOf(0)[0]->dataCount(), count + 1);
    double arrived = 0;
    for (int i = 0; i < count; ++i) arrived += graphsOf(0)[0]->data()->at(i)->value * end / count / 1e9;
    EXPECT_NEAR(arrived, 40, 1e-6);
    EXPECT_EQ(found().rows.size(), std::size_t(count));
}

TEST_F(RatesViewTest, ShowsTheCountersOfTheLinkWhereThereAreSome) {
    openServed();
    test::sql(trace,
              "INSERT INTO text(value) VALUES ('PCIe bytes to device');"
              "INSERT INTO counter(run_id, track, start_ns, duration_ns, value)"
              " SELECT 1, id, 0, 100000000, 5000000 FROM text WHERE value = 'PCIe bytes to device';",
              SQLITE_OPEN_READWRITE);
    show("rates", {1200, 800});
    const QList<QCPGraph*> link = graphsOf(4);
    EXPECT_TRUE(link[1]->visible());
    EXPECT_NEAR(link[1]->data()->at(0)->value, 50, 0.5) << "5 MB in 0.1 s are 50 MB/s";
    EXPECT_TRUE(canvas().panels()[4]->axis(QCPAxis::atLeft)->label().contains("MB/s"));
    EXPECT_TRUE(plot().noteText().contains("by NVML"));
}

TEST_F(RatesViewTest, IsLinkedToTheCursor) {
    openServed();
    show("rates", {1200, 800});
    QCPAxis* time = canvas().panels()[2]->axis(QCPAxis::atBottom);
    const int x = int(time->coordToPixel(5.5 * double(synthetic::kIterationNs)));
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, {x, canvas().panels()[2]->center().y()});
    EXPECT_EQ(workspace.cursor().step, 5);
    Cursor cursor = workspace.cursor();
    cursor.step = 8;
    workspace.setCursor(cursor);
    ASSERT_TRUE(idle());
    for (QCPAxisRect* panel : canvas().panels())
        EXPECT_NEAR(canvas().overlay().markOf(panel).x.value_or(0), 8.475 * double(synthetic::kIterationNs), 1e6);
    canvas().setFocus();
    QTest::keyClick(&canvas(), Qt::Key_Right);
    EXPECT_EQ(workspace.cursor().step, 9);
}

/// Linear between order statistics. values: ascending
double quantile(const std::vector<double>& values, double p) {
    const double at = p * double(values.size() - 1);
    const auto low = std::size_t(at);
    return values[low] + (values[std::min(low + 1, values.size() - 1)] - values[low]) * (at - double(low));
}

TEST_F(SloViewTest, DrawsTheLatenciesThatItsStatementFinds) {
    openServed(120);
    show("slo", {1200, 800});
    ASSERT_EQ(plot().emptyText(), QString());
    std::map<std::string, std::vector<double>> all, even;
    for (const auto& row : found().rows) {
        all[row[0]].push_back(std::stod(row[4]));
        if (row[1] == "even") even[row[0]].push_back(std::stod(row[4]));
    }
    for (auto* samples : {&all, &even})
        for (auto& entry : *samples) std::sort(entry.second.begin(), entry.second.end());
    int panel = 0;
    for (const char* latency : {"ttft", "tbt"}) {
        // Of each panel: the bound, the percentiles, and then all requests and each class.
        const QList<QCPGraph*> graphs = graphsOf(panel++);
        ASSERT_EQ(graphs.size(), 5);
        const std::vector<double>& wanted = all[latency];
        ASSERT_EQ(std::size_t(graphs[2]->dataCount()), wanted.size()) << latency;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            EXPECT_NEAR(graphs[2]->data()->at(int(i))->key, std::log10(wanted[i] / 1e6), 1e-9) << latency << i;
            if (i + 1 < wanted.size()) {
                const double share = double(i) / double(wanted.size() - 1);
                EXPECT_NEAR(graphs[2]->data()->at(int(i))->value, -std::log10(1 - share), 1e-9) << latency << i;
            }
        }
        EXPECT_EQ(std::size_t(graphs[3]->dataCount()), even[latency].size()) << "the class even";
        EXPECT_NEAR(graphs[0]->data()->at(0)->key, std::log10(panel == 1 ? 1000 : 25), 1e-9) << "the bound";
        // Requests without a first token have no sample: the share is of those that have one.
        const QString share = QStringLiteral("% of %1 within ").arg(formatCount(std::int64_t(wanted.size())));
        bool said = false;
        for (int i = 0; i < canvas().itemCount(); ++i)
            if (const auto* text = qobject_cast<QCPItemText*>(canvas().item(i))) said |= text->text().contains(share);
        EXPECT_TRUE(said) << share.toStdString();
        // Percentiles with at least ten samples beyond them.
        std::vector<double> shown;
        for (const double p : {0.5, 0.9, 0.99, 0.999})
            if (double(wanted.size()) * (1 - p) >= 10 - 1e-9) shown.push_back(quantile(wanted, p));
        ASSERT_GE(shown.size(), 2u);
        ASSERT_EQ(std::size_t(graphs[1]->dataCount()), shown.size());
        for (std::size_t i = 0; i < shown.size(); ++i)
            EXPECT_NEAR(graphs[1]->data()->at(int(i))->key, std::log10(shown[i] / 1e6), 1e-9) << latency << i;
    }
    EXPECT_EQ(view->exportCsv().count('\n'), int(found().rows.size()) + 1);
}

TEST_F(SloViewTest, AttainmentIsThatOfTheReport) {
    openServed(40);
    show("slo", {1200, 800});
    const reports::Report report = reports::makeReport({trace});
    const reports::Table* classes = report.table("serving_classes");
    ASSERT_NE(classes, nullptr);
    auto& table = child<QTableWidget>("classes");
    ASSERT_TRUE(table.isVisible());
    ASSERT_EQ(table.rowCount(), 3) << "all requests, even and odd ones";
    double good = 0;
    for (int row = 1; row < 3; ++row) {
        const auto* cells = classes->find("class", table.item(row, 0)->text().toStdString());
        ASSERT_NE(cells, nullptr);
        const auto number = [&](const char* column) {
            return (*cells)[std::size_t(classes->columnAt(column))].number();
        };
        EXPECT_EQ(table.item(row, 1)->text(), formatCount(std::int64_t(number("requests"))));
        EXPECT_EQ(table.item(row, 2)->text(), formatValue(Unit::Percent, 100 * number("good")));
        EXPECT_EQ(table.item(row, 3)->text(), formatValue(Unit::Percent, 100 * number("first_in_time")));
        EXPECT_EQ(table.item(row, 4)->text(), formatValue(Unit::Percent, 100 * number("gaps_in_time")));
        good += std::round(number("good") * number("requests"));
    }
    EXPECT_LT(good, 40) << "one is refused, one is paused for too long, one never ends";
    EXPECT_EQ(table.item(0, 2)->text(), formatValue(Unit::Percent, 100 * good / 40));
    EXPECT_TRUE(text("attainment")
                    .startsWith(QStringLiteral("Attainment %1: %2 of 40 requests are good")
                                    .arg(formatValue(Unit::Percent, 100 * good / 40))
                                    .arg(good)))
        << text("attainment").toStdString();
    EXPECT_TRUE(text("attainment").endsWith(QStringLiteral("Not good for want of an end in the trace: 1.")))
        << text("attainment").toStdString();
}

/// In a small window "Perce…" stood beside P50 and P0, which lay over each other.
TEST_F(SloViewTest, NamesOnlyThePercentilesThatItHasRoomFor) {
    openServed(120);
    show("slo", {720, 800});
    qsizetype most = 0;
    for (const int height : {800, 480, 400}) {
        view->resize(720, height);
        ASSERT_TRUE(idle());
        canvas().replot();
        for (const QCPAxisRect* panel : canvas().panels()) {
            const QCPAxis& up = *panel->axis(QCPAxis::atLeft);
            EXPECT_TRUE(up.label() == "Percentile" || up.label() == "%ile")
                << up.label().toStdString() << " at " << height << ", " << panel->height();
            const int line = QFontMetrics(up.tickLabelFont()).height();
            const QVector<double> names = up.tickVector();
            ASSERT_FALSE(names.isEmpty());
            for (qsizetype i = 1; i < names.size(); ++i)
                EXPECT_GE(up.coordToPixel(names[i - 1]) - up.coordToPixel(names[i]), line) << "at " << height;
            if (height == 800) most = names.size();
            if (height == 400) {
                EXPECT_LT(names.size(), most);
            }
        }
    }
}

TEST_F(SloViewTest, ExplainsTheTokenThatIsClicked) {
    openServed(40);
    show("slo", {1200, 800});
    const auto longest = test::sql(trace, view->sql().toStdString()).rows; // tbt after ttft, the longest first
    const auto late = std::find_if(longest.begin(), longest.end(), [](const auto& row) { return row[0] == "tbt"; });
    ASSERT_NE(late, longest.end());
    const QCPGraph* curve = graphsOf(1)[2];
    const auto last = curve->data()->at(curve->dataCount() - 1);
    const QPoint at(int(curve->keyAxis()->coordToPixel(last->key)), int(curve->valueAxis()->coordToPixel(last->value)));
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, at);
    ASSERT_TRUE(idle());
    const std::string iteration = test::value(trace, "SELECT iteration FROM v_member WHERE request = " + (*late)[2] +
                                                         " AND token_ns = " + (*late)[3]);
    EXPECT_EQ(std::to_string(workspace.cursor().step), iteration);
    EXPECT_TRUE(text("chosenToken").startsWith("Iteration " + QString::fromStdString(iteration) + " took"))
        << text("chosenToken").toStdString();
    EXPECT_TRUE(text("chosenToken").contains("The token of request " + QString::fromStdString((*late)[2]) + " came"))
        << text("chosenToken").toStdString();
    EXPECT_TRUE(text("chosenToken").contains("beyond its bound of 25 ms"));
    // Keys go to shorter samples; another view's click is marked here.
    canvas().setFocus();
    QTest::keyClick(&canvas(), Qt::Key_Home);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(text("chosenToken").contains("within its bound of 25 ms")) << text("chosenToken").toStdString();
    Cursor cursor = workspace.cursor();
    cursor.step = std::stoi(iteration);
    workspace.setCursor(cursor);
    ASSERT_TRUE(idle());
    EXPECT_NEAR(canvas().overlay().markOf(canvas().panels()[1]).x.value_or(-9), last->key, 1e-9);
}

TEST_F(SloViewTest, AClassIsChosenInTheTableAndARequestCanBeOneSample) {
    openServed(40);
    show("slo", {1200, 800});
    auto& table = child<QTableWidget>("classes");
    const QRect cell = table.visualItemRect(table.item(2, 0));
    QTest::mouseClick(table.viewport(), Qt::LeftButton, {}, cell.center());
    EXPECT_GT(graphsOf(0)[4]->pen().widthF(), graphsOf(0)[2]->pen().widthF()) << "the curve of odd ones";
    auto& gaps = child<QComboBox>("gaps");
    gaps.setCurrentIndex(1);
    ASSERT_TRUE(idle());
    const std::string requests =
        test::value(trace, "SELECT count(*) FROM (SELECT request FROM v_member WHERE token_ns IS NOT NULL"
                           " GROUP BY request HAVING count(*) > 1)");
    EXPECT_EQ(std::to_string(graphsOf(1)[2]->dataCount()), requests);
    EXPECT_TRUE(plot().noteText().contains("each request has one sample")) << plot().noteText().toStdString();
}

TEST_F(ServedViewTest, EveryViewOfServingTeachesWhereNothingWasServed) {
    open(recorded("plain.kvtrace", {}));
    for (const char* id : {"rates", "slo", "capacity"}) {
        show(id);
        EXPECT_TRUE(plot().emptyText().contains("served no requests")) << id << plot().emptyText().toStdString();
        EXPECT_TRUE(view->exportCsv().isEmpty()) << id;
    }
    workspace.close(RunKey(workspace.current()->key));
    for (const char* id : {"rates", "slo", "capacity"}) {
        show(id);
        EXPECT_TRUE(plot().emptyText().contains("No run is open")) << id;
    }
}

TEST_F(ServedViewTest, GrowWithARunThatIsStillServed) {
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
    RunInfo info = synthetic::infoOf(synthetic::RunShape{});
    info.meta.emplace_back("serving", synthetic::kServerFacts);
    info.prompts = {};
    info.sequences = synthetic::kServingRows;
    recorder.beginRun(info);
    synthetic::SyntheticServer server(12);
    std::vector<ServingRecord> records = server.records();
    const auto next = [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < std::min(to, records.size()); ++i)
            recorder.take(std::make_unique<ServingRecord>(std::move(records[i])));
        recorder.flush();
    };
    next(0, 4);
    workspace.addLive({path, recorder.runId()});
    show("rates");
    ASSERT_TRUE(waitFor([&] { return workspace.idle() && plot().emptyText().isEmpty(); }));
    const double before = canvas().fullX().upper;
    next(4, records.size());
    EXPECT_TRUE(waitFor([&] { return canvas().fullX().upper > 2 * before; })) << canvas().fullX().upper;
    show("capacity");
    EXPECT_TRUE(waitFor([&] { return plot().emptyText().contains("The server still runs"); }))
        << plot().emptyText().toStdString();
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    workspace.finishLive(workspace.current()->key);
    EXPECT_TRUE(waitFor([&] { return plot().emptyText().isEmpty() && workspace.idle(); }))
        << plot().emptyText().toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

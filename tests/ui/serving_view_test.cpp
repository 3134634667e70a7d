// The view Serving: lanes, colours, order, what a click on an iteration says.
#include "tests/ui/view_fixture.h"

#include "tests/profiler/synthetic_serving.h"

#include "profiler/read/serving_latency.h"
#include "profiler/read/thrash.h"
#include "ui/frame/units.h"
#include "ui/models/run_list_model.h"
#include "ui/plots/lane_plottable.h"
#include "ui/widgets/trace_facts.h"

#include <QComboBox>
#include <QLabel>
#include <QTableWidget>
#include <QToolTip>

#include <gmock/gmock.h>

#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class ServingViewTest : public ViewTest {
protected:
    void openServed(int requests = 12) {
        synthetic::recordServing(folder / "served.kvtrace", requests);
        open(file("served.kvtrace"));
        show("serving", {1200, 800});
    }
    QPoint pixel(double ns, double lane, int panel = 0) {
        QCPAxisRect* rect = canvas().panels()[panel];
        return {int(rect->axis(QCPAxis::atBottom)->coordToPixel(ns)),
                int(rect->axis(QCPAxis::atLeft)->coordToPixel(lane))};
    }
    QColor colourAt(double ns, double lane) {
        canvas().replot();
        const QPixmap picture = canvas().grab();
        const QImage image = picture.toImage();
        return image.pixelColor(pixel(ns, lane) * picture.devicePixelRatio());
    }
    QString chosen() { return view->findChild<QLabel*>(QStringLiteral("chosenIteration"))->text(); }
};

/// Its steps are those of its iterations that decode; a list would have to count them.
TEST_F(ServingViewTest, IsListedWithItsIterations) {
    openServed();
    const RunRow& row = workspace.current()->row;
    const auto iterations = readServing(TraceReader(file("served.kvtrace").toStdString()), 1).iterations.size();
    ASSERT_GT(iterations, 1u);
    EXPECT_EQ(row.iterations, int(iterations));
    const QString counted = QStringLiteral("%1 iterations · ").arg(formatCount(std::int64_t(iterations)));
    EXPECT_EQ(statusText(row, false), counted + QStringLiteral("finished"));
    EXPECT_TRUE(describe(readTraceFacts(file("served.kvtrace"))).startsWith(counted));
}

TEST_F(ServingViewTest, DrawsEachRequestInTheColourOfItsState) {
    openServed();
    EXPECT_EQ(plot().emptyText(), QString());
    const Theme& theme = Theme::light();
    const TraceReader reader(file("served.kvtrace").toStdString());
    int seen = 0;
    const QColor colours[] = {theme.undefinedCell, theme.runB, theme.runA, theme.miss};
    for (const RequestSpanRow& span : readServing(reader, 1).spans) {
        if (span.endNs - span.startNs < synthetic::kIterationNs) continue;
        const QColor found = colourAt(double(span.startNs + span.endNs) / 2, double(span.request));
        EXPECT_EQ(found.rgb(), colours[int(span.state)].rgb()) << span.request << " " << nameOf(span.state);
        ++seen;
    }
    EXPECT_GT(seen, 20);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("12 requests")));
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("One token came later")));
    EXPECT_EQ(view->exportCsv().count('\n'), 13);
}

TEST_F(ServingViewTest, ALowStripHasAShorterTitleAndNoneThatIsCut) {
    openServed();
    const QCPAxis* lanes = canvas().panels().front()->axis(QCPAxis::atLeft);
    canvas().replot();
    EXPECT_EQ(lanes->label(), QStringLiteral("Requests"));
    view->resize(500, 440);
    QCoreApplication::processEvents();
    canvas().replot();
    EXPECT_EQ(lanes->label(), QStringLiteral("Req.")) << canvas().panels().front()->height() << " pixels high";
}

TEST_F(ServingViewTest, SaysWhomAnIterationServed) {
    openServed();
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, pixel(2.4 * double(synthetic::kIterationNs), 5));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("Iteration 2 took"))) << chosen().toStdString();
    EXPECT_TRUE(chosen().contains(QStringLiteral("request 0 decoded (1 miss, 4 KiB)"))) << chosen().toStdString();
    // A prompt takes two iterations, each for half of the four layers.
    EXPECT_TRUE(chosen().contains(QStringLiteral("request 2 read 120 tokens in layers 0 to 1")))
        << chosen().toStdString();
    const auto* members = view->findChild<QTableWidget*>(QStringLiteral("members"));
    bool read = false;
    for (int row = 0; row < members->rowCount(); ++row)
        read = read || members->item(row, 1)->text() == QStringLiteral("read 120, layers 0–1");
    EXPECT_TRUE(read) << "the table says the same";
    canvas().setFocus();
    QTest::keyClick(&canvas(), Qt::Key_Right);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("Iteration 3 took"))) << chosen().toStdString();
}

TEST_F(ServingViewTest, ExplainsASlowTokenThatIsClicked) {
    openServed();
    const TraceReader reader(file("served.kvtrace").toStdString());
    const ServingRows rows = readServing(reader, 1);
    ASSERT_EQ(rows.late.size(), 1u);
    const TokenGap& late = rows.late.front();
    const double end = double(late.ns) - 1e6; // the token came at the end of the iteration
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, pixel(end, double(late.request)));
    ASSERT_TRUE(idle());
    std::int64_t paused = 0, iterations = 0, decode = 0, prompts = 0;
    for (const RequestSpanRow& span : rows.spans)
        if (span.request == late.request && span.state == ServedState::Paused) paused += span.endNs - span.startNs;
    for (const IterationRow& row : rows.iterations)
        if (row.endNs() > late.ns - late.gapNs && row.endNs() <= late.ns)
            ++iterations, decode += row.decodeNs, prompts += row.prefillNs;
    ASSERT_GT(paused, 0);
    const auto time = [](std::int64_t ns) { return formatValue(Unit::Nanoseconds, double(ns)); };
    const QString expected =
        QStringLiteral("The token of request %1 came %2 after the one before it, beyond its bound of 25 ms; it was "
                       "paused for %3. %4 iterations meanwhile: decode %5, prompts %6, the rest %7.")
            .arg(late.request)
            .arg(time(late.gapNs), time(paused))
            .arg(iterations)
            .arg(time(decode), time(prompts), time(late.gapNs - decode - prompts));
    EXPECT_TRUE(chosen().endsWith(expected)) << chosen().toStdString() << "\n" << expected.toStdString();

    // Who shared the iteration is a table, whose rows explain their own tokens.
    const int iteration = int(late.ns / synthetic::kIterationNs);
    const std::vector<MemberRow> members = readMembers(reader, 1, iteration);
    auto& table = child<QTableWidget>("members");
    ASSERT_TRUE(table.isVisible());
    ASSERT_EQ(table.rowCount(), int(members.size()));
    ASSERT_GE(members.size(), 2u);
    for (int row = 0; row < table.rowCount(); ++row) {
        const MemberRow& member = members[std::size_t(row)];
        EXPECT_EQ(table.item(row, 0)->text(), QString::number(member.request));
        EXPECT_EQ(table.item(row, 2)->text(), member.prefill ? QString() : QString::number(member.misses));
        if (member.request == late.request) {
            EXPECT_EQ(table.currentRow(), row) << "the request whose token was clicked";
        }
    }
    const auto other = std::find_if(members.begin(), members.end(),
                                    [&](const MemberRow& m) { return m.request != late.request && !m.prefill; });
    ASSERT_NE(other, members.end());
    const QRect cell = table.visualItemRect(table.item(int(other - members.begin()), 0));
    QTest::mouseClick(table.viewport(), Qt::LeftButton, {}, cell.center());
    EXPECT_TRUE(chosen().contains(QStringLiteral("The token of request %1 came").arg(other->request)))
        << chosen().toStdString();
    EXPECT_TRUE(chosen().contains(QStringLiteral("within its bound of 25 ms"))) << chosen().toStdString();
}

TEST_F(ServingViewTest, IsLinkedToTheCursor) {
    openServed();
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, pixel(2.4 * double(synthetic::kIterationNs), 5));
    ASSERT_TRUE(idle());
    EXPECT_EQ(workspace.cursor().step, 2) << "an iteration is a step, also where no steps were recorded";
    Cursor cursor = workspace.cursor();
    cursor.step = 4; // as another view or a linked window does
    workspace.setCursor(cursor);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("Iteration 4 took"))) << chosen().toStdString();
    for (QCPAxisRect* panel : canvas().panels()) {
        ASSERT_TRUE(canvas().overlay().markOf(panel).x.has_value());
        EXPECT_NEAR(*canvas().overlay().markOf(panel).x, 4.5 * double(synthetic::kIterationNs), 1e6);
    }
    // A click where no iteration ran forgets the choice, but not a click that misses one by a pixel or two.
    canvas().zoomTo({29.4e6, 30.1e6});
    canvas().replot();
    const QPoint end = pixel(29.5e6, 5);
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, end + QPoint(2, 0));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("Iteration 2 took"))) << chosen().toStdString();
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, pixel(29.8e6, 5));
    EXPECT_FALSE(view->findChild<QLabel*>(QStringLiteral("chosenIteration"))->isVisible());
    EXPECT_FALSE(child<QTableWidget>("members").isVisible());
}

TEST_F(ServingViewTest, TheMemoryStripHasWhatIsReservedTheWorkingSetsAndWhoIsPaused) {
    openServed();
    const TraceReader reader(file("served.kvtrace").toStdString());
    const ServingRows rows = readServing(reader, 1);
    const QList<QCPGraph*> graphs = canvas().panels()[3]->graphs();
    ASSERT_EQ(graphs.size(), 7);
    const auto value = [&](int graph, double ns) { return graphs[graph]->data()->findBegin(ns, false)->value; };
    int paused = 0;
    for (const IterationRow& row : rows.iterations) {
        const double at = double(row.startNs);
        EXPECT_EQ(value(0, at) > 0, row.paused > 0) << row.iteration;
        EXPECT_EQ(value(1, at), double(row.deviceBytes));
        EXPECT_EQ(value(2, at), double(row.deviceBytes + row.workingSetBytes)) << "on top of what is reserved";
        EXPECT_EQ(value(3, at), double(row.deviceBytes + row.availableBytes));
        EXPECT_EQ(value(4, at), value(3, at) + double(row.scratchBytes)) << "scratch stands on the device's budget";
        paused += row.paused > 0 ? 1 : 0;
    }
    EXPECT_GT(paused, 0);
}

TEST_F(ServingViewTest, TheLatencyStripHasThePercentilesOfAWindowAndTheBounds) {
    openServed(40);
    const TraceReader reader(file("served.kvtrace").toStdString());
    std::vector<TokenGap> gaps;
    const ServingRows rows = readServing(reader, 1, &gaps);
    EXPECT_GT(gaps.size(), 40u);
    const QList<QCPGraph*> graphs = canvas().panels()[1]->graphs();
    ASSERT_EQ(graphs.size(), 6);
    double end = 0;
    for (const IterationRow& row : rows.iterations) end = std::max(end, double(row.endNs()));
    const std::vector<LatencyPoint> points =
        latencyOverTime(rows.requests, gaps, end, std::min(end, 1e9), graphs[0]->dataCount());
    const auto same = [](double drawn, double ns) {
        return std::isnan(ns) ? std::isnan(drawn) : std::abs(drawn - std::log10(ns / 1e6)) < 1e-9;
    };
    bool median = false;
    for (int i = 0; i < graphs[0]->dataCount(); ++i) {
        const LatencyPoint& point = points[std::size_t(i)];
        EXPECT_TRUE(same(graphs[0]->data()->at(i)->value, point.firstToken.median)) << i;
        EXPECT_TRUE(same(graphs[1]->data()->at(i)->value, point.gap.median)) << i;
        EXPECT_TRUE(same(graphs[2]->data()->at(i)->value, point.firstToken.high)) << i;
        EXPECT_TRUE(same(graphs[3]->data()->at(i)->value, point.gap.high)) << i;
        median |= !std::isnan(point.gap.median);
    }
    EXPECT_TRUE(median);
    EXPECT_NEAR(graphs[4]->data()->at(0)->value, 3, 1e-9) << "a bound of 1,000 ms";
    EXPECT_NEAR(graphs[5]->data()->at(0)->value, std::log10(25), 1e-9);
}

/// The thrash of the last second, as the reader counts it, and a sentence where it lasted.
TEST_F(ServingViewTest, TheShareStripHasThrashWhereTheTraceKnowsIt) {
    synthetic::recordServing(folder / "steps.kvtrace", 12, true, RunStatus::Finished, true);
    open(file("steps.kvtrace"));
    show("serving", {1200, 800});
    const TraceReader reader(file("steps.kvtrace").toStdString());
    const Thrash thrash = readThrash(reader, 1, true);
    const ServingRows rows = readServing(reader, 1);
    ASSERT_EQ(thrash.basis, Thrash::Basis::Selections);
    std::vector<double> ends;
    for (const ThrashRow& row : thrash.rows)
        ends.push_back(double(rows.iterations[std::size_t(row.iteration)].endNs()));
    const std::vector<double> shares = thrashOverTime(thrash.rows, ends, 1e9);
    const QList<QCPGraph*> graphs = canvas().panels()[4]->graphs();
    ASSERT_EQ(graphs.size(), 3);
    ASSERT_EQ(std::size_t(graphs[0]->dataCount()), shares.size() + 1) << "the last step reaches to its iteration's end";
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const double drawn = graphs[0]->data()->at(int(i))->value;
        EXPECT_TRUE(std::isnan(shares[i]) ? std::isnan(drawn) : std::abs(drawn - 100 * shares[i]) < 1e-9) << i;
    }
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("the working sets exceed the device")))
        << "the run lasts less than a second";
    // Without selections and without a pool of all rows nothing is drawn.
    openServed();
    EXPECT_EQ(canvas().panels()[4]->graphs()[0]->dataCount(), 0);
}

TEST_F(ServingViewTest, TheWindowOfTheLatenciesIsChosen) {
    openServed(300); // three seconds
    EXPECT_TRUE(plot().noteText().contains(
        QStringLiteral("Latencies are those of the last %1").arg(formatValue(Unit::Nanoseconds, 1e9))))
        << plot().noteText().toStdString();
    auto& window = child<QComboBox>("latencyWindow");
    window.setCurrentIndex(window.findData(60));
    ASSERT_TRUE(idle());
    const TraceReader reader(file("served.kvtrace").toStdString());
    std::vector<TokenGap> gaps;
    const ServingRows rows = readServing(reader, 1, &gaps);
    const double end = double(rows.iterations.back().endNs());
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("Latencies are those of the whole run until then.")))
        << "never more than the run, and then \"the last\" would say that there was something before";
    const QList<QCPGraph*> graphs = canvas().panels()[1]->graphs();
    const LatencyPoint last = latencyOverTime(rows.requests, gaps, end, end, graphs[0]->dataCount()).back();
    EXPECT_NEAR((graphs[3]->data()->end() - 1)->value, std::log10(last.gap.high / 1e6), 1e-9);
}

TEST_F(ServingViewTest, SortsLanesByTheLongestGap) {
    openServed();
    auto* order = view->findChild<QComboBox*>(QStringLiteral("order"));
    ASSERT_NE(order, nullptr);
    order->setCurrentIndex(2);
    // Request 2, which was paused, comes first.
    const TraceReader reader(file("served.kvtrace").toStdString());
    for (const RequestSpanRow& span : readServing(reader, 1).spans)
        if (span.state == ServedState::Paused) {
            EXPECT_EQ(colourAt(double(span.startNs + span.endNs) / 2, 0).rgb(), Theme::light().miss.rgb());
        }
}

TEST_F(ServingViewTest, SaysThatAnOrdinaryRunServedNobody) {
    open(recorded("plain.kvtrace", {}));
    show("serving");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("served no requests")));
}

TEST_F(ServingViewTest, TeachesWhenNoRunIsOpen) {
    show("serving");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("No run is open")));
    EXPECT_TRUE(view->exportCsv().isEmpty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

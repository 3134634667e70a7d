// The Insights view: headline, ranked cards, bars per layer, and the way from a card to its evidence.
#include "profiler/insights/insight.h"
#include "profiler/waterfall/waterfall.h"
#include "tests/support/places.h"
#include "tests/ui/view_fixture.h"

#include "ui/views/insights/insight_cards.h"
#include "ui/window/main_window.h"

#include <QAbstractItemModelTester>
#include <QComboBox>
#include <QFile>
#include <QLabel>
#include <QPushButton>
#include <QSpinBox>
#include <QStandardPaths>
#include <QTabWidget>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

const QString kSample = QString::fromStdString(test::source("resources/samples/h200-nosa-tiny.kvtrace"));

class InsightsViewTest : public ViewTest {
protected:
    InsightCards& cards() { return child<InsightCards>("insights"); }
    QString headline() { return child<QLabel>("headline").text(); }
    int row(const std::string& id) {
        for (std::size_t i = 0; i < cards().insights().size(); ++i)
            if (cards().insights()[i].id == id) return int(i);
        return -1;
    }
};

TEST_F(InsightsViewTest, TeachesWithoutARun) {
    show("insights");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("No run is open")));
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("exposed")));
    EXPECT_TRUE(view->exportCsv().isEmpty());
    EXPECT_FALSE(cards().isVisible());
}

TEST_F(InsightsViewTest, SaysThatAFinishedPrefillHasNoDecodeStep) {
    open(recorded("prefill.kvtrace", {.decodeSteps = 0}));
    show("insights");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("No decode step was recorded")));
    EXPECT_TRUE(view->exportImage(file("prefill.png"), {640, 400}));
}

TEST_F(InsightsViewTest, SaysWhatTheProfilerSays) {
    open(kSample);
    show("insights");
    const InsightReport report = insightsOf(TraceReader(kSample.toStdString()), 1);
    ASSERT_EQ(plot().emptyText(), QString());
    EXPECT_EQ(headline(), shownText(report.exposure.headline));
    ASSERT_EQ(cards().insights().size(), report.insights.size() + 1);
    EXPECT_EQ(cards().insights().front().id, kRoofInsight) << "why not the roof comes first";
    EXPECT_LT(cards().geometry().bottom(), child<QLabel>("headline").mapTo(view.get(), QPoint()).y())
        << "and above the sentence about the plot";
    for (std::size_t i = 0; i < report.insights.size(); ++i)
        EXPECT_EQ(cards().model()->index(int(i) + 1, 0).data().toString(), shownText(report.insights[i].title));
    const QAbstractItemModelTester tester(cards().model(), QAbstractItemModelTester::FailureReportingMode::Fatal);
    // Every layer's exposed time is in the CSV as SQL gives it.
    const QString csv = view->exportCsv();
    for (const LayerExposure& layer : report.exposure.layers)
        EXPECT_TRUE(
            csv.contains(QStringLiteral("layer,,,,,%1,exposed,%2,ns\n").arg(layer.layer).arg(layer.time.exposedNs)));
    EXPECT_DOUBLE_EQ(canvas().fullX().upper, 7.6) << "one bar per layer";
}

TEST_F(InsightsViewTest, AClickedCardMovesTheCursorToItsEvidence) {
    open(kSample);
    show("insights");
    const int thrash = row("thrash");
    ASSERT_GE(thrash, 0);
    const Evidence evidence = cards().insights()[std::size_t(thrash)].evidence;
    cards().scrollTo(cards().model()->index(thrash, 0));
    QTest::mouseClick(cards().viewport(), Qt::LeftButton, {},
                      cards().visualRect(cards().model()->index(thrash, 0)).center());
    EXPECT_EQ(workspace.cursor().layer, evidence.layer);
    EXPECT_EQ(workspace.cursor().kvHead, evidence.kvHead);
    EXPECT_EQ(workspace.cursor().firstStep, evidence.firstStep);
    EXPECT_EQ(workspace.cursor().lastStep, evidence.lastStep);
}

TEST_F(InsightsViewTest, KeysReachEveryCard) {
    open(kSample);
    show("insights");
    const int prefill = row("prefill-dominates");
    ASSERT_GT(prefill, 0);
    workspace.setCursor({.step = 30});
    cards().setFocus();
    cards().setCurrentIndex(cards().model()->index(0, 0));
    for (int i = 0; i < prefill; ++i) QTest::keyClick(&cards(), Qt::Key_Down);
    EXPECT_EQ(cards().currentIndex().row(), prefill);
    QTest::keyClick(&cards(), Qt::Key_Return);
    EXPECT_EQ(workspace.cursor().step, 0) << "the prefill";
    EXPECT_EQ(workspace.cursor().firstStep, -1) << "one step is no range";
}

TEST_F(InsightsViewTest, ABarChoosesItsLayerAndExplainsItself) {
    open(kSample);
    show("insights");
    const QPoint centre = canvas().panels()[0]->center();
    click(5, canvas().panels()[0]->axis(QCPAxis::atLeft)->pixelToCoord(centre.y()));
    EXPECT_EQ(workspace.cursor().layer, 5);
}

TEST_F(InsightsViewTest, FollowsARunThatGrows) {
    RunShape shape;
    shape.decodeSteps = 40;
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    workspace.addLive({path, recorder.runId()});
    show("insights");
    generator.recordNext(recorder, 41);
    recorder.flush();
    ASSERT_TRUE(waitFor([&] {
        return child<QLabel>("headlineDetail").text().contains(QStringLiteral("39 decode steps"));
    })) << child<QLabel>("headlineDetail").text().toStdString();
    EXPECT_LT(row("thrash"), 0) << "caches are replayed when the run has ended";
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    workspace.finishLive(workspace.current()->key);
    EXPECT_TRUE(
        waitFor([&] { return !plot().noteText().contains(QStringLiteral("still growing")) && workspace.idle(); }));
}

TEST_F(InsightsViewTest, ExportsPicturesInBothThemes) {
    open(kSample);
    show("insights");
    for (const Theme* theme : {&Theme::dark(), &Theme::light()}) {
        Theme::apply(*qApp, *theme);
        view->applyTheme(*theme);
        for (const char* suffix : {"png", "svg", "pdf"})
            ASSERT_TRUE(view->exportImage(file(std::string("picture.") + suffix), {1000, 700}));
        EXPECT_EQ(QImage(file("picture.png")).pixelColor(2, 2), theme->plotBackground);
    }
    QFile svg(file("picture.svg"));
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    EXPECT_TRUE(svg.readAll().contains("exposed transfer")) << "text stays text";
}

TEST_F(InsightsViewTest, InTheWindowAProposalIsTriedInWhatIf) {
    QStandardPaths::setTestModeEnabled(true);
    MainWindow window(Settings(true, file("desktop.ini")));
    window.resize(1600, 1000);
    window.show();
    window.openFiles({kSample});
    ASSERT_TRUE(waitFor([&] { return window.workspace().current() && window.workspace().idle(); }));
    window.showView(QStringLiteral("insights"));
    auto* cards = window.findChild<InsightCards*>(QStringLiteral("insights"));
    ASSERT_TRUE(cards);
    const Insight* thrash = nullptr;
    ASSERT_TRUE(waitFor([&] {
        for (const Insight& insight : cards->insights())
            if (insight.id == "thrash") thrash = &insight;
        return thrash != nullptr && window.workspace().idle();
    }));
    for (const Insight& insight : cards->insights())
        if (insight.id == "thrash") thrash = &insight; // the view has made a new list since
    ASSERT_TRUE(thrash->proposal);
    ASSERT_TRUE(thrash->price);
    const int wanted = thrash->proposal->deviceSlots;
    int row = 0;
    for (std::size_t i = 0; i < cards->insights().size(); ++i)
        if (cards->insights()[i].id == "thrash") row = int(i);
    const QWidget* foot = cards->indexWidget(cards->model()->index(row, 0));
    ASSERT_TRUE(foot);
    auto* tries = foot->findChild<QPushButton*>(QStringLiteral("tryProposal"));
    ASSERT_TRUE(tries);
    cards->scrollTo(cards->model()->index(row, 0));
    QTest::mouseClick(tries, Qt::LeftButton);
    ASSERT_TRUE(waitFor([&] { return window.workspace().idle(); }));
    const auto* policy = window.currentView()->findChild<QComboBox*>(QStringLiteral("policy"));
    ASSERT_TRUE(policy) << "What if came to the front";
    EXPECT_TRUE(waitFor([&] { return policy->currentText() == QStringLiteral("lru"); }));
    bool found = false;
    for (const auto* box : window.currentView()->findChildren<QAbstractSpinBox*>())
        found = found || QString(box->text()).remove(QLatin1Char(',')).startsWith(QString::number(wanted));
    EXPECT_TRUE(found) << "the proposed number of slots is set";
}

TEST_F(InsightsViewTest, InTheWindowACardBringsItsViewToTheFront) {
    QStandardPaths::setTestModeEnabled(true);
    MainWindow window(Settings(true, file("desktop.ini")));
    window.show();
    window.openFiles({kSample});
    auto* tabs = window.findChild<QTabWidget*>(QStringLiteral("views"));
    ASSERT_TRUE(waitFor([&] { return window.currentView() != nullptr; }));
    window.showView(QStringLiteral("insights"));
    auto* list = window.findChild<InsightCards*>(QStringLiteral("insights"));
    ASSERT_NE(list, nullptr);
    ASSERT_TRUE(waitFor([&] { return !list->insights().empty(); }));
    const Insight first = list->insights().front();
    emit list->chosen(0);
    EXPECT_EQ(tabs->tabText(tabs->currentIndex()).remove(QLatin1Char('&')).toLower().toStdString(),
              first.evidence.view);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

// The roofline view: its curves are the cost model's numbers, and runs stand where they were measured.
#include "tests/ui/view_fixture.h"

#include "core/select/method.h"
#include "profiler/roofline/measured_run.h"
#include "tests/support/places.h"
#include "ui/frame/units.h"
#include "ui/models/roofline_curves.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/roofline_plottable.h"
#include "ui/views/parts_feed.h"
#include "ui/views/roofline/roofline_controls.h"
#include "ui/widgets/loading_strip.h"

#include <QCheckBox>
#include <QComboBox>
#include <QFile>
#include <QLabel>
#include <QSignalSpy>
#include <QSpinBox>
#include <QToolButton>
#include <QToolTip>

#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class RooflineViewTest : public ViewTest {
protected:
    RooflineViewTest() { qputenv("XDG_CONFIG_HOME", folder.path().c_str()); } // the person's own GPU table stays out

    RooflinePlottable& chart() {
        auto* found = qobject_cast<RooflinePlottable*>(canvas().panels()[0]->plottables().value(0));
        if (!found) throw std::runtime_error("the view has no chart");
        return *found;
    }
    const RooflineLine& line(const char* name) {
        for (const RooflineLine& each : chart().lines())
            if (each.name == QString::fromLatin1(name)) return each;
        throw std::runtime_error(std::string("no curve ") + name);
    }
    void choose(const char* picker, int index) {
        child<QComboBox>(picker).setCurrentIndex(index);
        QCoreApplication::processEvents();
    }
    void choose(const char* picker, const char* data) {
        const int index = child<QComboBox>(picker).findData(QString::fromLatin1(data));
        ASSERT_GE(index, 0) << data;
        choose(picker, index);
    }
    static QString sample(const char* name) {
        return QString::fromStdString(test::source("resources/samples/")) + name;
    }
    /// What the model says for NOSA on nosa-8b and the H200.
    static DecodeScenario scenario(Placement placement) {
        const MethodEntry& nosa = findMethod("nosa");
        DecodeScenario s;
        s.model = findModelShape("nosa-8b");
        s.gpu = GpuTable().get("h200");
        const ModelConfig config = configOf(s.model, 4096);
        s.method = nosa.make(resolveDefaults(nosa, config), config);
        s.placement = placement;
        s.context = 16384;
        s.hitRate = 0.95;
        return s;
    }
    void hover(QPoint at) {
        move(at);
        QCoreApplication::processEvents();
    }
};

TEST_F(RooflineViewTest, PredictsWithoutATrace) {
    show("roofline");
    EXPECT_EQ(plot().emptyText(), QString());
    ASSERT_EQ(chart().lines().size(), 4u);
    const std::pair<const char*, Placement> expected[] = {{"NOSA, resident", Placement::Resident},
                                                          {"NOSA, offloaded", Placement::OnDemand},
                                                          {"NOSA, lookahead", Placement::Lookahead}};
    for (const auto& [name, placement] : expected)
        for (const int batch : {1, 16, 64, 512}) {
            DecodeScenario s = scenario(placement);
            s.batch = batch;
            const StepCost cost = predictStep(s);
            const QPointF point = line(name).points[batch - 1];
            EXPECT_DOUBLE_EQ(point.x(), std::log2(batch));
            EXPECT_DOUBLE_EQ(point.y(), std::log10(cost.tokensPerSecond)) << name << ' ' << batch;
            EXPECT_EQ(line(name).resource[std::size_t(batch - 1)], int(cost.binding));
        }
    EXPECT_TRUE(chart().points().empty());
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("Predicted for NVIDIA H200")))
        << plot().noteText().toStdString();
    EXPECT_TRUE(view->exportImage(file("alone.png"), {900, 600}));
}

TEST_F(RooflineViewTest, ColoursACurveByWhatBindsIt) {
    show("roofline");
    const Theme& theme = Theme::current();
    const RooflineLine& offloaded = line("NOSA, offloaded");
    int last = -1, changes = 0;
    for (qsizetype i = 0; i < offloaded.points.size(); ++i)
        if (offloaded.resource[std::size_t(i)] != last) last = offloaded.resource[std::size_t(i)], ++changes;
    EXPECT_EQ(changes, 2) << "memory bandwidth at small batches, the link at large ones";
    EXPECT_EQ(offloaded.resource.front(), int(Resource::MemoryBandwidth));
    EXPECT_EQ(offloaded.resource.back(), int(Resource::Link));
    // Full attention is a solid line: its pixels have the resource's colour, before and after its capacity.
    const RooflineLine& full = line("Full attention");
    EXPECT_EQ(full.resource.back(), int(Resource::MemoryCapacity));
    const auto near = [&](const QPointF& at, int resource) {
        const QColor wanted = theme.resource[std::size_t(resource)];
        int best = 1000;
        canvas().overlay().setVisible(false);
        canvas().replot();
        const QImage image = canvas().grab().toImage();
        const QPoint centre = pixel(at.x(), at.y());
        for (int dy = -2; dy <= 2; ++dy) {
            const QColor seen =
                image.pixelColor(((QPointF(centre) + QPointF(0, dy)) * image.devicePixelRatio()).toPoint());
            best = std::min(best, std::abs(seen.red() - wanted.red()) + std::abs(seen.green() - wanted.green()) +
                                      std::abs(seen.blue() - wanted.blue()));
        }
        return best;
    };
    EXPECT_LT(near(full.points[90], int(Resource::MemoryBandwidth)), 30);
    EXPECT_LT(near(full.points[400], int(Resource::MemoryCapacity)), 30);
}

TEST_F(RooflineViewTest, EveryAxisVariesItsNumberAndHoldsTheOthers) {
    show("roofline");
    for (int axis = 0; axis < 4; ++axis) {
        choose("axis", axis);
        EXPECT_EQ(child<QSpinBox>("context").isEnabled(), axis != 1);
        EXPECT_EQ(child<QSpinBox>("batch").isEnabled(), axis != 0);
        EXPECT_EQ(child<QDoubleSpinBox>("hitRate").isEnabled(), axis < 2);
        EXPECT_EQ(chart().guide().has_value(), axis >= 2);
        EXPECT_FALSE(canvas().isZoomed()) << axis;
        const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
        EXPECT_GT(lines.size(), 4 * 200);
        const QString names[] = {"batch", "context_tokens", "hit_rate", "kq_share"};
        EXPECT_EQ(lines[0].section(QLatin1Char(','), 2, 2), names[axis]);
    }
    // k_q/k: the guaranteed hit rate.
    DecodeScenario s = scenario(Placement::OnDemand);
    s.batch = 16;
    s.hitRate = 0.75;
    const RooflineLine& bound = line("NOSA, offloaded");
    EXPECT_DOUBLE_EQ(bound.points[60].x(), 0.25);
    EXPECT_DOUBLE_EQ(bound.points[60].y(), std::log10(predictStep(s).tokensPerSecond));
}

TEST_F(RooflineViewTest, CurvesOfBatchSizesAreTheTheoryFigure) {
    show("roofline");
    choose("axis", 2);
    choose("family", 1);
    choose("gpu", "a100-40");
    ASSERT_EQ(chart().lines().size(), rooflineBatches().size());
    for (const RooflineLine& each : chart().lines())
        for (qsizetype i = 1; i < each.points.size(); ++i)
            EXPECT_GT(each.points[i].y(), each.points[i - 1].y()) << "throughput rises with the hit rate";
    for (std::size_t i = 1; i < chart().lines().size(); ++i)
        EXPECT_GT(chart().lines()[i].points[120].y(), chart().lines()[i - 1].points[120].y()) << "and with the batch";
    EXPECT_NEAR(chart().guide()->x, 100 * (1 - 15.0 / 64), 0.1);
}

TEST_F(RooflineViewTest, TheHitRateStaysAboveWhatTheMethodGuarantees) {
    show("roofline");
    auto& hits = child<QDoubleSpinBox>("hitRate");
    auto& share = child<QDoubleSpinBox>("queryShare");
    EXPECT_NEAR(share.value(), 15.0 / 64, 0.001);
    hits.setValue(10);
    EXPECT_NEAR(hits.value(), 76.6, 0.11);
    share.setValue(0.02);
    EXPECT_NEAR(hits.value(), 98, 0.11);
    choose("method", "infllmv2");
    EXPECT_NEAR(share.value(), 46.0 / 64, 0.001);
    hits.setValue(10);
    EXPECT_NEAR(hits.value(), 28.2, 0.11);
}

TEST_F(RooflineViewTest, TakesOverTheRunUntilAControlIsTouched) {
    open(sample("h200-nosa-8b.kvtrace"));
    show("roofline");
    ASSERT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    EXPECT_EQ(child<QComboBox>("shape").currentText(), QStringLiteral("nosa-8b (of the run)"));
    EXPECT_EQ(child<QSpinBox>("batch").value(), 4);
    EXPECT_EQ(child<QSpinBox>("context").value(), 16397);
    EXPECT_NEAR(child<QDoubleSpinBox>("hitRate").value(), 94.2, 0.1);
    EXPECT_TRUE(chart().points()[0].filled) << "the curves are drawn for its conditions";
    child<QSpinBox>("context").setValue(65536);
    EXPECT_FALSE(chart().points()[0].filled) << "measured under other conditions";
    open(sample("h200-nosa-tiny.kvtrace"));
    ASSERT_TRUE(waitFor([&] { return workspace.idle() && plot().noteText().contains("not drawn under this roof"); }));
    EXPECT_TRUE(waitFor([&] { return chart().points().size() == 3; })) << "the roof is now of the run in front";
    for (const RooflinePoint& point : chart().points())
        EXPECT_TRUE(point.label.contains(QStringLiteral("nosa-tiny"))) << "runs of another model are not judged by it";
    EXPECT_EQ(child<QSpinBox>("context").value(), 65536) << "what was set by hand stays";
    child<QToolButton>("asRun").click();
    EXPECT_EQ(child<QSpinBox>("context").value(), 9033);
    EXPECT_EQ(child<QComboBox>("shape").currentText(), QStringLiteral("nosa-tiny (of the run)"));
}

/// The window showed the missing point as a failure, in red above every view.
TEST_F(RooflineViewTest, ARunOfAServerHasNoPointWhichIsNoFailure) {
    QSignalSpy failed(&workspace, &Workspace::failed);
    open(sample("h200-serving.kvtrace"));
    show("roofline");
    ASSERT_TRUE(waitFor([&] { return workspace.idle() && plot().noteText().contains("served requests"); }))
        << plot().noteText().toStdString();
    EXPECT_TRUE(chart().points().empty());
    EXPECT_TRUE(failed.isEmpty()) << failed.value(0).value(0).toString().toStdString();
}

TEST_F(RooflineViewTest, RunsStandWhereTheyWereMeasuredBesideTheirPrediction) {
    open(sample("h200-nosa-8b.kvtrace"));
    show("roofline");
    ASSERT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    const TraceReader reader(sample("h200-nosa-8b.kvtrace").toStdString());
    const MeasuredRun run = measuredRun(reader, 1);
    const RunBesideFloor c = compare(run, findModelShape("nosa-8b"), GpuTable().get("h200"));
    const RooflinePoint dot = chart().points()[0];
    EXPECT_DOUBLE_EQ(dot.x, std::log2(run.batch));
    EXPECT_DOUBLE_EQ(dot.measured, std::log10(run.tokensPerSecond));
    EXPECT_DOUBLE_EQ(dot.predicted, std::log10(run.batch / c.predictedNs * 1e9));
    EXPECT_TRUE(dot.label.contains(QStringLiteral("63 % of predicted"))) << dot.label.toStdString();
    child<QCheckBox>("logarithmic").setChecked(false);
    EXPECT_DOUBLE_EQ(chart().points()[0].measured, run.tokensPerSecond);
    choose("axis", 2);
    EXPECT_NEAR(chart().points()[0].x, 100 * run.hitRate, 1e-9);
    const QString csv = view->exportCsv();
    EXPECT_TRUE(csv.contains(QStringLiteral("measured,\"NOSA on nosa-8b, 4 sequences of 16384 tokens\",")));
    EXPECT_TRUE(csv.contains(QStringLiteral("predicted for the run,")));
}

TEST_F(RooflineViewTest, TooltipsGiveTheNumbersWithTheirUnits) {
    open(sample("h200-nosa-8b.kvtrace"));
    show("roofline");
    ASSERT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    canvas().replot();
    const RooflinePoint dot = chart().points()[0];
    hover(pixel(dot.x, dot.measured));
    QString said = QToolTip::text();
    for (const char* words : {"Measured: <b>579 tokens/s</b>", "6.91 ms a step", "Hit rate 94.2 %", "(measured)",
                              "bound by HBM bandwidth", "<b>0.629</b>", "The projections take"})
        EXPECT_TRUE(said.contains(QString::fromLatin1(words))) << words << "\n" << said.toStdString();
    DecodeScenario s = scenario(Placement::Resident);
    s.context = 16397;
    s.batch = 64;
    const StepCost cost = predictStep(s);
    hover(pixel(6, line("NOSA, resident").points[63].y()));
    said = QToolTip::text();
    EXPECT_TRUE(said.contains(QStringLiteral("batch 64"))) << said.toStdString();
    EXPECT_TRUE(said.contains(QStringLiteral("<b>NOSA, resident</b>"))) << "the curve under the pointer";
    EXPECT_TRUE(said.contains(formatCount(std::int64_t(std::lround(cost.tokensPerSecond)))));
    EXPECT_TRUE(said.contains(formatValue(Unit::Nanoseconds, cost.stepNs)));
    hover(pixel(8.9, line("Full attention").points.last().y()));
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("HBM capacity: "))) << "and how many are decoded at a time";
}

TEST_F(RooflineViewTest, ARunOfAnUnknownModelHasAPointAndNoPrediction) {
    open(recorded("unknown.kvtrace", {}));
    show("roofline");
    ASSERT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    EXPECT_TRUE(std::isnan(chart().points()[0].predicted));
    EXPECT_FALSE(chart().points()[0].filled);
    EXPECT_THROW(line("Full attention"), std::runtime_error) << "unknown means no roof";
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("No roof"))) << plot().noteText().toStdString();
    EXPECT_EQ(child<QComboBox>("shape").currentText(), QStringLiteral("not known (of the run)"));
    choose("shape", "nosa-8b");
    choose("gpu", "h200");
    EXPECT_NO_THROW(line("Full attention")) << "until somebody chooses one";
    EXPECT_TRUE(chart().points().empty()) << "the run is of neither";
    child<QToolButton>("asRun").click();
    EXPECT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    open(recorded("prefill.kvtrace", {.decodeSteps = 0}));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chart().points().empty())
        << "a run without steps brings no roof, and the other is not judged by another's";
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("has no decode step"))) << plot().noteText().toStdString();
    workspace.close(workspace.runs().front().key);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(chart().points().empty()) << "a closed run is gone";
}

class RooflineLive : public RooflineViewTest {
protected:
    void begin(const RunInfo& info, const synthetic::RunShape& shape) {
        const QString path = file("live.kvtrace");
        recorder = std::make_unique<Recorder>(
            path.toStdString(), RecorderOptions{.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
        recorder->beginRun(info);
        generator = std::make_unique<synthetic::RunGenerator>(shape);
        workspace.addLive({path, recorder->runId()});
        show("roofline");
    }
    void record(int count) {
        for (int i = 0; i < count; ++i) {
            auto step = recorder->acquire();
            generator->fillNext(*step, recorder->level());
            recorder->take(std::move(step));
        }
        recorder->flush();
    }
    void end() {
        recorder->endRun(RunStatus::Finished, "");
        recorder->flush();
    }
    double measured() { return chart().points().at(0).measured; }
    QString tooltip() {
        hover({1, 1}); // away from it first: the same tooltip is not asked for twice
        hover(pixel(chart().points().at(0).x, measured()));
        return QToolTip::text();
    }

    std::unique_ptr<Recorder> recorder;
    std::unique_ptr<synthetic::RunGenerator> generator;
};

TEST_F(RooflineLive, ARunsPointFollowsIt) {
    const synthetic::RunShape shape{.decodeSteps = 40};
    begin(synthetic::infoOf(shape), shape);
    record(4);
    ASSERT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    const double before = measured();
    record(30);
    EXPECT_TRUE(waitFor([&] { return measured() != before; }));
    end();
}

TEST_F(RooflineLive, AStopLeavesTheExplanationAndThePointMovesOn) {
    const synthetic::RunShape shape{.layers = 8, .decodeSteps = 700};
    RunInfo info = synthetic::infoOf(shape);
    info.model = "nosa-tiny";
    info.backend = "cuda";
    info.device = "NVIDIA H200, 132 multiprocessors";
    begin(info, shape);
    record(600);
    ASSERT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    const QString unexplained = QStringLiteral("the stages tell when they are read");
    ASSERT_TRUE(waitFor([&] { return tooltip().contains(QStringLiteral("% of the difference")); }))
        << tooltip().toStdString();
    auto& strip = *view->findChild<LoadingStrip*>();
    const auto stopped = [&] { return strip.findChild<QLabel*>()->text().contains(QStringLiteral("Stopped")); };
    for (int attempt = 0; attempt < 10 && !stopped(); ++attempt) { // the parts may have been read in the meantime
        const double before = measured();
        record(4);
        ASSERT_TRUE(waitFor([&] {
            if (measured() == before) return false;
            emit strip.stopped();
            return true;
        }));
        EXPECT_FALSE(tooltip().contains(unexplained)) << tooltip().toStdString();
    }
    ASSERT_TRUE(stopped());
    const double before = measured();
    record(4);
    EXPECT_TRUE(waitFor([&] { return measured() != before; })) << "it waits for no parts";
    EXPECT_TRUE(tooltip().contains(QStringLiteral("Of the first "))) << tooltip().toStdString();
    emit strip.resumed();
    EXPECT_TRUE(waitFor([&] { return !tooltip().contains(QStringLiteral("Of the first ")); }));
    EXPECT_TRUE(tooltip().contains(QStringLiteral("% of the difference"))) << tooltip().toStdString();
    end();
}

TEST_F(RooflineViewTest, ZoomsPansAndUndoesLikeTheOtherPlots) {
    show("roofline");
    const QCPRange whole = canvas().visibleX();
    const QPoint centre = canvas().panels()[0]->center();
    wheel(centre, 4);
    EXPECT_LT(canvas().visibleX().size(), whole.size() * 0.7);
    QTest::keyClick(&canvas(), Qt::Key_Right);
    view->undoZoom();
    view->undoZoom();
    EXPECT_NEAR(canvas().visibleX().size(), whole.size(), 1e-9);
    drag(centre, centre + QPoint(80, 60), Qt::ControlModifier);
    EXPECT_EQ(workspace.cursor().firstStep, -1) << "x is no step";
    EXPECT_TRUE(canvas().isZoomed());
    view->resetZoom();
    EXPECT_FALSE(canvas().isZoomed());
    wheel(centre, 4);
    choose("axis", 1);
    EXPECT_FALSE(canvas().isZoomed()) << "another axis shows everything";
}

TEST_F(RooflineViewTest, ExportsWithEveryWord) {
    open(sample("h200-nosa-8b.kvtrace"));
    show("roofline");
    ASSERT_TRUE(waitFor([&] { return chart().points().size() == 1; }));
    for (const char* suffix : {"png", "svg", "pdf"})
        ASSERT_TRUE(view->exportImage(file(std::string("picture.") + suffix), {1000, 640})) << suffix;
    QFile svg(file("picture.svg"));
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    const QByteArray text = svg.readAll();
    for (const char* word :
         {"bound by PCIe", "bound by HBM capacity", "NOSA, lookahead", "Full attention", "% of predicted",
          "Tokens per second", "Batch (sequences)", "Roofline: nosa-8b on NVIDIA H200"})
        EXPECT_TRUE(text.contains(word)) << word;
    for (const QString& row : view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts)) {
        QString plain = row;
        if (plain.count(QLatin1Char('"')) == 2)
            plain.remove(plain.indexOf('"'), plain.lastIndexOf('"') - plain.indexOf('"'));
        EXPECT_EQ(plain.count(QLatin1Char(',')), 10) << row.toStdString();
    }
}

TEST_F(RooflineViewTest, SaysWhenThePersonsGpuTableCannotBeRead) {
    std::filesystem::create_directories(folder / "kvscope");
    QFile table(file("kvscope/gpus.json"));
    ASSERT_TRUE(table.open(QIODevice::WriteOnly));
    table.write("{ not json");
    table.close();
    show("roofline");
    EXPECT_EQ(chart().lines().size(), 4u) << "the built-in table serves";
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("gpus.json: this is not valid JSON")))
        << plot().noteText().toStdString();
}

TEST_F(RooflineViewTest, PartsOfRunsAreReadOneAfterTheOtherAndCanBeStopped) {
    open(recorded("a.kvtrace", {.decodeSteps = 30}));
    const RunKey a = workspace.current()->key;
    open(recorded("b.kvtrace", {.decodeSteps = 40, .seed = 2}));
    const RunKey b = workspace.current()->key;
    QObject context;
    std::vector<RunKey> done;
    PartsFeed feed(
        workspace, &context,
        [&](const RunKey& key, const MeasuredRun& run, const QString& problem) {
            EXPECT_EQ(problem, QString());
            const MeasuredRun whole = measuredRun(TraceReader(key.path.toStdString()), 1);
            EXPECT_NEAR(run.parts.projectionsNs, whole.parts.projectionsNs, 1e-6 * whole.stepNs);
            EXPECT_NEAR(run.parts.otherNs, whole.parts.otherNs, 1e-6 * whole.stepNs);
            EXPECT_GT(run.parts.projectionsNs, 0);
            done.push_back(key);
        },
        [] {});
    for (const RunKey& key : {a, b}) {
        feed.add(key, measuredSteps(TraceReader(key.path.toStdString()), 1));
        feed.pause();
    }
    EXPECT_TRUE(feed.paused());
    EXPECT_EQ(feed.total(), 31 + 41);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(done.empty());
    feed.resume();
    ASSERT_TRUE(waitFor([&] { return done.size() == 2; }));
    EXPECT_EQ(done, (std::vector{a, b}));
    EXPECT_FALSE(feed.loading());
    EXPECT_EQ(feed.total(), 0) << "nothing is waited for";

    feed.pause(); // nothing is being read
    EXPECT_FALSE(feed.paused());
    feed.add(a, measuredSteps(TraceReader(a.path.toStdString()), 1));
    workspace.close(a);
    feed.keepOpen();
    EXPECT_EQ(feed.total(), 0) << "its run is closed";

    feed.add(b, measuredSteps(TraceReader(b.path.toStdString()), 1));
    feed.pause();
    workspace.close(b);
    feed.keepOpen();
    EXPECT_FALSE(feed.paused()) << "what was stopped is closed";
    open(recorded("c.kvtrace", {.decodeSteps = 20, .seed = 3}));
    const RunKey c = workspace.current()->key;
    feed.add(c, measuredSteps(TraceReader(c.path.toStdString()), 1));
    ASSERT_TRUE(waitFor([&] { return done.size() == 3; })) << "later runs are read";
    EXPECT_EQ(done.back(), c);
}

TEST_F(RooflineViewTest, InASmallViewItsSettingsFoldToOneRow) {
    open(sample("h200-nosa-8b.kvtrace"));
    show("roofline", {620, 460});
    auto* controls = view->findChild<RooflineControls*>();
    ASSERT_NE(controls, nullptr);
    EXPECT_TRUE(controls->isFolded());
    EXPECT_LE(controls->height(), 40);
    EXPECT_GE(canvas().height(), 460 / 2);
    QTest::mouseClick(controls->findChild<QToolButton*>("moreTools"), Qt::LeftButton);
    QCoreApplication::processEvents();
    EXPECT_GT(controls->height(), 80) << "all of them, when asked for";
    view->resize(1000, 800);
    QCoreApplication::processEvents();
    EXPECT_FALSE(controls->isFolded());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

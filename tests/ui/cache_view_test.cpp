// What if: the numbers are those of replay() for the same question, however it is asked, and nothing waits for them.
#include "profiler/read/summary.h"
#include "tests/ui/view_fixture.h"

#include "ui/frame/units.h"
#include "ui/models/what_if.h"
#include "ui/views/cache/cache_numbers.h"

#include <QAbstractButton>
#include <QCheckBox>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QLabel>
#include <QSignalSpy>
#include <QSlider>
#include <QTableWidget>
#include <QToolTip>

#include <cmath>
#include <map>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class CacheViewTest : public ViewTest {
protected:
    enum { Misses, Speed, WorkingSet, Kept };

    SelectionTrace traceOf(const std::string& name, int runId = 1) {
        return loadSelectionTrace(TraceReader((folder / name).string()), runId);
    }
    /// [title] value of the column "what if" (or "recorded") of the table, as shown.
    QMap<QString, QString> shown(int column = 2) {
        auto& table = child<QTableWidget>("whatIfNumbers");
        QMap<QString, QString> values;
        for (int row = 0; row < table.rowCount(); ++row)
            values[table.item(row, 0)->text().trimmed()] = table.item(row, column)->text();
        return values;
    }
    /// [title] the exact value of the CSV.
    std::map<std::string, double> exported(const char* kind = "what_if") {
        std::map<std::string, double> values;
        for (const QString& line : view->exportCsv().split(QLatin1Char('\n'))) {
            const QStringList cells = line.split(QLatin1Char(','));
            if (cells[0] == QLatin1String(kind)) values[cells[1].toStdString()] = cells[4].toDouble();
        }
        return values;
    }
    /// The CSV has what replay() says.
    void expectNumbers(const ReplayConfig& config) {
        auto numbers = exported();
        ASSERT_FALSE(numbers.empty()) << "an exact answer was expected";
        const RateSums rates = rateSums(config, coldSteps());
        EXPECT_EQ(numbers["Block slots"], config.cacheBlocks);
        EXPECT_NEAR(numbers["Hit rate"], 100 * rates.hitRate(), 1e-12);
        EXPECT_EQ(numbers["Misses"], double(config.misses));
        EXPECT_EQ(numbers["compulsory"], double(config.compulsory));
        EXPECT_EQ(numbers["compulsory"] + numbers["capacity"] + numbers["policy"], double(config.misses));
        EXPECT_EQ(numbers["Host to device"], double(config.prefetched ? config.prefetched->h2dBytes : config.h2dBytes));
        EXPECT_EQ(numbers["Exposed transfer (modelled)"],
                  double(config.prefetched ? config.prefetched->exposedNs : config.exposedNs));
        EXPECT_DOUBLE_EQ(numbers["Compute"], config.computeNs);
        EXPECT_DOUBLE_EQ(numbers["Tokens/s (modelled link)"], rates.tokensPerSecond());
    }
    ReplayConfig replayed(const SelectionTrace& trace, const std::string& policy, int size,
                          std::optional<Link> link = {}, std::optional<Prefetch> prefetch = {}) {
        ReplayOptions options;
        options.policies = {policy};
        options.cacheBlocks = {size};
        options.links = {link.value_or(trace.link)};
        options.prefetch = prefetch;
        return replay(trace, options).front();
    }
    void choose(const char* combo, const char* text) { child<QComboBox>(combo).setCurrentText(QLatin1String(text)); }
    void type(const char* box, const char* number) {
        auto& spin = child<QDoubleSpinBox>(box);
        spin.setFocus();
        spin.selectAll();
        QTest::keyClicks(&spin, QLatin1String(number));
        QTest::keyClick(&spin, Qt::Key_Return);
    }
    int slotsNow() { return int(std::lround(child<QDoubleSpinBox>("slotsBox").value())); }
};

TEST_F(CacheViewTest, BeginsWithTheRecordedCacheAndReproducesIt) {
    open(recorded("a.kvtrace", {.decodeSteps = 60}));
    show("cache", {1200, 800});
    const SelectionTrace trace = traceOf("a.kvtrace");
    EXPECT_EQ(slotsNow(), trace.run.deviceSlots);
    EXPECT_EQ(shown(1)["Misses"], formatCount(trace.misses));
    EXPECT_EQ(shown(2)["Misses"], formatCount(trace.misses));
    EXPECT_EQ(shown(3)["Misses"], QStringLiteral("="));
    expectNumbers(replayed(trace, "keep-selected", trace.run.deviceSlots));
    const auto was = exported("recorded");
    EXPECT_EQ(was.at("Misses"), double(trace.misses));
    EXPECT_EQ(was.at("Host to device"), double(trace.h2dBytes));
    EXPECT_TRUE(child<QLabel>("reproduction").text().contains(QStringLiteral("yes")));
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("exact at every size")));
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("predicted")));
}

TEST_F(CacheViewTest, TypedNumbersAreAnsweredAsReplayAnswersThem) {
    open(recorded("a.kvtrace", {.decodeSteps = 80}));
    show("cache", {1200, 800});
    const SelectionTrace trace = traceOf("a.kvtrace");
    for (const ReplayPolicyEntry& policy : replayPolicies()) {
        SCOPED_TRACE(policy.name);
        choose("policy", policy.name.c_str());
        type("slotsBox", "12");
        type("bandwidthBox", "3.25");
        type("latencyBox", "17.5");
        ASSERT_TRUE(idle());
        ASSERT_EQ(slotsNow(), 12);
        const Link link{"slow", 3.25, 17.5};
        expectNumbers(replayed(trace, policy.name, 12, link));
        type("aheadBox", "2");
        type("accuracyBox", "60");
        ASSERT_TRUE(idle());
        expectNumbers(replayed(trace, policy.name, 12, link, Prefetch{2, 0.6}));
        type("aheadBox", "0");
    }
    QTest::mouseClick(&child<QAbstractButton>("asRecorded"), Qt::LeftButton);
    ASSERT_TRUE(idle());
    expectNumbers(replayed(trace, "keep-selected", trace.run.deviceSlots));
}

TEST_F(CacheViewTest, TheChangeIsNeverCut) {
    open(recorded("a.kvtrace", {.decodeSteps = 60}));
    show("cache", {1200, 800});
    choose("policy", "fifo");
    const auto& table = child<QTableWidget>("whatIfNumbers");
    int changes = 0;
    for (const char* slotsOfHead : {"1", "12", "24", "64"}) { // 1 becomes the fewest that a selection needs
        type("slotsBox", slotsOfHead);
        ASSERT_TRUE(idle());
        changes += shown(3)["Hit rate"].endsWith(QStringLiteral("points")) ? 1 : 0;
        for (int row = 0; row < table.rowCount(); ++row)
            EXPECT_GE(table.columnWidth(3), table.fontMetrics().horizontalAdvance(table.item(row, 3)->text()) + 4)
                << table.item(row, 3)->text().toStdString();
    }
    EXPECT_GT(changes, 0);
}

TEST_F(CacheViewTest, ASliderIsAnsweredAtOnceAndThenExactly) {
    open(recorded("a.kvtrace", {.promptTokens = 900, .decodeSteps = 80}));
    show("cache", {1200, 800});
    const SelectionTrace trace = traceOf("a.kvtrace");
    choose("policy", "lfu");
    ASSERT_TRUE(idle());
    auto& slider = child<QSlider>("slotsSlider");
    ASSERT_EQ(slider.minimum(), 0);
    const std::vector<int> grid = WhatIf(std::make_shared<const SelectionTrace>(trace)).grid();
    int size = trace.largest + 5;
    while (std::binary_search(grid.begin(), grid.end(), size)) ++size;
    slider.setValue(size - trace.largest);
    ASSERT_EQ(slotsNow(), size);
    EXPECT_EQ(shown()["Block slots"], QString::number(size));
    EXPECT_TRUE(shown()["Misses"].startsWith(QStringLiteral("≈ "))) << "an estimate, without any wait";
    EXPECT_TRUE(shown()["Tokens/s (modelled link)"].startsWith(QStringLiteral("≈ ")));
    const double estimate = exported("what_if_estimated")["Misses"];
    ASSERT_TRUE(idle());
    const ReplayConfig exact = replayed(trace, "lfu", size);
    expectNumbers(exact);
    EXPECT_EQ(shown()["Misses"], formatCount(exact.misses));
    EXPECT_NEAR(estimate, double(exact.misses), 0.25 * double(exact.misses)) << "between replayed neighbours";

    child<QSlider>("bandwidthSlider").setValue(20); // the link needs no replay: exact at once
    const double gbps = child<QDoubleSpinBox>("bandwidthBox").value();
    expectNumbers(replayed(trace, "lfu", size, Link{"", gbps, trace.link.latencyUs}));
}

TEST_F(CacheViewTest, LruAndBeladyKnowTheirMissesBeforeTheReplay) {
    open(recorded("a.kvtrace", {.promptTokens = 900, .decodeSteps = 80}));
    show("cache", {1200, 800});
    const SelectionTrace trace = traceOf("a.kvtrace");
    for (const char* policy : {"lru", "belady"}) {
        choose("policy", policy);
        ASSERT_TRUE(idle());
        for (const int more : {5, 9, 13, 21}) {
            child<QSlider>("slotsSlider").setValue(more);
            const ReplayConfig exact = replayed(trace, policy, slotsNow());
            EXPECT_EQ(exported()["Misses"], double(exact.misses)) << policy << " " << slotsNow();
            ASSERT_TRUE(idle());
        }
    }
}

TEST_F(CacheViewTest, KeysMoveTheSlidersAndTheSize) {
    open(recorded("a.kvtrace", {.promptTokens = 900}));
    show("cache", {1200, 800});
    auto& slider = child<QSlider>("slotsSlider");
    slider.setFocus();
    const int before = slotsNow();
    QTest::keyClick(&slider, Qt::Key_Right);
    EXPECT_EQ(slotsNow(), before + 1);
    QTest::keyClick(&slider, Qt::Key_Left);
    EXPECT_EQ(slotsNow(), before);
    for (const char* name : {"slotsSlider", "bandwidthSlider", "latencySlider", "aheadSlider", "accuracySlider"}) {
        EXPECT_FALSE(child<QSlider>(name).accessibleName().isEmpty()) << name;
        EXPECT_NE(child<QSlider>(name).focusPolicy() & Qt::TabFocus, 0) << name;
    }
    canvas().setFocus();
    QTest::keyClick(&canvas(), Qt::Key_Right, Qt::ShiftModifier);
    EXPECT_EQ(slotsNow(), before + 10);
    QTest::keyClick(&canvas(), Qt::Key_Home);
    EXPECT_EQ(slotsNow(), traceOf("a.kvtrace").largest);
    workspace.setCursor({.layer = 1});
    QTest::keyClick(&canvas(), Qt::Key_Down);
    EXPECT_EQ(workspace.cursor().layer, 2);
    ASSERT_TRUE(idle());
}

TEST_F(CacheViewTest, TheLinesInThePlotsCanBeDragged) {
    open(recorded("a.kvtrace", {.promptTokens = 900, .decodeSteps = 50}));
    show("cache", {1300, 900});
    const SelectionTrace trace = traceOf("a.kvtrace");
    const int before = slotsNow(), middle = canvas().panels()[Misses]->center().y();
    const QCPRange range = canvas().visibleX();
    drag({pixel(before, 0).x(), middle}, {pixel(before + 12, 0).x() + 1, middle});
    EXPECT_EQ(slotsNow(), before + 12);
    EXPECT_EQ(canvas().visibleX().lower, range.lower) << "the plot is not panned";
    ASSERT_TRUE(idle());
    expectNumbers(replayed(trace, "keep-selected", before + 12));

    canvas().replot();
    const int row = canvas().panels()[Speed]->center().y();
    const auto x = [&](double gbps) { return pixel(std::log2(gbps), 0, Speed).x(); };
    drag({x(trace.link.gigabytesPerSecond), row}, {x(16), row});
    EXPECT_NEAR(child<QDoubleSpinBox>("bandwidthBox").value(), 16, 1);

    canvas().replot();
    const double bandwidth = child<QDoubleSpinBox>("bandwidthBox").value();
    QTest::mousePress(&canvas(), Qt::LeftButton, {}, {x(bandwidth), row});
    move({x(64), row}, Qt::LeftButton);
    EXPECT_GT(child<QDoubleSpinBox>("bandwidthBox").value(), 50);
    QTest::keyClick(&canvas(), Qt::Key_Escape);
    EXPECT_NEAR(child<QDoubleSpinBox>("bandwidthBox").value(), bandwidth, 0.01) << "given up";
    QTest::mouseRelease(&canvas(), Qt::LeftButton, {}, {x(64), row});

    canvas().replot();
    click(before + 30, 1, Misses);
    EXPECT_EQ(slotsNow(), before + 30);
    ASSERT_TRUE(idle());
}

TEST_F(CacheViewTest, PanelsZoomApartAndUndoTogether) {
    open(recorded("a.kvtrace", {}));
    show("cache", {1300, 900});
    const QCPRange sizes = canvas().visibleX(0), links = canvas().visibleX(1);
    wheel(canvas().panels()[Speed]->center(), 4);
    EXPECT_LT(canvas().visibleX(1).size(), 0.7 * links.size());
    EXPECT_EQ(canvas().visibleX(0).size(), sizes.size());
    EXPECT_TRUE(canvas().isZoomed());
    // In another panel, so that it is a zoom of its own, however soon it comes.
    wheel(canvas().panels()[Misses]->center(), 3);
    EXPECT_LT(canvas().visibleX(0).size(), sizes.size());
    view->undoZoom();
    EXPECT_NEAR(canvas().visibleX(0).size(), sizes.size(), 1e-9);
    EXPECT_LT(canvas().visibleX(1).size(), links.size());
    view->resetZoom();
    EXPECT_NEAR(canvas().visibleX(1).size(), links.size(), 1e-9);
    const QPoint a = canvas().panels()[Misses]->center();
    drag(a - QPoint(80, 20), a + QPoint(80, 20), Qt::ControlModifier);
    EXPECT_LT(canvas().visibleX(0).size(), sizes.size()) << "no steps to select here: a box";
    EXPECT_EQ(workspace.cursor().firstStep, -1);
}

TEST_F(CacheViewTest, CurvesAreTheMissCurvesOfWhatTheCursorChooses) {
    open(recorded("a.kvtrace", {.sequences = 2, .decodeSteps = 60}));
    show("cache", {1200, 800});
    const SelectionTrace trace = traceOf("a.kvtrace");
    const auto lines = [&] {
        std::map<std::string, std::map<int, double>> found;
        for (const QString& line : view->exportCsv().split(QLatin1Char('\n'))) {
            const QStringList cells = line.split(QLatin1Char(','));
            if (cells[0] == QLatin1String("miss_ratio"))
                found[cells[1].toStdString()][cells[2].toInt()] = cells[4].toDouble();
        }
        return found;
    };
    const auto expectLines = [&](const PoolScope& scope) {
        auto found = lines();
        for (const CurvePolicy policy : {CurvePolicy::Lru, CurvePolicy::Belady}) {
            MissCurve expected;
            for (const PoolTrace& pool : trace.pools)
                if (scope.has(pool)) expected += missCurve(pool.visits, policy, trace.coldRequests(pool)).warm();
            const auto& line = found[std::string(nameOf(policy))];
            ASSERT_GT(line.size(), 3u);
            for (const auto& [size, percent] : line) EXPECT_NEAR(percent, 100 * expected.ratio(size), 1e-9) << size;
        }
        for (const char* policy : {"keep-selected", "fifo", "lfu", "arc"})
            for (const auto& [size, percent] : found[policy]) {
                const CacheReplay replay = replayCache(trace, findReplayPolicy(policy), size);
                CacheCounts counts;
                for (std::size_t i = 0; i < trace.pools.size(); ++i)
                    if (scope.has(trace.pools[i])) {
                        counts += replay.pools[i];
                        counts.hits -= replay.coldPools[i].hits;
                        counts.misses -= replay.coldPools[i].misses;
                    }
                EXPECT_NEAR(percent, 100. * double(counts.misses) / double(counts.hits + counts.misses), 1e-9);
            }
    };
    expectLines({});
    choose("scope", "Cursor's layer");
    workspace.setCursor({.layer = 2});
    ASSERT_TRUE(idle());
    expectLines({-1, 2, -1});
    choose("scope", "Cursor's KV head");
    workspace.setCursor({.sequence = 1, .layer = 3, .kvHead = 1});
    ASSERT_TRUE(idle());
    expectLines({1, 3, 1});
}

/// Rates leave cold steps out here as on every other page, under the same switch; totals count every step.
TEST_F(CacheViewTest, RatesFollowTheSwitchOfColdSteps) {
    open(recorded("a.kvtrace", {.decodeSteps = 60}));
    show("cache", {1200, 800});
    const TraceReader reader((folder / "a.kvtrace").string());
    const auto recordedHitRate = [&] { return exported("recorded").at("Hit rate"); };
    const auto warm = exported();
    EXPECT_NEAR(recordedHitRate(), 100 * summarize(reader, 1).hitRate, 1e-9);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("leave 1 cold step out"))) << plot().noteText().toStdString();
    setColdSteps(ColdSteps::Counted);
    emit workspace.currentChanged();
    ASSERT_TRUE(idle());
    auto counted = exported();
    EXPECT_NEAR(recordedHitRate(), 100 * summarize(reader, 1).hitRate, 1e-9);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("cold ones too")));
    const SelectionTrace trace = traceOf("a.kvtrace");
    expectNumbers(replayed(trace, "keep-selected", trace.run.deviceSlots));
    setColdSteps(ColdSteps::LeftOut);
    EXPECT_LT(counted["Hit rate"], warm.at("Hit rate"));
    EXPECT_NE(counted["Tokens/s (modelled link)"], warm.at("Tokens/s (modelled link)"));
    for (const char* total : {"Misses", "Host to device", "Exposed transfer (modelled)", "Compute"})
        EXPECT_EQ(counted[total], warm.at(total)) << total;
}

TEST_F(CacheViewTest, SequencesMayShareOnePool) {
    open(recorded("a.kvtrace", {.sequences = 3, .decodeSteps = 60}));
    show("cache", {1200, 800});
    const SelectionTrace trace = traceOf("a.kvtrace"), shared = withSharedPools(trace);
    child<QCheckBox>("sharedPool").click();
    ASSERT_TRUE(idle());
    EXPECT_EQ(slotsNow(), 3 * trace.run.deviceSlots) << "as many slots as before in all";
    expectNumbers(replayed(shared, "keep-selected", slotsNow()));
    child<QCheckBox>("sharedPool").click();
    ASSERT_TRUE(idle());
    EXPECT_EQ(slotsNow(), trace.run.deviceSlots);
    expectNumbers(replayed(trace, "keep-selected", trace.run.deviceSlots));
}

TEST_F(CacheViewTest, SpeedLinesAreReplaysToo) {
    open(recorded("a.kvtrace", {.decodeSteps = 60}));
    show("cache", {1300, 900});
    const SelectionTrace trace = traceOf("a.kvtrace");
    choose("policy", "lru");
    type("aheadBox", "1");
    for (const int lower : {0, 1}) {
        child<QComboBox>("lower").setCurrentIndex(lower);
        ASSERT_TRUE(idle());
        int points = 0, ahead = 0;
        for (const QString& line : view->exportCsv().split(QLatin1Char('\n'))) {
            const QStringList cells = line.split(QLatin1Char(','));
            if (cells[0] != QLatin1String("predicted_speed") || !cells[1].startsWith(QLatin1String("predicted")))
                continue;
            const double x = cells[2].toDouble(), value = cells[4].toDouble();
            const Link link{"", lower == 0 ? x : trace.link.gigabytesPerSecond, trace.link.latencyUs};
            const ReplayConfig config = replayed(trace, "lru", lower == 0 ? slotsNow() : int(x), link, Prefetch{1, 1});
            // The link of the CSV has ten digits, and transfers are cut to nanoseconds.
            if (cells[1] == QLatin1String("predicted")) {
                ReplayConfig onDemand = config;
                onDemand.prefetched.reset();
                EXPECT_NEAR(value, rateSums(onDemand, ColdSteps::LeftOut).tokensPerSecond(), 1e-4 * value);
                ++points;
            } else if (cells[1] == QLatin1String("predicted_loading_ahead")) {
                EXPECT_NEAR(value, rateSums(config, ColdSteps::LeftOut).tokensPerSecond(), 1e-4 * value);
                ++ahead;
            }
        }
        EXPECT_GT(points, 5) << lower;
        EXPECT_GT(ahead, 5) << lower;
    }
}

TEST_F(CacheViewTest, TooltipsNameEveryPolicyWithUnits) {
    open(recorded("a.kvtrace", {}));
    show("cache", {1300, 900});
    const SelectionTrace trace = traceOf("a.kvtrace");
    move(pixel(trace.run.deviceSlots, 1));
    for (const char* text : {"block slots", "lru", "belady", "recorded", " %"})
        EXPECT_TRUE(QToolTip::text().contains(QLatin1String(text))) << text << QToolTip::text().toStdString();
    move(canvas().panels()[Speed]->center());
    for (const char* text : {"GB/s", "tokens/s", "predicted", "modelled"})
        EXPECT_TRUE(QToolTip::text().contains(QLatin1String(text))) << text << QToolTip::text().toStdString();
    move(canvas().panels()[WorkingSet]->center());
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("Window"))) << QToolTip::text().toStdString();
}

TEST_F(CacheViewTest, ReadingCanBeCancelledAndDoneLater) {
    open(recorded("a.kvtrace", {.decodeSteps = 300}));
    for (const ViewEntry& entry : views())
        if (std::string_view(entry.id) == "cache") view.reset(entry.make(workspace, nullptr));
    view->resize(1000, 700);
    view->show(); // asks for the selections; the answer cannot arrive before the loop runs
    auto& button = child<QAbstractButton>("cacheAction");
    ASSERT_TRUE(button.isVisible());
    EXPECT_EQ(button.text(), QStringLiteral("Cancel"));
    button.click();
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("cancelled"))) << plot().emptyText().toStdString();
    EXPECT_TRUE(view->exportCsv().isEmpty());
    ASSERT_EQ(button.text(), QStringLiteral("Load"));
    button.click();
    ASSERT_TRUE(idle());
    EXPECT_EQ(plot().emptyText(), QString());
    EXPECT_FALSE(button.isVisible());
    expectNumbers(replayed(traceOf("a.kvtrace"), "keep-selected", slotsNow()));
}

TEST_F(CacheViewTest, TeachesWhereNoSelectionsWereRecorded) {
    open(recorded("a.kvtrace", {}, RecordLevel::Counters));
    QSignalSpy failed(&workspace, &Workspace::failed);
    show("cache");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("--record selections"))) << plot().emptyText().toStdString();
    EXPECT_EQ(failed.size(), 0);
    open(recorded("dense.kvtrace", {.denseLayers = 4}));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("attends every block"))) << plot().emptyText().toStdString();
}

TEST_F(CacheViewTest, ALiveRunIsComputedAgainOnRequestAndWhenItEnds) {
    RunShape shape;
    shape.decodeSteps = 40;
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto steps = [&](int count) {
        generator.recordNext(recorder, count);
        recorder.flush();
    };
    const auto known = [&](int count) { return waitFor([&] { return workspace.current()->row.steps == count; }); };
    workspace.addLive({path, recorder.runId()});
    show("cache");
    EXPECT_FALSE(plot().emptyText().isEmpty());
    steps(10);
    ASSERT_TRUE(known(10));
    ASSERT_TRUE(waitFor([&] { return workspace.idle() && plot().emptyText().isEmpty(); }));
    const SelectionTrace first = traceOf("live.kvtrace", recorder.runId());
    expectNumbers(replayed(first, "keep-selected", slotsNow()));
    steps(10);
    ASSERT_TRUE(known(20));
    ASSERT_TRUE(idle());
    auto& button = child<QAbstractButton>("cacheAction");
    ASSERT_TRUE(button.isVisible());
    EXPECT_EQ(button.text(), QStringLiteral("Refresh"));
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("last 10 steps"))) << plot().noteText().toStdString();
    // While an engine records, nothing is replayed unless a person asks.
    expectNumbers(replayed(first, "keep-selected", slotsNow()));
    button.click();
    ASSERT_TRUE(idle());
    EXPECT_FALSE(button.isVisible());
    expectNumbers(replayed(traceOf("live.kvtrace", recorder.runId()), "keep-selected", slotsNow()));
    steps(10);
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    workspace.finishLive(workspace.current()->key);
    ASSERT_TRUE(waitFor([&] { return workspace.current()->row.status == RunStatus::Finished && workspace.idle(); }));
    ASSERT_TRUE(idle());
    expectNumbers(replayed(traceOf("live.kvtrace", recorder.runId()), "keep-selected", slotsNow()));
}

TEST_F(CacheViewTest, LeavesOutWhatASmallPictureHasNoRoomFor) {
    open(recorded("a.kvtrace", {}));
    show("cache", {1400, 900});
    const auto visible = [&](int panel) { return canvas().panels()[panel]->visible(); };
    EXPECT_TRUE(visible(Speed) && visible(WorkingSet) && visible(Kept));
    child<QComboBox>("lower").setCurrentIndex(2);
    canvas().replot();
    EXPECT_FALSE(visible(Speed));
    EXPECT_TRUE(visible(WorkingSet) && visible(Kept));
    child<QComboBox>("lower").setCurrentIndex(0);
    view->resize(640, 700);
    QCoreApplication::processEvents();
    canvas().replot();
    EXPECT_TRUE(visible(Misses) && visible(Speed));
    EXPECT_FALSE(visible(Kept));
    ASSERT_TRUE(view->exportImage(file("wide.png"), {1600, 1000})) << "a picture has its own room";
    EXPECT_EQ(QImage(file("wide.png")).size(), QSize(1600, 1000));
}

TEST_F(CacheViewTest, FollowsAnotherRunAndCatchesUpWhenShownAgain) {
    open(recorded("a.kvtrace", {}));
    show("cache");
    view->hide();
    open(recorded("b.kvtrace", {.promptTokens = 600, .decodeSteps = 35, .seed = 4}));
    view->show();
    ASSERT_TRUE(idle());
    expectNumbers(replayed(traceOf("b.kvtrace"), "keep-selected", slotsNow()));
}

TEST(WhatIf, KeepsFewReplaysOfALongRunAndAllThatFit) {
    SelectionTrace trace;
    trace.run.layers = 1;
    PoolTrace& pool = trace.pools.emplace_back();
    for (const std::vector<std::int32_t>& blocks : {std::vector<std::int32_t>{0, 1}, {1, 2}, {0, 90}})
        pool.visits.add(blocks), pool.steps.push_back(int(trace.steps.size())), trace.steps.push_back({1, 1, 1000, 0});
    trace.largest = 2;
    trace.hits = 1;
    trace.misses = 5;
    const auto shared = std::make_shared<const SelectionTrace>(std::move(trace));
    WhatIf whatIf(shared);
    EXPECT_EQ(whatIf.smallestSlots(), 2);
    EXPECT_EQ(whatIf.largestSlots(), 91);
    EXPECT_EQ(whatIf.recorded().policy, "lru") << "nothing was cached: every block was resident";
    EXPECT_FALSE(whatIf.hasRecordedCache());
    EXPECT_TRUE(std::isnan(whatIf.recordedMissRatio({})));
    EXPECT_GE(whatIf.grid().size(), 8u);
    EXPECT_EQ(whatIf.grid().front(), 2);
    EXPECT_EQ(whatIf.grid().back(), 91);
    EXPECT_FALSE(whatIf.answer({.policy = "lru", .size = 5, .gbps = 10}));
    const auto add = [&](int size) {
        whatIf.add("lru", size,
                   std::make_shared<const CacheReplay>(replayCache(*shared, findReplayPolicy("lru"), size, 1)));
    };
    add(2);
    add(10);
    EXPECT_EQ(whatIf.answer({.policy = "lru", .size = 2, .gbps = 10})->config.misses, 5);
    EXPECT_EQ(whatIf.answer({.policy = "lru", .size = 10, .gbps = 10})->config.misses, 4);
    const auto between = whatIf.answer({.policy = "lru", .size = 4, .gbps = 10});
    EXPECT_TRUE(between->estimated);
    EXPECT_GE(between->config.misses, 4);
    EXPECT_LE(between->config.misses, 5);
    EXPECT_FALSE(between->causes.capacity) << "Belady's curve is not there yet";
    whatIf.setCurves(CurvePolicy::Lru, missCurves(*shared, CurvePolicy::Lru, 1));
    whatIf.setCurves(CurvePolicy::Belady, missCurves(*shared, CurvePolicy::Belady, 1));
    const auto exact = whatIf.answer({.policy = "lru", .size = 2, .gbps = 10});
    EXPECT_EQ(exact->causes.compulsory, 4); // 0, 1, 2, 90
    EXPECT_EQ(*exact->causes.capacity + *exact->causes.policy, 1);
}

TEST(CacheNumbers, WhatReadsTheSameHasNoDifference) {
    KeyNumber number;
    number.unit = Unit::Nanoseconds;
    number.a = 27'301'000, number.b = 27'299'000; // 27.3 ms both
    EXPECT_EQ(shortDifference(number), QStringLiteral("="));
    number.b = 27'000'000;
    EXPECT_EQ(shortDifference(number), QStringLiteral("−1.1 %"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

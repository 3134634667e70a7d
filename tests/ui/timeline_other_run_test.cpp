// The timeline after another run was shown: names, colours and tooltips are those of the run in front, and a picture of
// it is the picture that a window draws which has never shown anything else.
#include "tests/ui/timeline_fixture.h"

#include "ui/timeline/span_facts.h"

#include <QLabel>
#include <QSignalSpy>
#include <QToolTip>

#include <random>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineOtherRun : public TimelineTest {
protected:
    /// A run with kernels of these names: the same name has another number in each run. Dense layers have no stage1.
    QString named(const std::string& name, const std::vector<std::string>& names, int decodeSteps = 6,
                  bool dense = false) {
        const RunShape shape{.layers = 2, .denseLayers = dense ? 2 : 0, .decodeSteps = decodeSteps};
        Recorder recorder((folder / name).string(), {});
        RunInfo info = synthetic::infoOf(shape);
        info.name = name;
        recorder.beginRun(info);
        const auto steps = synthetic::stepsOf(shape);
        const std::int64_t from = steps.front().startNs, length = steps.back().startNs - from;
        std::vector<SpanRecord> spans;
        for (std::size_t i = 0; i < names.size(); ++i)
            spans.push_back({-1, -1, SpanRecord::Kind::Kernel, "stream 7", names[i],
                             from + std::int64_t(i) * length / std::int64_t(names.size()),
                             length / std::int64_t(names.size()) * 9 / 10, 0});
        synthetic::RunGenerator generator(shape);
        generator.recordNext(recorder, generator.steps());
        recorder.take(std::move(spans));
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
        return file(name);
    }
    QImage grabbed() {
        EXPECT_TRUE(idle());
        timeline().resetZoom();
        QToolTip::hideText();
        return timeline().grab().toImage();
    }
    void hover(QPoint at) { mouse(QEvent::MouseMove, at, Qt::NoButton, Qt::NoButton, {}); }
    QString spanTitle(SpanRef ref) { return shownName(data(), index().at(ref)); }
};

/// What a fresh view draws of a run.
QImage freshPicture(const QString& path, QSize size) {
    Workspace workspace;
    workspace.open(path);
    EXPECT_TRUE(waitFor([&] { return workspace.idle() && workspace.current(); }));
    std::unique_ptr<View> view;
    for (const ViewEntry& entry : views())
        if (std::string_view(entry.id) == "timeline") view.reset(entry.make(workspace, nullptr));
    view->resize(size);
    view->show();
    EXPECT_TRUE(QTest::qWaitForWindowExposed(view.get()));
    QCoreApplication::processEvents();
    EXPECT_TRUE(waitFor([&] { return workspace.idle(); }));
    QCoreApplication::processEvents();
    return view->findChild<TimelineCanvas*>()->grab().toImage();
}

TEST_F(TimelineOtherRun, DrawsWhatAWindowDrawsThatHasShownNothingElse) {
    const QStringList runs{named("a.kvtrace", {"alpha", "beta", "gamma"}),
                           named("b.kvtrace", {"gamma", "rope", "alpha"}),
                           named("c.kvtrace", {"delta", "alpha", "lm_head", "beta"}, 6, true),
                           named("d.kvtrace", {"gather: copyBlocks", "beta", "stage1", "alpha"}),
                           named("e.kvtrace", {"epsilon", "gamma", "rope", "gather: copyBlocks", "attention"}, 9),
                           named("f.kvtrace", {"beta", "qkv_linear"}, 3, true)};
    for (const QString& run : runs) open(run);
    show();
    std::mt19937 random(7);
    std::vector<int> order;
    for (int i = 0; i < 14; ++i) order.push_back(int(random() % std::uint32_t(runs.size())));
    for (std::size_t i = 0; i < order.size(); ++i) {
        const QString& run = runs[order[i]];
        if (i % 3 == 2)
            workspace.open(run); // as a person does who opens it again
        else
            workspace.setCurrent({run, 1});
        EXPECT_EQ(grabbed(), freshPicture(run, view->size())) << "the " << i << ". shown, " << run.toStdString();
    }
}

/// A canvas of two spans with these names, among as many others as stand before the second in the table.
QImage pictureOfTwo(const std::string& first, const std::string& second, int between) {
    SpanBatch batch;
    batch.texts = {"stream 1", first};
    for (int i = 0; i < between; ++i) batch.texts.push_back("other " + std::to_string(i));
    batch.texts.push_back(second);
    for (const int name : {1, int(batch.texts.size()) - 1}) {
        SpanRow span;
        span.track = 0;
        span.name = name;
        span.startNs = name == 1 ? 0 : 1000;
        span.durationNs = 900;
        batch.spans.push_back(span);
    }
    batch.atEnd = true;
    TimelineCanvas canvas;
    canvas.resize(900, 200);
    canvas.data().index.append(batch);
    canvas.dataChanged();
    return canvas.grab().toImage();
}

TEST_F(TimelineOtherRun, MoreNamesThanSixteenBitsHoldAreNotMixedUp) {
    EXPECT_EQ(pictureOfTwo("gather", "scatter", (1 << 16) - 1), pictureOfTwo("gather", "scatter", 0));
}

TEST_F(TimelineOtherRun, ATooltipFollowsWhatLiesUnderARestingPointer) {
    open(named("a.kvtrace", {"alpha", "beta", "gamma"}));
    show();
    const SpanRef first = find("alpha", -1);
    const QPoint at = middleOf(first);
    hover(at);
    ASSERT_TRUE(QToolTip::text().contains(QStringLiteral("alpha"))) << QToolTip::text().toStdString();
    const TimelineRow* row = scene().layout.rowOf(first.lane);
    const std::string track = trackKey(data(), *row);
    timeline().setHidden(track, true); // as the menu does: the rows below move up, or nothing is left there
    EXPECT_TRUE(waitFor([] {           // it fades
        return !QToolTip::isVisible() || !QToolTip::text().contains(QStringLiteral("alpha"));
    })) << QToolTip::text().toStdString();
    timeline().setHidden(track, false);
    hover(at);
    ASSERT_TRUE(QToolTip::text().contains(QStringLiteral("alpha")));
    timeline().panBy(timeline().areas().body.width() / 3.0);
    const auto now = timeline().placeAt(at).span;
    EXPECT_TRUE(waitFor([&] { return !QToolTip::isVisible() || (now && QToolTip::text().contains(spanTitle(*now))); }))
        << QToolTip::text().toStdString();
}

TEST_F(TimelineOtherRun, ATooltipEndsWithItsRunAndWithItsView) {
    open(named("a.kvtrace", {"alpha", "beta", "gamma"}));
    const RunKey a = workspace.current()->key;
    open(named("b.kvtrace", {"beta", "delta", "alpha"}));
    const RunKey b = workspace.current()->key;
    workspace.setCurrent(a);
    show();
    hover(middleOf(find("alpha", -1)));
    ASSERT_TRUE(QToolTip::isVisible());
    workspace.setCurrent(b);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(waitFor([] { return !QToolTip::isVisible(); })) << QToolTip::text().toStdString();
    hover(middleOf(find("delta", -1)));
    ASSERT_TRUE(QToolTip::text().contains(QStringLiteral("delta")));
    view->hide(); // as another tab does
    EXPECT_TRUE(waitFor([] { return !QToolTip::isVisible(); })) << QToolTip::text().toStdString();
}

TEST_F(TimelineOtherRun, ATooltipFollowsTheScrolledRows) {
    open(recorded("run.kvtrace", {.layers = 3, .decodeSteps = 6}));
    show({900, 260}); // too low for all rows
    ASSERT_GT(scene().layout.height, timeline().areas().body.height());
    timeline().scrollBy(10'000);
    const QRect body = timeline().areas().body;
    QPoint at;
    for (int y = body.top() + 6; at.isNull() && y < body.bottom(); y += 4)
        for (int x = body.left() + 5; at.isNull() && x < body.right(); x += 3)
            if (timeline().placeAt({x, y}).span) at = {x, y};
    ASSERT_FALSE(at.isNull());
    const SpanRef before = *timeline().placeAt(at).span;
    hover(at);
    ASSERT_TRUE(QToolTip::text().contains(spanTitle(before))) << QToolTip::text().toStdString();
    QTest::keyClick(&timeline(), Qt::Key_PageUp);
    const auto now = timeline().placeAt(at).span;
    ASSERT_FALSE(now && *now == before) << "the rows have moved";
    EXPECT_TRUE(waitFor([&] { return !QToolTip::isVisible() || (now && QToolTip::text() == tooltipOf(data(), *now)); }))
        << QToolTip::text().toStdString();
}

TEST_F(TimelineOtherRun, NothingWaitsForAStepThatWillNotCome) {
    const QString path = file("stopped.kvtrace");
    Recorder recorder(path.toStdString(), {});
    recorder.beginRun(synthetic::infoOf({}));
    recorder.flush();
    workspace.addLive({path, 1});
    ASSERT_TRUE(waitFor([&] { return workspace.idle() && workspace.current()->row.layers > 0; }));
    show();
    auto& text = child<QLabel>("emptyText");
    ASSERT_TRUE(waitFor([&] { return text.text().contains(QStringLiteral("Waiting for the first step")); }));
    recorder.endRun(RunStatus::Stopped, {}); // the prompt is still being read
    recorder.flush();
    workspace.finishLive({path, 1});
    EXPECT_TRUE(waitFor([&] { return text.text().contains(QStringLiteral("stopped before its first step")); }))
        << text.text().toStdString();
    EXPECT_FALSE(text.text().contains(QStringLiteral("Waiting")));
    open(path); // and when it is opened again
    EXPECT_TRUE(text.text().contains(QStringLiteral("stopped before its first step"))) << text.text().toStdString();
}

/// A pause of a hundred steps' length between two decode steps.
TEST_F(TimelineOtherRun, RatesEndWhereTheirStepEnds) {
    const QString path = recorded("run.kvtrace", {.layers = 2, .decodeSteps = 8});
    open(path);
    show();
    const StepCounters& counters = data().counters;
    std::int64_t from = 0, end = 0, next = 0, nextEnd = 0;
    ASSERT_TRUE(counters.timesOf(4, from, end));
    ASSERT_TRUE(counters.timesOf(5, next, nextEnd));
    ASSERT_GT(next - end, 4) << "the engine does something between two steps";
    const double gap = double(end + next) / 2;
    for (const auto counter : {StepCounters::TokenRate, StepCounters::HitRate, StepCounters::ToDevice}) {
        if (!counters.has(counter)) continue;
        EXPECT_FALSE(std::isnan(curveAt(data(), counter, double(end) - 1))) << StepCounters::info(counter).id;
        EXPECT_TRUE(std::isnan(curveAt(data(), counter, gap))) << StepCounters::info(counter).id;
        EXPECT_TRUE(curveTooltip(data(), counter, gap).contains(QStringLiteral("–"))) << StepCounters::info(counter).id;
        // And no pixel of the gap is drawn.
        timeline().zoomTo({double(end) + 1, double(next) - 1});
        const TimelineRow curve = row(QString::fromUtf8(StepCounters::info(counter).title));
        QToolTip::hideText();
        const QImage image = timeline().grab().toImage();
        const QRect body = timeline().areas().body;
        const double ratio = image.devicePixelRatio();
        const QRgb drawn = curveColour(data(), counter, Theme::current());
        int pixels = 0;
        for (int y = body.top() + curve.y; y < body.top() + curve.y + curve.height - 1; ++y)
            for (int x = body.left() + 2; x < body.right() - 2; ++x)
                pixels += image.pixel(int(x * ratio), int(y * ratio)) == drawn ? 1 : 0;
        EXPECT_EQ(pixels, 0) << StepCounters::info(counter).id;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui

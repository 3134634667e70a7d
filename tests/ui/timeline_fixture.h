// The timeline on recorded runs, and hands to use it with.
#pragma once

#include "profiler/format/counter_sample.h"
#include "tests/ui/view_fixture.h"

#include "ui/timeline/timeline_canvas.h"
#include "ui/timeline/timeline_curves.h"
#include "ui/timeline/timeline_panel.h"
#include "ui/widgets/inspector.h"

#include <QInputDialog>
#include <QTimer>

#include <stdexcept>
#include <string>

namespace kvscope::ui {

using synthetic::RunShape;

class TimelineTest : public ViewTest {
protected:
    void show(QSize size = {1200, 1000}) {
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == "timeline") view.reset(entry.make(workspace, nullptr));
        view->resize(size);
        view->show();
        ASSERT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        ASSERT_TRUE(idle());
    }
    void openAndShow(const RunShape& shape = {}) {
        open(recorded("run.kvtrace", shape));
        show();
    }
    /// A run with spans of others long before its steps and after them, kernels with their steps, and PCIe counters.
    QString measured(const std::string& name) {
        const RunShape shape{.layers = 3, .decodeSteps = 12};
        const auto steps = synthetic::stepsOf(shape);
        Recorder recorder((folder / name).string(), {});
        recorder.beginRun(synthetic::infoOf(shape));
        synthetic::RunGenerator generator(shape);
        generator.recordNext(recorder, int(steps.size()));
        firstStep = steps.front().startNs;
        lastStep = steps.back().startNs + steps.back().durationNs;
        const std::int64_t length = lastStep - firstStep;
        std::vector<SpanRecord> spans{
            {-1, -1, SpanRecord::Kind::Copy, "copies host to device", "16384 bytes host to device", firstStep - length,
             16'384, 0},
            {-1, -1, SpanRecord::Kind::Range, "CUPTI overhead", "buffer flush", lastStep + length / 2, 1000, 0}};
        for (const StepRecord& step : steps)
            for (std::size_t layer = 0; layer < step.layers.size(); ++layer)
                spans.push_back({step.step, int(layer), SpanRecord::Kind::Kernel, "stream 13", "ffn: linearKernel",
                                 step.layers[layer].startNs, step.layers[layer].stageNs[std::size_t(Stage::Ffn)], 0});
        recorder.take(std::move(spans));
        std::vector<CounterSample> counters;
        for (int i = 0; i < 10; ++i) {
            counters.push_back({kPcieToDevice, firstStep + i * length / 10, length / 10, (i + 1) * 1'000'000});
            counters.push_back({kPcieToHost, firstStep + i * length / 10, length / 10, 5'000});
        }
        counters.push_back({kLostGpuRecords, firstStep, length, 0});
        recorder.take(std::move(counters));
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
        return file(name);
    }
    TimelineCanvas& timeline() { return *view->findChild<TimelineCanvas*>(); }
    const TimelineScene& scene() { return timeline().scene(); }
    const SpanIndex& index() { return timeline().data().index; }
    TimelinePanel& panel() { return *view->findChild<TimelinePanel*>(); }
    const TimelineData& data() { return timeline().data(); }
    /// The row of a curve or track with this title.
    const TimelineRow& row(const QString& title) {
        for (const TimelineRow& each : scene().layout.rows)
            if (each.firstOfTrack && trackTitle(data(), each) == title) return each;
        throw std::runtime_error("no row is called " + title.toStdString());
    }
    bool hasRow(const QString& title) {
        for (const TimelineRow& each : scene().layout.rows)
            if (each.firstOfTrack && trackTitle(data(), each) == title) return true;
        return false;
    }
    QPoint labelOf(const QString& title) {
        return {30, timeline().areas().body.top() + row(title).y - scene().scroll + 5};
    }
    /// The first span of this name at or after a step.
    SpanRef find(const std::string& name, int step = 0) {
        for (int lane = 0; lane < index().laneCount(); ++lane)
            for (std::uint32_t i = 0; i < index().lane(lane).spans; ++i) {
                const TimelineSpan span = index().at({lane, i});
                if (span.step >= step && index().names()[std::size_t(span.name)] == name) return {lane, i};
            }
        ADD_FAILURE() << "no span " << name;
        return {0, 0};
    }
    /// The middle of a span on the screen.
    QPoint middleOf(SpanRef ref) {
        const TimelineAreas areas = timeline().areas();
        const TimelineSpan span = index().at(ref);
        const TimelineRow* row = scene().layout.rowOf(ref.lane);
        const double ns = double(span.startNs) + double(span.durationNs) / 2;
        return {int(areas.xOf(ns, scene().window)), areas.body.top() + row->y - scene().scroll + row->height / 2};
    }
    /// A place between two tracks, near the left.
    QPoint emptySpot() {
        return {timeline().areas().body.left() + 5,
                timeline().areas().body.top() + row(QString::fromLatin1(kHostTrack)).y - scene().scroll - 4};
    }
    double timeAt(int x) { return timeline().areas().timeAt(x, scene().window); }
    void mouse(QEvent::Type type, QPoint at, Qt::MouseButton button, Qt::MouseButtons held,
               Qt::KeyboardModifiers keys) {
        QMouseEvent event(type, QPointF(at), QPointF(timeline().mapToGlobal(at)), button, held, keys);
        QApplication::sendEvent(&timeline(), &event);
    }
    void drag(QPoint from, QPoint to, Qt::KeyboardModifiers keys = {}) {
        mouse(QEvent::MouseButtonPress, from, Qt::LeftButton, Qt::LeftButton, keys);
        for (int i = 1; i <= 5; ++i)
            mouse(QEvent::MouseMove, from + (to - from) * i / 5, Qt::NoButton, Qt::LeftButton, keys);
        mouse(QEvent::MouseButtonRelease, to, Qt::LeftButton, {}, keys);
    }
    void click(QPoint at) { QTest::mouseClick(&timeline(), Qt::LeftButton, {}, at); }
    void wheel(QPoint at, int clicks, Qt::KeyboardModifiers keys = {}) {
        QWheelEvent event(QPointF(at), QPointF(timeline().mapToGlobal(at)), {}, {0, 120 * clicks}, Qt::NoButton, keys,
                          Qt::NoScrollPhase, false);
        QApplication::sendEvent(&timeline(), &event);
    }
    void press(Qt::Key key, Qt::KeyboardModifiers keys = {}) { QTest::keyClick(&timeline(), key, keys); }
    /// Answers the next input dialog; an invalid string cancels it.
    void answer(const QString& text) {
        QTimer::singleShot(0, [text] {
            auto* dialog = qobject_cast<QInputDialog*>(QApplication::activeModalWidget());
            ASSERT_TRUE(dialog);
            dialog->setTextValue(text);
            text.isNull() ? dialog->reject() : dialog->accept();
        });
    }
    QString fact(const QString& name) { return panel().findChild<FactTable*>()->value(name); }

    std::int64_t firstStep = 0, lastStep = 0; // of measured(): where its steps begin and end
};

} // namespace kvscope::ui

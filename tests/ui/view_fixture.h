// Views on recorded synthetic runs: waiting for a condition, finding pixels of data, sending wheel events.
#pragma once

#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h" // before any Qt header: its member `slots` is a macro there

#include "tests/profiler/temporary_folder.h"
#include "tests/ui/settled.h"
#include "tests/ui/waiting.h"
#include "ui/frame/view.h"
#include "ui/frame/workspace.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"

#include <QApplication>
#include <QTest>
#include <QWheelEvent>

#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace kvscope::ui {

/// Runs the event loop until `condition` holds; false after half a minute: reads run at low priority.
inline bool waitFor(const std::function<bool()>& condition) { return waitUntil(condition, 30'000); }

class ViewTest : public ::testing::Test {
protected:
    ViewTest() { Theme::apply(*qApp, Theme::light()); }

    QString file(const std::string& name) const { return QString::fromStdString((folder / name).string()); }
    QString recorded(const std::string& name, const synthetic::RunShape& shape, RecordLevel level = RecordLevel::Full) {
        synthetic::recordFile(folder / name, shape, level);
        return file(name);
    }
    bool idle() {
        return waitFor([this] { return waitsForChecks ? isSettled(workspace) : workspace.idle(); }) &&
               (QCoreApplication::processEvents(), true);
    }
    void open(const QString& path) {
        workspace.open(path);
        ASSERT_TRUE(idle());
    }
    PlotView& show(const char* id, QSize size = {1000, 640}) {
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == id) view.reset(entry.make(workspace, nullptr));
        view->resize(size);
        view->show();
        EXPECT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        EXPECT_TRUE(idle());
        canvas().replot();
        return plot();
    }
    /// The view, or the page of it that is shown.
    PlotView& plot() {
        if (auto* whole = dynamic_cast<PlotView*>(view.get())) return *whole;
        for (PlotView* page : view->findChildren<PlotView*>())
            if (page->isVisible()) return *page;
        throw std::runtime_error("the view shows no plot");
    }
    PlotCanvas& canvas() { return plot().canvas(); }
    QPoint pixel(double x, double y, std::size_t panel = 0) {
        const QCPAxisRect* rect = canvas().panels().at(panel);
        return {int(std::floor(rect->axis(QCPAxis::atBottom)->coordToPixel(x))),
                int(std::floor(rect->axis(QCPAxis::atLeft)->coordToPixel(y)))};
    }
    QColor colourAt(double x, double y, std::size_t panel = 0) {
        canvas().overlay().setVisible(false); // the data, not the cursor
        canvas().replot();
        const QImage image = canvas().grab().toImage();
        canvas().overlay().setVisible(true);
        const double ratio = image.devicePixelRatio();
        return image.pixelColor((QPointF(pixel(x, y, panel)) * ratio).toPoint());
    }
    void click(double x, double y, std::size_t panel = 0) {
        QTest::mouseClick(&canvas(), Qt::LeftButton, {}, pixel(x, y, panel));
        QCoreApplication::processEvents();
    }
    void drag(QPoint from, QPoint to, Qt::KeyboardModifiers modifiers = {}) {
        QTest::mousePress(&canvas(), Qt::LeftButton, modifiers, from);
        for (int i = 1; i <= 4; ++i) move(from + (to - from) * i / 4, Qt::LeftButton, modifiers);
        QTest::mouseRelease(&canvas(), Qt::LeftButton, modifiers, to);
        QCoreApplication::processEvents();
    }
    void move(QPoint to, Qt::MouseButtons buttons = {}, Qt::KeyboardModifiers modifiers = {}) {
        QMouseEvent event(QEvent::MouseMove, QPointF(to), QPointF(canvas().mapToGlobal(to)), Qt::NoButton, buttons,
                          modifiers);
        QApplication::sendEvent(&canvas(), &event);
    }
    void wheel(QPoint at, int clicks, Qt::KeyboardModifiers modifiers = {}) {
        QWheelEvent event(QPointF(at), QPointF(canvas().mapToGlobal(at)), {}, {0, 120 * clicks}, Qt::NoButton,
                          modifiers, Qt::NoScrollPhase, false);
        QApplication::sendEvent(&canvas(), &event);
        QCoreApplication::processEvents();
    }
    template <class Widget> Widget& child(const char* name) {
        auto* found = view->findChild<Widget*>(QString::fromLatin1(name));
        if (!found) throw std::runtime_error(std::string("the view has no ") + name);
        return *found;
    }

    test::Folder folder;
    bool waitsForChecks = true; // false in a test of so many runs that the rules of all would take minutes
    Workspace workspace;
    std::unique_ptr<View> view;
};

} // namespace kvscope::ui

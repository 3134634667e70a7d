// The desktop's window on a small recorded trace, as a person has it in front of them.
#pragma once

#include "tests/ui/settled.h"
#include "tests/ui/small_trace.h"
#include "tests/ui/waiting.h"
#include "ui/frame/view.h"
#include "ui/window/main_window.h"

#include <QAction>
#include <QApplication>
#include <QSignalSpy>
#include <QStandardPaths>
#include <QTemporaryDir>
#include <QTest>

#include <gtest/gtest.h>

#include <memory>

namespace kvscope::ui {

class WindowTest : public testing::Test {
protected:
    WindowTest() { QStandardPaths::setTestModeEnabled(true); }

    template <class Condition> static bool until(Condition&& condition) { return waitUntil(condition); }

    std::unique_ptr<MainWindow> makeWindow(bool fresh = true, QSize size = {1600, 1000}) {
        auto window = std::make_unique<MainWindow>(Settings(fresh, folder.filePath("desktop.ini")));
        window->resize(size);
        window->show();
        EXPECT_TRUE(QTest::qWaitForWindowExposed(window.get()));
        return window;
    }
    /// A window that shows a recorded run.
    std::unique_ptr<MainWindow> windowOnTrace(bool fresh = true, const SmallTrace& shape = {}) {
        const QString path = folder.filePath("small.kvtrace");
        recordSmallTrace(path, shape);
        auto window = makeWindow(fresh);
        window->openFiles({path});
        EXPECT_TRUE(until([&] { return window->workspace().current() && isSettled(window->workspace()); }));
        return window;
    }
    static void settle(MainWindow& window) {
        QCoreApplication::processEvents(); // a view that was just chosen asks when it is shown
        ASSERT_TRUE(until([&] { return isSettled(window.workspace()); }));
        QCoreApplication::processEvents();
    }
    static void trigger(MainWindow& window, const char* name) { window.action(name)->trigger(); }

    QTemporaryDir folder;
};

} // namespace kvscope::ui

// How tests of the desktop wait for what other threads and timers do.
#pragma once

#include <QCoreApplication>
#include <QElapsedTimer>
#include <QEvent>
#include <QEventLoop>
#include <QTimer>

namespace kvscope::ui {

/// Runs the event loop until `condition` holds. The thread sleeps between two events: a thread that asks again and
/// again keeps a core from the reads, whose threads have a lower priority. @return false after `patienceMs`
template <class Condition> bool waitUntil(Condition&& condition, int patienceMs = 60'000) {
    QElapsedTimer waited;
    waited.start();
    QTimer tick; // ends the sleep, for conditions that no event makes true
    tick.start(5);
    while (!condition()) {
        if (waited.elapsed() > patienceMs) return false;
        QCoreApplication::processEvents(QEventLoop::AllEvents | QEventLoop::WaitForMoreEvents);
        QCoreApplication::sendPostedEvents(nullptr, QEvent::DeferredDelete); // as QTest::qWaitFor
    }
    return true;
}

} // namespace kvscope::ui

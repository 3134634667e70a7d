// Reads a few facts from traces that are not open, for the start page and for the offers after a crash.
#pragma once

#include <QDateTime>
#include <QString>
#include <QStringList>

#include <functional>
#include <vector>

class QObject;

namespace kvscope::ui {

struct TraceFacts {
    QString path;
    QString name;       // name of the first run, or of the file if the run has none
    QString status;     // "finished", "running", ...; empty: the trace holds no run
    int steps = 0;      // decode steps of the first run
    int iterations = 0; // of the first run, where it served requests
    int runs = 0;
    bool stale = false; // the status is "running", but the program that wrote it is gone
    QDateTime recorded; // local time; invalid where it is not known
    QString problem;    // a sentence why the trace could not be read; empty: it could
};

/// Runs on any thread. If the file cannot be read, the result has a problem.
TraceFacts readTraceFacts(const QString& path);
/// "680 steps", or "883 iterations" of a run that served requests.
QString countOf(const TraceFacts& facts);
/// "680 steps · interrupted · 14 Nov 2026, 09:12", or the problem. Of today's traces only the time is given.
QString describe(const TraceFacts& facts);
/// The `most` traces of a folder that were written last, newest first.
QStringList newestTraces(const QString& folder, int most);
/// Calls `which` on a worker thread, reads the facts of the traces that it returns, and calls `done` on the GUI thread.
/// If `context` has died by then, `done` is not called.
void readTraceFacts(QObject* context, const std::function<QStringList()>& which,
                    std::function<void(std::vector<TraceFacts>)> done);

} // namespace kvscope::ui

// What is said of a trace that nobody has opened yet: on the start page, and where it is offered after a crash.
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
    QString name;   // of its first run; the file's where it has none
    QString status; // "finished", "running", ...; empty: it holds no run
    int steps = 0;  // decode steps of the first run
    int runs = 0;
    bool stale = false; // says "running", but its writer is gone
    QDateTime recorded; // local time; invalid where it is not known
    QString problem;    // why nothing is known: one sentence; empty: it could be read
};

/// Any thread; a file that cannot be read has a problem.
TraceFacts readTraceFacts(const QString& path);
/// "680 steps · interrupted · 14 Nov, 09:12", or the problem.
QString describe(const TraceFacts& facts);
/// The traces of a folder that were written last, newest first, at most so many.
QStringList newestTraces(const QString& folder, int most);
/// Reads on a worker and tells the GUI thread, unless `context` has died meanwhile.
void readTraceFacts(QObject* context, const std::function<QStringList()>& which,
                    std::function<void(std::vector<TraceFacts>)> done);

} // namespace kvscope::ui

#include "ui/widgets/trace_facts.h"

#include "base/error.h"
#include "profiler/read/trace_reader.h"
#include "ui/frame/units.h"

#include <QCoreApplication>
#include <QDir>
#include <QFileInfo>
#include <QLocale>
#include <QPointer>
#include <QThreadPool>

#include <algorithm>
#include <exception>
#include <utility>

namespace kvscope::ui {

namespace {
QString tr(const char* text) { return QCoreApplication::translate("TraceFacts", text); }
} // namespace

TraceFacts readTraceFacts(const QString& path) {
    TraceFacts facts;
    facts.path = path;
    facts.name = QFileInfo(path).completeBaseName();
    facts.recorded = QFileInfo(path).lastModified();
    try {
        const std::vector<RunRow> runs = TraceReader(path.toStdString()).runs();
        facts.runs = int(runs.size());
        if (runs.empty()) return facts;
        const RunRow& run = runs.front();
        if (!run.name.empty()) facts.name = QString::fromStdString(run.name);
        facts.status = QString::fromStdString(run.status.text());
        facts.steps = run.prompts.decodesBelow(run.steps);
        facts.iterations = run.iterations;
        facts.stale = run.stale;
        const QDateTime created = QDateTime::fromString(QString::fromStdString(run.createdUtc), Qt::ISODate);
        if (created.isValid()) facts.recorded = created.toLocalTime();
    } catch (const Error& error) {
        facts.problem = QString::fromStdString(oneLine(error));
    } catch (const std::exception& error) {
        facts.problem = QString::fromUtf8(error.what());
    }
    return facts;
}

QString countOf(const TraceFacts& facts) {
    if (facts.iterations > 0)
        return facts.iterations == 1 ? tr("1 iteration") : tr("%1 iterations").arg(formatCount(facts.iterations));
    return facts.steps == 1 ? tr("1 step") : tr("%1 steps").arg(formatCount(facts.steps));
}

QString describe(const TraceFacts& facts) {
    if (!facts.problem.isEmpty()) return facts.problem;
    if (facts.runs == 0) return tr("no run in it yet");
    QStringList parts{countOf(facts)};
    parts << (facts.stale ? tr("interrupted") : facts.status);
    if (facts.runs > 1) parts << tr("and %1 more runs").arg(facts.runs - 1);
    if (facts.recorded.isValid()) {
        const bool today = facts.recorded.date() == QDate::currentDate();
        parts << (today ? facts.recorded.toString(QStringLiteral("hh:mm"))
                        : QLocale::c().toString(facts.recorded, QStringLiteral("d MMM yyyy, hh:mm")));
    }
    return parts.join(QStringLiteral(" · "));
}

QStringList newestTraces(const QString& folder, int most) {
    QStringList paths;
    const QDir dir(folder);
    for (const QString& name : dir.entryList({QStringLiteral("*.kvtrace")}, QDir::Files | QDir::Readable, QDir::Time)) {
        if (paths.size() == most) break;
        paths << dir.absoluteFilePath(name);
    }
    return paths;
}

void readTraceFacts(QObject* context, const std::function<QStringList()>& which,
                    std::function<void(std::vector<TraceFacts>)> done) {
    QThreadPool::globalInstance()->start([context = QPointer<QObject>(context), which, done = std::move(done)] {
        std::vector<TraceFacts> all;
        for (const QString& path : which()) all.push_back(readTraceFacts(path));
        QCoreApplication* application = QCoreApplication::instance();
        if (!application) return; // the program is ending
        const auto tell = [context, done, all = std::move(all)] {
            if (context) done(all);
        };
        QMetaObject::invokeMethod(application, tell, Qt::QueuedConnection);
    });
}

} // namespace kvscope::ui

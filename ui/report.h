// A report of one or several recorded runs, side by side: what ran, the key numbers, breakdown, figures, health,
// definitions.
#pragma once

#include "profiler/read/summary.h"
#include "profiler/read/trace_reader.h"

#include <QImage>
#include <QString>
#include <QStringList>

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::ui {

struct ReportShare {
    std::string component; // stage name, or "other"
    std::int64_t totalNs = 0;
};

/// Numbers of one run. Decode steps only, unless the name says prefill.
struct ReportRun {
    QString path;
    RunRow row;
    RunSummary summary;
    std::int64_t slowestStepNs = 0, coldMisses = 0; // coldMisses: of the first decode step
    int slowestStep = -1;                           // -1: no decode step
    std::vector<ReportShare> breakdown;             // largest first; sums to the decode wall time
};

struct ReportFigure {
    QString title, caption;
    QImage picture; // its device pixel ratio gives the logical size
};

struct Report {
    QString createdUtc;
    std::vector<ReportRun> runs;
    std::vector<std::vector<ReportFigure>> figures; // [view][run]
};

/// One line of the table of key numbers.
struct ReportRow {
    QString name, note; // note: "measured", "modelled", or what the number is over
    QStringList values; // per run
};

/// Reads every run of the traces. @throws Error naming the file
Report collectReport(const QStringList& traces);
/// Renders the views of every run, light theme. Needs a QApplication; runs the event loop. @throws Error
void addFigures(Report& report);

std::vector<ReportRow> keyRows(const Report& report);
std::vector<ReportRow> configuration(const Report& report);
std::vector<ReportRow> health(const Report& report);

/// One file without references to others.
QString reportHtml(const Report& report);
/// A4. @throws Error(Storage)
void writeReportPdf(const Report& report, const QString& path);
/// By suffix: .html or .pdf. @throws Error
void writeReport(const Report& report, const QString& path);

} // namespace kvscope::ui

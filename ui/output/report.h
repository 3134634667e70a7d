// Makes the parts of a report that need the desktop: pictures of the views, and the PDF. profiler/report makes the
// content and the HTML.
#pragma once

#include "profiler/report/report.h"

#include <QImage>
#include <QString>
#include <QStringList>

#include <vector>

namespace kvscope::ui {

struct ReportFigure {
    QString title, caption;
    QImage picture; // its device pixel ratio gives the logical size; null: this run has none, and the caption says why
};
using ReportFigures = std::vector<std::vector<ReportFigure>>; // [view][run]

/// Renders the views of every run in the light theme. Needs a QApplication and runs its event loop. @throws Error
ReportFigures renderFigures(const reports::Report& report, const QStringList& viewIds);

/// Writes the report as a PDF with A4 pages. @throws Error(Storage)
void writeReportPdf(const reports::Report& report, const ReportFigures& figures, const QString& path);
/// Writes the report as PDF or HTML by the suffix of `path`, with the pictures that the format needs: a PDF shows the
/// views, an HTML page shows only those for which it has no chart of its own. @throws Error
void writeReport(const reports::Report& report, const QString& path);

} // namespace kvscope::ui

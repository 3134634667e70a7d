// The desktop's side of a report: pictures of the views, and the PDF. The content and the HTML are in profiler/report.
#pragma once

#include "profiler/report/report.h"

#include <QImage>
#include <QString>
#include <QStringList>

#include <vector>

namespace kvscope::ui {

struct ReportFigure {
    QString title, caption;
    QImage picture; // its device pixel ratio gives the logical size
};
using ReportFigures = std::vector<std::vector<ReportFigure>>; // [view][run]

/// Renders views of every run, light theme. Needs a QApplication; runs the event loop. @throws Error
ReportFigures renderFigures(const reports::Report& report, const QStringList& viewIds);

/// A4. @throws Error(Storage)
void writeReportPdf(const reports::Report& report, const ReportFigures& figures, const QString& path);
/// By suffix, with the pictures that the format needs: all views in a PDF, in HTML those it has no chart for.
/// @throws Error
void writeReport(const reports::Report& report, const QString& path);

} // namespace kvscope::ui

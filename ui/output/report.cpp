#include "ui/output/report.h"

#include "base/error.h"
#include "profiler/report/html.h"
#include "ui/frame/view.h"
#include "ui/output/render.h"

#include <QBuffer>
#include <QFileInfo>
#include <QTemporaryDir>

namespace kvscope::ui {
namespace {

constexpr QSize kFigureSize(1000, 600); // logical pixels; a scale factor of 2 gives twice as many pixels

QStringList viewsForPaper() {
    QStringList ids;
    for (const ViewEntry& entry : views()) {
        const QLatin1String id(entry.id);
        // The tables of a report contain what Compare shows, and a query is the user's own work.
        if (id != QLatin1String("compare") && id != QLatin1String("sql")) ids << id;
    }
    return ids;
}

std::vector<reports::Picture> picturesOf(const ReportFigures& figures, const reports::Report& report) {
    std::vector<reports::Picture> pictures;
    for (const std::vector<ReportFigure>& ofRuns : figures)
        for (std::size_t run = 0; run < ofRuns.size(); ++run) {
            if (ofRuns[run].picture.isNull()) continue; // the page has a heatmap of its own
            QByteArray png;
            QBuffer buffer(&png);
            buffer.open(QIODevice::WriteOnly);
            ofRuns[run].picture.save(&buffer, "PNG");
            pictures.push_back({ofRuns[run].title.toStdString() + " of " + report.runs[run].row.name,
                                ofRuns[run].caption.toStdString() + ".", png.toStdString(), kFigureSize.width()});
        }
    return pictures;
}

/// A picture of the view; or no picture, and the reason why the run has none.
ReportFigure figureOf(const ViewEntry& entry, const RenderRequest& request) {
    ReportFigure figure{QString::fromUtf8(entry.title), QString::fromUtf8(entry.help), {}};
    try {
        renderView(request);
        figure.picture.load(request.output);
        figure.picture.setDevicePixelRatio(double(figure.picture.width()) / kFigureSize.width());
    } catch (const Error& error) {
        if (error.kind != ErrorKind::BadInput && error.kind != ErrorKind::Unsupported) throw;
        figure.caption = QStringLiteral("Not drawn: ") + QString::fromStdString(oneLine(error));
    }
    return figure;
}

} // namespace

ReportFigures renderFigures(const reports::Report& report, const QStringList& viewIds) {
    const QTemporaryDir folder;
    if (!folder.isValid())
        throw Error(ErrorKind::Storage, "no temporary folder could be made for the figures",
                    "set TMPDIR to a writable folder");
    ReportFigures figures;
    for (const ViewEntry& entry : views()) {
        if (!viewIds.contains(QLatin1String(entry.id))) continue;
        std::vector<ReportFigure> ofRuns;
        for (const reports::RunData& run : report.runs) {
            RenderRequest request;
            request.trace = QString::fromStdString(run.path);
            request.view = QLatin1String(entry.id);
            request.output = folder.filePath(QStringLiteral("figure.png"));
            request.size = kFigureSize;
            request.runId = run.row.runId;
            ofRuns.push_back(figureOf(entry, request));
        }
        figures.push_back(std::move(ofRuns));
    }
    return figures;
}

void writeReport(const reports::Report& report, const QString& path) {
    const QString suffix = QFileInfo(path).suffix().toLower();
    if (suffix == QLatin1String("pdf")) return writeReportPdf(report, renderFigures(report, viewsForPaper()), path);
    if (suffix != QLatin1String("html") && suffix != QLatin1String("htm"))
        throw Error(ErrorKind::BadInput, "report file " + path.toStdString() + " has an unknown suffix",
                    "name it .html or .pdf");
    const ReportFigures figures = renderFigures(report, {QStringLiteral("selection")});
    reports::writeHtml(report, path.toStdString(), picturesOf(figures, report));
}

} // namespace kvscope::ui

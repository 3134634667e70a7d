// Renders the views of a report's runs off the screen.
#include "kernels/base/error.h"
#include "ui/render.h"
#include "ui/report.h"
#include "ui/views/view.h"

#include <QTemporaryDir>

namespace kvscope::ui {
namespace {

constexpr QSize kFigureSize(1000, 600); // logical; a scale factor of 2 gives twice the pixels

} // namespace

void addFigures(Report& report) {
    const QTemporaryDir folder;
    if (!folder.isValid())
        throw Error(ErrorKind::Storage, "no temporary folder could be made for the figures",
                    "set TMPDIR to a writable folder");
    report.figures.clear();
    for (const ViewEntry& entry : views()) {
        if (QLatin1String(entry.id) == QLatin1String("compare")) continue; // the tables say it
        std::vector<ReportFigure> ofRuns;
        for (const ReportRun& run : report.runs) {
            RenderRequest request;
            request.trace = run.path;
            request.view = QLatin1String(entry.id);
            request.output = folder.filePath(QStringLiteral("figure.png"));
            request.size = kFigureSize;
            request.runId = run.row.runId;
            renderView(request);
            QImage picture(request.output);
            picture.setDevicePixelRatio(double(picture.width()) / kFigureSize.width());
            ofRuns.push_back({QString::fromUtf8(entry.title), QString::fromUtf8(entry.help), picture});
        }
        report.figures.push_back(std::move(ofRuns));
    }
}

} // namespace kvscope::ui

// The report as A4 pages, painted with vectors; lengths are points.
#include "kernels/base/error.h"
#include "ui/definitions.h"
#include "ui/models/format.h"
#include "ui/models/run_list_model.h"
#include "ui/report.h"
#include "ui/theme.h"

#include <QFileInfo>
#include <QFontMetricsF>
#include <QPainter>
#include <QPdfWriter>
#include <QSaveFile>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

constexpr double kPageWidth = 595, kPageHeight = 842, kMargin = 46, kBottom = kPageHeight - 52;
constexpr double kWidth = kPageWidth - 2 * kMargin;
constexpr std::size_t kRunsAcross = 4; // columns of a table; more runs go into further tables

const QColor kInk(0x1b, 0x22, 0x30), kMuted(0x5c, 0x66, 0x75), kLine(0xdd, 0xe2, 0xea), kHeader(0x13, 0x1a, 0x26);

/// Flows text, tables and pictures down the pages.
class Pages {
public:
    explicit Pages(QPdfWriter& writer, QString footer)
        : writer_(writer), painter_(&writer), footer_(std::move(footer)) {
        painter_.scale(writer.resolution() / 72.0, writer.resolution() / 72.0);
        painter_.setRenderHints(QPainter::Antialiasing | QPainter::SmoothPixmapTransform | QPainter::TextAntialiasing);
        endPage();
    }
    bool good() const { return painter_.isActive(); }
    QPainter& painter() { return painter_; }
    double y() const { return y_; }
    void skip(double height) { y_ += height; }
    /// A new page unless `height` more points fit.
    void need(double height) {
        if (y_ + height <= kBottom) return;
        writer_.newPage();
        ++page_;
        endPage();
        y_ = kMargin;
    }
    static QFont font(double size, bool bold = false) {
        QFont result;
        result.setPixelSize(std::max(1, int(size * 8))); // whole pixels only: painted eight times smaller below
        result.setWeight(bold ? QFont::DemiBold : QFont::Normal);
        return result;
    }
    /// Wrapped text in a column. @return its height
    double textHeight(const QString& text, double width, double size, bool bold = false) const {
        return QFontMetricsF(font(size, bold))
                   .boundingRect(QRectF(0, 0, width * 8, 1e6), Qt::TextWordWrap, text)
                   .height() /
               8;
    }
    void textAt(double x, double top, double width, const QString& text, double size, const QColor& colour,
                bool bold = false) {
        painter_.save();
        painter_.translate(x, top);
        painter_.scale(1.0 / 8, 1.0 / 8);
        painter_.setFont(font(size, bold));
        painter_.setPen(colour);
        painter_.drawText(QRectF(0, 0, width * 8, 1e6), Qt::TextWordWrap | Qt::AlignLeft | Qt::AlignTop, text);
        painter_.restore();
    }
    void paragraph(const QString& text, double size, const QColor& colour, bool bold = false, double after = 4) {
        const double height = textHeight(text, kWidth, size, bold);
        need(height);
        textAt(kMargin, y_, kWidth, text, size, colour, bold);
        y_ += height + after;
    }
    void heading(const QString& text, double keep = 60) {
        need(30 + keep); // not alone at the foot of a page
        y_ += 16;
        paragraph(text, 13, kInk, true, 6);
    }
    void rule(double top, const QColor& colour = kLine, double width = 0.6) {
        painter_.setPen(QPen(colour, width));
        painter_.drawLine(QPointF(kMargin, top), QPointF(kMargin + kWidth, top));
    }

private:
    void endPage() {
        textAt(kMargin, kPageHeight - 36, kWidth, QStringLiteral("%1 · page %2").arg(footer_).arg(page_), 7.5, kMuted);
    }

    QPdfWriter& writer_;
    QPainter painter_;
    QString footer_;
    double y_ = kMargin;
    int page_ = 1;
};

QColor runColour(std::size_t index) {
    const Theme& theme = Theme::light();
    const QColor colours[] = {theme.runA, theme.runB, theme.origin[2], theme.origin[3]};
    return colours[index % 4];
}

void table(Pages& pages, const Report& report, const std::vector<ReportRow>& rows) {
    for (std::size_t first = 0; first < report.runs.size(); first += kRunsAcross) {
        const std::size_t last = std::min(report.runs.size(), first + kRunsAcross);
        const double nameWidth = 128, noteWidth = last - first <= 2 ? 120 : 84;
        const double width = (kWidth - nameWidth - noteWidth) / double(last - first);
        double headHeight = 0;
        for (std::size_t run = first; run < last; ++run)
            headHeight = std::max(
                headHeight, pages.textHeight(QString::fromStdString(report.runs[run].row.name), width - 20, 8, true));
        pages.need(headHeight + 40);
        for (std::size_t run = first; run < last; ++run) {
            const double x = kMargin + nameWidth + double(run - first) * width;
            pages.painter().fillRect(QRectF(x, pages.y() + 2, 7, 7), runColour(run));
            pages.textAt(x + 11, pages.y(), width - 20, QString::fromStdString(report.runs[run].row.name), 8, kInk,
                         true);
        }
        pages.skip(headHeight + 4);
        pages.rule(pages.y(), kMuted, 0.9);
        pages.skip(3);
        for (const ReportRow& row : rows) {
            double height =
                std::max(pages.textHeight(row.name, nameWidth - 8, 8.5), pages.textHeight(row.note, noteWidth, 7.5));
            for (std::size_t run = first; run < last; ++run)
                height = std::max(height, pages.textHeight(row.values[int(run)], width - 10, 8.5));
            pages.need(height + 6);
            pages.textAt(kMargin, pages.y(), nameWidth - 8, row.name, 8.5, kInk);
            for (std::size_t run = first; run < last; ++run)
                pages.textAt(kMargin + nameWidth + double(run - first) * width, pages.y(), width - 10,
                             row.values[int(run)], 8.5, kInk);
            pages.textAt(kMargin + kWidth - noteWidth, pages.y(), noteWidth, row.note, 7.5, kMuted);
            pages.skip(height + 3);
            pages.rule(pages.y());
            pages.skip(3);
        }
        pages.skip(8);
    }
}

QColor componentColour(const std::string& component) {
    const Theme& theme = Theme::light();
    for (std::size_t stage = 0; stage < kStageNames.size(); ++stage)
        if (kStageNames[stage] == component) return theme.component[stage];
    for (std::size_t stage = 0; stage < kStepStageNames.size(); ++stage)
        if (kStepStageNames[stage] == component) return theme.component[kStageNames.size() + stage];
    return theme.component.back();
}

void breakdown(Pages& pages, const Report& report) {
    for (const ReportRun& run : report.runs) {
        std::int64_t total = 0;
        for (const ReportShare& share : run.breakdown) total += share.totalNs;
        pages.need(70);
        pages.paragraph(QString::fromStdString(run.row.name), 9.5, kInk, true);
        if (total == 0) {
            pages.paragraph(QStringLiteral("No decode step was recorded."), 8.5, kMuted);
            continue;
        }
        double x = kMargin;
        for (const ReportShare& share : run.breakdown) {
            const double width = kWidth * double(share.totalNs) / double(total);
            pages.painter().fillRect(QRectF(x, pages.y(), width, 16), componentColour(share.component));
            x += width;
        }
        pages.skip(22);
        constexpr int kColumns = 3;
        const double width = kWidth / kColumns;
        for (std::size_t part = 0; part < run.breakdown.size(); ++part) {
            if (part % kColumns == 0) pages.need(14);
            const ReportShare& share = run.breakdown[part];
            const double left = kMargin + double(part % kColumns) * width;
            pages.painter().fillRect(QRectF(left, pages.y() + 2, 7, 7), componentColour(share.component));
            pages.textAt(left + 11, pages.y(), width - 14,
                         QStringLiteral("%1  %2  %3")
                             .arg(QString::fromStdString(share.component), formatDuration(share.totalNs),
                                  formatShare(share.totalNs, total)),
                         8.5, kInk);
            if (part % kColumns == kColumns - 1 || part + 1 == run.breakdown.size()) pages.skip(14);
        }
        pages.skip(8);
    }
}

void cover(Pages& pages, const Report& report) {
    constexpr double kBand = 92;
    pages.painter().fillRect(QRectF(-1, -1, kPageWidth + 3, kBand + 1), kHeader);
    const QString title = report.runs.size() == 1 ? QString::fromStdString(report.runs.front().row.name)
                                                  : QStringLiteral("%1 runs compared").arg(report.runs.size());
    pages.textAt(kMargin, 30, kWidth, title, 19, Qt::white, true);
    pages.textAt(kMargin, 58, kWidth, QStringLiteral("KVScope report · %1").arg(report.createdUtc), 9,
                 QColor(0xae, 0xb8, 0xc8));
    pages.skip(kBand - kMargin + 18);
    for (std::size_t index = 0; index < report.runs.size(); ++index) {
        const ReportRun& run = report.runs[index];
        pages.need(62);
        const double top = pages.y();
        pages.painter().fillRect(QRectF(kMargin, top, 3, 50), runColour(index));
        pages.textAt(kMargin + 12, top, kWidth - 12, QString::fromStdString(run.row.name), 10.5, kInk, true);
        const std::pair<QString, QString> numbers[] = {
            {formatRate(run.summary.decodeSteps == 0 ? std::nan("") : run.summary.tokensPerSecond),
             QStringLiteral("tokens/s (measured)")},
            {formatShare(run.summary.hits, run.summary.hits + run.summary.misses), QStringLiteral("hit rate")},
            {formatRatio(run.summary.localityMean), QStringLiteral("mean locality γ")},
            {formatDuration(std::int64_t(run.summary.exposedMs * 1e6)),
             QStringLiteral("exposed transfer (%1)").arg(QString::fromStdString(run.row.timing))},
        };
        for (int number = 0; number < 4; ++number) {
            const double x = kMargin + 12 + number * (kWidth - 12) / 4;
            pages.textAt(x, top + 17, kWidth / 4, numbers[number].first, 14, kInk, true);
            pages.textAt(x, top + 37, kWidth / 4 - 6, numbers[number].second, 7.5, kMuted);
        }
        pages.skip(60);
        if (const QString loss = lossText(run.row); !loss.isEmpty())
            pages.paragraph(loss, 9, Theme::light().danger, true);
    }
}

void figures(Pages& pages, const Report& report) {
    for (const std::vector<ReportFigure>& ofRuns : report.figures)
        for (std::size_t run = 0; run < ofRuns.size(); ++run) {
            const QImage& picture = ofRuns[run].picture;
            const double height = kWidth * picture.height() / std::max(1, picture.width());
            pages.need(height + 44);
            pages.skip(10);
            pages.paragraph(report.runs.size() == 1
                                ? ofRuns[run].title
                                : QStringLiteral("%1 · %2").arg(ofRuns[run].title,
                                                                QString::fromStdString(report.runs[run].row.name)),
                            9.5, kInk, true);
            pages.painter().drawImage(QRectF(kMargin, pages.y(), kWidth, height), picture);
            pages.skip(height + 4);
            pages.paragraph(ofRuns[run].caption + QLatin1Char('.'), 8, kMuted);
        }
}

} // namespace

void writeReportPdf(const Report& report, const QString& path) {
    QSaveFile file(path);
    const auto refuse = [&] {
        throw Error(ErrorKind::Storage, "report file " + path.toStdString() + ": " + file.errorString().toStdString(),
                    "choose a folder that exists and is writable");
    };
    if (!file.open(QIODevice::WriteOnly)) refuse();
    {
        QPdfWriter writer(&file);
        writer.setResolution(288);
        writer.setPageSize(QPageSize(QPageSize::A4));
        writer.setPageMargins(QMarginsF(0, 0, 0, 0));
        writer.setTitle(QStringLiteral("KVScope report"));
        writer.setCreator(QStringLiteral("KVScope"));
        Pages pages(writer, QStringLiteral("KVScope report · %1").arg(report.createdUtc));
        if (!pages.good()) refuse();
        cover(pages, report);
        pages.heading(QStringLiteral("Key numbers"));
        table(pages, report, keyRows(report));
        pages.heading(QStringLiteral("Where decode time goes"));
        breakdown(pages, report);
        if (!report.figures.empty()) {
            pages.heading(QStringLiteral("Figures"), 260);
            figures(pages, report);
        }
        pages.heading(QStringLiteral("What ran"));
        table(pages, report, configuration(report));
        pages.heading(QStringLiteral("Health of the recording"));
        table(pages, report, health(report));
        pages.heading(QStringLiteral("Definitions"));
        for (const Definition& definition : definitions()) {
            const QString text = QString::fromUtf8(definition.text);
            pages.need(18 + pages.textHeight(text, kWidth, 8.5));
            pages.paragraph(QString::fromUtf8(definition.title), 9, kInk, true, 1);
            pages.paragraph(text, 8.5, kMuted, false, 7);
        }
    }
    if (!file.commit()) refuse();
}

} // namespace kvscope::ui

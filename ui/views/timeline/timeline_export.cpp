// The timeline's exports: numbers, SQL, and pictures to a file and to the clipboard.
#include "ui/frame/note_label.h"
#include "ui/frame/picture.h"
#include "ui/frame/trace_numbers.h"
#include "ui/look/theme.h"
#include "ui/timeline/timeline_sql.h"
#include "ui/views/timeline/timeline_view.h"

#include <QApplication>
#include <QClipboard>
#include <QLabel>
#include <QPainter>
#include <QStackedWidget>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

QString TimelineView::exportCsv() const {
    if (!isShowing()) return {};
    if (!isComplete()) return textOf(completeTimes());
    beginTimes(); // of what is shown now, and not some of them
    sum_->times.advance(sum_->times.spans());
    presentTimes();
    sum_.reset();
    return panel_->timesText(QLatin1Char(','), false);
}

std::optional<ExportRange> TimelineView::markedRange() const {
    const auto& range = canvas_->scene().range;
    if (!range || stale_ || !isShowing()) return std::nullopt; // stale: it is of another run
    return shownRange();
}

QStringList TimelineView::numberTables() const {
    return canvas_->scene().range ? QStringList{tr("Self times in the marked range"), tr("Spans of the marked range")}
                                  : QStringList{tr("Self times of what is shown"), tr("Spans that are shown")};
}

ExportRange TimelineView::shownRange() const {
    const TimeRange shown = canvas_->scene().range.value_or(canvas_->scene().window);
    return {std::int64_t(std::floor(shown.from)), std::int64_t(std::ceil(shown.to))};
}

NumberWriter TimelineView::numbers() const {
    const OpenRun* run = workspace_.current();
    if (numberTable_ == 0 || !run || stale_ || !isShowing())
        return isShowing() && (!isComplete() || takesLong()) ? completeTimes() : numbersOf(exportCsv());
    return tableOf({run->key.path, run->key.runId, shownRange()}, ExportTable::Spans);
}

QString TimelineView::sql() const {
    return isShowing()
               ? rangeSql(workspace_.current()->key.runId, canvas_->scene().range.value_or(canvas_->scene().window))
               : QString();
}

void TimelineView::copyImage() {
    settle(true);
    const double ratio = std::max(2.0, devicePixelRatioF());
    QImage image(canvas_->size() * ratio, QImage::Format_RGB32);
    image.setDevicePixelRatio(ratio);
    QPainter painter(&image);
    canvas_->paintPicture(painter, canvas_->size(), ratio, false);
    painter.end();
    QApplication::clipboard()->setImage(image);
}

void TimelineView::paintExport(QPainter& painter, QSize size, double ratio, bool vector) {
    const Theme& theme = Theme::current();
    painter.fillRect(QRect({0, 0}, size), theme.plotBackground);
    QFont bold = QApplication::font();
    bold.setBold(true);
    painter.setFont(bold);
    painter.setPen(theme.text);
    const int title = QFontMetrics(bold).height() + 14, below = QFontMetrics(QApplication::font()).height() + 10;
    const OpenRun* run = workspace_.current();
    painter.drawText(QRect(12, 0, size.width() - 24, title), Qt::AlignVCenter,
                     run ? tr("Timeline: %1").arg(QString::fromStdString(run->row.name)) : tr("Timeline"));
    painter.setFont(QApplication::font());
    painter.setPen(theme.mutedText);
    const bool shown = pages_->currentIndex() == 0;
    painter.drawText(QRect(12, size.height() - below, size.width() - 24, below), Qt::AlignVCenter,
                     QFontMetrics(QApplication::font()).elidedText(note_->text(), Qt::ElideRight, size.width() - 24));
    const QRect area(0, title, size.width(), std::max(40, size.height() - title - below));
    if (!shown) {
        painter.drawText(area.adjusted(40, 0, -40, 0), Qt::AlignCenter | Qt::TextWordWrap, empty_->text());
        return;
    }
    painter.save();
    painter.translate(area.topLeft());
    painter.setClipRect(QRect({0, 0}, area.size()));
    canvas_->paintPicture(painter, area.size(), ratio, vector);
    painter.restore();
}

bool TimelineView::exportImage(const QString& path, QSize size) {
    settle(true);
    const double ratio = pictureScale(*this);
    return paintToFile(path, {size, ratio, tr("Timeline"), note_->text()},
                       [&](QPainter& painter, bool vector) { paintExport(painter, size, vector ? 2 : ratio, vector); });
}

} // namespace kvscope::ui

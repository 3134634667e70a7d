#include "ui/widgets/comparison_table.h"

#include "base/indexed.h"
#include "ui/frame/as_written.h"

#include <QEvent>
#include <QHeaderView>
#include <QScrollBar>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace kvscope::ui {

namespace {
constexpr int kRowsShown = 10; // at most in the height that sizeHint gives; the other rows are scrolled to
constexpr int kFewestRows = 3; // in it, if there are as many
constexpr int kWidestHeader = 190;
constexpr int kLeastTitle = 170; // px, to which the titles of the rows may be cut so that no column is out of sight
} // namespace

ComparisonTable::ComparisonTable(QWidget* parent) : QTableWidget(parent), rowsShown_(kRowsShown) {
    setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Maximum);
    setEditTriggers(QAbstractItemView::NoEditTriggers);
    setSelectionBehavior(QAbstractItemView::SelectRows);
    setHorizontalScrollMode(QAbstractItemView::ScrollPerPixel);
    setShowGrid(false);
    setAlternatingRowColors(true);
    setFrameShape(QFrame::NoFrame);
    setTabKeyNavigation(false); // Tab leaves the table, the arrow keys move in it
    setWordWrap(false);
    verticalHeader()->hide();
    verticalHeader()->setDefaultSectionSize(fontMetrics().height() + 8);
    horizontalHeader()->setHighlightSections(false);
    horizontalHeader()->setMinimumSectionSize(30);
}

void ComparisonTable::begin(int rows, const QStringList& headers, const QStringList& full) {
    clear();
    headers_ = headers; // a visible table is laid out as soon as it has columns
    setColumnCount(int(headers.size()));
    setRowCount(rows);
    for (int column = 0; column < columnCount(); ++column) {
        auto* item = new QTableWidgetItem(headers[column]);
        item->setTextAlignment((column == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
        item->setToolTip(asWritten(column < full.size() ? full[column] : headers[column]));
        setHorizontalHeaderItem(column, item);
    }
}

void ComparisonTable::put(int row, int column, const QString& text, const QColor& colour, const QString& help) {
    auto* cell = new QTableWidgetItem(text);
    cell->setTextAlignment((column == 0 ? Qt::AlignLeft : Qt::AlignRight) | Qt::AlignVCenter);
    cell->setForeground(colour);
    cell->setToolTip(asWritten(column == 0 && !help.isEmpty() ? text + QStringLiteral(": ") + help : help));
    setItem(row, column, cell);
}

void ComparisonTable::fitColumns() {
    if (columnCount() == 0 || columnCount() != int(headers_.size())) return;
    for (int column = 0; column < columnCount(); ++column)
        if (horizontalHeaderItem(column) == nullptr) return; // it is being filled
    // Numbers are never cut; titles of rows are where all columns then have room, and their tooltips are whole. Where
    // the header of a column is wider than its numbers, the column gets the missing width as far as the table has room,
    // and the header is elided to the width that the column has.
    constexpr int kMargin = 16;
    QFont bold = horizontalHeader()->font(); // the theme draws headers bold
    bold.setBold(true);
    const QFontMetrics metrics(bold);
    Numbered<int> widths, lacking;
    for (int column = 0; column < columnCount(); ++column) {
        const int header = std::min(metrics.horizontalAdvance(headers_[column]), kWidestHeader) + kMargin;
        widths.push_back(std::max(sizeHintForColumn(column) + 8, metrics.averageCharWidth() * 6 + kMargin));
        lacking.push_back(std::max(0, header - widths.back()));
    }
    const int missing = std::accumulate(widths.begin(), widths.end(), 0) - viewport()->width();
    if (missing > 0 && widths.front() - missing >= kLeastTitle) widths.front() -= missing;
    const int spare = std::max(0, -missing);
    const int lack = std::accumulate(lacking.begin(), lacking.end(), 0);
    for (int column = 0; column < columnCount(); ++column) {
        const int extra =
            spare >= lack ? lacking[column] + (spare - lack) / columnCount() : lacking[column] * spare / lack;
        const int width = widths[column] + extra;
        setColumnWidth(column, width);
        horizontalHeaderItem(column)->setText(metrics.elidedText(headers_[column], Qt::ElideRight, width - kMargin));
    }
    updateGeometry();
}

void ComparisonTable::fitRows(int height) {
    const int rows =
        std::clamp((height - heightWithoutRows()) / verticalHeader()->defaultSectionSize(), kFewestRows, kRowsShown);
    if (rows == std::exchange(rowsShown_, rows)) return;
    updateGeometry();
}

int ComparisonTable::heightWithoutRows() const {
    return horizontalHeader()->sizeHint().height() + horizontalScrollBar()->sizeHint().height() + 4;
}

QSize ComparisonTable::sizeHint() const {
    return {600, heightWithoutRows() + verticalHeader()->defaultSectionSize() * std::min(rowCount(), rowsShown_)};
}

void ComparisonTable::resizeEvent(QResizeEvent* event) {
    QTableWidget::resizeEvent(event);
    fitColumns();
}

void ComparisonTable::changeEvent(QEvent* event) {
    QTableWidget::changeEvent(event);
    if (event->type() == QEvent::FontChange || event->type() == QEvent::StyleChange) {
        verticalHeader()->setDefaultSectionSize(fontMetrics().height() + 8);
        fitColumns();
    }
}

} // namespace kvscope::ui

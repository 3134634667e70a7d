#include "ui/views/serving/side_table.h"

#include <QAbstractItemView>
#include <QHeaderView>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kWideForAll = 900;                      // the table gets the width of all its columns
constexpr int kWideForTable = 500, kTableBelow = 140; // as PlotView: beside the plot from this width, else below it

} // namespace

SideTable::SideTable(const QStringList& columns, QWidget* parent) : QTableWidget(0, int(columns.size()), parent) {
    setHorizontalHeaderLabels(columns);
    setEditTriggers(QAbstractItemView::NoEditTriggers);
    setSelectionBehavior(QAbstractItemView::SelectRows);
    setSelectionMode(QAbstractItemView::SingleSelection);
    setShowGrid(false);
    verticalHeader()->hide();
    horizontalHeader()->setStretchLastSection(true);
    connect(this, &QTableWidget::cellClicked, this, [this](int row, int) { emit rowClicked(row); });
}

void SideTable::setTexts(const std::vector<QStringList>& rows, int textColumn) {
    clearContents();
    setRowCount(int(rows.size()));
    for (int column = 0; column < columnCount(); ++column)
        horizontalHeaderItem(column)->setTextAlignment((column == textColumn ? Qt::AlignLeft : Qt::AlignRight) |
                                                       Qt::AlignVCenter);
    for (int row = 0; row < int(rows.size()); ++row)
        for (int column = 0; column < columnCount(); ++column) {
            auto* item = new QTableWidgetItem(rows[std::size_t(row)].value(column));
            if (column != textColumn) item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
            setItem(row, column, item);
        }
    resizeColumnsToContents();
    resizeRowsToContents();
}

void SideTable::fit(QSize view) {
    const bool beside = view.width() >= kWideForTable;
    setMinimumWidth(0);
    const int share = view.width() >= kWideForAll ? 46 : 40; // percent
    setMaximumWidth(beside ? std::clamp(share * view.width() / 100, 220, 440) : QWIDGETSIZE_MAX);
    if (beside) setMinimumWidth(maximumWidth());
    setMaximumHeight(beside ? QWIDGETSIZE_MAX : kTableBelow);
}

} // namespace kvscope::ui

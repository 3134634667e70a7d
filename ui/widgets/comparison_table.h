// A read-only table that compares numbers of several runs. Every column is wide enough for its numbers; if the columns
// do not fit into the table, it scrolls. If there is more room, all columns share it.
#pragma once

#include <QTableWidget>

namespace kvscope::ui {

class ComparisonTable final : public QTableWidget {
    Q_OBJECT
public:
    explicit ComparisonTable(QWidget* parent = nullptr);
    /// Empties the table and sets its size and its headers. `full`: the unshortened headers, shown as tooltips.
    void begin(int rows, const QStringList& headers, const QStringList& full = {});
    void put(int row, int column, const QString& text, const QColor& colour, const QString& help = {});
    /// Sets the widths of the columns. To be called after the last put.
    void fitColumns();
    /// Shows as many rows at once as this height has room for, but at least three; the others are scrolled to.
    void fitRows(int height);
    /// As high as the headers and the first rows, at most ten of them.
    QSize sizeHint() const override;
    QSize minimumSizeHint() const override { return {120, 84}; }

protected:
    void resizeEvent(QResizeEvent* event) override;
    void changeEvent(QEvent* event) override;

private:
    int heightWithoutRows() const;

    QStringList headers_; // not elided
    int rowsShown_;
};

} // namespace kvscope::ui

// A table of numbers of several runs, to be read only. Columns are as wide as what they hold: what does not fit is
// scrolled to, never cut; where there is room to spare, they share it.
#pragma once

#include <QTableWidget>

namespace kvscope::ui {

class ComparisonTable final : public QTableWidget {
    Q_OBJECT
public:
    explicit ComparisonTable(QWidget* parent = nullptr);
    /// Empties the table. `full`: tooltips of headers that are shortened.
    void begin(int rows, const QStringList& headers, const QStringList& full = {});
    void put(int row, int column, const QString& text, const QColor& colour, const QString& help = {});
    /// After the last put.
    void fitColumns();
    QSize sizeHint() const override; // as high as its first rows
    QSize minimumSizeHint() const override { return {120, 84}; }

protected:
    void resizeEvent(QResizeEvent* event) override;
    void changeEvent(QEvent* event) override;

private:
    QStringList headers_; // whole
};

} // namespace kvscope::ui

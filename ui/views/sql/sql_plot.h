// The rows of a query as a plot: one column along x, others as lines, bars or points.
#pragma once

#include "ui/plots/plot_view.h"

#include <QPointer>

#include <cstddef>
#include <vector>

class QCPAxisRect;
class QMenu;
class QToolButton;

namespace kvscope::ui {

class LegendStrip;
class SqlTableModel;

class SqlPlot final : public PlotView {
    Q_OBJECT
public:
    SqlPlot(Workspace& workspace, const SqlTableModel& model, QWidget* parent);
    /// To be called when the result has other columns. x and y are chosen anew, unless columns of their names are still
    /// there.
    void columnsChanged();
    /// To be called when rows have come. complete: no more will come.
    void rowsChanged(bool complete);
    /// Names of the columns that are drawn.
    QStringList drawn() const;
    void setDrawn(const QStringList& columns);

    QString exportCsv() const override;

protected:
    void runChanged() override { present(); }
    void runGrew() override {}
    void cursorMoved() override;
    void themed(const Theme& theme) override;
    void clickedAt(int panel, QPointF at) override;
    QString tooltipAt(int panel, QPointF at) override;
    QString note() const override;
    void moveCursor(int, int) override {}
    void jumpCursor(bool) override {}
    bool hasNumbers() const override;
    QString pictureTitle() const override;

private:
    enum class Kind { Lines, Bars, Points };
    /// Numbers that all series of one drawing share.
    struct Drawing {
        Kind kind = Kind::Lines;
        std::vector<double> xs;                    // [row]; NaN: the row is not drawn
        double low = 0, high = 0, smallestGap = 0; // of xs; the gap only for bars
        double bottom = 0, top = 0;                // of the values drawn so far
        bool anyValue = false;
        std::size_t series = 0;
    };
    void present();
    bool xIsColumn() const; // false: x is the number of the row
    Drawing begunDrawing() const;
    void drawSeries(Drawing& drawing, std::size_t series, int column);
    void setRanges(const Drawing& drawing);
    void nameAxes(const QStringList& drawnColumns);
    void fillMenu();
    bool numeric(int column) const;
    double xOf(std::size_t row) const; // NaN: not drawn

    const SqlTableModel& model_;
    QComboBox *x_ = nullptr, *kind_ = nullptr;
    QToolButton* y_ = nullptr;
    QMenu* menu_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    QStringList columns_;
    bool textAxis_ = false, tooManyBars_ = false;
    std::size_t leftOut_ = 0, drawnRows_ = 0;
};

} // namespace kvscope::ui

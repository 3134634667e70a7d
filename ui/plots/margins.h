// Places the margins of a heatmap: a curve over the steps above it, and a bar per row to its right. Both follow the
// heatmap's zoom. The wheel over the bars zooms the rows, and a click on a bar picks its row.
#pragma once

#include "ui/plots/margin_plottables.h"

#include <QObject>

namespace kvscope::ui {

class PlotCanvas;
struct Theme;

class Margins final : public QObject {
    Q_OBJECT
public:
    /// `main`: the panel of the heatmap, which must be the last one that was added to `plot`.
    Margins(PlotCanvas& plot, QCPAxisRect* main, StepMargin::Columns columns, QObject* parent);

    /// Row of the plot's layout that holds the heatmap in column 0 and the bars in column 1.
    int layoutRow() const { return layoutRow_; }
    int stepPanel() const { return stepPanel_; }
    StepMargin& steps() { return *steps_; }
    RowMargin& rows() { return *rows_; }
    QCPAxis* stepValues() const { return stepRect_->axis(QCPAxis::atLeft); }
    QCPAxis* rowValues() const { return rowRect_->axis(QCPAxis::atBottom); }
    QRect rowArea() const { return rowRect_->rect(); }
    /// Adds another curve to the panel above the heatmap.
    StepMargin* addCurve(StepMargin::Columns columns);

    void setWanted(bool wanted);
    /// A plot of less height has no margins. `pixels`: logical; 300 unless it is set.
    void setLeastHeight(int pixels);
    bool wanted() const { return wanted_; }
    /// Whether the margins are wanted and the plot is large enough for them.
    bool shown() const { return shown_; }
    void applyTheme(const Theme& theme);

signals:
    void rowHovered(int row, QPoint global);
    void rowHoverEnded();
    void rowClicked(int row);

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    void place();
    std::optional<int> rowAt(QPointF pixel) const;

    PlotCanvas& plot_;
    QCPAxisRect *main_, *stepRect_ = nullptr, *rowRect_ = nullptr;
    StepMargin* steps_ = nullptr;
    RowMargin* rows_ = nullptr;
    int layoutRow_ = 0, stepPanel_ = 0, leastHeight_;
    bool wanted_ = true, shown_ = true, hovering_ = false, pressed_ = false;
};

} // namespace kvscope::ui

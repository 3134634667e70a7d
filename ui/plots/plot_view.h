// The base of every view with a plot: gestures, zoom history, cursor, hover, context menu, exports, empty states and
// themes are the same everywhere because they exist once, here.
#pragma once

#include "ui/views/shown_sql.h"
#include "ui/views/view.h"
#include "ui/widgets/empty_page.h"
#include "ui/workspace.h"

#include <QPointF>
#include <QSize>

class QBoxLayout;
class QComboBox;
class QLabel;
class QMenu;
class QPainter;
class QStackedWidget;
class QTimer;

namespace kvscope::ui {

class PlotCanvas;

class PlotView : public View {
    Q_OBJECT
public:
    PlotView(Workspace& workspace, const QString& title, QWidget* parent);

    bool exportImage(const QString& path, QSize size) override;
    void copyImage() override;
    void resetZoom() override;
    void undoZoom() override;
    void redoZoom() override;
    void applyTheme(const Theme& theme) override;
    PlotCanvas& canvas() { return *canvas_; }
    /// What the view says about aggregated or missing data; the line under the plot.
    QString noteText() const;
    /// The values under the cursor, for screen readers; empty where nothing is marked.
    QString cursorText();
    /// The teaching text while there is nothing to show; empty when a plot is shown.
    QString emptyText() const;

protected:
    // Called when the view is visible or has become so.
    virtual void runChanged() = 0;               // another run, another compare run: start over
    virtual void runGrew() = 0;                  // the run has more steps or another status
    virtual void cursorMoved() = 0;              // place the mark; reload if another layer, head or sequence is wanted
    virtual void themed(const Theme& theme) = 0; // colours of what the view drew itself
    virtual void clickedAt(int panel, QPointF at) = 0;
    /// HTML, or empty: no tooltip there.
    virtual QString tooltipAt(int panel, QPointF at) = 0;
    /// Sentences on aggregation, losses and definitions for the line below the plot.
    virtual QString note() const = 0;
    virtual void visibleStepsChanged() {}
    /// Which parts of the shared filter the view applies (FilterPart, or-ed); it is loaded again when they change, and
    /// the line below the plot says what is filtered and what is not.
    virtual int filterParts() const { return 0; }
    /// Arrow keys in the plot: the shared cursor moves, unless x is something else than steps.
    virtual void moveCursor(int steps, int layers);
    virtual void jumpCursor(bool toEnd); // Home and End
    /// Whether there are numbers to copy and to save.
    virtual bool hasNumbers() const { return run() != nullptr; }
    /// Extra content above the plot in a picture: returns the height used. Draws only if painter is given.
    virtual int drawAbove(QPainter* painter, QRect area) const;
    virtual QString pictureTitle() const;

    Workspace& workspace() const { return workspace_; }
    const OpenRun* run() const { return workspace_.current(); }
    /// The current run, the steps in sight, and what the view applies of the filter.
    SqlScope sqlScope() const;
    /// What the view applies of the filter, to read with.
    ReadFilter appliedFilter() const;

    /// A labelled picker in the row above the plot; pickers that do not fit flow to a second row.
    QComboBox* addPicker(const QString& name, const QString& label, const QString& help);
    void addTool(QWidget* widget);
    /// A widget between pickers and plot.
    void addAbovePlot(QWidget* widget);
    /// A column right of the plot, or below it where the view is narrow.
    void addBesidePlot(QWidget* widget);

    /// Teaches instead of plotting. An empty title shows the plot again.
    void showEmpty(const QString& title, const QString& text, const std::vector<EmptyAction>& actions = {});
    /// Nothing has been read yet: says so if that takes longer than a moment, until the next showEmpty.
    void showReading();
    /// The filter leaves nothing to show: says so and offers to clear it.
    void showEmptyByFilter(const QString& title, std::vector<EmptyAction> more = {});
    /// A button that brings another view to the front.
    EmptyAction showView(const char* id) const;
    EmptyAction clearFilter() const;
    /// While a run is being recorded: ends it.
    EmptyAction stopRun() const;
    /// The empty state of "no run is open"; true if that is so.
    bool showEmptyWithoutRun(const QString& whatItShows);
    /// Replaces the tooltip while the pointer still rests where it was asked for.
    void updateTooltip(const QString& html);
    void replot();
    void updateNote();
    void reload();              // runChanged now, or when shown
    QString healthNote() const; // dropped steps, dead writer; empty if all is well

    bool event(QEvent* event) override;
    void showEvent(QShowEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;

private:
    QString fullNote() const; // with what is said of the filter
    void showMenu(QPoint global, bool atPointer);
    void addShowIn(QMenu& menu, QPoint global, bool atPointer);
    void exportDialog(const QString& suffix);
    void showDetails();
    struct Details {
        QString html;
        QPointF pixel; // on the canvas
    };
    Details detailsAtCursor(); // empty where no mark is
    void tellScreenReader();
    bool paintPicture(QPainter& painter, QSize size, bool vector);

    Workspace& workspace_;
    QString title_;
    QWidget* tools_ = nullptr;
    QBoxLayout *column_ = nullptr, *body_ = nullptr; // body: the plot and what is beside it
    QStackedWidget* pages_ = nullptr;
    EmptyPage* empty_ = nullptr;
    QLabel* note_ = nullptr;
    PlotCanvas* canvas_ = nullptr;
    QTimer* patience_ = nullptr; // until the page says that it reads
    bool stale_ = true;          // runChanged is due when the view is next shown
    bool hovering_ = false;
    QPoint hoverGlobal_;
};

} // namespace kvscope::ui

// The base class of every view with a plot. Gestures, zoom history, cursor, tooltips, context menu, exports, empty
// states and themes are written once, in this class, and so are the same in all views.
#pragma once

#include "ui/frame/empty_page.h"
#include "ui/frame/shown_sql.h"
#include "ui/frame/view.h"
#include "ui/frame/workspace.h"

#include <QList>
#include <QPointF>
#include <QSize>

class QBoxLayout;
class QComboBox;
class QCPAxisRect;
class QLabel;
class QMenu;
class QPainter;
class QStackedWidget;
class QTimer;

namespace kvscope::ui {

class NoteLabel;
class PlotCanvas;
class ToolStrip;
struct CursorMark;

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
    /// The line under the plot, which tells what is aggregated or missing.
    QString noteText() const;
    /// The values under the cursor, for screen readers; empty if nothing is marked.
    QString cursorText();
    /// The text of the empty page while there is nothing to show; empty while the plot is shown.
    QString emptyText() const;

protected:
    // Called while the view is visible, or when it becomes visible.
    virtual void runChanged() = 0;               // the run or the compared run is another one: start over
    virtual void runGrew() = 0;                  // the run has more steps or another status
    virtual void cursorMoved() = 0;              // place the mark; read again if it has another layer, head or sequence
    virtual void themed(const Theme& theme) = 0; // give what the view draws itself the colours of the theme
    virtual void clickedAt(int panel, QPointF at) = 0;
    /// The tooltip as HTML; empty if there is none at this place.
    virtual QString tooltipAt(int panel, QPointF at) = 0;
    /// Sentences about aggregation, losses and definitions for the line below the plot.
    virtual QString note() const = 0;
    virtual void visibleStepsChanged() {}
    /// Which parts of the shared filter the view applies, as or-ed FilterPart values; 0: none. A view that applies some
    /// is loaded again when the filter changes. The line below the plot tells what is filtered and what is not.
    virtual int filterParts() const { return 0; }
    /// Called for arrow keys in the plot. Moves the shared cursor; views whose x axis does not count steps override it.
    virtual void moveCursor(int steps, int layers);
    virtual void jumpCursor(bool toEnd); // called for Home and End
    /// Whether the view has numbers to copy and to save.
    virtual bool hasNumbers() const { return run() != nullptr; }
    /// Draws extra content above the plot of an exported picture, if `painter` is not null. @return the height it takes
    virtual int drawAbove(QPainter* painter, QRect area) const;
    virtual QString pictureTitle() const;

    Workspace& workspace() const { return workspace_; }
    const OpenRun* run() const { return workspace_.current(); }
    /// The current run, the visible steps, and the part of the filter that the view applies.
    SqlScope sqlScope() const;
    /// The part of the shared filter that the view applies, for reading from the trace.
    ReadFilter appliedFilter() const;

    /// Adds a picker with a label to the row above the plot; pickers that do not fit go to further rows, and in a small
    /// view behind a button.
    QComboBox* addPicker(const QString& name, const QString& label, const QString& help);
    void addTool(QWidget* widget);
    /// Adds a widget between the pickers and the plot.
    void addAbovePlot(QWidget* widget);
    /// Adds a widget right of the plot, or below it where the view is narrow.
    void addBesidePlot(QWidget* widget);

    /// Shows a page with text and buttons instead of the plot; an empty title shows the plot again.
    void showEmpty(const QString& title, const QString& text, const std::vector<EmptyAction>& actions = {});
    /// Call it when the view starts to read and has nothing to show yet. If no showEmpty follows within a moment, the
    /// view shows a page that says it is reading.
    void showReading();
    /// Shows a page which says that the filter leaves nothing to show and offers to clear it.
    void showEmptyByFilter(const QString& title, std::vector<EmptyAction> more = {});
    /// A button that brings another view to the front.
    EmptyAction showView(const char* id) const;
    EmptyAction clearFilter() const;
    /// A button that ends the run while this program records it, or runs the session again after the run has ended. A
    /// run that another program records gets no button.
    EmptyAction stopRun() const;
    /// If no run is open, shows the page that says so. @return whether no run is open
    bool showEmptyWithoutRun(const QString& whatItShows);
    /// Replaces the text of the tooltip if the pointer still rests where it asked for the tooltip.
    void updateTooltip(const QString& html);
    void replot();
    /// The cursor's step and the selected steps, for panels over steps; nothing without a run.
    CursorMark stepMark() const;
    /// Marks a cell of `panels`, and only its column of `sharing`, which have the same x axis.
    void showMark(CursorMark mark, const QList<QCPAxisRect*>& panels, const QList<QCPAxisRect*>& sharing = {});
    void updateNote();
    void reload();              // calls runChanged now, or when the view is next shown
    QString healthNote() const; // tells of dropped steps or a dead writer; empty if all is well

    bool event(QEvent* event) override;
    void showEvent(QShowEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;

private:
    QString fullNote() const; // the note together with the sentences about the filter
    void showMenu(QPoint global, bool atPointer);
    void addShowIn(QMenu& menu, QPoint global, bool atPointer);
    void exportDialog(const QString& suffix);
    void showDetails();
    struct Details {
        QString html;
        QPointF pixel; // place on the canvas
    };
    Details detailsAtCursor(); // empty if nothing is marked
    void tellScreenReader();
    bool paintPicture(QPainter& painter, QSize size, bool vector);

    Workspace& workspace_;
    QString title_;
    ToolStrip* tools_ = nullptr;
    QBoxLayout *column_ = nullptr, *body_ = nullptr; // body: the plot and what is beside it
    QStackedWidget* pages_ = nullptr;
    EmptyPage* empty_ = nullptr;
    NoteLabel* note_ = nullptr;
    PlotCanvas* canvas_ = nullptr;
    QTimer* patience_ = nullptr; // runs from showReading until the page says that the view is reading
    bool stale_ = true;          // runChanged must be called when the view is next shown
    bool hovering_ = false;
    QPoint hoverGlobal_;
};

} // namespace kvscope::ui

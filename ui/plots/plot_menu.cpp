// The context menu of every plot.
#include "ui/frame/home_window.h"
#include "ui/frame/proposals.h"
#include "ui/frame/sql_request.h"
#include "ui/frame/view_request.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"

#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QMenu>
#include <QStackedWidget>

namespace kvscope::ui {

void PlotView::showMenu(QPoint global, bool atPointer) {
    const Details mark = atPointer ? Details{} : detailsAtCursor();
    if (!mark.html.isEmpty()) global = canvas_->mapToGlobal(mark.pixel.toPoint());
    auto* menu = new QMenu(this);
    menu->setObjectName(QStringLiteral("plotMenu"));
    menu->setAttribute(Qt::WA_DeleteOnClose);
    const bool numbers = pages_->currentIndex() == 0 && hasNumbers();
    const QString statement = numbers ? sql() : QString();
    menu->addAction(tr("Copy as table"), this, &PlotView::copyNumbers)->setEnabled(numbers);
    menu->addAction(tr("Copy image"), this, &PlotView::copyImage);
    menu->addAction(tr("Copy SQL"), this, [statement] { QApplication::clipboard()->setText(statement); })
        ->setEnabled(!statement.isEmpty());
    menu->addAction(tr("Open in SQL page"), this, [this, statement] { openInSql(*this, statement); })
        ->setEnabled(!statement.isEmpty() && homeOf(*this)->findChild<QAction*>(QStringLiteral("view_sql")) != nullptr);
    menu->addSeparator();
    for (const char* suffix : {"png", "svg", "pdf"})
        menu->addAction(tr("Export %1…").arg(QString::fromLatin1(suffix).toUpper()), this,
                        [this, suffix] { exportDialog(QString::fromLatin1(suffix)); });
    menu->addAction(tr("Export CSV…"), this, [this] { exportDialog(QStringLiteral("csv")); })->setEnabled(numbers);
    menu->addAction(tr("Export JSON lines…"), this, [this] { exportDialog(QStringLiteral("jsonl")); })
        ->setEnabled(numbers);
    menu->addSeparator();
    menu->addAction(tr("Undo zoom"), this, &PlotView::undoZoom)->setEnabled(canvas_->canUndoZoom());
    menu->addAction(tr("Redo zoom"), this, &PlotView::redoZoom)->setEnabled(canvas_->canRedoZoom());
    menu->addAction(tr("Reset zoom"), this, &PlotView::resetZoom)->setEnabled(canvas_->isZoomed());
    addShowIn(*menu, global, atPointer);
    menu->popup(global);
}

/// Adds entries that show the same place in other views: the place where the mouse opened the menu, or that of the
/// cursor.
void PlotView::addShowIn(QMenu& menu, QPoint global, bool atPointer) {
    if (!run() || pages_->currentIndex() != 0) return;
    int panel = -1;
    QPointF at;
    const QPoint pixel = canvas_->mapFromGlobal(global);
    for (int i = 0; atPointer && i < canvas_->panels().size(); ++i) {
        const QCPAxisRect* rect = canvas_->panels()[i];
        if (!rect->rect().contains(pixel)) continue;
        panel = i;
        at = {rect->axis(QCPAxis::atBottom)->pixelToCoord(pixel.x()),
              rect->axis(QCPAxis::atLeft)->pixelToCoord(pixel.y())};
    }
    const auto moveThere = [this, panel, at] {
        if (panel >= 0) clickedAt(panel, at);
    };
    if (canvas_->selectsSteps()) addFork(menu, *this, moveThere);
    ui::addShowIn(menu, *this, title_, moveThere);
}

} // namespace kvscope::ui

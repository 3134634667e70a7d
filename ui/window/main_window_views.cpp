// The views in the centre of the window: which is in front, and where they stand.
#include "ui/frame/view.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/welcome_page.h"
#include "ui/window/main_window.h"
#include "ui/window/view_area.h"

#include <QAction>
#include <QApplication>
#include <QMenu>
#include <QStackedWidget>
#include <QToolButton>

namespace kvscope::ui {

/// A button that lists all views.
QWidget* MainWindow::makeViewList() {
    auto* button = new QToolButton;
    button->setObjectName(QStringLiteral("allViews"));
    button->setText(QStringLiteral("▾"));
    button->setAccessibleName(tr("All views"));
    button->setToolTip(tr("All views"));
    button->setPopupMode(QToolButton::InstantPopup);
    button->setStyleSheet(QStringLiteral("QToolButton::menu-indicator { image: none; }"));
    auto* menu = new QMenu(button);
    connect(menu, &QMenu::aboutToShow, this, [this, menu] {
        menu->clear();
        for (const ViewEntry& entry : views()) menu->addAction(action((std::string("view_") + entry.id).c_str()));
    });
    button->setMenu(menu);
    return button;
}

/// Shows the views. While no run is open, shows the start page instead, unless the view in front has something to show
/// without a run.
void MainWindow::showCentre() {
    const bool shows = !workspace_->runs().empty() || views()[std::size_t(area_->front())].withoutRun;
    const QWidget* focus = focusWidget();
    const bool untouched = !focus || focus == form_->focusProxy() || welcome_->isAncestorOf(focus);
    const bool appears = shows && centre_->currentWidget() != area_;
    centre_->setCurrentIndex(shows ? centre_->indexOf(area_) : 0); // index 0 is the start page
    // The first run becomes the current one.
    if (appears && !workspace_->runs().empty() && workspace_->runs().front().row.serves())
        area_->offer(QStringLiteral("serving"));
    shows ? area_->appear() : area_->disappear();
    // The view gets the keyboard so that its keys work. In the form, a typed letter would choose another model.
    if (appears && untouched) currentView()->setFocus();
    updateActions();
}

View* MainWindow::currentView() const {
    return centre_->currentWidget() == area_ ? area_->view(area_->front()) : nullptr;
}

void MainWindow::showView(const QString& id) {
    for (std::size_t index = 0; index < views().size(); ++index)
        if (id == QLatin1String(views()[index].id)) area_->bringToFront(int(index));
}

void MainWindow::stepView(int by) {
    area_->bringToFront(area_->beside(area_->front(), by));
    showCentre();
}

/// Makes the actions that move the view in front out of the tabs and back.
void MainWindow::makePlaceActions() {
    const auto add = [this](const char* name, const QString& text, const char* key, const QString& tip, auto move) {
        connect(addNamed(name, text, {QKeySequence(QLatin1String(key))}, tip), &QAction::triggered, this,
                [this, move] { move(*area_, area_->front()); });
    };
    add("splitRight", tr("Split Right"), "F8", tr("The view in front to the right of the tabs"),
        [](ViewArea& area, int index) { area.split(index, Qt::Horizontal); });
    add("splitDown", tr("Split Down"), "Shift+F8", tr("The view in front below the tabs"),
        [](ViewArea& area, int index) { area.split(index, Qt::Vertical); });
    add("floatView", tr("Float"), "F9", tr("The view in front into a window of its own, e.g. on a second screen"),
        [](ViewArea& area, int index) { area.floatView(index); });
    add("rejoinView", tr("Back into the Tabs"), "Shift+F9", tr("The view in front where it was at first"),
        [](ViewArea& area, int index) { area.rejoin(index); });
}

void MainWindow::updatePlaceActions() {
    const int index = area_->front();
    const bool movable = currentView() != nullptr && area_->canMove(index);
    for (const char* name : {"splitRight", "splitDown"}) action(name)->setEnabled(movable);
    action("floatView")->setEnabled(movable && !area_->isFloating(index));
    action("rejoinView")->setEnabled(movable && area_->isApart(index));
}

} // namespace kvscope::ui

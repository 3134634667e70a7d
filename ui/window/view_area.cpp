#include "ui/window/view_area.h"

#include "base/indexed.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/home_window.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/window/screen_room.h"
#include "ui/window/view_dock.h"

#include <QAbstractItemView>
#include <QApplication>
#include <QComboBox>
#include <QLayout>
#include <QMenu>
#include <QMouseEvent>
#include <QScrollArea>
#include <QStyle>
#include <QTabBar>
#include <QTabWidget>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr QSize kLeastWindow(720, 480); // px, a view that floats for the first time is at least so large
constexpr QPoint kWindowOffset(48, 48); // px, of its window from the views

/// A bar whose tabs can be dragged along it and out of it.
class ViewTabBar final : public QTabBar {
public:
    explicit ViewTabBar(QWidget* parent) : QTabBar(parent) {
        setObjectName(QStringLiteral("viewTabs"));
        setDrawBase(false);
        setMovable(true);
    }
    /// Called with a tab and the event when the pointer leaves the bar with it. The bar then has ended its own drag.
    std::function<void(int, const QMouseEvent&)> draggedOut;

protected:
    void mousePressEvent(QMouseEvent* event) override {
        holds_ = event->button() == Qt::LeftButton && tabAt(event->position().toPoint()) >= 0;
        QTabBar::mousePressEvent(event);
    }
    void mouseMoveEvent(QMouseEvent* event) override {
        const double y = event->position().y();
        if (!holds_ || (y >= -kPull && y < height() + kPull)) return QTabBar::mouseMoveEvent(event);
        QMouseEvent release(QEvent::MouseButtonRelease, event->position(), event->globalPosition(), Qt::LeftButton,
                            Qt::NoButton, event->modifiers());
        mouseReleaseEvent(&release);
        if (draggedOut) draggedOut(currentIndex(), *event); // a tab that is pressed comes to the front
    }
    void mouseReleaseEvent(QMouseEvent* event) override {
        holds_ = false;
        QTabBar::mouseReleaseEvent(event);
    }

private:
    static constexpr int kPull = 20; // px beyond the bar; nearer ones are no more than an unsteady hand

    bool holds_ = false;
};

/// A tab widget that draws nothing itself: it would draw a line over the widget in its corner.
class ViewTabs final : public QTabWidget {
public:
    ViewTabs() { setTabBar(new ViewTabBar(this)); }
    ViewTabBar& bar() { return *static_cast<ViewTabBar*>(tabBar()); }

protected:
    void paintEvent(QPaintEvent*) override {}
};

int indexOfView(const QString& id) {
    for (std::size_t index = 0; index < views().size(); ++index)
        if (id == QLatin1String(views()[index].id)) return int(index);
    return -1;
}

} // namespace

ViewArea::ViewArea(Workspace& workspace, QWidget* parent)
    : QMainWindow(parent), workspace_(workspace), tabs_(new ViewTabs), views_(views().size()), pages_(views().size()),
      docks_(views().size()), shares_(views().size()) {
    setWindowFlags(Qt::Widget); // QMainWindow makes itself a window
    setDockOptions(AllowNestedDocks | AllowTabbedDocks | AnimatedDocks);
    setContextMenuPolicy(Qt::PreventContextMenu); // Qt's own menu would hide views
    setCorner(Qt::BottomRightCorner, Qt::RightDockWidgetArea);
    setCorner(Qt::BottomLeftCorner, Qt::LeftDockWidgetArea);
    setCentralWidget(tabs_);
    addTabs();
    connectTabs();
    connect(qApp, &QApplication::focusChanged, this, [this](const QWidget*, const QWidget* now) {
        if (const int index = indexHolding(now); index >= 0) setFront(index);
    });
    connect(this, &QMainWindow::tabifiedDockWidgetActivated, this, [this](const QDockWidget* activated) {
        const auto found = std::find(docks_.begin(), docks_.end(), activated);
        if (found == docks_.end()) return;
        bringToFront(int(found - docks_.begin()));
        focusFront();
    });
}

ViewArea::~ViewArea() {
    qApp->disconnect(this);
    tabs_->disconnect(this);
    for (ViewDock* dock : docks_) {
        if (dock) dock->disconnect(this);
        delete dock;
    }
}

void ViewArea::addTabs() {
    tabs_->setDocumentMode(true);
    tabs_->setObjectName(QStringLiteral("views"));
    tabs_->setAccessibleName(tr("Views"));
    tabs_->tabBar()->setAccessibleName(tr("Views"));
    for (std::size_t index = 0; index < views().size(); ++index) {
        const ViewEntry& entry = views()[index];
        pages_[index] = makePageScroll();
        const int tab = tabs_->addTab(pages_[index], tr(entry.title));
        tabs_->setTabToolTip(
            tab, QStringLiteral("<p>%1 (%2)</p>").arg(tr(entry.help).toHtmlEscaped(), QLatin1String(entry.shortcut)));
    }
}

void ViewArea::connectTabs() {
    connect(tabs_, &QTabWidget::currentChanged, this, [this](int tab) {
        const int index = indexAt(tab);
        if (index != tab_) { // equal: only the tab has moved
            tabBefore_ = std::exchange(tab_, index);
            chosen_ = true;
        }
        if (!isHidden()) ensure(index);
        setFront(index);
    });
    connect(tabs_, &QTabWidget::tabBarClicked, this, [this](int tab) {
        if (tab < 0 || tab != tabs_->currentIndex()) return;
        chosen_ = true;
        setFront(tab_); // the view in front may have been another one
    });
    auto& bar = static_cast<ViewTabs*>(tabs_)->bar();
    connect(&bar, &QTabBar::tabMoved, this, &ViewArea::rearranged);
    bar.draggedOut = [this](int tab, const QMouseEvent& drag) { pullOut(indexAt(tab), drag); };
    bar.setContextMenuPolicy(Qt::CustomContextMenu);
    connect(&bar, &QWidget::customContextMenuRequested, this, [this, &bar](QPoint at) {
        const int tab = bar.tabAt(at); // -1: the menu key
        showMenu(tab >= 0 ? indexAt(tab) : tab_, bar.mapToGlobal(at));
    });
}

int ViewArea::tabOf(int index) const { return tabs_->indexOf(pages_[index]); }

int ViewArea::indexAt(int tab) const {
    const auto found = std::find(pages_.begin(), pages_.end(), tabs_->widget(tab));
    return found == pages_.end() ? 0 : int(found - pages_.begin());
}

int ViewArea::beside(int index, int by) const {
    const int count = tabs_->count();
    return indexAt(((tabOf(index) + by) % count + count) % count);
}

/// @return the tab of the nearest view in the tabs to the left (by -1) or to the right (by 1); -1: none
int ViewArea::neighbour(int index, int by) const {
    for (int tab = tabOf(index) + by; tab >= 0 && tab < tabs_->count(); tab += by)
        if (tabs_->isTabVisible(tab)) return tab;
    return -1;
}

bool ViewArea::shift(int index, int by) {
    const int to = isApart(index) ? -1 : neighbour(index, by);
    if (to >= 0) tabs_->tabBar()->moveTab(tabOf(index), to);
    return to >= 0;
}

/// Puts the tabs into this order of ids. The tabs of other views follow, in the order of views().
void ViewArea::arrangeTabs(const QStringList& order) {
    Numbered<int> wanted;
    const auto add = [&wanted](int index) {
        if (index >= 0 && std::find(wanted.begin(), wanted.end(), index) == wanted.end()) wanted.push_back(index);
    };
    for (const QString& id : order) add(indexOfView(id));
    for (int index = 0; index < tabs_->count(); ++index) add(index);
    for (int tab = 0; tab < tabs_->count(); ++tab)
        if (const int from = tabOf(wanted[tab]); from != tab) tabs_->tabBar()->moveTab(from, tab);
}

/// Makes a view when it is first shown, so that the window itself appears quickly.
void ViewArea::ensure(int index) {
    if (index < 0 || view(index)) return;
    View* view = views()[std::size_t(index)].make(workspace_, nullptr);
    view->setId(QLatin1String(views()[std::size_t(index)].id));
    views_[index] = view;
    ViewDock* dock = docks_[index];
    (dock ? dock->page() : *pages_[index]).setWidget(view);
    view->applyTheme(Theme::current());
    // The pop-up lists of combo boxes are item views as well, but get no menu.
    for (QAbstractItemView* table : view->findChildren<QAbstractItemView*>())
        if (!qobject_cast<QComboBox*>(table->parentWidget() ? table->parentWidget()->parentWidget() : nullptr))
            giveTableMenu(*table);
    emit made(index);
}

void ViewArea::makeAll() {
    for (int index = 0; index < tabs_->count(); ++index) ensure(index);
}

int ViewArea::indexHolding(const QWidget* widget) const {
    if (!widget) return -1;
    const auto found = std::find_if(views_.begin(), views_.end(), [widget](const View* view) {
        return view && (view == widget || view->isAncestorOf(widget));
    });
    return found == views_.end() ? -1 : int(found - views_.begin());
}

void ViewArea::setFront(int index) {
    const bool other = std::exchange(front_, index) != index;
    // A tab or title that was pressed does not take the keyboard from the view that had it.
    const int holding = indexHolding(QApplication::focusWidget());
    if (holding >= 0 && holding != index) focusFront();
    markFront();
    if (other) emit frontChanged();
}

/// Shows which of several views is in front. While all are in the tabs, the tab shows it.
void ViewArea::markFront() {
    for (std::size_t index = 0; index < docks_.size(); ++index)
        if (docks_[index]) docks_[index]->setInFront(int(index) == front_);
    QTabBar* bar = tabs_->tabBar();
    const QVariant mark = isApart(front_) ? QVariant(false) : QVariant();
    if (bar->property("inFront") == mark) return;
    bar->setProperty("inFront", mark);
    bar->style()->unpolish(bar); // only this makes the style sheet look at the property again
    bar->style()->polish(bar);
}

void ViewArea::focusFront() {
    if (View* shown = view(front_)) shown->setFocus(Qt::OtherFocusReason);
}

void ViewArea::offer(const QString& id) {
    if (const int index = indexOfView(id); index >= 0 && !chosen_) {
        bringToFront(index);
        chosen_ = false;
    }
}

void ViewArea::bringToFront(int index) {
    chosen_ = true;
    if (ViewDock* dock = docks_[index]; !dock)
        tabs_->setCurrentIndex(tabOf(index));
    else if (!isHidden()) {
        dock->show();
        dock->raise();
        if (dock->isFloating()) dock->activateWindow();
    }
    if (!isHidden()) ensure(index);
    setFront(index);
}

bool ViewArea::isFloating(int index) const { return isApart(index) && docks_[index]->isFloating(); }

bool ViewArea::canMove(int index) const {
    return isApart(index) || std::count(docks_.begin(), docks_.end(), nullptr) > 1;
}

/// The view that is shown when this one leaves the tabs: the one before, or that of the nearest tab.
int ViewArea::tabBeside(int index) const {
    if (tabBefore_ != index && !isApart(tabBefore_)) return tabBefore_;
    const int right = neighbour(index, 1), left = neighbour(index, -1), tab = tabOf(index);
    if (right < 0 && left < 0) return index;
    return indexAt(left < 0 || (right >= 0 && right - tab <= tab - left) ? right : left);
}

/// Takes a view out of the tabs, into a dock that has no place yet.
ViewDock& ViewArea::takeOut(int index) {
    const ViewEntry& entry = views()[std::size_t(index)];
    if (tab_ == index) tabs_->setCurrentIndex(tabOf(tabBeside(index)));
    auto* dock = new ViewDock(tr(entry.title), tabs_->tabBar()->sizeHint().height(), this);
    dock->setObjectName(QStringLiteral("view_%1Dock").arg(QLatin1String(entry.id)));
    dock->addActions(homeOf(*this)->actions()); // a window of its own hears only the shortcuts of its own actions
    tabs_->setTabVisible(tabOf(index), false);
    if (QWidget* made = pages_[index]->takeWidget()) dock->page().setWidget(made);
    docks_[index] = dock;
    dock->installEventFilter(this);
    connectDock(*dock, index);
    return *dock;
}

void ViewArea::connectDock(ViewDock& dock, int index) {
    connect(&dock, &ViewDock::pressed, this, [this, index] {
        setFront(index);
        focusFront();
    });
    connect(&dock, &ViewDock::menuRequested, this, [this, index](const QPoint& global) { showMenu(index, global); });
    connect(&dock, &ViewDock::placeRequested, this,
            [this, index](bool floating) { floating ? floatView(index) : split(index, Qt::Horizontal); });
    connect(&dock, &ViewDock::closed, this, [this, index] { closed(index); });
    connect(&dock, &ViewDock::shownChanged, this, [this, index](bool shown) {
        if (shown) ensure(index);
    });
    connect(&dock, &ViewDock::moved, this, &ViewArea::rearranged);
}

void ViewArea::split(int index, Qt::Orientation direction) {
    if (!canMove(index)) return;
    ViewDock* dock = docks_[index];
    const bool floating = isFloating(index);
    if (dock) {
        removeDockWidget(dock);
        dock->setFloating(false);
        layout()->activate(); // the others take its room before half of it is measured
    } else {
        dock = &takeOut(index);
    }
    const bool right = direction == Qt::Horizontal;
    const int half = (right ? tabs_->width() : tabs_->height()) / 2;
    addDockWidget(right ? Qt::RightDockWidgetArea : Qt::BottomDockWidgetArea, dock, direction);
    dock->show();
    resizeDocks({dock}, {half}, direction);
    bringToFront(index);
    focusFront();
    if (floating) activateWindow();
    emit rearranged();
}

void ViewArea::floatView(int index) {
    if (!canMove(index)) return;
    const QSize size = tabs_->currentWidget()->size();
    ViewDock* dock = docks_[index];
    if (!dock) {
        dock = &takeOut(index);
        addDockWidget(Qt::RightDockWidgetArea, dock, Qt::Horizontal); // where it goes if it is docked again
    }
    setFront(index); // so that its window gets the keyboard
    if (!dock->isFloating()) {
        dock->setFloating(true);
        dock->resize(size.expandedTo(kLeastWindow));
        dock->move(mapToGlobal(kWindowOffset));
        moveOntoScreen(*dock);
    }
    bringToFront(index);
    focusFront();
    emit rearranged();
}

/// @return the indices of the docks that stand in columns of their own beside the tabs and beside each other
/// (Qt::Horizontal), or in rows of their own below them (Qt::Vertical)
std::vector<int> ViewArea::docksBeside(Qt::Orientation direction) const {
    const auto beginOf = [direction](const QWidget& widget) {
        return direction == Qt::Horizontal ? widget.x() : widget.y();
    };
    std::vector<int> beside, begins{beginOf(*tabs_)};
    for (std::size_t index = 0; index < docks_.size(); ++index) {
        const ViewDock* dock = docks_[index];
        // Of docks that lie behind each other, QMainWindow puts all but one out of sight.
        if (!dock || dock->isFloating() || dock->isHidden() || !rect().intersects(dock->geometry())) continue;
        if (std::find(begins.begin(), begins.end(), beginOf(*dock)) != begins.end()) continue; // in line with another
        begins.push_back(beginOf(*dock));
        beside.push_back(int(index));
    }
    return beside;
}

int ViewArea::columns() const { return 1 + int(docksBeside(Qt::Horizontal).size()); }

/// Remembers the share of a dock that the user has put somewhere, or whose edge was dragged. A dock that gets a new
/// size because the area has one does not change its share.
bool ViewArea::eventFilter(QObject* watched, QEvent* event) {
    if (event->type() == QEvent::Resize && size() == laidOut_)
        if (const auto found = std::find(docks_.begin(), docks_.end(), watched); found != docks_.end())
            rememberShare(int(found - docks_.begin()));
    return QMainWindow::eventFilter(watched, event);
}

void ViewArea::rememberShare(int index) {
    const ViewDock* dock = docks_[index];
    if (!dock || dock->isFloating() || dock->isHidden() || !rect().intersects(dock->geometry()) || size().isEmpty())
        return;
    shares_[index] = {double(dock->width()) / width(), double(dock->height()) / height()};
}

void ViewArea::resizeEvent(QResizeEvent* event) {
    QMainWindow::resizeEvent(event);
    laidOut_ = {};
    for (const Qt::Orientation direction : {Qt::Horizontal, Qt::Vertical}) {
        QList<QDockWidget*> docks;
        QList<int> sizes;
        for (const int index : docksBeside(direction)) {
            const QSizeF share = shares_[index];
            if (!share.isValid()) continue;
            docks << docks_[index];
            sizes << int(
                std::lround(direction == Qt::Horizontal ? share.width() * width() : share.height() * height()));
        }
        if (!docks.isEmpty()) resizeDocks(docks, sizes, direction);
    }
    layout()->activate();
    laidOut_ = size();
    for (std::size_t index = 0; index < docks_.size(); ++index)
        if (!shares_[index].isValid()) rememberShare(int(index));
}

/// The tab of a view was dragged out of the bar. The view becomes a dock beside the tabs whose title is dragged from
/// here on, so that it can be dropped wherever a dock can, and becomes a window elsewhere. The rest of the drag goes to
/// the dock by itself, because QDockWidget takes the mouse.
void ViewArea::pullOut(int index, const QMouseEvent& drag) {
    if (!canMove(index)) return;
    const int width = tabs_->width() / 2;
    ViewDock& dock = takeOut(index);
    dock.setLeastWindow(kLeastWindow);
    addDockWidget(Qt::RightDockWidgetArea, &dock, Qt::Horizontal);
    dock.show();
    resizeDocks({&dock}, {width}, Qt::Horizontal);
    layout()->activate(); // the title has a place before it is pressed
    ensure(index);
    setFront(index);
    const QPointF title(dock.titleBarWidget()->geometry().center()), here = dock.mapFromGlobal(drag.globalPosition());
    QMouseEvent press(QEvent::MouseButtonPress, title, dock.mapToGlobal(title), Qt::LeftButton, Qt::LeftButton,
                      drag.modifiers());
    QApplication::sendEvent(&dock, &press);
    QMouseEvent move(QEvent::MouseMove, here, drag.globalPosition(), Qt::NoButton, Qt::LeftButton, drag.modifiers());
    QApplication::sendEvent(&dock, &move);
    emit rearranged();
}

/// Puts a view back into its tab, which does not come to the front.
void ViewArea::putBack(int index) {
    ViewDock* dock = std::exchange(docks_[index], nullptr);
    if (!dock) return;
    dock->disconnect(this);
    dock->removeEventFilter(this);
    shares_[index] = {};
    dock->setObjectName({}); // it lives a little longer, because it may be closing just now
    tabs_->setTabVisible(tabOf(index), true);
    if (QWidget* made = dock->page().takeWidget()) pages_[index]->setWidget(made);
    removeDockWidget(dock);
    dock->deleteLater();
    emit rearranged();
}

void ViewArea::rejoin(int index) {
    if (!isApart(index)) return;
    const bool floating = isFloating(index);
    putBack(index);
    bringToFront(index);
    focusFront();
    if (floating) activateWindow();
}

void ViewArea::rejoinAll() {
    const int index = front_;
    if (waiting_) waiting_ = ViewPlaces();
    for (int each = 0; each < tabs_->count(); ++each) putBack(each);
    arrangeTabs({});
    bringToFront(index);
}

/// The view that was in front of the tabs stays there: a user who closes one of two views goes on with the other.
void ViewArea::closed(int index) {
    putBack(index);
    setFront(front_ == index ? tab_ : front_);
}

void ViewArea::appear() {
    if (waiting_) place(*std::exchange(waiting_, std::nullopt));
    ensure(tab_);
}

void ViewArea::disappear() {
    if (waiting_) return;
    waiting_ = places();
    for (ViewDock* dock : docks_)
        if (dock && dock->isFloating()) dock->hide();
}

ViewPlaces ViewArea::places() const {
    if (waiting_) return *waiting_;
    ViewPlaces places;
    for (std::size_t index = 0; index < docks_.size(); ++index)
        if (docks_[index]) places.apart << QLatin1String(views()[index].id);
    if (!places.apart.isEmpty()) places.docks = saveState();
    bool moved = false;
    for (int tab = 0; tab < tabs_->count(); ++tab) {
        moved |= indexAt(tab) != tab;
        places.order << QLatin1String(views()[std::size_t(indexAt(tab))].id);
    }
    if (!moved) places.order.clear();
    return places;
}

void ViewArea::place(const ViewPlaces& places) {
    const int front = front_;
    const bool chosen = chosen_;
    arrangeTabs(places.order);
    for (const QString& id : places.apart)
        if (const int index = indexOfView(id); index >= 0 && !isApart(index) && canMove(index))
            addDockWidget(Qt::RightDockWidgetArea, &takeOut(index), Qt::Horizontal);
    const bool known = places.apart.isEmpty() || restoreState(places.docks);
    for (int index = 0; index < tabs_->count(); ++index)
        if (isApart(index) && (!known || docks_[index]->isHidden())) putBack(index);
    bringToFront(front);
    chosen_ = chosen;
}

void ViewArea::applyTheme() {
    for (View* view : views_)
        if (view) view->applyTheme(Theme::current());
    for (ViewDock* dock : docks_)
        if (dock) dock->updateIcons();
}

/// The menu of a tab or of a title.
void ViewArea::showMenu(int index, QPoint global) {
    auto* menu = new QMenu(this);
    menu->setObjectName(QStringLiteral("viewMenu"));
    menu->setAttribute(Qt::WA_DeleteOnClose);
    const auto add = [&](const QString& text, bool possible, auto act) {
        menu->addAction(text, this, act)->setEnabled(possible);
    };
    add(tr("Split Right"), canMove(index), [this, index] { split(index, Qt::Horizontal); });
    add(tr("Split Down"), canMove(index), [this, index] { split(index, Qt::Vertical); });
    add(tr("Float"), canMove(index) && !isFloating(index), [this, index] { floatView(index); });
    menu->addSeparator();
    add(tr("Move Left"), !isApart(index) && neighbour(index, -1) >= 0, [this, index] { shift(index, -1); });
    add(tr("Move Right"), !isApart(index) && neighbour(index, 1) >= 0, [this, index] { shift(index, 1); });
    add(tr("Back into the Tabs"), isApart(index), [this, index] { rejoin(index); });
    menu->popup(global);
}

} // namespace kvscope::ui

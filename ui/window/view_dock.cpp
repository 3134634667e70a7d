#include "ui/window/view_dock.h"

#include "ui/frame/home_window.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/icons.h"
#include "ui/look/theme.h"

#include <QCloseEvent>
#include <QContextMenuEvent>
#include <QGuiApplication>
#include <QHBoxLayout>
#include <QLabel>
#include <QPainter>
#include <QScrollArea>
#include <QStyle>
#include <QTimer>
#include <QToolButton>

#include <algorithm>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr int kDragMs = 50; // between two looks at whether a drag has ended
} // namespace

/// The title bar of a docked or floating view. It looks like the chosen one of the tabs.
class ViewTitle final : public QWidget {
public:
    ViewTitle(const QString& title, int height)
        : label_(new QLabel(title)), place_(makeButton()), close_(makeButton()), height_(height) {
        close_->setText(QStringLiteral("×"));
        close_->setObjectName(QStringLiteral("closeView"));
        close_->setToolTip(QObject::tr("Back into the tabs"));
        close_->setAccessibleName(QObject::tr("%1 back into the tabs").arg(title));
        place_->setObjectName(QStringLiteral("placeView"));
        auto* row = new QHBoxLayout(this);
        row->setContentsMargins(kPadding, 0, 5, 0);
        row->setSpacing(2);
        row->addWidget(label_, 1);
        row->addWidget(place_);
        row->addWidget(close_);
        setInFront(false);
    }
    // QDockWidget takes the height from the size hint.
    QSize sizeHint() const override { return {QWidget::sizeHint().width(), height_}; }
    QSize minimumSizeHint() const override { return {QWidget::minimumSizeHint().width(), height_}; }
    QToolButton& place() { return *place_; }
    QToolButton& close() { return *close_; }
    bool isInFront() const { return inFront_; }
    void setInFront(bool inFront) {
        inFront_ = inFront;
        label_->setProperty("role", inFront ? QVariant() : QStringLiteral("muted"));
        label_->style()->unpolish(label_); // only this makes the style sheet look at the property again
        label_->style()->polish(label_);
        update();
    }

protected:
    void paintEvent(QPaintEvent*) override {
        const Theme& theme = Theme::current();
        QPainter painter(this);
        painter.fillRect(rect(), theme.window);
        const int words = std::min(label_->fontMetrics().horizontalAdvance(label_->text()), label_->width());
        painter.fillRect(QRect(0, height() - 2, words + 2 * kPadding, 2), inFront_ ? theme.accent : theme.border);
    }

private:
    static constexpr int kPadding = 14; // px; that of a tab

    static QToolButton* makeButton() {
        auto* button = new QToolButton;
        button->setAutoRaise(true);
        button->setFocusPolicy(Qt::NoFocus); // the View menu and its shortcuts do the same
        button->setStyleSheet(QStringLiteral("padding: 0px 5px;"));
        return button;
    }

    QLabel* label_;
    QToolButton *place_, *close_;
    int height_; // px
    bool inFront_ = false;
};

ViewDock::ViewDock(const QString& title, int titleHeight, QWidget* parent)
    : QDockWidget(title, parent), title_(title), bar_(new ViewTitle(title, titleHeight)), page_(makePageScroll()) {
    setFeatures(DockWidgetMovable | DockWidgetClosable | DockWidgetFloatable);
    setAttribute(Qt::WA_ShowWithoutActivating);
    setTitleBarWidget(bar_);
    setWidget(page_);
    connect(&bar_->close(), &QToolButton::clicked, this, &QWidget::close);
    connect(&bar_->place(), &QToolButton::clicked, this, [this] { emit placeRequested(!isFloating()); });
    connect(this, &QDockWidget::visibilityChanged, this, &ViewDock::followVisibility);
    connect(this, &QDockWidget::dockLocationChanged, this, &ViewDock::moved);
    connect(this, &QDockWidget::topLevelChanged, this, &ViewDock::showPlace);
    connect(homeOf(*parent), &QWidget::windowTitleChanged, this, &ViewDock::showPlace);
    showPlace();
}

void ViewDock::setInFront(bool inFront) { bar_->setInFront(inFront); }

void ViewDock::updateIcons() {
    bar_->place().setIcon(makeIcon(isFloating() ? Icon::Beside : Icon::Float, Theme::current()));
    bar_->update();
}

/// Names the window and the button by whether the view floats.
void ViewDock::showPlace() {
    const bool floating = isFloating();
    setWindowTitle(floating ? tr("%1 – %2").arg(title_, homeOf(*this)->windowTitle()) : title_);
    bar_->place().setToolTip(floating ? tr("Into the main window, beside the tabs") : tr("Into a window of its own"));
    bar_->place().setAccessibleName((floating ? tr("%1 beside the tabs") : tr("%1 into a window")).arg(title_));
    updateIcons();
    emit moved();
}

void ViewDock::followVisibility(bool visible) {
    // QDockWidget calls a window invisible that lies at negative coordinates, as on a screen at the left.
    const bool shown = isFloating() ? isVisible() : visible;
    // The view and not the page is hidden, because a dock whose content is hidden shrinks.
    const bool behind = !shown && isVisible();
    if (QWidget* view = page_->widget(); view && view->isHidden() != behind) view->setHidden(behind);
    if (shown && isFloating() && windowType() != Qt::Window) // later: QDockWidget is in the middle of the change
        QMetaObject::invokeMethod(
            this, [this, inFront = bar_->isInFront()] { becomeWindow(inFront); }, Qt::QueuedConnection);
    if (std::exchange(shown_, shown) != shown) emit shownChanged(shown);
}

/// Gives a floating view the frame of the system. QDockWidget makes it a tool window without one, which cannot be
/// maximised and always lies above the main window. While the user drags the view it must stay as it is, because a new
/// window would end the drag. It gets the keyboard if the view is in front, and not when it comes back at a start.
void ViewDock::becomeWindow(bool inFront) {
    if (!isFloating() || !isVisible() || windowType() == Qt::Window) return;
    if (QGuiApplication::mouseButtons() != Qt::NoButton) {
        QTimer::singleShot(kDragMs, this, [this, inFront] { becomeWindow(inFront); });
        return;
    }
    QRect place = geometry();
    if (leastWindow_.isValid()) place.setSize(place.size().expandedTo(leastWindow_));
    setWindowFlags(Qt::Window);
    setGeometry(place);
    show();
    (inFront ? static_cast<QWidget*>(this) : homeOf(*this))->activateWindow();
}

bool ViewDock::event(QEvent* event) {
    if (event->type() == QEvent::MouseButtonPress) emit pressed();
    const bool handled = QDockWidget::event(event);
    if ((event->type() == QEvent::Move || event->type() == QEvent::Resize) && isFloating()) emit moved();
    return handled;
}

void ViewDock::contextMenuEvent(QContextMenuEvent* event) {
    if (!bar_->geometry().contains(event->pos())) return event->ignore();
    emit menuRequested(event->globalPos());
    event->accept();
}

void ViewDock::closeEvent(QCloseEvent* event) {
    QDockWidget::closeEvent(event);
    emit closed();
}

} // namespace kvscope::ui

#include "ui/frame/dialog_size.h"

#include <QGuiApplication>
#include <QScreen>
#include <QScrollArea>
#include <QScrollBar>
#include <QStyle>
#include <QWidget>

namespace kvscope::ui {

namespace {
constexpr QSize kTitleBar(0, 40); // px, of which the height is not known before the dialog is shown
} // namespace

QSize sizeInRoom(QSize wanted, QSize room) { return wanted.boundedTo(room - kTitleBar); }

void resizeOnScreen(QWidget& dialog, QSize wanted) {
    const bool hasScreen = QGuiApplication::platformName() != QLatin1String("offscreen");
    const QScreen* screen = hasScreen ? (dialog.parentWidget() ? dialog.parentWidget() : &dialog)->screen() : nullptr;
    dialog.resize(screen != nullptr ? sizeInRoom(wanted, screen->availableGeometry().size()) : wanted);
}

QScrollArea* makeColumnScroll(QWidget* column) {
    auto* scroll = new QScrollArea;
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    scroll->setWidgetResizable(true);
    scroll->setWidget(column);
    scroll->setMinimumWidth(column->minimumSizeHint().width() + scroll->verticalScrollBar()->sizeHint().width());
    scroll->setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Expanding);
    return scroll;
}

} // namespace kvscope::ui

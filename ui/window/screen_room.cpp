#include "ui/window/screen_room.h"

#include <QGuiApplication>
#include <QScreen>
#include <QWidget>

#include <algorithm>

namespace kvscope::ui {

namespace {

constexpr int kFrame = 40; // px, height of a title bar, which is not known before the window is shown

const QScreen* screenOf(const QWidget& window) {
    return QGuiApplication::platformName() == QLatin1String("offscreen") ? nullptr : window.screen();
}

} // namespace

QSize roomFor(const QWidget& window) {
    const QScreen* screen = screenOf(window);
    return screen ? screen->availableGeometry().size() - QSize(0, kFrame) : QSize(QWIDGETSIZE_MAX, QWIDGETSIZE_MAX);
}

QSize roomFrom(const QWidget& window, QPoint corner) {
    const QScreen* screen = screenOf(window);
    if (!screen) return {QWIDGETSIZE_MAX, QWIDGETSIZE_MAX};
    const QPoint left = screen->availableGeometry().bottomRight() - corner;
    return QSize(left.x(), left.y() - kFrame).expandedTo(window.minimumSizeHint());
}

void moveOntoScreen(QWidget& window) {
    const QScreen* screen = screenOf(window);
    if (!screen) return;
    const QRect room = screen->availableGeometry();
    const auto inside = [](int at, int size, int first, int end) { return std::max(first, std::min(at, end - size)); };
    window.move(inside(window.x(), window.width(), room.left(), room.right() + 1),
                inside(window.y(), window.height(), room.top(), room.bottom() + 1));
}

} // namespace kvscope::ui

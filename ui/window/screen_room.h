// Says how large a window can be on its screen, and moves it onto the screen. With the "offscreen" platform there are
// no limits.
#pragma once

#include <QPoint>
#include <QSize>

class QWidget;

namespace kvscope::ui {

/// The largest size that the window can have on its screen so that its title bar fits too.
QSize roomFor(const QWidget& window);
/// The largest size that the window can have with its upper left corner at `corner`, but at least its least size.
QSize roomFrom(const QWidget& window, QPoint corner);
/// Moves the window by as little as is needed so that all of it is on the screen.
void moveOntoScreen(QWidget& window);

} // namespace kvscope::ui

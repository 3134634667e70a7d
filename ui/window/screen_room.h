// Where a window may be on its screen, and how large. Without a real screen it may be anything.
#pragma once

#include <QPoint>
#include <QSize>

class QWidget;

namespace kvscope::ui {

/// What a window can have of its screen, its frame included.
QSize roomFor(const QWidget& window);
/// What it can have with its upper left corner there.
QSize roomFrom(const QWidget& window, QPoint corner);
/// All of it into sight, by moving it as little as that takes.
void moveOntoScreen(QWidget& window);

} // namespace kvscope::ui

// Fits dialogs to small screens: a screen of 1,080 lines has room for 540 lines of a dialog when it is scaled to 200 %.
#pragma once

#include <QSize>

class QScrollArea;
class QWidget;

namespace kvscope::ui {

/// Gives the dialog the wanted size, or what the screen of its parent has room for.
void resizeOnScreen(QWidget& dialog, QSize wanted);
/// `wanted`, bounded to a screen's room for windows and their title bars.
QSize sizeInRoom(QSize wanted, QSize room);

/// A frameless area in which a column of settings scrolls up and down where the dialog is low; as wide as they are.
QScrollArea* makeColumnScroll(QWidget* column);

} // namespace kvscope::ui

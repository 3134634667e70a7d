// The window with the menus and the panels, for widgets that may stand in a window of their own.
#pragma once

class QWidget;

namespace kvscope::ui {

/// The window to which a widget belongs. A view or a panel that floats belongs to the window that it was taken from;
/// every other widget belongs to QWidget::window.
QWidget* homeOf(const QWidget& widget);

} // namespace kvscope::ui

#include "ui/frame/home_window.h"

#include <QDockWidget>

namespace kvscope::ui {

QWidget* homeOf(const QWidget& widget) {
    QWidget* window = widget.window();
    while (qobject_cast<QDockWidget*>(window) && window->parentWidget()) window = window->parentWidget()->window();
    return window;
}

} // namespace kvscope::ui

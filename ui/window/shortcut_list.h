// Every key and gesture of a window, collected from its actions and widgets, so that the help cannot go stale.
#pragma once

#include <QString>

#include <vector>

class QAction;
class QWidget;

namespace kvscope::ui {

struct ShortcutText {
    QString group, action, keys;
    bool operator==(const ShortcutText&) const = default;
};

/// The heading an action stands under in the help. Without one: the view it belongs to, or "Window".
void setShortcutGroup(QAction* action, const QString& group);

/// All actions and shortcuts of the window and what is in it, by group in the order they were made, then the gestures
/// of plots, token strip and run list.
std::vector<ShortcutText> shortcutsOf(const QWidget& window);

/// "Ctrl+Y", or "Ctrl+Y or Ctrl+Shift+Z".
QString keysOf(const QAction& action);

} // namespace kvscope::ui

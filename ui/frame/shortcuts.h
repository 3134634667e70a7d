// The shortcuts and gestures that the user can use, as the help lists them.
#pragma once

#include <QString>

class QAction;
class QObject;

namespace kvscope::ui {

struct ShortcutText {
    QString group, action, keys;
    bool operator==(const ShortcutText&) const = default;
};

/// Sets the heading under which the help lists an action. An action without a heading is listed under the view that it
/// belongs to, or under "Window".
void setShortcutGroup(QAction* action, const QString& group);
QString shortcutGroupOf(const QObject& object);

/// The keys of an action as text: "Ctrl+Y", or "Ctrl+Y or Ctrl+Shift+Z".
QString keysOf(const QAction& action);

} // namespace kvscope::ui

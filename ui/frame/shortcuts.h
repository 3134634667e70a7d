// What a person can press, as the help lists it.
#pragma once

#include <QString>

class QAction;
class QObject;

namespace kvscope::ui {

struct ShortcutText {
    QString group, action, keys;
    bool operator==(const ShortcutText&) const = default;
};

/// The heading an action stands under in the help. Without one: the view it belongs to, or "Window".
void setShortcutGroup(QAction* action, const QString& group);
QString shortcutGroupOf(const QObject& object);

/// "Ctrl+Y", or "Ctrl+Y or Ctrl+Shift+Z".
QString keysOf(const QAction& action);

} // namespace kvscope::ui

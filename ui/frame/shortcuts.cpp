#include "ui/frame/shortcuts.h"

#include "ui/frame/view.h"

#include <QAction>
#include <QCoreApplication>

namespace kvscope::ui {

namespace {
constexpr char kGroup[] = "shortcutGroup";
} // namespace

QString shortcutGroupOf(const QObject& object) {
    if (const QVariant group = object.property(kGroup); group.isValid()) return group.toString();
    for (const QObject* above = object.parent(); above; above = above->parent())
        if (const auto* view = qobject_cast<const View*>(above); view && !view->accessibleName().isEmpty())
            return view->accessibleName();
    return QCoreApplication::translate("ShortcutList", "Window");
}

void setShortcutGroup(QAction* action, const QString& group) { action->setProperty(kGroup, group); }

QString keysOf(const QAction& action) {
    QStringList keys;
    for (const QKeySequence& key : action.shortcuts())
        if (!key.isEmpty()) keys << key.toString(QKeySequence::NativeText);
    return keys.join(QCoreApplication::translate("ShortcutList", " or "));
}

} // namespace kvscope::ui

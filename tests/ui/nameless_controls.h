// Finds controls of a window or dialog that have no name, so that a screen reader could only call them "button" or
// "edit".
#pragma once

#include <QAbstractButton>
#include <QAbstractSpinBox>
#include <QAccessible>
#include <QComboBox>
#include <QLabel>
#include <QPushButton>
#include <QWidget>

namespace kvscope::ui {

/// @return class, object name and parent of each. `checked` counts the controls that were asked for their name.
inline QStringList namelessControls(const QWidget& whole, int& checked) {
    QStringList nameless;
    for (QWidget* widget : whole.findChildren<QWidget*>()) {
        if (widget->focusPolicy() == Qt::NoFocus && !qobject_cast<QAbstractButton*>(widget)) continue;
        if (widget->isHidden()) continue; // e.g. a message
        if (const auto* label = qobject_cast<const QLabel*>(widget); label && label->text().isEmpty()) continue;
        if (const auto* button = qobject_cast<const QPushButton*>(widget); button && button->text().isEmpty())
            continue; // it comes into sight with its text
        if (widget->inherits("QScrollArea") || widget->inherits("QTabBar") || widget->inherits("QMenu")) continue;
        // Parts of a control that has a name itself.
        const QWidget* above = widget->parentWidget();
        if (qobject_cast<const QAbstractSpinBox*>(above) || qobject_cast<const QComboBox*>(above) ||
            widget->inherits("QComboBoxListView") || widget->inherits("QMainWindow") ||
            widget->objectName() == "qt_scrollarea_viewport" || widget->objectName() == "qt_toolbar_ext_button" ||
            (above && above->inherits("QTabBar")) || widget->inherits("QHeaderView") ||
            widget->inherits("QTableCornerButton"))
            continue;
        ++checked;
        const QAccessibleInterface* reader = QAccessible::queryAccessibleInterface(widget);
        const QString name = reader ? reader->text(QAccessible::Name).trimmed() : QString();
        if (name.isEmpty() || name == QStringLiteral("×") || name == QStringLiteral("…") ||
            name == QStringLiteral("..."))
            nameless << QStringLiteral("%1 '%2' in %3")
                            .arg(QLatin1String(widget->metaObject()->className()), widget->objectName(),
                                 QLatin1String(above ? above->metaObject()->className() : "nothing"));
    }
    return nameless;
}

} // namespace kvscope::ui

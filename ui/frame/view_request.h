// How one view sends a person to another without knowing it: by its id, through the window that shows both.
#pragma once

#include <QString>

#include <functional>

class QMenu;
class QWidget;

namespace kvscope::ui {

/// Brings the view with this id to the front and, if it has a picker of metrics and `metric` is one of them, chooses
/// it.
/// @return false where there is no such view, e.g. while a picture is rendered
bool requestView(const QWidget& from, const QString& id, const QString& metric = {});

/// Adds a submenu "Show this place in" with the window's views of a run, without the one of that title; `before` runs
/// first, to move the shared cursor. Adds nothing where there is no view.
void addShowIn(QMenu& menu, QWidget& from, const QString& exceptTitle, std::function<void()> before);

} // namespace kvscope::ui
